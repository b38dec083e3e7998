/* The policies on all queries, rotations and the output projection against NVIDIA/kvpress: through the cpu backend, on
 * the files more_*.bin of tests/golden/kvpress (make_kvpress.py says what is in them) and, where it is there, on the
 * larger fixture beside the repository. Scores agree to 1e-5, and the sets of the highest are the same but for ties. */
#include "policies/geometry.h"
#include "policies/queries.h"
#include "policies/wrappers.h"
#include "tests/ops/npz.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SNAPKV = 64, FIXTURE_QUESTION = 32 };

typedef enum press {
    CUR,
    LEVERAGE,
    NONCAUSAL,
    COMPACTOR,
    COMPACTOR_HALF,
    EXPECTED,
    OBSERVED,
    FINCH,
    CRITICAL,
    N_PRESSES
} press;

static const char *const g_names[N_PRESSES] = {"cur",
                                               "leverage",
                                               "noncausal_attn",
                                               "compactor",
                                               "compactor at a half",
                                               "expected_attention",
                                               "h2o over the queries that see a token",
                                               "finch",
                                               "criticalkv"};

/* Inputs of one layer and the scores of the presses; NULL: not there. */
typedef struct golden {
    kve_shape shape;
    int32_t n, question, budget;
    float *q, *k, *v, *wo;       /* [n][Hq][D], [Hkv][n][D], [Hkv][n][D], [E][Hq D] */
    float *cos, *sin, *sketch;   /* [n + 512][D / 2], likewise, [Hkv][D][48] */
    float *scores[N_PRESSES];    /* [Hkv][n] */
    float *ada_snapkv, *ada_cur; /* [Hkv] tokens per head */
} golden;

static kve_backend *g_be;
static int32_t g_sets, g_ties;

static float *take(op_env *e, const char **at, const char *end, size_t n)
{
    assert_true((size_t)(end - *at) >= n * sizeof(float));
    float *out = op_host(e, n, sizeof *out);
    memcpy(out, *at, n * sizeof *out);
    *at += n * sizeof *out;
    return out;
}

static golden read_golden(op_env *e, const char *path)
{
    char *text = NULL;
    size_t len = 0;
    int skip = 0;
    golden g = {.shape = {.L = 1}};
    kve_shape *s = &g.shape;
    assert_int_equal(kve_file_read(path, &text, &len), KVE_OK);
    assert_int_equal(sscanf(text, "kvpress-more %d %d %d %d %d %d %d%n", &s->Hq, &s->Hkv, &s->D, &s->E, &g.n,
                            &g.question, &g.budget, &skip),
                     7);
    s->R = s->D;
    const char *at = text + skip + 1, *end = text + len;
    size_t D = (size_t)s->D, n = (size_t)g.n, Hkv = (size_t)s->Hkv, q_row = (size_t)s->Hq * D;
    g.q = take(e, &at, end, n * q_row);
    g.k = take(e, &at, end, Hkv * n * D);
    g.v = take(e, &at, end, Hkv * n * D);
    g.wo = take(e, &at, end, (size_t)s->E * q_row);
    g.cos = take(e, &at, end, (n + KVE_FUTURE_POSITIONS) * D / 2);
    g.sin = take(e, &at, end, (n + KVE_FUTURE_POSITIONS) * D / 2);
    g.sketch = take(e, &at, end, Hkv * D * KVE_SKETCH);
    for (int i = 0; i < N_PRESSES; i++)
        g.scores[i] = take(e, &at, end, Hkv * n);
    g.ada_snapkv = take(e, &at, end, Hkv);
    g.ada_cur = take(e, &at, end, Hkv);
    assert_ptr_equal(at, end);
    free(text);
    return g;
}

