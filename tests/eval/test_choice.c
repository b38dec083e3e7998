/* Which choice counts as picked: the likeliest, the likeliest per character, and the one that was written; and the
 * plain scores. */
#include "eval/metric_basic.h"
#include "eval/metric_choice.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void likeliest(void **state)
{
    (void)state;
    assert_int_equal(kve_choice_best((const double[]){-3, -1, -2}, 3), 1);
    assert_int_equal(kve_choice_best((const double[]){-1, -1, -2}, 3), 0); /* of equals the first */
    assert_int_equal(kve_choice_best((const double[]){-2, -1, -1}, 3), 1);
    assert_int_equal(kve_choice_best((const double[]){-5}, 1), 0);
}

static void per_character(void **state)
{
    (void)state;
    /* -4 / 2 against -5 / 5: the longer one is likelier per character */
    const char *const texts[] = {" ab", " abcde"};
    assert_int_equal(kve_choice_best((const double[]){-4, -5}, 2), 0);
    assert_int_equal(kve_choice_best_norm((const double[]){-4, -5}, texts, 2), 1);
    /* the space in front is no character of the choice: -2 / 1 against -3.9 / 2, not -2 / 2 against -3.9 / 3 */
    const char *const spaced[] = {" a", " ab"};
    assert_int_equal(kve_choice_best_norm((const double[]){-2, -3.9}, spaced, 2), 1);
    /* characters, not bytes: -2 / 1 against -3.8 / 2 */
    const char *const wide[] = {" \xe6\x97\xa5", " ab"};
    assert_int_equal(kve_choice_best_norm((const double[]){-2, -3.8}, wide, 2), 1);
    assert_int_equal(kve_choice_best_norm((const double[]){-1, -1}, (const char *const[]){" a", " b"}, 2), 0);
}

static void characters(void **state)
{
    (void)state;
    assert_int_equal(kve_count_chars(""), 0);
    assert_int_equal(kve_count_chars("abc"), 3);
    assert_int_equal(kve_count_chars("\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80"), 3);
}

static void written(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"B", "b"},
        {" (B) because it rains", "b"},
        {"Yes.", "yes"},
        {"yes\nno", "yes"},
        {"**A**: a cat", "a"},
        {"42nd", "42nd"},
        {"", ""},
        {" \n..", ""},
        {"\xc3\x89t\xc3\xa9 X", "\xc3\x89t\xc3\xa9"},
        {"The answer is B", "the"},
        {"A cat sat", ""},
        {"A\ncat", "a"},
        {"b.  because", "b"},
        {"A ", "a"},
    };
    kve_str word = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(kve_choice_word(cases[i][0], &word), KVE_OK);
        assert_string_equal(word.p, cases[i][1]);
    }
    kve_str_free(&word);
    assert_true(kve_exact_match("b", "b"));
    assert_false(kve_exact_match("b", "B")); /* what is the same beyond the bytes is normalised before */
    assert_false(kve_exact_match("", "b"));
}

static void perplexity(void **state)
{
    (void)state;
    assert_true(fabs(kve_perplexity(10 * log(7), 10) - 7) < 1e-12); /* of a uniform choice among 7: 7 */
    assert_true(fabs(kve_perplexity(3, 2) - exp(1.5)) < 1e-12);
    assert_true(kve_perplexity(0, 5) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(likeliest), cmocka_unit_test(per_character), cmocka_unit_test(characters),
        cmocka_unit_test(written),   cmocka_unit_test(perplexity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
