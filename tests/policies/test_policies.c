/* Policies against a backend that only records what it was shown: what each may see, their names and classes, and the
 * scores that need no tensor. */
#include "policies/policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct {
    kve_kv kv;
    const float *q;
    int32_t W;
    kve_pool_group_params pool;
} g_seen;

static kve_status fake_write(kve_backend *be, void *dst, const void *src, size_t bytes)
{
    (void)be;
    memcpy(dst, src, bytes);
    return KVE_OK;
}

static kve_status fake_copy(kve_backend *be, void *dst, const void *src, size_t bytes)
{
    return fake_write(be, dst, src, bytes);
}

static kve_status fake_row_stat(kve_backend *be, const kve_row_stat_params *p)
{
    (void)be;
    g_seen.kv = p->kv;
    return KVE_OK;
}

static kve_status fake_window(kve_backend *be, const kve_attention_window_params *p)
{
    (void)be;
    g_seen.kv = p->kv;
    g_seen.q = p->q;
    g_seen.W = p->W;
    return KVE_OK;
}

static kve_status fake_pool(kve_backend *be, const kve_pool_group_params *p)
{
    (void)be;
    g_seen.pool = *p;
    return KVE_OK;
}

static const kve_backend_vt g_vt = {.write = fake_write,
                                    .copy = fake_copy,
                                    .row_stat = fake_row_stat,
                                    .attention_window = fake_window,
                                    .pool_group = fake_pool};
static kve_backend g_be = {&g_vt};

enum { N = 200, HKV = 2, HQ = 6, D = 8, W = 64 };
static const kve_shape g_shape = {.L = 3, .Hq = HQ, .Hkv = HKV, .D = D, .R = D};
static float g_keys[1], g_values[1], g_queries[W * HQ * D], g_future[HKV * N], g_scratch[HQ * N];

static kve_policy_view view(int32_t i_layer)
{
    return (kve_policy_view){.be = &g_be,
                             .shape = &g_shape,
                             .kv = {g_keys, g_values, N},
                             .q_window = g_queries,
                             .future = g_future,
                             .scratch = g_scratch,
                             .scale = 0.5f,
                             .n = N,
                             .W = W,
                             .i_layer = i_layer,
                             .seed = 42,
                             .sample = 7};
}

static void test_classes_follow_from_needs(void **state)
{
    (void)state;
    static const char *const want[][2] = {{"full", "none"},
                                          {"random", "attention-free"},
                                          {"streaming_llm", "attention-free"},
                                          {"knorm", "attention-free"},
                                          {"keydiff", "attention-free"},
                                          {"lagkv", "attention-free"},
                                          {"snapkv", "prefill-attention"},
                                          {"tova", "prefill-attention"},
                                          {"oracle", "future-attention"}};
    assert_int_equal(kve_policy_count(), sizeof want / sizeof *want);
    for (size_t i = 0; i < kve_policy_count(); i++) {
        assert_string_equal(kve_policy_at(i)->name, want[i][0]);
        assert_string_equal(kve_policy_info(kve_policy_at(i)), want[i][1]);
    }
}

static void test_find(void **state)
{
    (void)state;
    const kve_policy *p = NULL;
    assert_int_equal(kve_policy_find("streaming-llm", &p), KVE_OK);
    assert_ptr_equal(p, &kve_policy_streaming_llm);
    assert_int_equal(kve_policy_find("snapvk", &p), KVE_ERR_USAGE);
    assert_non_null(strstr(kve_diag(), "did you mean 'snapkv'"));
}

static kve_policy_view g_probe;

static kve_status probe_score(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    (void)scores;
    g_probe = *v;
    return KVE_OK;
}

static void test_view_is_gated(void **state)
{
    (void)state;
    for (unsigned needs = 0; needs < 16; needs++) {
        kve_policy p = {.name = "probe", .needs = needs, .score = probe_score};
        kve_policy_view v = view(0);
        assert_int_equal(kve_policy_score(&p, &v, NULL), KVE_OK);
        assert_int_equal(g_probe.kv.k != NULL, (needs & KVE_NEED_KEYS) != 0);
        assert_int_equal(g_probe.kv.v != NULL, (needs & KVE_NEED_VALUES) != 0);
        assert_int_equal(g_probe.q_window != NULL, (needs & KVE_NEED_WINDOW) != 0);
        assert_int_equal(g_probe.W != 0, (needs & KVE_NEED_WINDOW) != 0);
        assert_int_equal(g_probe.future != NULL, (needs & KVE_NEED_FUTURE) != 0);
    }
}

static void test_key_policies_see_what_they_need(void **state)
{
    (void)state;
    float scores[HKV * N];
    kve_policy_view v = view(1);
    assert_int_equal(kve_policy_score(&kve_policy_knorm, &v, scores), KVE_OK);
    assert_null(g_seen.kv.v);
    assert_int_equal(kve_policy_score(&kve_policy_lagkv, &v, scores), KVE_OK);
    assert_non_null(g_seen.kv.v);
}

static void test_attention_policies(void **state)
{
    (void)state;
    float scores[HKV * N];
    kve_policy_view v = view(1);
    assert_int_equal(kve_policy_score(&kve_policy_snapkv, &v, scores), KVE_OK);
    assert_int_equal(g_seen.W, 64);
    assert_int_equal(g_seen.pool.n_valid, N - 64);
    assert_int_equal(g_seen.pool.width, 5);
    assert_int_equal(kve_policy_score(&kve_policy_tova, &v, scores), KVE_OK);
    assert_ptr_equal(g_seen.q, g_queries + (W - 1) * HQ * D); /* the last query */
    assert_true(g_seen.pool.all_heads);
    g_future[5] = 3.0f;
    assert_int_equal(kve_policy_score(&kve_policy_oracle, &v, scores), KVE_OK);
    assert_memory_equal(scores, g_future, sizeof g_future);
}

static void test_random_streams_differ_and_repeat(void **state)
{
    (void)state;
    float a[HKV * N], b[HKV * N], again[HKV * N];
    kve_policy_view v0 = view(0), v1 = view(1);
    assert_int_equal(kve_policy_score(&kve_policy_random, &v0, a), KVE_OK);
    assert_int_equal(kve_policy_score(&kve_policy_random, &v1, b), KVE_OK);
    assert_int_equal(kve_policy_score(&kve_policy_random, &v0, again), KVE_OK);
    assert_memory_equal(a, again, sizeof a);
    assert_memory_not_equal(a, b, sizeof a);              /* layers */
    assert_memory_not_equal(a, a + N, N * sizeof(float)); /* heads */
}

static void test_streaming_takes_sinks_then_recent(void **state)
{
    (void)state;
    float a[HKV * N];
    kve_policy_view v = view(0);
    assert_int_equal(kve_policy_score(&kve_policy_streaming_llm, &v, a), KVE_OK);
    for (int j = 1; j < 4; j++)
        assert_true(a[j] < a[j - 1]);
    assert_true(a[3] > a[N - 1]);
    for (int j = 5; j < N; j++)
        assert_true(a[j] > a[j - 1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes_follow_from_needs),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_view_is_gated),
        cmocka_unit_test(test_key_policies_see_what_they_need),
        cmocka_unit_test(test_attention_policies),
        cmocka_unit_test(test_random_streams_differ_and_repeat),
        cmocka_unit_test(test_streaming_takes_sinks_then_recent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