/* The layer as a policy sees it; .output is the caller's to free. */
static kve_policy_view view_of(op_env *e, const golden *g)
{
    const kve_shape *s = &g->shape;
    size_t D = (size_t)s->D, rows = (size_t)s->Hkv * (size_t)g->n * D * sizeof(float);
    size_t q_row = (size_t)s->Hq * D, window = (size_t)(g->n - SNAPKV) * q_row;
    kve_policy_view v = {.be = e->be,
                         .shape = s,
                         .kv = {.k = op_in(e, g->k, rows), .v = op_in(e, g->v, rows), .cap = g->n},
                         .q = op_in(e, g->q, (size_t)g->n * q_row * sizeof(float)),
                         .q_window = op_in(e, g->q + window, SNAPKV * q_row * sizeof(float)),
                         .cos = g->cos,
                         .sin = g->sin,
                         .output = g->wo ? op_weight(e, KVE_F32, s->E, (int32_t)q_row, g->wo) : NULL,
                         .scratch = op_out(e, (size_t)s->Hq * (size_t)g->n * sizeof(float)),
                         .scale = (float)(1 / sqrt((double)s->D)),
                         .n = g->n,
                         .W = SNAPKV,
                         .n_question = g->question,
                         .budget = g->budget,
                         .kv_dtype = KVE_F32,
                         .sample_name = "golden"};
    return v;
}

static const kve_policy *const g_policies[N_PRESSES] = {
    [CUR] = &kve_policy_cur,           [NONCAUSAL] = &kve_policy_noncausal_attn,
    [OBSERVED] = &kve_policy_h2o,      [EXPECTED] = &kve_policy_expected_attention,
    [FINCH] = &kve_policy_finch,       [CRITICAL] = &kve_policy_criticalkv,
    [LEVERAGE] = &kve_policy_leverage, [COMPACTOR] = &kve_policy_compactor};

/* The policy's scores, host [Hkv][n]. */
static float *scores_of(op_env *e, const golden *g, kve_policy_view v, press p)
{
    size_t count = (size_t)g->shape.Hkv * (size_t)g->n;
    float *out = op_out(e, count * sizeof *out), *host;
    if (p == COMPACTOR_HALF)
        v.budget = v.n / 2;
    if (p == LEVERAGE) {
        host = op_host(e, count, sizeof *host);
        op_ok(e, kve_leverage_z(&v, g->sketch, (kve_span){0, v.n}, host));
        return host;
    }
    if (p == COMPACTOR || p == COMPACTOR_HALF)
        op_ok(e, kve_compactor_scores(&v, g->sketch, out));
    else
        op_ok(e, kve_policy_score(g_policies[p], &v, out));
    host = op_read(e, out, count * sizeof *out);
    for (size_t i = 0; i < count && p == OBSERVED; i++) /* a sum; kvpress: the mean over those that see the token */
        host[i] /= (float)(v.n - (int32_t)(i % (size_t)v.n));
    return host;
}

/* --- The highest b of a row */

static const float *g_sort_by;

static int by_score(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (g_sort_by[i] != g_sort_by[j])
        return g_sort_by[i] > g_sort_by[j] ? -1 : 1;
    return (i > j) - (i < j);
}

static int32_t *sorted(op_env *e, const float *scores, int32_t n)
{
    int32_t *order = op_host(e, (size_t)n, sizeof *order);
    for (int32_t j = 0; j < n; j++)
        order[j] = j;
    g_sort_by = scores;
    qsort(order, (size_t)n, sizeof *order, by_score);
    return order;
}

/* Tokens that only one of the two keeps must be within rounding of the reference's threshold. */
static void same_set(op_env *e, const char *what, const float *ours, const float *theirs, int32_t n, int32_t b)
{
    const int32_t *a = sorted(e, ours, n), *r = sorted(e, theirs, n);
    int32_t *kept = op_host(e, (size_t)n, sizeof *kept), differ = 0;
    double threshold = (double)theirs[r[b - 1]];
    for (int32_t i = 0; i < b; i++) {
        kept[a[i]] += 1;
        kept[r[i]] -= 1;
    }
    for (int32_t j = 0; j < n; j++)
        if (kept[j]) {
            differ++;
            if (fabs((double)theirs[j] - threshold) > 2e-5 * fmax(fabs(threshold), 1e-4))
                op_fail(e, "%s: token %d among the highest %d of only one side, and no tie (%.9g, threshold %.9g)",
                        what, j, b, (double)theirs[j], threshold);
        }
    g_sets++;
    g_ties += differ > 0;
}

