/* Rankings, rewards and gradients of the trainer against enumeration, differences and eval/reward.h. */
#include "eval/reward.h"
#include "policies/kvp/objective.h"
#include "tests/kvp/fixture.h"

#include <math.h>

static void random_scores(uint64_t key, int32_t m, double most, float *out)
{
    kve_rng rng;
    kve_rng_init(&rng, 3, key, 0, 0);
    for (int32_t i = 0; i < m; i++)
        out[i] = (float)uniform(&rng, most);
}

static void test_sort(void **state)
{
    (void)state;
    enum { M = 3001 };
    static float scores[M];
    static int32_t order[M];
    kvp_rank_work w;
    must(kvp_rank_work_create(M, 2, &w));
    random_scores(1, M, 5, scores);
    for (int32_t i = 0; i < M; i += 3)
        scores[i] = roundf(scores[i]); /* many are equal */
    scores[7] = -0.0f;
    scores[8] = 0.0f;
    scores[9] = -INFINITY;
    scores[10] = INFINITY;
    kvp_sort(scores, M, &w, order);
    for (int32_t r = 1; r < M; r++) {
        float before = scores[order[r - 1]], after = scores[order[r]];
        assert_true(before > after || (before == after && order[r - 1] < order[r]));
    }
    assert_int_equal(order[0], 10);
    assert_int_equal(order[M - 1], 9);
    kvp_rank_work_free(&w);
}

/* R / R(oracle) as the evaluation measures it, protected tokens included. */
static void test_ratio_is_the_evaluations(void **state)
{
    (void)state;
    enum { N = 150, SINK = 4, RECENT = 16, M = N - SINK - RECENT };
    float importance[N], scores[M];
    int32_t order[M], whole[N];
    double sum, best, chance = 0;
    kvp_rank_work w;
    must(kvp_rank_work_create(M, 2, &w));
    for (uint64_t key = 0; key < 5; key++) {
        random_scores(10 + key, N, 1, importance);
        random_scores(20 + key, M, 1, scores);
        for (int32_t i = 0; i < N; i++)
            importance[i] *= importance[i];
        kvp_target t = kvp_target_make(importance, N, SINK, RECENT, &w);
        kvp_sort(scores, M, &w, order);
        for (int32_t r = 0; r < N; r++)
            whole[r] = r < SINK ? r : r < SINK + RECENT ? N - 1 - (r - SINK) : SINK + order[r - SINK - RECENT];
        kve_reward_head(&(kve_head_reward){importance, whole, N}, NULL, 0, NULL, &sum);
        for (int32_t r = SINK + RECENT; r < N; r++)
            whole[r] = SINK + t.order[r - SINK - RECENT];
        kve_reward_head(&(kve_head_reward){importance, whole, N}, NULL, 0, NULL, &best);
        assert_true(fabs(kvp_ratio(&t, order) - sum / best) < 1e-9);
        assert_true(kvp_ratio(&t, order) > 1.1 && fabs(kvp_ratio(&t, t.order) - 1) < 1e-12);
        for (int draw = 0; draw < 2000; draw++) {
            kve_rng rng;
            float flat[M] = {0};
            kve_rng_init(&rng, 4, key, (uint64_t)draw, 0);
            kvp_draw(flat, M, &rng, &w, order);
            chance += kvp_ratio(&t, order) / 2000;
        }
        assert_true(fabs(chance - kvp_ratio_of_chance(&t)) < 0.02);
        chance = 0;
    }
    kvp_rank_work_free(&w);
}

static void test_nothing_to_lose(void **state)
{
    (void)state;
    enum { N = 30 };
    float importance[N] = {5}, scores[N], grad[N];
    kve_rng rng;
    kvp_rank_work w;
    must(kvp_rank_work_create(N, 4, &w));
    random_scores(1, N, 1, scores);
    kve_rng_init(&rng, 1, 0, 0, 0);
    kvp_target t = kvp_target_make(importance, N, 4, 16, &w);
    assert_true(kvp_ratio(&t, t.order) == 1 && kvp_ratio_of_chance(&t) == 1);
    kvp_objective_gradient(KVP_RL, &t, scores, &rng, &w, grad);
    for (int32_t i = 0; i < t.m; i++)
        assert_true(grad[i] == 0);
    kvp_rank_work_free(&w);
}

/* --- Plackett-Luce by enumeration */

