/* AdamW, clipping, EMA, the learning rate and the first weights, against the formulas in double. */
#include "policies/kvp/state.h"
#include "tests/kvp/fixture.h"

#include <math.h>

static const kve_kvp_shape g_shape = {16, 32, 32};
enum { HEADS = 4, HKV = 2 };

static void test_rate(void **state)
{
    (void)state;
    const double lr = 5e-5, pi = 3.141592653589793;
    assert_true(fabs(kvp_rate(lr, 0, 4000) - lr / 100) < 1e-15);
    assert_true(fabs(kvp_rate(lr, 50, 4000) - lr * 0.505) < 1e-15);
    assert_true(fabs(kvp_rate(lr, 100, 4000) - lr) < 1e-15);
    assert_true(fabs(kvp_rate(lr, 2050, 4000) - (lr + 1e-6) / 2) < 1e-15);
    assert_true(fabs(kvp_rate(lr, 1075, 4000) - (1e-6 + (lr - 1e-6) * (1 + cos(pi / 4)) / 2)) < 1e-15);
    assert_true(kvp_rate(lr, 3999, 4000) > 1e-6 && kvp_rate(lr, 3999, 4000) < 1.01e-6);
    assert_true(fabs(kvp_rate(1e-7, 3999, 4000) - 1e-7) < 1e-20); /* it never rises */
}

/* Head 1 of 4 for 120 steps with gradients of both sides of the clip; the others do not move. */
static void follows_the_formulas(const kvp_math *math)
{
    kvp_state s;
    must(kvp_state_create(g_shape, HEADS, &s));
    const size_t n = s.count;
    double *w = NULL, *m = NULL, *v = NULL, *ema = NULL, norm;
    float *grad = NULL, *before = NULL;
    kve_rng rng;
    must(kve_alloc(n, sizeof *w, &w));
    must(kve_alloc(n, sizeof *m, &m));
    must(kve_alloc(n, sizeof *v, &v));
    must(kve_alloc(n, sizeof *ema, &ema));
    must(kve_alloc(n, sizeof *grad, &grad));
    must(kve_alloc(HEADS * n, sizeof *before, &before));
    kvp_state_init(&s, g_shape, 3, HKV);
    memcpy(before, s.array[KVP_WEIGHTS], HEADS * n * sizeof *before);
    kve_rng_init(&rng, 5, 0, 0, 0);
    for (size_t i = 0; i < n; i++)
        w[i] = (double)kvp_state_at(&s, KVP_WEIGHTS, 1)[i];
    for (s.step = 0; s.step < 120; s.step++) {
        double rate = 0.01 / (1 + s.step), length = 0, t = s.step + 1;
        for (size_t i = 0; i < n; i++) {
            grad[i] = (float)uniform(&rng, s.step % 2 ? 1 : 0.01);
            length += (double)grad[i] * (double)grad[i];
        }
        length = sqrt(length);
        assert_true((length > 5) == (s.step % 2 == 1));
        must(kvp_state_update(&s, math, 1, grad, rate, &norm));
        assert_true(fabs(norm / length - 1) < 1e-9);
        for (size_t i = 0; i < n; i++) {
            double g = (double)grad[i] * (length > 5 ? 5 / length : 1);
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.999 * v[i] + 0.001 * g * g;
            w[i] -= rate * 1e-3 * w[i];
            w[i] -= rate * (m[i] / (1 - pow(0.9, t))) / (sqrt(v[i] / (1 - pow(0.999, t))) + 1e-8);
            ema[i] = t > 100 ? 0.99 * ema[i] + 0.01 * w[i] : w[i];
        }
    }
    for (size_t i = 0; i < n; i++) {
        assert_true(fabs((double)kvp_state_at(&s, KVP_WEIGHTS, 1)[i] - w[i]) < 1e-5);
        assert_true(fabs((double)kvp_state_at(&s, KVP_EMA, 1)[i] - ema[i]) < 1e-5);
    }
    for (int32_t h = 0; h < HEADS; h++)
        assert_true((memcmp(before + (size_t)h * n, kvp_state_at(&s, KVP_WEIGHTS, h), n * sizeof *before) == 0) ==
                    (h != 1));
    free(w);
    free(m);
    free(v);
    free(ema);
    free(grad);
    free(before);
    kvp_state_free(&s);
}

