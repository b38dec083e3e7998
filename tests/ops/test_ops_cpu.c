/* The op table on the CPU backend: every instruction set of this machine, one and two threads. */
#include "tests/ops/optable.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The number of rows that failed. */
static int32_t run(const char *isa, int32_t threads)
{
    kve_backend *be = NULL;
    assert_int_equal(setenv("KVEVAL_ISA", isa, 1), 0);
    if (kve_cpu_open(&(kve_backend_options){.threads = threads}, &be) != KVE_OK) {
        assert_non_null(strstr(isa, "avx")); /* portable must be there */
        printf("skipped: %s\n", kve_diag());
        return 0;
    }
    int32_t failed = op_table_run(be);
    be->vt->close(be);
    return failed;
}

static void test_isa(void **state)
{
    const char *isa = *state;
    assert_int_equal(run(isa, 1) + run(isa, 2), 0);
}

static void test_unknown_isa(void **state)
{
    kve_backend *be = NULL;
    (void)state;
    assert_int_equal(setenv("KVEVAL_ISA", "sse9", 1), 0);
    assert_int_equal(kve_cpu_open(&(kve_backend_options){.threads = 1}, &be), KVE_ERR_USAGE);
    assert_non_null(strstr(kve_diag(), "sse9"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_isa),
        cmocka_unit_test_prestate(test_isa, "portable"),
        cmocka_unit_test_prestate(test_isa, "avx2"),
        cmocka_unit_test_prestate(test_isa, "avx512"),
        cmocka_unit_test_prestate(test_isa, "avx512bf16"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