enum { MOST = 6, MOST_ORDERS = 720 };

typedef struct all_orders {
    int32_t m, n;
    int32_t order[MOST_ORDERS][MOST];
} all_orders;

static void enumerate(all_orders *a, int32_t *order, int32_t done)
{
    if (done == a->m) {
        memcpy(a->order[a->n++], order, (size_t)a->m * sizeof *order);
        return;
    }
    for (int32_t i = done; i < a->m; i++) {
        int32_t was = order[done];
        order[done] = order[i];
        order[i] = was;
        enumerate(a, order, done + 1);
        order[i] = order[done];
        order[done] = was;
    }
}

static void make_orders(all_orders *a, int32_t m)
{
    int32_t order[MOST] = {0, 1, 2, 3, 4, 5};
    *a = (all_orders){.m = m};
    enumerate(a, order, 0);
}

/* By the definition, in double: one factor after the other. */
static double probability(const int32_t *order, int32_t m, const double *scores)
{
    double p = 1;
    for (int32_t r = 0; r < m; r++) {
        double sum = 0;
        for (int32_t t = r; t < m; t++)
            sum += exp(scores[order[t]]);
        p *= exp(scores[order[r]]) / sum;
    }
    return p;
}

static double expected_reward(const all_orders *a, const double *scores, const double *reward)
{
    double sum = 0;
    for (int32_t k = 0; k < a->n; k++)
        sum += probability(a->order[k], a->m, scores) * reward[k];
    return sum;
}

/* The gradient of the expected reward: REINFORCE summed over all orders, against differences of the expectation. */
static void reinforce(int32_t m, double most)
{
    static all_orders a;
    double reward[MOST_ORDERS], scores[MOST], want;
    float f32[MOST], grad[MOST] = {0};
    kve_rng rng;
    kvp_rank_work w;
    must(kvp_rank_work_create(MOST, 2, &w));
    make_orders(&a, m);
    kve_rng_init(&rng, 7, (uint64_t)m, 0, 0);
    for (int32_t k = 0; k < a.n; k++)
        reward[k] = uniform(&rng, 1);
    random_scores((uint64_t)m, m, most, f32);
    for (int32_t i = 0; i < m; i++)
        scores[i] = (double)f32[i];
    kvp_weigh(f32, m, &w);
    for (int32_t k = 0; k < a.n; k++)
        kvp_log_pi_gradient(a.order[k], m, probability(a.order[k], m, scores) * reward[k], &w, grad);
    for (int32_t i = 0; i < m; i++) {
        const double h = 1e-5, was = scores[i];
        scores[i] = was + h;
        want = expected_reward(&a, scores, reward);
        scores[i] = was - h;
        want = (want - expected_reward(&a, scores, reward)) / (2 * h);
        scores[i] = was;
        if (fabs(want - (double)grad[i]) > 2e-6)
            fail_msg("m %d, score %d: %.9g, by enumeration %.9g", m, i, (double)grad[i], want);
    }
    kvp_rank_work_free(&w);
}

static void test_reinforce_by_enumeration(void **state)
{
    (void)state;
    for (int32_t m = 2; m <= MOST; m++) {
        reinforce(m, 1);
        reinforce(m, 6);
    }
}

static void test_log_pi_gradient(void **state)
{
    (void)state;
    static all_orders a;
    double scores[MOST], want;
    float f32[MOST];
    kvp_rank_work w;
    must(kvp_rank_work_create(MOST, 2, &w));
    make_orders(&a, 5);
    random_scores(1, 5, 2, f32);
    for (int32_t i = 0; i < 5; i++)
        scores[i] = (double)f32[i];
    kvp_weigh(f32, 5, &w);
    for (int32_t k = 0; k < a.n; k++) {
        float grad[MOST] = {0};
        kvp_log_pi_gradient(a.order[k], 5, 1, &w, grad);
        for (int32_t i = 0; i < 5; i++) {
            const double h = 1e-5, was = scores[i];
            scores[i] = was + h;
            want = log(probability(a.order[k], 5, scores));
            scores[i] = was - h;
            want = (want - log(probability(a.order[k], 5, scores))) / (2 * h);
            scores[i] = was;
            assert_true(fabs(want - (double)grad[i]) < 2e-6);
        }
    }
    kvp_rank_work_free(&w);
}