static void test_update(void **state)
{
    (void)state;
    follows_the_formulas(&kvp_math_portable);
    follows_the_formulas(kvp_math_pick());
}

/* The EMA lags: a jump of the weights at step 101 shows in it with a hundredth. */
static void test_ema_begins_at_100(void **state)
{
    (void)state;
    kvp_state s;
    double norm;
    float *grad = NULL;
    must(kvp_state_create(g_shape, HEADS, &s));
    must(kve_alloc(s.count, sizeof *grad, &grad));
    kvp_state_init(&s, g_shape, 3, HKV);
    for (s.step = 99; s.step <= 100; s.step++) {
        float *w = kvp_state_at(&s, KVP_WEIGHTS, 0), *ema = kvp_state_at(&s, KVP_EMA, 0);
        w[5] += 1;
        float was = ema[5];
        must(kvp_state_update(&s, &kvp_math_portable, 0, grad, 0, &norm));
        float want = s.step == 99 ? w[5] : 0.99f * was + 0.01f * w[5];
        assert_true(fabsf(ema[5] - want) < 1e-6f);
    }
    free(grad);
    kvp_state_free(&s);
}

static void test_gradient_that_is_no_number(void **state)
{
    (void)state;
    kvp_state s;
    double norm;
    float *grad = NULL;
    must(kvp_state_create(g_shape, HEADS, &s));
    must(kve_alloc(s.count, sizeof *grad, &grad));
    grad[17] = NAN;
    must_fail(kvp_state_update(&s, kvp_math_pick(), 2, grad, 0.1, &norm), KVE_ERR_USAGE, "head 2 diverged");
    assert_true(kvp_state_at(&s, KVP_WEIGHTS, 2)[17] == 0); /* untouched */
    free(grad);
    kvp_state_free(&s);
}

static void test_first_weights(void **state)
{
    (void)state;
    kvp_state s;
    must(kvp_state_create(g_shape, HEADS, &s));
    kvp_state_init(&s, g_shape, 3, HKV);
    for (int32_t h = 0; h < HEADS; h++) {
        const float *w = kvp_state_at(&s, KVP_WEIGHTS, h);
        const struct {
            kve_kvp_tensor t;
            int32_t inputs;
        } linear[] = {{KVE_KVP_K_WEIGHT, 16},    {KVE_KVP_V_BIAS, 16},    {KVE_KVP_MIX_WEIGHT, 96},
                      {KVE_KVP_DEEP_WEIGHT, 32}, {KVE_KVP_DEEP_BIAS, 32}, {KVE_KVP_OUT_WEIGHT, 32}};
        for (size_t k = 0; k < COUNT(linear); k++) {
            double most = 0, bound = 1 / sqrt(linear[k].inputs);
            for (size_t i = kve_kvp_offset(g_shape, linear[k].t); i < kve_kvp_offset(g_shape, linear[k].t + 1); i++)
                most = fmax(most, fabs((double)w[i]));
            assert_true(most <= bound * 1.000001 && most > 0.7 * bound);
        }
        for (size_t i = 0; i < 32; i++) {
            assert_true(w[kve_kvp_offset(g_shape, KVE_KVP_POS_GAIN) + i] == 1);
            assert_true(w[kve_kvp_offset(g_shape, KVE_KVP_DEEP_SHIFT) + i] == 0);
        }
        assert_true(h == 0 || memcmp(w, kvp_state_at(&s, KVP_WEIGHTS, h - 1), s.count * sizeof *w) != 0);
        assert_memory_equal(w, kvp_state_at(&s, KVP_EMA, h), s.count * sizeof *w);
    }
    kvp_state_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_update),
        cmocka_unit_test(test_ema_begins_at_100),
        cmocka_unit_test(test_gradient_that_is_no_number),
        cmocka_unit_test(test_first_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
