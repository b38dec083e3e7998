/* ROUGE-L in both forms: 500 pairs of texts against the packages that define them (tests/golden/make_rouge.py), and
 * cases worked out by hand. */
#include "eval/metric_rouge.h"

#include "host/base/file.h"
#include "host/base/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PAIRS KVE_SOURCE_DIR "/tests/golden/rouge/pairs.jsonl"

static double score(kve_rouge_fn rouge, const char *answer, const char *reference)
{
    double x = -1;
    if (rouge(answer, reference, &x) != KVE_OK)
        fail_msg("%s", kve_diag());
    return x;
}

static void is(double x, double want)
{
    if (!(fabs(x - want) <= 1e-12))
        fail_msg("%.15g instead of %.15g", x, want);
}

static void check_pair(const cJSON *row, const char *name, size_t *n_words)
{
    const char *answer, *reference;
    double plain, longbench;
    assert_int_equal(kve_json_str(row, "prediction", name, &answer), KVE_OK);
    assert_int_equal(kve_json_str(row, "reference", name, &reference), KVE_OK);
    assert_int_equal(kve_json_num(row, "rouge_l", name, &plain), KVE_OK);
    assert_int_equal(kve_json_num(row, "rouge_l_longbench", name, &longbench), KVE_OK);
    double a = score(kve_rouge_l, answer, reference), b = score(kve_rouge_l_longbench, answer, reference);
    if (!(fabs(a - plain) <= 1e-6) || !(fabs(b - longbench) <= 1e-6))
        fail_msg("%s: rouge_l %.9g instead of %.9g, rouge_l_longbench %.9g instead of %.9g", name, a, plain, b,
                 longbench);
    *n_words += plain > 0 && plain < 1;
}

static void against_packages(void **state)
{
    (void)state;
    char *text = NULL, name[32];
    size_t len = 0, n = 0, partial = 0;
    assert_int_equal(kve_file_read(PAIRS, &text, &len), KVE_OK);
    for (const char *line = text; *line; n++) {
        size_t size = strcspn(line, "\n");
        cJSON *row = NULL;
        snprintf(name, sizeof name, "pair %zu", n + 1);
        assert_int_equal(kve_json_parse(line, size, name, &row), KVE_OK);
        check_pair(row, name, &partial);
        cJSON_Delete(row);
        line += size + (line[size] == '\n');
    }
    free(text);
    assert_int_equal(n, 500);
    assert_true(partial > 100);
}

static void by_hand(void **state)
{
    (void)state;
    /* 3 of 4 words in order; 3 of 6 */
    is(score(kve_rouge_l, "The cat sat down", "the cat, on a mat, sat"), 2 * .75 * .5 / 1.25);
    is(score(kve_rouge_l, "a b c", "c b a"), 1.0 / 3);
    /* Sets: {a, b} of the answer, {a, b, c} of the reference; case counts. */
    is(score(kve_rouge_l_longbench, "a b a b", "a b c"), 2 * (2. / 3) / (1 + 2. / 3 + 1e-8));
    is(score(kve_rouge_l_longbench, "A b", "a b"), 2 * .25 / (1 + 1e-8));
    /* A word that only another sentence has in order still counts: the union is over all pairs of sentences. */
    is(score(kve_rouge_l_longbench, "b. a", "a b"), 2 / (2 + 1e-8));
    is(score(kve_rouge_l_longbench, "b a", "a b"), 2 * .25 / (1 + 1e-8));
}

static void best_reference(void **state)
{
    (void)state;
    const char *const refs[] = {"x y", "a b", "a z"};
    double x = -1;
    assert_int_equal(kve_rouge_best(kve_rouge_l, "a b", refs, 3, &x), KVE_OK);
    is(x, 1);
    assert_int_equal(kve_rouge_best(kve_rouge_l, "a b", refs, 1, &x), KVE_OK);
    is(x, 0);
}

static void no_memory(void **state)
{
    (void)state;
    static const kve_rouge_fn both[] = {kve_rouge_l, kve_rouge_l_longbench};
    for (size_t i = 0; i < 2; i++) {
        kve_status st = KVE_ERR_MEMORY;
        double x;
        for (long n = 1; st != KVE_OK && n < 100; n++) {
            kve_alloc_fail_after(n);
            st = both[i]("a b. c d", "c d. a b", &x);
            kve_alloc_fail_after(0);
            assert_true(st == KVE_OK || st == KVE_ERR_MEMORY);
        }
        assert_int_equal(st, KVE_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_packages),
        cmocka_unit_test(by_hand),
        cmocka_unit_test(best_reference),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
