/* The ops' bytes and flops: pairs of query and row counted one by one, and figures worked out by hand. */
#include "kernels/cost.h"
#include "kernels/kvp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void same(kve_cost got, double bytes, double flops)
{
    assert_true(got.bytes == bytes);
    assert_true(got.flops == flops);
}

/* Flops per pair: two products of 2 D, and the softmax's three. */
static void test_attention(void **state)
{
    (void)state;
    for (int32_t T = 0; T < 6; T++)
        for (int32_t start = 0; start < 5; start++) {
            double pairs = 0;
            for (int32_t t = 0; t < T; t++)
                for (int32_t j = 0; j <= start + t; j++)
                    pairs++;
            double rows = T ? start + T : 0;
            kve_attention_prefill_params p = {.T = T, .start = start, .Hq = 6, .Hkv = 2, .D = 16, .kv_dtype = KVE_BF16};
            same(kve_cost_attention_prefill(&p), 2.0 * T * 6 * 16 * 4 + 2 * rows * 2 * 16 * 2,
                 6 * pairs * (4 * 16 + 3));
            kve_attention_fork_params f = {.T = T, .X = T, .Hq = 6, .Hkv = 2, .D = 16, .kv_dtype = KVE_BF16};
            same(kve_cost_attention_fork(&f, rows, pairs), 2.0 * T * 6 * 16 * 4 + 2 * rows * 2 * 16 * 2,
                 6 * pairs * (4 * 16 + 3));
        }
}

static void test_scores(void **state)
{
    (void)state;
    for (int32_t W = 1; W <= 5; W++) {
        const int32_t n = 9;
        double causal = 0, future = 0;
        for (int32_t w = 0; w < W; w++) {
            causal += n - W + w + 1;
            future += n + w + 1;
        }
        kve_attention_window_params a = {.n = n, .W = W, .Hq = 4, .Hkv = 2, .D = 8, .kv_dtype = KVE_F32};
        same(kve_cost_attention_window(&a), 4.0 * (n * 2 * 8 + W * 4 * 8 + 4 * n), 4 * causal * (2 * 8 + 5));
        kve_future_importance_params f = {.n = n, .f = W, .Hq = 4, .Hkv = 2, .D = 8, .kv_dtype = KVE_F32};
        same(kve_cost_future_importance(&f), 4.0 * ((n + W) * 2 * 8 + W * 4 * 8 + 2 * n),
             4 * future * (2 * 8 + 4) + 2 * W * n);
    }
    kve_pool_group_params p = {.n = 10, .n_valid = 6, .Hq = 4, .Hkv = 2, .width = 5};
    same(kve_cost_pool_group(&p), 4 * (4 * 6 + 2 * 10), 4 * 6 * 5);
    kve_row_stat_params r = {.stat = KVE_STAT_NEG_NORM, .n = 10, .Hkv = 2, .D = 8, .kv_dtype = KVE_BF16};
    same(kve_cost_row_stat(&r), 10 * 2 * (8 * 2 + 4), 2 * 160);
    r.stat = KVE_STAT_NEG_COSINE;
    same(kve_cost_row_stat(&r), 10 * 2 * (8 * 2 + 4), 6 * 160);
    r.stat = KVE_STAT_LAG; /* values too */
    same(kve_cost_row_stat(&r), 10 * 2 * (2 * 8 * 2 + 4), 12 * 160);
}

