/* Lost future attention against a plain oracle: its definition, written out in the most naive way. */
#include "eval/reward.h"

#include "host/base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_N = 64, MANY_BUDGETS = 600 };

/* The share of I that the ranks behind b carry. Ranks count from 1 here, as in the paper. */
static double oracle_lost(const float *importance, const int32_t *order, int32_t n, int32_t b)
{
    double lost = 0, total = 0;
    for (int32_t rank = 1; rank <= n; rank++) {
        total += (double)importance[order[rank - 1]];
        if (rank > b)
            lost += (double)importance[order[rank - 1]];
    }
    return total > 0 ? lost / total : 0;
}

static double oracle_sum(const float *importance, const int32_t *order, int32_t n)
{
    double sum = 0;
    for (int32_t b = 1; b < n; b++)
        sum += oracle_lost(importance, order, n, b);
    return sum;
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * (1 + fabs(want))))
        fail_msg("%.17g instead of %.17g", got, want);
}

static void identity(int32_t *order, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        order[i] = i;
}

/* Descending, ties by position: selection sort, no code shared with the ranking kernels. */
static void sort_order(const float *importance, int32_t *order, int32_t n)
{
    identity(order, n);
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = i + 1; j < n; j++) {
            float a = importance[order[i]], b = importance[order[j]];
            if (b > a || (b == a && order[j] < order[i])) {
                int32_t swap = order[i];
                order[i] = order[j];
                order[j] = swap;
            }
        }
}

static int32_t random_head(kve_rng *r, float *importance, int32_t *order)
{
    int32_t n = 1 + (int32_t)kve_rng_below(r, MAX_N);
    uint64_t levels = 1 + kve_rng_below(r, 6); /* few levels: many ties, zeros among them */
    for (int32_t i = 0; i < n; i++)
        importance[i] = (float)kve_rng_below(r, levels) * (kve_rng_below(r, 2) ? 1.0f : kve_rng_float(r));
    identity(order, n);
    kve_rng_shuffle(r, order, (size_t)n);
    return n;
}

static void test_by_hand(void **state)
{
    (void)state;
    const float importance[] = {1, 4, 2, 3};
    const int32_t order[] = {1, 3, 2, 0}, budgets[] = {1, 2, 3, 4, 1000000};
    const double want[] = {0.6, 0.3, 0.1, 0, 0};
    double lost[5], sum = -1;
    kve_reward_head(&(kve_head_reward){importance, order, 4}, budgets, 5, lost, &sum);
    for (int i = 0; i < 5; i++)
        near(lost[i], want[i]);
    assert_true(lost[3] == 0 && lost[4] == 0); /* exactly */
    near(sum, 1.0);
}

static void test_against_oracle(void **state)
{
    (void)state;
    kve_rng r;
    kve_rng_init(&r, 11, 0, 0, 0);
    for (int trial = 0; trial < 400; trial++) {
        float importance[MAX_N];
        int32_t order[MAX_N], budgets[20];
        double lost[20], sum = -1;
        int32_t n = random_head(&r, importance, order);
        for (int i = 0; i < 20; i++) /* unsorted, repeated, and beyond n */
            budgets[i] = 1 + (int32_t)kve_rng_below(&r, (uint64_t)n + 4);
        kve_reward_head(&(kve_head_reward){importance, order, n}, budgets, 20, lost, &sum);
        for (int i = 0; i < 20; i++) {
            near(lost[i], oracle_lost(importance, order, n, budgets[i]));
            assert_true(lost[i] >= 0 && lost[i] <= 1);
            if (budgets[i] >= n)
                assert_true(lost[i] == 0);
        }
        near(sum, oracle_sum(importance, order, n));
    }
}

/* No order loses less than the sort by importance, at any budget and in sum; nor does a larger budget lose more. */
static void test_sort_is_best(void **state)
{
    (void)state;
    kve_rng r;
    kve_rng_init(&r, 12, 0, 0, 0);
    for (int trial = 0; trial < 400; trial++) {
        float importance[MAX_N];
        int32_t order[MAX_N], best[MAX_N], budgets[MAX_N];
        double lost[MAX_N], least[MAX_N], sum = -1, least_sum = -1;
        int32_t n = random_head(&r, importance, order);
        sort_order(importance, best, n);
        for (int32_t b = 1; b <= n; b++)
            budgets[b - 1] = b;
        kve_reward_head(&(kve_head_reward){importance, order, n}, budgets, (size_t)n, lost, &sum);
        kve_reward_head(&(kve_head_reward){importance, best, n}, budgets, (size_t)n, least, &least_sum);
        for (int32_t i = 0; i < n; i++) {
            assert_true(lost[i] >= least[i] - 1e-12);
            if (i > 0)
                assert_true(lost[i] <= lost[i - 1] && least[i] <= least[i - 1]);
        }
        assert_true(sum >= least_sum - 1e-12);
    }
}