/* Scores so far apart that e^score underflows still give numbers. */
static void test_far_scores(void **state)
{
    (void)state;
    float scores[4] = {1000, -1000, 0, 999}, grad[4] = {0};
    int32_t order[4] = {1, 2, 3, 0};
    kvp_rank_work w;
    must(kvp_rank_work_create(4, 2, &w));
    kvp_weigh(scores, 4, &w);
    kvp_log_pi_gradient(order, 4, 1, &w, grad);
    for (int i = 0; i < 4; i++)
        assert_true(isfinite(grad[i]));
    assert_true(grad[1] > 0.99f && grad[0] < -1);
    kvp_rank_work_free(&w);
}

static void test_draws_are_plackett_luce(void **state)
{
    (void)state;
    enum { M = 4, DRAWS = 24000 };
    static all_orders a;
    float f32[M] = {0.3f, -0.8f, 1.1f, 0.0f};
    double scores[M], chi = 0;
    int32_t counts[24] = {0}, order[M];
    kve_rng rng;
    kvp_rank_work w;
    must(kvp_rank_work_create(M, 2, &w));
    make_orders(&a, M);
    kve_rng_init(&rng, 8, 0, 0, 0);
    for (int i = 0; i < M; i++)
        scores[i] = (double)f32[i];
    for (int d = 0; d < DRAWS; d++) {
        kvp_draw(f32, M, &rng, &w, order);
        for (int k = 0; k < 24; k++)
            counts[k] += memcmp(order, a.order[k], sizeof order) == 0;
    }
    for (int k = 0; k < 24; k++) {
        double want = DRAWS * probability(a.order[k], M, scores);
        chi += (counts[k] - want) * (counts[k] - want) / want;
    }
    assert_true(chi < 50); /* 23 degrees of freedom: 1 in 1,000 lies above 49.7 */
    kvp_rank_work_free(&w);
}

static void test_advantages(void **state)
{
    (void)state;
    double r[4] = {1, 2, 4, 9}, same[3] = {0.1, 0.1, 0.1}, square = 0, sum = 0;
    /* less the mean of the others: 1 - 5, 2 - 14/3, 4 - 4, 9 - 7/3 */
    const double left[4] = {-4, -8.0 / 3, 0, 20.0 / 3};
    for (int k = 0; k < 4; k++)
        square += left[k] * left[k] / 4;
    kvp_advantages(r, 4);
    for (int k = 0; k < 4; k++) {
        assert_true(fabs(r[k] - left[k] / sqrt(square)) < 1e-12);
        sum += r[k];
    }
    assert_true(fabs(sum) < 1e-12);
    kvp_advantages(same, 3);
    assert_true(same[0] == 0 && same[1] == 0 && same[2] == 0);
}

/* --- The whole objectives */

/* rl with two draws: the better of the two counts +1, the other -1. Its mean over many streams is what all pairs of
 * orders give, each with its probability. */
static void test_rl_in_the_mean(void **state)
{
    (void)state;
    enum { M = 4, RUNS = 40000 };
    static all_orders a;
    float importance[M] = {0.2f, 1.5f, 0.7f, 0.1f}, f32[M] = {0.5f, -0.5f, 0.2f, 0.0f}, grad[M];
    double scores[M], want[M] = {0}, mean[M] = {0};
    kvp_rank_work w;
    must(kvp_rank_work_create(M, 2, &w));
    make_orders(&a, M);
    for (int i = 0; i < M; i++)
        scores[i] = (double)f32[i];
    kvp_target t = kvp_target_make(importance, M, 0, 0, &w);
    kvp_weigh(f32, M, &w);
    for (int32_t x = 0; x < a.n; x++)
        for (int32_t y = 0; y < a.n; y++) {
            double better = kvp_ratio(&t, a.order[y]) - kvp_ratio(&t, a.order[x]);
            double sign = fabs(better) < 1e-12 ? 0 : better > 0 ? 1 : -1;
            double p = probability(a.order[x], M, scores) * probability(a.order[y], M, scores);
            float one[M] = {0};
            kvp_log_pi_gradient(a.order[x], M, -sign / (2.0 * M), &w, one);
            kvp_log_pi_gradient(a.order[y], M, sign / (2.0 * M), &w, one);
            for (int i = 0; i < M; i++)
                want[i] += p * (double)one[i];
        }
    for (uint64_t run = 0; run < RUNS; run++) {
        kve_rng rng;
        kve_rng_init(&rng, 9, run, 0, 0);
        kvp_objective_gradient(KVP_RL, &t, f32, &rng, &w, grad);
        for (int i = 0; i < M; i++)
            mean[i] += (double)grad[i] / RUNS;
    }
    for (int i = 0; i < M; i++)
        if (fabs(mean[i] - want[i]) > 0.004)
            fail_msg("score %d: %.5f in the mean, %.5f by enumeration", i, mean[i], want[i]);
    assert_true(want[1] < -0.02 && want[0] > 0.02); /* the most important one goes up, as it is to be minimised */
    kvp_rank_work_free(&w);
}

