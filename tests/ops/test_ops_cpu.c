/* The op table on the CPU backend: every instruction set of this machine, one and two threads, both numerics modes. */
#include "tests/ops/optable.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The number of rows that failed. */
static int32_t run(const char *isa, int32_t threads, kve_numerics numerics)
{
    kve_backend *be = NULL;
    char word[32];
    assert_int_equal(setenv("KVEVAL_ISA", isa, 1), 0);
    assert_int_equal(kve_cpu_open(&(kve_backend_options){.threads = threads, .numerics = numerics}, &be), KVE_OK);
    snprintf(word, sizeof word, " %s,", isa);
    if (!strstr(be->vt->describe(be), word)) {
        printf("skipped: this processor has no %s (the backend is \"%s\")\n", isa, be->vt->describe(be));
        be->vt->close(be);
        return 0;
    }
    int32_t failed = op_table_run(be);
    be->vt->close(be);
    return failed;
}

static void test_isa(void **state)
{
    const char *isa = *state;
    int32_t failed = run(isa, 1, KVE_NUMERICS_INVARIANT);
    failed += run(isa, 2, KVE_NUMERICS_INVARIANT);
    failed += run(isa, 2, KVE_NUMERICS_FAST);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_isa, "portable"),
        cmocka_unit_test_prestate(test_isa, "avx2"),
        cmocka_unit_test_prestate(test_isa, "avx512"),
        cmocka_unit_test_prestate(test_isa, "avx512bf16"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
