/* Policies against a backend that only records what it was shown: what each may see, their names and classes, and the
 * scores that need no tensor. */
#include "host/base/rng.h"
#include "policies/geometry.h"
#include "policies/host_columns.h"
#include "policies/host_rows.h"
#include "policies/wrappers.h"

#include <float.h>
#include <math.h>
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

static kve_status fake_read(kve_backend *be, void *dst, const void *src, size_t bytes)
{
    return fake_write(be, dst, src, bytes);
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
                                    .read = fake_read,
                                    .copy = fake_copy,
                                    .row_stat = fake_row_stat,
                                    .attention_window = fake_window,
                                    .pool_group = fake_pool};
static kve_backend g_be = {&g_vt};

enum { N = 200, HKV = 2, HQ = 6, D = 8, W = 64 };
enum { POSITIONS = N + KVE_FUTURE_POSITIONS };
static const kve_shape g_shape = {.L = 3, .Hq = HQ, .Hkv = HKV, .D = D, .R = D};
static float g_keys[3 * HKV * N * D], g_values[3 * HKV * N * D], g_queries[W * HQ * D], g_all_queries[N * HQ * D];
static float g_cos[POSITIONS * D / 2], g_sin[POSITIONS * D / 2];
static float g_future[HKV * N], g_replay[HKV * N], g_scratch[HQ * N];
static char g_output[1]; /* stands for a weight */

static kve_policy_view view(int32_t i_layer)
{
    return (kve_policy_view){.be = &g_be,
                             .shape = &g_shape,
                             .kv = {.k = g_keys, .v = g_values, .cap = N},
                             .q_window = g_queries,
                             .q = g_all_queries,
                             .future = g_future,
                             .replay = g_replay,
                             .cos = g_cos,
                             .sin = g_sin,
                             .output = (const kve_weight *)g_output,
                             .scratch = g_scratch,
                             .scale = 0.5f,
                             .n = N,
                             .W = W,
                             .i_layer = i_layer,
                             .n_question = 20,
                             .budget = 50,
                             .sample_name = "task/7",
                             .seed = 42,
                             .sample = 7};
}