static void test_dense(void **state)
{
    (void)state;
    kve_matmul_params m = {.T = 3};
    same(kve_cost_matmul(&m, 5, 7, KVE_BF16), 5 * 7 * 2 + (3 * 7 + 3 * 5) * 4, 3 * 5 * 14);
    m.accumulate = true; /* y is read as well */
    same(kve_cost_matmul(&m, 5, 7, KVE_F32), 5 * 7 * 4 + (3 * 7 + 2 * 3 * 5) * 4, 3 * 5 * 15);
    m.bias = (const float[]){0};
    same(kve_cost_matmul(&m, 5, 7, KVE_F32), 5 * 7 * 4 + (3 * 7 + 2 * 3 * 5 + 5) * 4, 3 * 5 * 16);
    same(kve_cost_embed(&(kve_embed_params){.T = 3, .E = 8}, KVE_BF16), 3 * 8 * 6 + 12, 0);
    same(kve_cost_rmsnorm(&(kve_rmsnorm_params){.T = 3, .E = 8}), (2 * 24 + 8) * 4, 4 * 24);
    same(kve_cost_glu(&(kve_glu_params){.T = 3, .F = 8}), 3 * 24 * 4, 4 * 24);
    same(kve_cost_nll(&(kve_nll_params){.T = 3, .V = 8}), 24 * 4 + 3 * 8, 3 * 24);
    same(kve_cost_argmax(&(kve_argmax_params){.T = 3, .V = 8}), 24 * 4 + 3 * 4, 0);
    same(kve_cost_advance(&(kve_advance_params){.T = 3, .log_cap = 8}), 3 * 10 * 4 + 8, 9);
    /* 4 query heads and 2 + 2 others of 8, of which 4 dimensions turn: 3 flops each */
    kve_rope_append_params r = {.T = 3, .Hq = 4, .Hkv = 2, .D = 8, .R = 4, .kv_dtype = KVE_BF16};
    double in = 3 * 8 * 8, q = 3 * 4 * 8, kv = 3 * 4 * 8, tables = 3 * 4;
    same(kve_cost_rope_append(&r), (in + q + tables) * 4 + kv * 2 + 3 * 12, 3 * 6 * 4 * 3);
    r.k_norm = (const float[]){0};
    assert_true(kve_cost_rope_append(&r).flops == 3 * 6 * 4 * 3 + 4 * 3 * 2 * 8);
}

/* The floors of the project's goals: Qwen2.5-7B on a device that copies 4.3 TB/s and multiplies at 790 TFLOP/s. */
static void test_goals(void **state)
{
    const double bytes_per_us = 4.3e6, flops_per_us = 790e6;
    (void)state;
    kve_gather_params g = {.n_layers = 28, .count = 512, .Hkv = 4, .D = 128, .kv_dtype = KVE_BF16};
    double us = kve_cost_gather(&g).bytes / bytes_per_us;
    assert_true(us > 13.5 && us < 14.5);
    kve_rank_params k = {.rows = 112, .n = 131072, .n_out = 512};
    us = kve_cost_rank(&k).bytes / bytes_per_us;
    assert_true(us > 13.5 && us < 14.0);
    kve_kvp_score_params p = {.n = 4096,
                              .Hkv = 4,
                              .D = 128,
                              .H = 256,
                              .P = 32,
                              .n_layers = 28,
                              .n_tables = 1,
                              .n_positions = 4096,
                              .inputs = KVE_KVP_K | KVE_KVP_V | KVE_KVP_POS,
                              .kv_dtype = KVE_BF16};
    double per_row = kve_cost_kvp_score(&p).flops / (28.0 * 4 * 4096);
    assert_true(per_row > 0.53e6 && per_row < 0.56e6);
    us = kve_cost_kvp_score(&p).flops / flops_per_us;
    assert_true(us > 300 && us < 330);
    p.H = 64;
    us = kve_cost_kvp_score(&p).bytes / bytes_per_us;
    assert_true(us > 54 && us < 60);
    double whole = kve_cost_kvp_score(&p).bytes;
    p.inputs = KVE_KVP_K;
    assert_true(whole - kve_cost_kvp_score(&p).bytes == 28.0 * 4 * 4096 * 128 * 2 + 4096 * 32 * 4);
}

static void test_compact(void **state)
{
    (void)state;
    /* of 20 rows 12 stay (read and written) and 8 become NaN (written); their numbers and two lengths are read */
    kve_compact_params p = {.n = 10, .Hkv = 2, .D = 8, .kv_dtype = KVE_BF16};
    same(kve_cost_compact(&p, 12), 2 * (2 * 12 + 8) * 8 * 2 + (12 + 2) * 4, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention), cmocka_unit_test(test_scores),  cmocka_unit_test(test_dense),
        cmocka_unit_test(test_goals),     cmocka_unit_test(test_compact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