/* Columns with a value to compare: not those that stand on top by definition, where the presses have "largest + 1". */
static bool has_value(const golden *g, press p, int32_t j, float want)
{
    if (p == FINCH)
        return j < g->n - g->question;
    return p != CRITICAL || (j < g->n - SNAPKV && want != FLT_MAX);
}

static int32_t on_top(const golden *g, press p)
{
    static const int32_t count[N_PRESSES] = {
        [CUR] = 4, [COMPACTOR] = 12, [COMPACTOR_HALF] = 12, [EXPECTED] = 4, [CRITICAL] = SNAPKV};
    return p == FINCH ? g->question : count[p];
}

static void compare(op_env *e, const golden *g, press p, const float *ours)
{
    bool z = p == LEVERAGE || p == NONCAUSAL || p == COMPACTOR || p == COMPACTOR_HALF; /* the scores' spread is 1 */
    size_t n = (size_t)g->n;
    double *want = op_host(e, n, sizeof *want);
    float *got = op_host(e, n, sizeof *got);
    for (size_t h = 0; h < (size_t)g->shape.Hkv; h++) {
        const float *theirs = g->scores[p] + h * n, *row = ours + h * n;
        size_t m = 0;
        for (size_t j = 0; j < n; j++) {
            if (p == CRITICAL && j < n - SNAPKV && (row[j] == FLT_MAX) != (theirs[j] == FLT_MAX))
                op_fail(e, "criticalkv: token %zu is forced in by only one side", j);
            if (has_value(g, p, (int32_t)j, theirs[j])) {
                got[m] = row[j];
                want[m++] = (double)theirs[j];
            }
        }
        op_compare(e, g_names[p], got, want, m, (op_tol){z ? 1e-5 : 1e-12, 1e-5});
        const int32_t budgets[] = {g->budget, g->n / 4, g->n / 2};
        for (int i = 0; i < (p == CRITICAL ? 1 : 3); i++) /* criticalkv's are for one budget */
            if (budgets[i] >= on_top(g, p))
                same_set(e, g_names[p], row, theirs, g->n, budgets[i]);
    }
}

/* adakv over `base`, nothing protected: as many tokens per head as kvpress keeps. */
static void compare_shares(op_env *e, const golden *g, kve_policy_view v, const char *name, const float *want)
{
    kve_arena arena = {0};
    bool is_wrapped = false;
    const kve_policy *p = NULL;
    int32_t heads = g->shape.Hkv, *lengths = op_host(e, (size_t)heads, sizeof *lengths);
    size_t count = (size_t)heads * (size_t)g->n;
    float *scores = op_out(e, count * sizeof *scores);
    int32_t *order = op_out(e, count * sizeof *order);
    op_ok(e, kve_wrapped_policy(name, &arena, &is_wrapped, &p));
    assert_true(is_wrapped);
    op_ok(e, kve_policy_score(p, &v, scores));
    op_ok(e, e->be->vt->rank(
                 e->be, &(kve_rank_params){.scores = scores, .order = order, .rows = heads, .n = g->n, .n_out = g->n}));
    kve_allocation a = {.shape = &g->shape,
                        .scores = op_read(e, scores, count * sizeof *scores),
                        .order = op_read(e, order, count * sizeof *order),
                        .n = g->n,
                        .budget = g->budget};
    op_ok(e, p->allocate(p, &a, lengths));
    for (int32_t h = 0; h < heads; h++)
        if (lengths[h] != (int32_t)want[h])
            op_fail(e, "%s: head %d keeps %d tokens, kvpress %d", name, h, lengths[h], (int32_t)want[h]);
    kve_arena_free(&arena);
}