/* Tokens of equal importance may stand in any order among themselves. */
static void test_ties(void **state)
{
    (void)state;
    const float importance[] = {0.5f, 2, 0.5f, 2, 0.5f, 0};
    const int32_t one[] = {1, 3, 0, 2, 4, 5}, other[] = {3, 1, 4, 0, 2, 5}, budgets[] = {1, 2, 3, 4, 5};
    double a[5], b[5], sum_a = -1, sum_b = -2;
    kve_reward_head(&(kve_head_reward){importance, one, 6}, budgets, 5, a, &sum_a);
    kve_reward_head(&(kve_head_reward){importance, other, 6}, budgets, 5, b, &sum_b);
    assert_memory_equal(a, b, sizeof a);
    assert_true(sum_a == sum_b);
}

static void test_edges(void **state)
{
    (void)state;
    const float zeros[] = {0, 0, 0}, one[] = {7}, bad[] = {1, NAN, 1}, tiny[] = {1e-42f, 1e-42f, 1e-42f};
    const int32_t order[] = {2, 0, 1}, budgets[] = {1, 2, 3};
    double lost[3] = {-1, -1, -1}, sum = -1;
    kve_reward_head(&(kve_head_reward){zeros, order, 3}, budgets, 3, lost, &sum);
    assert_true(lost[0] == 0 && lost[1] == 0 && lost[2] == 0 && sum == 0); /* nothing there, nothing lost */
    sum = -1;
    kve_reward_head(&(kve_head_reward){one, (const int32_t[]){0}, 1}, budgets, 1, lost, &sum);
    assert_true(lost[0] == 0 && sum == 0);
    kve_reward_head(&(kve_head_reward){bad, order, 3}, budgets, 2, lost, &sum);
    assert_true(isnan(lost[0]) && isnan(lost[1]) && isnan(sum));
    kve_reward_head(&(kve_head_reward){tiny, order, 3}, budgets, 3, lost, &sum); /* subnormal floats */
    near(lost[0], 2.0 / 3);
    near(sum, 1.0);
    sum = -1;
    kve_reward_head(&(kve_head_reward){one, (const int32_t[]){0}, 1}, NULL, 0, NULL, &sum);
    assert_true(sum == 0);
}

/* A heavy first rank must not swallow the small ones behind it: sums run from the last rank backwards. */
static void test_cancellation(void **state)
{
    (void)state;
    enum { N = 100000 };
    float *importance = malloc(N * sizeof *importance);
    int32_t *order = malloc(N * sizeof *order), budget = 1;
    double lost = -1, sum = -1;
    assert_true(importance && order);
    identity(order, N);
    for (int i = 0; i < N; i++)
        importance[i] = i ? 0x1p-40f : 0x1p40f;
    kve_reward_head(&(kve_head_reward){importance, order, N}, &budget, 1, &lost, &sum);
    double tail = (N - 1) * 0x1p-40;
    assert_true(fabs(lost / (tail / (0x1p40 + tail)) - 1) < 1e-12);
    free(importance);
    free(order);
}

static void test_all_heads(void **state)
{
    (void)state;
    enum { HEADS = 3, N = 40 };
    kve_rng r;
    kve_rng_init(&r, 13, 0, 0, 0);
    float importance[HEADS * N];
    int32_t order[HEADS * N], lengths[MANY_BUDGETS * HEADS];
    double *lost = calloc((size_t)MANY_BUDGETS * HEADS, sizeof *lost), sums[HEADS] = {-1, -1, -1}, alone[HEADS];
    assert_non_null(lost);
    for (int h = 0; h < HEADS; h++) {
        identity(order + h * N, N);
        kve_rng_shuffle(&r, order + h * N, N);
        for (int i = 0; i < N; i++)
            importance[h * N + i] = kve_rng_float(&r);
    }
    for (int i = 0; i < MANY_BUDGETS * HEADS; i++) /* more than fit one pass */
        lengths[i] = (int32_t)kve_rng_below(&r, N + 5);
    kve_reward_all(importance, order, HEADS, N, lengths, MANY_BUDGETS, lost, sums);
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < MANY_BUDGETS; i++)
            near(lost[i * HEADS + h], oracle_lost(importance + h * N, order + h * N, N, lengths[i * HEADS + h]));
        near(sums[h], oracle_sum(importance + h * N, order + h * N, N));
        alone[h] = -1;
    }
    kve_reward_all(importance, order, HEADS, N, NULL, 0, NULL, alone); /* the sums need no budgets */
    assert_memory_equal(alone, sums, sizeof sums);
    free(lost);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),   cmocka_unit_test(test_against_oracle), cmocka_unit_test(test_sort_is_best),
        cmocka_unit_test(test_ties),      cmocka_unit_test(test_edges),          cmocka_unit_test(test_cancellation),
        cmocka_unit_test(test_all_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