/* Random tensors; the tables have an amplitude of 1.2, as longrope's may. */
static int fill_tensors(void **state)
{
    (void)state;
    struct {
        float *p;
        size_t n;
    } all[] = {{g_keys, sizeof g_keys / 4},
               {g_values, sizeof g_values / 4},
               {g_all_queries, sizeof g_all_queries / 4},
               {g_replay, sizeof g_replay / 4}};
    kve_rng r;
    kve_rng_init(&r, 9, 0, 0, 0);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (size_t k = 0; k < all[i].n; k++)
            all[i].p[k] = kve_rng_float(&r) - 0.5f;
    for (size_t j = 0; j < POSITIONS; j++)
        for (size_t d = 0; d < D / 2; d++) {
            double angle = (double)j * pow(100, -(double)d / (D / 2));
            g_cos[j * (D / 2) + d] = (float)(1.2 * cos(angle));
            g_sin[j * (D / 2) + d] = (float)(1.2 * sin(angle));
        }
    return 0;
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
                                          {"cur", "attention-free"},
                                          {"leverage", "attention-free"},
                                          {"snapkv", "prefill-attention"},
                                          {"tova", "prefill-attention"},
                                          {"h2o", "prefill-attention"},
                                          {"finch", "prefill-attention"},
                                          {"noncausal_attn", "prefill-attention"},
                                          {"compactor", "prefill-attention"},
                                          {"expected_attention", "prefill-attention"},
                                          {"criticalkv", "prefill-attention"},
                                          {"pyramidkv", "prefill-attention"},
                                          {"adakv", "prefill-attention"},
                                          {"kvzip", "second-pass"},
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
    for (unsigned needs = 0; needs < 2 * KVE_NEED_QUESTION; needs++) {
        kve_policy p = {.name = "probe", .needs = needs, .by_budget = needs % 3 == 0, .score = probe_score};
        kve_policy_view v = view(0);
        assert_int_equal(kve_policy_score(&p, &v, NULL), KVE_OK);
        assert_int_equal(g_probe.kv.k != NULL, (needs & KVE_NEED_KEYS) != 0);
        assert_int_equal(g_probe.kv.v != NULL, (needs & KVE_NEED_VALUES) != 0);
        assert_int_equal(g_probe.q_window != NULL, (needs & KVE_NEED_WINDOW) != 0);
        assert_int_equal(g_probe.W != 0, (needs & KVE_NEED_WINDOW) != 0);
        assert_int_equal(g_probe.future != NULL, (needs & KVE_NEED_FUTURE) != 0);
        assert_int_equal(g_probe.q != NULL, (needs & KVE_NEED_QUERIES) != 0);
        assert_int_equal(g_probe.cos != NULL, (needs & KVE_NEED_ROTATION) != 0);
        assert_int_equal(g_probe.sin != NULL, (needs & KVE_NEED_ROTATION) != 0);
        assert_int_equal(g_probe.output != NULL, (needs & KVE_NEED_OUTPUT) != 0);
        assert_int_equal(g_probe.replay != NULL, (needs & KVE_NEED_REPLAY) != 0);
        assert_int_equal(g_probe.n_question != 0, (needs & KVE_NEED_QUESTION) != 0);
        assert_int_equal(g_probe.budget != 0, p.by_budget);
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

static void score_ok(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    assert_int_equal(kve_policy_score(p, v, scores), KVE_OK);
}

static void test_h2o_looks_through_all_queries(void **state)
{
    (void)state;
    float scores[HKV * N];
    kve_policy_view v = view(1);
    for (int i = 0; i < HKV * N; i++)
        scores[i] = 0.5f; /* what the fake ops leave there: means over the queries */
    score_ok(&kve_policy_h2o, &v, scores);
    assert_int_equal(g_seen.W, N);
    assert_ptr_equal(g_seen.q, g_all_queries);
    assert_int_equal(g_seen.pool.width, 1);
    assert_int_equal(g_seen.pool.n_valid, N);
    assert_true(scores[7] == 0.5f * N);
}

static void test_finch_needs_a_question(void **state)
{
    (void)state;
    float scores[HKV * N];
    const int32_t bad[] = {0, N, N + 1};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kve_policy_view v = view(0);
        v.n_question = bad[i];
        assert_int_equal(kve_policy_score(&kve_policy_finch, &v, scores), KVE_ERR_USAGE);
        assert_non_null(strstr(kve_diag(), "task/7"));
        assert_non_null(strstr(kve_diag(), "--question in"));
    }
    kve_policy_view v = view(0);
    score_ok(&kve_policy_finch, &v, scores);
    for (int h = 0; h < HKV; h++)
        for (int j = 0; j < N; j++) {
            assert_true(j < N - 20 ? scores[h * N + j] < N : scores[h * N + j] >= 1e30f);
            assert_true(j <= N - 20 || scores[h * N + j] > scores[h * N + j - 1]); /* the newest on top */
        }
}

/* Definitions that set tokens aside, where nothing else is left. */
static void test_few_tokens_are_equal(void **state)
{
    (void)state;
    float scores[HKV * N];
    const struct {
        const kve_policy *p;
        int32_t n;
    } cases[] = {{&kve_policy_expected_attention, 4},
                 {&kve_policy_expected_attention, 1},
                 {&kve_policy_compactor, 12},
                 {&kve_policy_compactor, 8},
                 {&kve_policy_compactor, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kve_policy_view v = view(0);
        v.n = cases[i].n;
        memset(scores, 0xff, sizeof scores);
        score_ok(cases[i].p, &v, scores);
        for (int32_t j = 0; j < HKV * cases[i].n; j++)
            assert_true(scores[j] == scores[0]);
    }
}

/* Every policy on the host gives numbers at the smallest lengths, and for blocks that are not whole. */
static void test_short_contexts_have_scores(void **state)
{
    (void)state;
    float scores[HKV * N];
    const kve_policy *const policies[] = {&kve_policy_cur, &kve_policy_leverage, &kve_policy_noncausal_attn,
                                          &kve_policy_compactor, &kve_policy_expected_attention};
    const int32_t lengths[] = {1, 2, 5, 13, 17, 33};
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            kve_policy_view v = view(1);
            v.n = lengths[k];
            v.budget = 1;
            memset(scores, 0xff, sizeof scores);
            score_ok(policies[i], &v, scores);
            for (int32_t j = 0; j < HKV * lengths[k]; j++)
                assert_true(isfinite(scores[j]));
        }
}

static uint16_t to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16); /* cut off: what is stored is what counts */
}