static void check(op_env *e, const golden *g)
{
    kve_policy_view v = view_of(e, g);
    for (int p = 0; p < N_PRESSES; p++)
        if (g->scores[p])
            compare(e, g, (press)p, scores_of(e, g, v, (press)p));
    if (g->ada_snapkv) {
        compare_shares(e, g, v, "adakv:snapkv", g->ada_snapkv);
        compare_shares(e, g, v, "adakv:cur", g->ada_cur);
    }
    if (v.output)
        op_weight_free(e, (kve_weight *)(uintptr_t)v.output);
}

static void finish(op_env *e)
{
    printf("worst agreement: %.2f of the tolerance (%s); %d sets, %d with a tie at the threshold\n", e->worst,
           e->worst_row, g_sets, g_ties);
    assert_int_equal(op_env_free(e), 0);
}

static void test_golden(void **state)
{
    static const char *const files[] = {"more_two_heads", "more_one_chunk", "more_short"};
    op_env *e = op_env_new(g_be);
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/tests/golden/kvpress/%s.bin", KVE_SOURCE_DIR, files[i]);
        op_begin(e, "kvpress %s", files[i]);
        golden g = read_golden(e, path);
        check(e, &g);
        op_end(e);
    }
    finish(e);
}

/* A bf16 projection weighs like an f32 one of the same numbers: it comes back exactly, and is not rounded again. */
static void test_bf16_projection(void **state)
{
    (void)state;
    op_env *e = op_env_new(g_be);
    op_begin(e, "criticalkv, bf16 projection");
    golden g = read_golden(e, KVE_SOURCE_DIR "/tests/golden/kvpress/more_short.bin");
    size_t count = (size_t)g.shape.E * (size_t)(g.shape.Hq * g.shape.D);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &g.wo[i], sizeof bits);
        bits &= 0xffff0000u;
        memcpy(&g.wo[i], &bits, sizeof bits);
    }
    kve_policy_view v = view_of(e, &g);
    kve_weight *wide = (kve_weight *)(uintptr_t)v.output;
    kve_weight *narrow = op_weight(e, KVE_BF16, g.shape.E, g.shape.Hq * g.shape.D, g.wo);
    const float *want = scores_of(e, &g, v, CRITICAL);
    v.output = narrow;
    op_same_bytes(e, "scores", scores_of(e, &g, v, CRITICAL), want, (size_t)g.shape.Hkv * (size_t)g.n * sizeof *want);
    op_weight_free(e, narrow);
    op_weight_free(e, wide);
    op_end(e);
    assert_int_equal(op_env_free(e), 0);
}

/* Wherever memory runs out, the policy says so and leaves nothing behind. */
static void test_out_of_memory(void **state)
{
    (void)state;
    op_env *e = op_env_new(g_be);
    op_begin(e, "out of memory");
    golden g = read_golden(e, KVE_SOURCE_DIR "/tests/golden/kvpress/more_short.bin");
    kve_policy_view v = view_of(e, &g);
    size_t count = (size_t)g.shape.Hkv * (size_t)g.n;
    float *out = op_out(e, count * sizeof *out);
    size_t before = e->be->vt->bytes_in_use(e->be);
    for (int p = 0; p < N_PRESSES; p++) {
        long failures = 0;
        kve_status st = g_policies[p] ? KVE_ERR_MEMORY : KVE_OK;
        while (st == KVE_ERR_MEMORY) {
            kve_alloc_fail_after(++failures);
            st = kve_policy_score(g_policies[p], &v, out);
            assert_int_equal(e->be->vt->bytes_in_use(e->be), before);
        }
        kve_alloc_fail_after(0);
        assert_int_equal(st, KVE_OK);
        assert_true(!g_policies[p] || failures > 1);
    }
    op_weight_free(e, (kve_weight *)(uintptr_t)v.output);
    op_end(e);
    assert_int_equal(op_env_free(e), 0);
}