static double regression_loss(const float *importance, const double *scores, int32_t m)
{
    double sum = 0, mean = 0;
    for (int32_t i = 0; i < m; i++)
        mean += (double)importance[i] / m;
    for (int32_t i = 0; i < m; i++)
        sum += pow(scores[i] - log((double)importance[i] / mean + 1e-4), 2) / m;
    return sum;
}

static void test_regression(void **state)
{
    (void)state;
    enum { M = 6 };
    float importance[M] = {0.2f, 1.5f, 0.0f, 3, 0.1f, 0.4f}, f32[M], grad[M];
    double scores[M];
    kve_rng rng;
    kvp_rank_work w;
    must(kvp_rank_work_create(M, 2, &w));
    kve_rng_init(&rng, 1, 0, 0, 0);
    random_scores(2, M, 1, f32);
    for (int i = 0; i < M; i++)
        scores[i] = (double)f32[i];
    kvp_target t = kvp_target_make(importance, M, 0, 0, &w);
    kvp_objective_gradient(KVP_REGRESSION, &t, f32, &rng, &w, grad);
    for (int i = 0; i < M; i++) {
        const double h = 1e-5, was = scores[i];
        scores[i] = was + h;
        double want = regression_loss(importance, scores, M);
        scores[i] = was - h;
        want = (want - regression_loss(importance, scores, M)) / (2 * h);
        scores[i] = was;
        assert_true(fabs(want - (double)grad[i]) < 1e-6);
    }
    kvp_rank_work_free(&w);
}

/* Averaged over the draws of b: (probability - share of the b = 1 .. m - 1 that the token is among the best of) / m. */
static void test_topb(void **state)
{
    (void)state;
    enum { M = 5, RUNS = 20000 };
    const float importance[M] = {3, 0.5f, 9, 0.1f, 1};
    const int32_t rank[M] = {1, 3, 0, 4, 2};
    float f32[M], grad[M];
    double mean[M] = {0};
    kvp_rank_work w;
    must(kvp_rank_work_create(M, 2, &w));
    random_scores(3, M, 2, f32);
    kvp_target t = kvp_target_make(importance, M, 0, 0, &w);
    for (uint64_t run = 0; run < RUNS; run++) {
        kve_rng rng;
        kve_rng_init(&rng, 11, run, 0, 0);
        kvp_objective_gradient(KVP_TOPB, &t, f32, &rng, &w, grad);
        for (int i = 0; i < M; i++)
            mean[i] += (double)grad[i] / RUNS;
    }
    for (int i = 0; i < M; i++) {
        double share = (M - 1 - rank[i]) / (double)(M - 1);
        double want = (1 / (1 + exp(-(double)f32[i])) - share) / M;
        assert_true(fabs(mean[i] - want) < 0.003);
    }
    kvp_rank_work_free(&w);
}

static void test_names(void **state)
{
    (void)state;
    kvp_objective o = KVP_RL;
    must(kvp_objective_parse("topb", &o));
    assert_string_equal(kvp_objective_name(o), "topb");
    must_fail(kvp_objective_parse("reinforce", &o), KVE_ERR_USAGE, "rl, regression or topb");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sort),
        cmocka_unit_test(test_ratio_is_the_evaluations),
        cmocka_unit_test(test_nothing_to_lose),
        cmocka_unit_test(test_reinforce_by_enumeration),
        cmocka_unit_test(test_log_pi_gradient),
        cmocka_unit_test(test_far_scores),
        cmocka_unit_test(test_draws_are_plackett_luce),
        cmocka_unit_test(test_advantages),
        cmocka_unit_test(test_rl_in_the_mean),
        cmocka_unit_test(test_regression),
        cmocka_unit_test(test_topb),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