/* A bf16 cache scores like an f32 cache of the same numbers. */
static void test_bf16_rows_are_widened(void **state)
{
    (void)state;
    enum { COUNT = 3 * HKV * N * D };
    static uint16_t k[COUNT], v16[COUNT];
    static float k_wide[COUNT], v_wide[COUNT];
    float a[HKV * N], b[HKV * N];
    for (int i = 0; i < COUNT; i++) {
        k[i] = to_bf16(g_keys[i]);
        v16[i] = to_bf16(g_values[i]);
        uint32_t k_bits = (uint32_t)k[i] << 16, v_bits = (uint32_t)v16[i] << 16;
        memcpy(&k_wide[i], &k_bits, sizeof k_bits);
        memcpy(&v_wide[i], &v_bits, sizeof v_bits);
    }
    kve_policy_view narrow = view(2), wide = view(2);
    narrow.kv = (kve_kv){.k = k, .v = v16, .cap = N};
    narrow.kv_dtype = KVE_BF16;
    wide.kv = (kve_kv){.k = k_wide, .v = v_wide, .cap = N};
    score_ok(&kve_policy_compactor, &narrow, a);
    score_ok(&kve_policy_compactor, &wide, b);
    assert_memory_equal(a, b, sizeof a);
}

/* Turning by the tables and back, with an amplitude and over a part of the dimensions. */
static void test_rotation_is_undone(void **state)
{
    (void)state;
    enum { FIRST = 31, COUNT = 9, WIDTH = 16, PART = 6 };
    kve_shape shape = g_shape;
    kve_policy_view v = view(0);
    float rows[COUNT * WIDTH], turned[COUNT * WIDTH];
    v.shape = &shape;
    shape.R = PART;
    for (int i = 0; i < COUNT * WIDTH; i++)
        rows[i] = turned[i] = g_keys[i];
    for (int j = 0; j < COUNT; j++)
        for (int d = 0; d < PART / 2; d++) {
            float c = g_cos[(FIRST + j) * (PART / 2) + d], s = g_sin[(FIRST + j) * (PART / 2) + d];
            float *low = turned + j * WIDTH + d, *high = low + PART / 2, a = *low, b = *high;
            *low = a * c - b * s;
            *high = b * c + a * s;
        }
    kve_host_unrotate(&v, (kve_span){FIRST, COUNT}, turned, WIDTH);
    for (int i = 0; i < COUNT * WIDTH; i++)
        assert_true(fabsf(turned[i] - rows[i]) < 1e-6f);
}

/* Against doubles, with scores up to about 60 apart and keys that not every query sees. */
static void test_column_sums(void **state)
{
    (void)state;
    enum { QUERIES = 37, KEYS = 61, WIDTH = 16, VISIBLE = 30 };
    float sums[KEYS] = {0}, weight[QUERIES];
    double want[KEYS] = {0};
    for (int i = 0; i < QUERIES; i++) {
        double scores[KEYS], top = -INFINITY, total = 0;
        int seen = VISIBLE + i < KEYS ? VISIBLE + i : KEYS;
        weight[i] = (float)(1 + i % 3);
        for (int j = 0; j < seen; j++) {
            scores[j] = 0;
            for (int d = 0; d < WIDTH; d++)
                scores[j] += (double)g_all_queries[i * WIDTH + d] * (double)g_keys[j * WIDTH + d];
            scores[j] *= 32;
            top = fmax(top, scores[j]);
        }
        for (int j = 0; j < seen; j++)
            total += exp(scores[j] - top);
        for (int j = 0; j < seen; j++)
            want[j] += (double)weight[i] * exp(scores[j] - top) / total;
    }
    kve_columns c = {.q = g_all_queries,
                     .k = g_keys,
                     .weight = weight,
                     .sums = sums,
                     .width = WIDTH,
                     .scale = 32,
                     .n_queries = QUERIES,
                     .n_keys = KEYS,
                     .visible = VISIBLE};
    assert_int_equal(kve_column_sums(&c), KVE_OK);
    for (int j = 0; j < KEYS; j++)
        assert_true(fabs((double)sums[j] - want[j]) <= 1e-5 * want[j]);
}

static void test_sketches_differ_and_repeat(void **state)
{
    (void)state;
    enum { PER_HEAD = D * KVE_SKETCH, COUNT = HKV * PER_HEAD };
    static float a[COUNT], b[COUNT], again[COUNT];
    kve_policy_view v0 = view(0), v1 = view(1);
    double sum = 0, squares = 0;
    kve_draw_sketch(&v0, a);
    kve_draw_sketch(&v1, b);
    kve_draw_sketch(&v0, again);
    assert_memory_equal(a, again, sizeof a);
    assert_memory_not_equal(a, b, sizeof a);                  /* layers */
    assert_memory_not_equal(a, a + PER_HEAD, sizeof a / HKV); /* heads */
    for (int i = 0; i < COUNT; i++) {
        sum += (double)a[i];
        squares += (double)a[i] * (double)a[i];
    }
    assert_true(fabs(sum / COUNT) < 0.1 && fabs(squares / COUNT - 1) < 0.15); /* 768 normals: 3 deviations each */
}

