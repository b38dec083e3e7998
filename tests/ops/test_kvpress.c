/* The scoring ops against NVIDIA/kvpress: knorm, keydiff, lagkv, snapkv (attention_window + pool_group) and tova, on
 * the golden files of tests/golden/kvpress (make_kvpress.py says what is in them) and, where it is there, on the larger
 * fixture beside the repository. */
#include "host/base/file.h"
#include "tests/ops/npz.h"
#include "tests/ops/optable.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { KNORM, KEYDIFF, LAGKV, SNAPKV, TOVA, N_PRESSES };
enum { WINDOW = 64, POOL = 5 };

static const char *const g_names[N_PRESSES] = {"knorm", "keydiff", "lagkv", "snapkv", "tova"};

/* Inputs of one layer and the scores of the presses. */
typedef struct golden {
    int32_t Hq, Hkv, D, n;
    float *q;                 /* [WINDOW][Hq][D] */
    float *k, *v;             /* [Hkv][n][D] */
    float *scores[N_PRESSES]; /* [Hkv][n] */
} golden;

static kve_backend *g_be;

static void *take(op_env *e, const char **at, const char *end, size_t bytes)
{
    assert_true((size_t)(end - *at) >= bytes);
    void *out = op_host(e, bytes, 1);
    memcpy(out, *at, bytes);
    *at += bytes;
    return out;
}

static golden read_golden(op_env *e, const char *path)
{
    char *text = NULL;
    size_t len = 0;
    int W = 0, skip = 0;
    golden g = {0};
    assert_int_equal(kve_file_read(path, &text, &len), KVE_OK);
    assert_int_equal(sscanf(text, "kvpress %d %d %d %d %d%n", &g.Hq, &g.Hkv, &g.D, &g.n, &W, &skip), 5);
    assert_int_equal(W, WINDOW);
    const char *at = text + skip + 1, *end = text + len;
    size_t rows = (size_t)g.Hkv * (size_t)g.n * sizeof(float);
    g.q = take(e, &at, end, WINDOW * (size_t)g.Hq * (size_t)g.D * sizeof(float));
    g.k = take(e, &at, end, rows * (size_t)g.D);
    g.v = take(e, &at, end, rows * (size_t)g.D);
    for (int i = 0; i < N_PRESSES; i++)
        g.scores[i] = take(e, &at, end, rows);
    assert_ptr_equal(at, end);
    free(text);
    return g;
}

static golden read_fixture(op_env *e, const kve_map *inputs, const kve_map *scores)
{
    static const char *const members[N_PRESSES] = {"score_Knorm.npy", "score_KeyDiff.npy", "score_LagKV.npy",
                                                   "score_SnapKV.npy", "score_TOVA.npy"};
    golden g = {.Hq = 8, .Hkv = 2, .D = 16, .n = 600};
    size_t D = (size_t)g.D, n = (size_t)g.n, Hq = (size_t)g.Hq, rows = (size_t)g.Hkv * n;
    const float *q = npz_floats(e, inputs, "q.npy", Hq * n * D); /* [Hq][n][D] */
    g.q = op_host(e, WINDOW * Hq * D, sizeof *g.q);
    for (size_t w = 0; w < WINDOW; w++)
        for (size_t h = 0; h < Hq; h++)
            memcpy(g.q + (w * Hq + h) * D, q + (h * n + n - WINDOW + w) * D, D * sizeof *q);
    g.k = npz_floats(e, inputs, "k.npy", rows * D);
    g.v = npz_floats(e, inputs, "v.npy", rows * D);
    for (int i = 0; i < N_PRESSES; i++)
        g.scores[i] = npz_floats(e, scores, members[i], rows);
    return g;
}