/* The tables as torch makes them: frequency and angle are f32. */
static void make_tables(op_env *e, golden *g)
{
    size_t half = (size_t)g->shape.R / 2, n = (size_t)g->n + KVE_FUTURE_POSITIONS;
    g->cos = op_host(e, n * half, sizeof *g->cos);
    g->sin = op_host(e, n * half, sizeof *g->sin);
    for (size_t d = 0; d < half; d++) {
        float frequency = 1 / (float)pow(10000, (double)d / (double)half);
        for (size_t i = 0; i < n; i++) {
            float angle = (float)i * frequency;
            g->cos[i * half + d] = (float)cos((double)angle);
            g->sin[i * half + d] = (float)sin((double)angle);
        }
    }
}

/* Without the presses of noncausal attention: 600 tokens have padding there. */
static golden read_fixture(op_env *e, const kve_map *inputs, const kve_map *scores)
{
    golden g = {.shape = {.L = 1, .Hq = 8, .Hkv = 2, .D = 16, .R = 16, .E = 48},
                .n = 600,
                .question = FIXTURE_QUESTION,
                .budget = 150};
    size_t D = 16, n = 600, Hq = 8, rows = 2 * n;
    const float *q = npz_floats(e, inputs, "q.npy", Hq * n * D); /* [Hq][n][D] */
    g.q = op_host(e, Hq * n * D, sizeof *g.q);
    for (size_t j = 0; j < n; j++)
        for (size_t h = 0; h < Hq; h++)
            memcpy(g.q + (j * Hq + h) * D, q + (h * n + j) * D, D * sizeof *q);
    g.k = npz_floats(e, inputs, "k.npy", rows * D);
    g.v = npz_floats(e, inputs, "v.npy", rows * D);
    g.sketch = npz_floats(e, scores, "phi_sketch.npy", 2 * D * KVE_SKETCH);
    make_tables(e, &g);
    g.scores[CUR] = npz_floats(e, scores, "score_CUR.npy", rows);
    g.scores[LEVERAGE] = npz_floats(e, scores, "score_LeverageScore.npy", rows);
    g.scores[EXPECTED] = npz_floats(e, scores, "score_ExpectedAttention.npy", rows);
    g.scores[OBSERVED] = npz_floats(e, scores, "score_ObservedAttention.npy", rows);
    g.scores[FINCH] = npz_floats(e, scores, "score_Finch(w=32).npy", rows);
    return g;
}

static void test_fixture(void **state)
{
    static const char dir[] = KVE_SOURCE_DIR "/../shared/fixtures/kvpress";
    kve_map inputs, scores;
    (void)state;
    if (!kve_path_exists(dir)) {
        printf("skipped: there is no ../shared/fixtures/kvpress beside the repository\n");
        skip();
    }
    assert_int_equal(kve_map_open(KVE_SOURCE_DIR "/../shared/fixtures/kvpress/fixture_small.npz", &inputs), KVE_OK);
    assert_int_equal(kve_map_open(KVE_SOURCE_DIR "/../shared/fixtures/kvpress/fixture_scores.npz", &scores), KVE_OK);
    op_env *e = op_env_new(g_be);
    op_begin(e, "kvpress fixture");
    golden g = read_fixture(e, &inputs, &scores);
    check(e, &g);
    op_end(e);
    kve_map_close(&inputs);
    kve_map_close(&scores);
    finish(e);
}

static int open_backend(void **state)
{
    (void)state;
    return kve_cpu_open(&(kve_backend_options){.threads = 2}, &g_be) == KVE_OK ? 0 : -1;
}

static int close_backend(void **state)
{
    (void)state;
    g_be->vt->close(g_be);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_fixture),
                                       cmocka_unit_test(test_bf16_projection), cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