static void test_kvzip_keeps_the_first_four(void **state)
{
    (void)state;
    float scores[HKV * N];
    kve_policy_view v = view(0);
    score_ok(&kve_policy_kvzip, &v, scores);
    for (int h = 0; h < HKV; h++) {
        for (int j = 0; j < 4; j++)
            assert_true(scores[h * N + j] >= 1e30f && (j == 0 || scores[h * N + j] < scores[h * N + j - 1]));
        assert_memory_equal(scores + h * N + 4, g_replay + h * N + 4, (N - 4) * sizeof *scores);
    }
}

static const kve_policy *wrapped(kve_arena *arena, const char *item)
{
    bool is_wrapped = false;
    const kve_policy *p = NULL;
    assert_int_equal(kve_wrapped_policy(item, arena, &is_wrapped, &p), KVE_OK);
    assert_true(is_wrapped);
    return p;
}

static void test_wrappers_take_after_their_base(void **state)
{
    (void)state;
    kve_arena arena = {0};
    const kve_policy *p = wrapped(&arena, "adakv:streaming-llm");
    float a[HKV * N], b[HKV * N];
    kve_policy_view v = view(1);
    assert_string_equal(p->name, "adakv:streaming_llm");
    assert_int_equal(p->needs, 0);
    assert_string_equal(kve_policy_info(p), "attention-free");
    assert_int_equal(p->own_recent, 0);
    assert_string_equal(p->allocation, "heads");
    assert_non_null(p->allocate);
    assert_false(p->by_budget);
    score_ok(p, &v, a);
    score_ok(&kve_policy_streaming_llm, &v, b);
    assert_memory_equal(a, b, sizeof a);
    p = wrapped(&arena, "adakv:compactor");
    assert_true(p->by_budget);
    assert_int_equal(p->needs, kve_policy_compactor.needs);
    score_ok(p, &v, a); /* the budget reaches the base */
    score_ok(&kve_policy_compactor, &v, b);
    assert_memory_equal(a, b, sizeof a);
    p = wrapped(&arena, "criticalkv:knorm");
    assert_int_equal(p->needs, KVE_NEED_KEYS | KVE_NEED_VALUES | KVE_NEED_OUTPUT);
    assert_true(p->by_budget);
    assert_null(p->allocate);
    p = wrapped(&arena, "criticalkv:oracle");
    assert_string_equal(kve_policy_info(p), "future-attention");
    assert_int_equal(p->fits(p, &g_shape, NULL), KVE_OK);
    p->close(p);
    p = wrapped(&arena, "adakv:snapkv");
    assert_int_equal(p->needs, kve_policy_adakv.needs);
    assert_int_equal(p->own_recent, kve_policy_adakv.own_recent);
    assert_int_equal(p->own_recent, kve_policy_snapkv.own_recent);
    kve_arena_free(&arena);
}

static void test_wrappers_refuse_what_is_no_base(void **state)
{
    (void)state;
    static const char *const bad[] = {"adakv:adakv",     "adakv:pyramidkv", "criticalkv:kvzip", "adakv:criticalkv",
                                      "criticalkv:full", "adakv:",          "adakv:snapvk",     "adakv:adakv:snapkv"};
    static const char *const others[] = {"adakv", "criticalkv", "snapkv", "rankings:x", "ada:snapkv", "adakvx:snapkv"};
    kve_arena arena = {0};
    bool is_wrapped = false;
    const kve_policy *p = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kve_wrapped_policy(bad[i], &arena, &is_wrapped, &p), KVE_ERR_USAGE);
        assert_true(is_wrapped);
        assert_non_null(strstr(kve_diag(), "knorm, keydiff")); /* says what it could be */
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(kve_wrapped_policy(others[i], &arena, &is_wrapped, &p), KVE_OK);
        assert_false(is_wrapped);
    }
    assert_null(p);
    kve_arena_free(&arena);
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
        cmocka_unit_test(test_h2o_looks_through_all_queries),
        cmocka_unit_test(test_finch_needs_a_question),
        cmocka_unit_test(test_few_tokens_are_equal),
        cmocka_unit_test(test_short_contexts_have_scores),
        cmocka_unit_test(test_bf16_rows_are_widened),
        cmocka_unit_test(test_rotation_is_undone),
        cmocka_unit_test(test_column_sums),
        cmocka_unit_test(test_sketches_differ_and_repeat),
        cmocka_unit_test(test_kvzip_keeps_the_first_four),
        cmocka_unit_test(test_wrappers_take_after_their_base),
        cmocka_unit_test(test_wrappers_refuse_what_is_no_base),
    };
    return cmocka_run_group_tests(tests, fill_tensors, NULL);
}
