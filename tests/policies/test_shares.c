/* Who gets how much of a budget: adakv, kvzip and pyramidkv on random rankings against taking the tokens one by one,
 * and the sums, which are exact always. */
#include "host/base/rng.h"
#include "policies/policy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_HEADS = 12, MAX_N = 24, CASES = 4000 };

/* One sample: scores, and rankings whose first `protected` tokens are anybody. */
typedef struct sample {
    kve_shape shape;
    float scores[MAX_HEADS * MAX_N];
    int32_t order[MAX_HEADS * MAX_N];
    kve_allocation a;
} sample;

static double value(float x)
{
    return isnan(x) ? -INFINITY : (double)x;
}

static void shuffle_ranking(kve_rng *r, const float *scores, int32_t n, int32_t protected, int32_t *order)
{
    for (int32_t j = 0; j < n; j++)
        order[j] = j;
    kve_rng_shuffle(r, order, (size_t)n);
    for (int32_t i = protected; i < n; i++) /* the rest by score, earlier tokens first among equals */
        for (int32_t k = i + 1; k < n; k++) {
            double a = value(scores[order[i]]), b = value(scores[order[k]]);
            if (b > a || (b == a && order[k] < order[i])) {
                int32_t t = order[i];
                order[i] = order[k];
                order[k] = t;
            }
        }
}

static float some_score(kve_rng *r, bool rough)
{
    switch (kve_rng_below(r, rough ? 12 : 100)) {
    case 0:
        return INFINITY;
    case 1:
        return NAN;
    case 2:
        return -0.0f;
    case 3:
        return 0;
    case 4:
        return -INFINITY;
    default: /* rough: many equal ones */
        return rough ? (float)kve_rng_below(r, 4) - 1.0f : kve_rng_float(r) - 0.3f;
    }
}

static void make_sample(kve_rng *r, sample *s)
{
    s->shape = (kve_shape){.L = 1 + (int32_t)kve_rng_below(r, 4), .Hkv = 1 + (int32_t)kve_rng_below(r, 3)};
    int32_t n = 2 + (int32_t)kve_rng_below(r, MAX_N - 1), heads = s->shape.L * s->shape.Hkv;
    bool rough = kve_rng_below(r, 2) == 0;
    s->a = (kve_allocation){.shape = &s->shape,
                            .scores = s->scores,
                            .order = s->order,
                            .n = n,
                            .budget = 1 + (int32_t)kve_rng_below(r, (uint64_t)n - 1),
                            .protected = (int32_t)kve_rng_below(r, (uint64_t)n + 1)};
    for (int32_t h = 0; h < heads; h++) {
        float lift = 0.4f * (float)kve_rng_below(r, 4); /* heads of unlike scores */
        for (int32_t j = 0; j < n; j++)
            s->scores[h * n + j] = rough ? some_score(r, true) : some_score(r, false) + lift;
        shuffle_ranking(r, s->scores + h * n, n, s->a.protected, s->order + h * n);
    }
}

/* Of heads first .. first + heads - 1: a base each, then one token after the other to the head whose next has the
 * highest score, the lower head among equals. */
static void take_one_by_one(const sample *s, int32_t first, int32_t heads, int32_t base, int32_t *lengths)
{
    int32_t n = s->a.n;
    for (int32_t h = 0; h < heads; h++)
        lengths[h] = base;
    for (int32_t left = heads * (s->a.budget - base); left > 0; left--) {
        int32_t best = -1;
        double highest = 0;
        for (int32_t h = 0; h < heads; h++) {
            size_t row = (size_t)(first + h) * (size_t)n;
            if (lengths[h] == n)
                continue;
            double x = value(s->scores[row + (size_t)s->order[row + (size_t)lengths[h]]]);
            if (best < 0 || x > highest) {
                best = h;
                highest = x;
            }
        }
        lengths[best]++;
    }
}

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static void check_sums(const int32_t *lengths, int32_t heads, int32_t n, int32_t budget)
{
    int32_t sum = 0;
    for (int32_t h = 0; h < heads; h++) {
        assert_in_range(lengths[h], 1, n);
        sum += lengths[h];
    }
    assert_int_equal(sum, heads * budget);
}

static void test_adakv_takes_the_best_of_a_layer(void **state)
{
    (void)state;
    kve_rng r;
    sample s;
    int32_t n_unequal = 0;
    kve_rng_init(&r, 1, 0, 0, 0);
    for (int i = 0; i < CASES; i++) {
        int32_t lengths[MAX_HEADS], want[MAX_HEADS];
        make_sample(&r, &s);
        int32_t Hkv = s.shape.Hkv, b = s.a.budget,
                base = larger(larger(1, (int32_t)floor(0.2 * b)), smaller(s.a.protected, b));
        assert_int_equal(kve_policy_adakv.allocate(&kve_policy_adakv, &s.a, lengths), KVE_OK);
        for (int32_t l = 0; l < s.shape.L; l++) {
            take_one_by_one(&s, l * Hkv, Hkv, base, want + l * Hkv);
            check_sums(lengths + l * Hkv, Hkv, s.a.n, b);
        }
        assert_memory_equal(lengths, want, (size_t)(s.shape.L * Hkv) * sizeof *want);
        n_unequal += lengths[0] != b;
    }
    assert_true(n_unequal > CASES / 10); /* the cases are not trivial */
}