/* mean attention of the last W queries -> pooled per KV head, in out [Hkv][n] on the device. */
static void window_scores(op_env *e, const golden *g, kve_kv kv, int32_t W, kve_pool_group_params pool)
{
    size_t row = (size_t)g->Hq * (size_t)g->D;
    kve_attention_window_params a = {.q = op_in(e, g->q + (size_t)(WINDOW - W) * row, (size_t)W * row * sizeof(float)),
                                     .kv = kv,
                                     .out = op_out(e, (size_t)g->Hq * (size_t)g->n * sizeof(float)),
                                     .scale = (float)(1 / sqrt((double)g->D)),
                                     .n = g->n,
                                     .W = W,
                                     .Hq = g->Hq,
                                     .Hkv = g->Hkv,
                                     .D = g->D,
                                     .kv_dtype = KVE_F32};
    pool.in = a.out;
    pool.n = g->n;
    pool.Hq = g->Hq;
    pool.Hkv = g->Hkv;
    op_ok(e, e->be->vt->attention_window(e->be, &a));
    op_ok(e, e->be->vt->pool_group(e->be, &pool));
}

static void row_stat(op_env *e, const golden *g, kve_kv kv, kve_row_stat stat, float *out)
{
    kve_row_stat_params p = {
        .kv = kv, .out = out, .stat = stat, .n = g->n, .Hkv = g->Hkv, .D = g->D, .n_sink = 4, .lag = 128};
    op_ok(e, e->be->vt->row_stat(e->be, &p));
}

/* Compares n_cols columns; the rest is the presses' own "largest score + 1" for rows that they protect. */
static void compare(op_env *e, const golden *g, int press, const float *out, int32_t n_cols)
{
    const float *got = op_read(e, out, (size_t)g->Hkv * (size_t)g->n * sizeof *got);
    double *want = op_host(e, (size_t)g->n, sizeof *want);
    for (size_t h = 0; h < (size_t)g->Hkv; h++) {
        const float *from = g->scores[press] + h * (size_t)g->n;
        for (int32_t j = 0; j < n_cols; j++)
            want[j] = (double)from[j];
        /* Relative, because window scores are near 1 / n; the absolute part is for cosines near 0. */
        op_compare(e, g_names[press], got + h * (size_t)g->n, want, (size_t)n_cols,
                   (op_tol){press == KEYDIFF ? 1e-6 : 1e-9, 1e-5});
    }
}

static void check(op_env *e, const golden *g)
{
    size_t bytes = (size_t)g->Hkv * (size_t)g->n * sizeof(float);
    kve_kv kv = {op_in(e, g->k, bytes * (size_t)g->D), op_in(e, g->v, bytes * (size_t)g->D), g->n, NULL};
    float *out[N_PRESSES];
    for (int i = 0; i < N_PRESSES; i++)
        out[i] = op_out(e, bytes);
    row_stat(e, g, kv, KVE_STAT_NEG_NORM, out[KNORM]);
    row_stat(e, g, kv, KVE_STAT_NEG_COSINE, out[KEYDIFF]);
    row_stat(e, g, kv, KVE_STAT_LAG, out[LAGKV]);
    window_scores(e, g, kv, WINDOW,
                  (kve_pool_group_params){.n_valid = g->n - WINDOW, .width = POOL, .out = out[SNAPKV]});
    window_scores(e, g, kv, 1,
                  (kve_pool_group_params){.n_valid = g->n, .width = 1, .all_heads = true, .out = out[TOVA]});
    compare(e, g, KNORM, out[KNORM], g->n);
    compare(e, g, KEYDIFF, out[KEYDIFF], g->n);
    compare(e, g, LAGKV, out[LAGKV], g->n);
    compare(e, g, SNAPKV, out[SNAPKV], g->n - WINDOW);
    compare(e, g, TOVA, out[TOVA], g->n - 1);
}

static void test_golden(void **state)
{
    static const char *const files[] = {"two_heads", "group_of_three", "head_32"};
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
    printf("worst agreement: %.2f of the tolerance\n", e->worst);
    assert_int_equal(op_env_free(e), 0);
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
    printf("worst agreement: %.2f of the tolerance\n", e->worst);
    assert_int_equal(op_env_free(e), 0);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_fixture)};
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
