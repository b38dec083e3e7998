/* RULER's string match against answers worked out by hand. */
#include "eval/metric_ruler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static double score(const char *answer, const char *const *refs, size_t n, bool any)
{
    double x = -1;
    assert_int_equal(kve_metric_ruler(answer, strlen(answer), refs, n, any, &x), KVE_OK);
    return x;
}

static void test_mean_and_maximum(void **state)
{
    (void)state;
    const char *const refs[] = {"alpha", "beta", "gamma", "delta"};
    assert_true(score("It is Alpha, and GAMMA.", refs, 4, false) == 0.5);
    assert_true(score("It is Alpha, and GAMMA.", refs, 4, true) == 1.0);
    assert_true(score("alphabeta gammadelta", refs, 4, false) == 1.0);
    assert_true(score("nothing of the kind", refs, 4, false) == 0.0);
    assert_true(score("nothing of the kind", refs, 4, true) == 0.0);
    assert_true(score("", refs, 4, false) == 0.0);
}

static void test_control_characters_separate(void **state)
{
    (void)state;
    const char *const glued[] = {"12"}, *const parted[] = {"1\n2"};
    assert_true(score("1\0012", glued, 1, false) == 0.0); /* deleting the character would give 1 */
    assert_true(score("1\0012", parted, 1, false) == 1.0);
    kve_str out = {0};
    assert_int_equal(kve_metric_ruler_clean(" \t\x01 a\x1f"
                                            "b\r\n c \n",
                                            12, &out),
                     KVE_OK);
    assert_string_equal(out.p, "a\nb\n\n c");
    assert_int_equal(kve_metric_ruler_clean("a\0b", 3, &out), KVE_OK);
    assert_int_equal(out.len, 3);
    assert_memory_equal(out.p, "a\nb", 3);
    assert_int_equal(kve_metric_ruler_clean(" \n", 2, &out), KVE_OK);
    assert_string_equal(out.p, "");
    kve_str_free(&out);
}

static void test_case_of_other_alphabets(void **state)
{
    (void)state;
    const char *const refs[] = {"\xc3\x89lan", "\xd0\x9c\xd0\xbe\xd1\x81\xd0\xba\xd0\xb2\xd0\xb0",
                                ("\xc5\x81\xc3\xb3"
                                 "d\xc5\xba")};
    assert_true(score("the \xc3\xa9LAN of \xd0\xbc\xd0\x9e\xd0\xa1\xd0\x9a\xd0\x92\xd0\x90 and \xc5\x82\xc3\x93"
                      "D\xc5\xb9",
                      refs, 3, false) == 1.0);
    const char *const sign[] = {"\xc3\x97"}; /* the multiplication sign is no letter */
    assert_true(score("\xc3\xb7", sign, 1, false) == 0.0);
}

static void test_bad_references(void **state)
{
    (void)state;
    double x = 7;
    const char *const refs[] = {"a", ""};
    assert_int_equal(kve_metric_ruler("a", 1, refs, 0, false, &x), KVE_ERR_FILE);
    assert_int_equal(kve_metric_ruler("a", 1, refs, 2, false, &x), KVE_ERR_FILE);
    assert_non_null(strstr(kve_diag(), "reference 2 of 2"));
    assert_true(x == 7);
}

static void test_no_memory(void **state)
{
    (void)state;
    const char *const refs[] = {"a"};
    double x = 0;
    for (long n = 1; n <= 2; n++) {
        kve_alloc_fail_after(n);
        assert_int_equal(kve_metric_ruler("a", 1, refs, 1, false, &x), KVE_ERR_MEMORY);
        kve_alloc_fail_after(0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mean_and_maximum),
        cmocka_unit_test(test_control_characters_separate),
        cmocka_unit_test(test_case_of_other_alphabets),
        cmocka_unit_test(test_bad_references),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