static void test_kvzip_takes_the_best_of_all(void **state)
{
    (void)state;
    kve_rng r;
    sample s;
    int32_t n_unequal = 0;
    kve_rng_init(&r, 2, 0, 0, 0);
    for (int i = 0; i < CASES; i++) {
        int32_t lengths[MAX_HEADS], want[MAX_HEADS], heads, b;
        make_sample(&r, &s);
        heads = s.shape.L * s.shape.Hkv;
        b = s.a.budget;
        assert_int_equal(kve_policy_kvzip.allocate(&kve_policy_kvzip, &s.a, lengths), KVE_OK);
        take_one_by_one(&s, 0, heads, larger(1, smaller(s.a.protected, b)), want);
        check_sums(lengths, heads, s.a.n, b);
        assert_memory_equal(lengths, want, (size_t)heads * sizeof *want);
        n_unequal += lengths[0] != b;
    }
    assert_true(n_unequal > CASES / 10);
}

/* What protects tokens leaves the heads alike where there is room for nothing else. */
static void test_protected_tokens_come_first(void **state)
{
    (void)state;
    enum { HEADS = 3, N = 20 };
    kve_shape shape = {.L = 1, .Hkv = HEADS};
    float scores[HEADS * N];
    int32_t order[HEADS * N], lengths[HEADS];
    for (int32_t i = 0; i < HEADS * N; i++) {
        order[i] = i % N;
        scores[i] = (float)(HEADS * N - i); /* all of head 0 above all of head 1 */
    }
    kve_allocation a = {.shape = &shape, .scores = scores, .order = order, .n = N, .budget = 8, .protected = 8};
    for (int k = 0; k < 2; k++) {
        const kve_policy *p = k ? &kve_policy_kvzip : &kve_policy_adakv;
        a.protected = 8;
        assert_int_equal(p->allocate(p, &a, lengths), KVE_OK);
        for (int h = 0; h < HEADS; h++)
            assert_int_equal(lengths[h], 8);
        a.protected = 5;
        assert_int_equal(p->allocate(p, &a, lengths), KVE_OK);
        assert_int_equal(lengths[0], 14);
        assert_int_equal(lengths[1], 5);
        assert_int_equal(lengths[2], 5);
    }
}

/* Layer l's share before rounding, by kvpress's formula; false where it gives all layers the same instead. */
static bool pyramid_ideal(int32_t L, int32_t n, int32_t b, int32_t l, double *out)
{
    const double window = 64, beta = 20;
    double last = b / beta, first = 2.0 * b - last;
    if (first >= n - window) {
        first = n - window;
        last = 2.0 * b - first;
    }
    *out = first - l * (first - last) / (L - 1);
    return first >= last;
}

static void check_pyramid(int32_t L, int32_t n, int32_t b)
{
    enum { HKV = 2 };
    kve_shape shape = {.L = L, .Hkv = HKV};
    kve_allocation a = {.shape = &shape, .n = n, .budget = b};
    int32_t lengths[64 * HKV], ones = 0;
    assert_int_equal(kve_policy_pyramidkv.allocate(&kve_policy_pyramidkv, &a, lengths), KVE_OK);
    check_sums(lengths, L * HKV, n, b);
    for (int32_t l = 0; l < L; l++)
        ones += lengths[l * HKV] == 1;
    for (int32_t l = 0; l < L; l++) {
        double ideal = b;
        bool falls = L > 1 && pyramid_ideal(L, n, b, l, &ideal);
        assert_int_equal(lengths[l * HKV], lengths[l * HKV + 1]);
        if (!falls)
            assert_int_equal(lengths[l * HKV], b);
        else if (ones == 0) /* else some gave one to a layer that had none */
            assert_true(fabs(lengths[l * HKV] - ideal) < 1);
        assert_true(l == 0 || lengths[l * HKV] <= lengths[(l - 1) * HKV]);
    }
}

static void test_pyramid_adds_up(void **state)
{
    (void)state;
    static const int32_t layers[] = {1, 2, 3, 7, 30, 32, 61};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        for (int32_t n = 2; n < 200; n += 3)
            for (int32_t b = 1; b < n; b++)
                check_pyramid(layers[i], n, b);
        for (int32_t b = 1; b < 4096; b += 13)
            check_pyramid(layers[i], 4096, b);
    }
}

/* By hand: from 195 to 5; and 58.5 and 1.5, of which the lower layer is rounded up. */
static void test_pyramid_by_hand(void **state)
{
    (void)state;
    kve_shape shape = {.L = 3, .Hkv = 1};
    kve_allocation a = {.shape = &shape, .n = 1000, .budget = 100};
    int32_t lengths[3];
    assert_int_equal(kve_policy_pyramidkv.allocate(&kve_policy_pyramidkv, &a, lengths), KVE_OK);
    assert_int_equal(lengths[0], 195);
    assert_int_equal(lengths[1], 100);
    assert_int_equal(lengths[2], 5);
    shape.L = 2;
    a.budget = 30;
    assert_int_equal(kve_policy_pyramidkv.allocate(&kve_policy_pyramidkv, &a, lengths), KVE_OK);
    assert_int_equal(lengths[0], 59);
    assert_int_equal(lengths[1], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adakv_takes_the_best_of_a_layer),
        cmocka_unit_test(test_kvzip_takes_the_best_of_all),
        cmocka_unit_test(test_protected_tokens_come_first),
        cmocka_unit_test(test_pyramid_adds_up),
        cmocka_unit_test(test_pyramid_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
