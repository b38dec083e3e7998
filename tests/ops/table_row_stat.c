/* The op table: row_stat (knorm, keydiff, lagkv). */
#include "tests/ops/optable.h"

#include <math.h>
#include <stdlib.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

typedef struct stat_case {
    int32_t n, Hkv, D;
    bool zero_row, nan_row;
    double amplitude; /* 0 = 2 */
} stat_case;

static kve_row_stat_params params(const op_kv *kv, kve_row_stat stat, int32_t n)
{
    return (kve_row_stat_params){
        .kv = kv->host, .stat = stat, .n = n, .Hkv = kv->Hkv, .D = kv->D, .i_layer = 1, .kv_dtype = kv->dtype};
}

static void fill_row(op_kv *kv, int32_t h, int32_t j, float x)
{
    size_t at = oracle_kv_at(&kv->host, kv->Hkv, kv->D, 1, h, j);
    for (size_t d = 0; d < (size_t)kv->D; d++)
        oracle_store(kv->host.k, at + d, kv->dtype, x);
}

static void stat_row(op_env *e, kve_dtype t, kve_row_stat stat, const stat_case *c)
{
    op_begin(e, "row_stat %s %s n=%d Hkv=%d D=%d amplitude=%g%s%s", stat == KVE_STAT_NEG_NORM ? "norm" : "cosine",
             op_dtype_name(t), c->n, c->Hkv, c->D, c->amplitude, c->zero_row ? " zero row" : "",
             c->nan_row ? " NaN row" : "");
    size_t n_out = (size_t)c->Hkv * (size_t)c->n;
    op_kv kv = op_kv_make(e, 2, c->Hkv, c->n + 5, c->D, t);
    for (int32_t h = 0; h < c->Hkv; h++)
        op_kv_fill(e, &kv, 1, h, 0, c->n, c->amplitude > 0 ? c->amplitude : 2);
    if (c->zero_row)
        fill_row(&kv, 0, c->n / 2, 0);
    if (c->nan_row) /* head 0 only: the norm of one row, every cosine of the head */
        fill_row(&kv, 0, c->n / 2, NAN);
    op_kv_in(e, &kv);
    kve_row_stat_params p = params(&kv, stat, c->n), d = p;
    double *want = op_host(e, n_out, sizeof *want);
    d.kv = kv.dev;
    d.out = op_out(e, n_out * sizeof(float));
    op_ok(e, e->be->vt->row_stat(e->be, &d));
    oracle_row_stat(&p, want);
    op_compare(e, "out", op_read(e, d.out, n_out * sizeof(float)), want, n_out,
               stat == KVE_STAT_NEG_NORM ? (op_tol){1e-30, 2e-6} : (op_tol){3e-6, 0});
    op_end(e);
}

/* One scored partition: the scores must be the ranks 0 .. lag - 1 divided by lag, each once, in the order of the
 * oracle's statistic; rows whose statistics are equal to a few roundings may stand in either order. */
static void check_partition(op_env *e, const float *got, const double *statistic, int32_t lag)
{
    int32_t *at_rank = op_host(e, (size_t)lag, sizeof *at_rank);
    for (int32_t i = 0; i < lag; i++)
        at_rank[i] = -1;
    for (int32_t j = 0; j < lag; j++) {
        double rank = (double)got[j] * lag;
        if (!(rank > -0.5 && rank < lag - 0.5) || fabs(rank - round(rank)) > 1e-4 || at_rank[lround(rank)] >= 0) {
            op_fail(e, "lag score %.9g of row %d of a partition is no rank / %d, or is there twice", (double)got[j], j,
                    lag);
            return;
        }
        at_rank[lround(rank)] = j;
    }
    for (int32_t i = 1; i < lag; i++) {
        double lower = statistic[at_rank[i - 1]], upper = statistic[at_rank[i]];
        if (lower > upper * (1 + 2e-6))
            op_fail(e, "row %d of a partition has rank %d and statistic %.9g; row %d has rank %d and %.9g",
                    at_rank[i - 1], i - 1, lower, at_rank[i], i, upper);
    }
}

static void lag_row(op_env *e, kve_dtype t, int32_t n, int32_t Hkv, int32_t D, int32_t n_sink, int32_t lag)
{
    op_begin(e, "row_stat lag %s n=%d Hkv=%d D=%d sink=%d lag=%d", op_dtype_name(t), n, Hkv, D, n_sink, lag);
    size_t n_out = (size_t)Hkv * (size_t)n;
    op_kv kv = op_kv_make(e, 2, Hkv, n + 5, D, t);
    for (int32_t h = 0; h < Hkv; h++)
        op_kv_fill(e, &kv, 1, h, 0, n, 2);
    op_kv_in(e, &kv);
    kve_row_stat_params p = params(&kv, KVE_STAT_LAG, n);
    p.n_sink = n_sink;
    p.lag = lag;
    kve_row_stat_params d = p;
    d.kv = kv.dev;
    d.out = op_out(e, n_out * sizeof(float));
    op_ok(e, e->be->vt->row_stat(e->be, &d));
    double *want = op_host(e, n_out, sizeof *want);
    int32_t parts = oracle_lag(&p, want);
    const float *got = op_read(e, d.out, n_out * sizeof(float));
    for (int32_t h = 0; h < Hkv; h++) {
        size_t at = (size_t)h * (size_t)n, scored = (size_t)parts * (size_t)lag, first = parts ? (size_t)n_sink : 0;
        for (int32_t i = 0; i < parts; i++)
            check_partition(e, got + at + first + i * lag, want + at + first + i * lag, lag);
        op_compare(e, "sinks", got + at, want + at, first, (op_tol){0, 0});
        op_compare(e, "rows that are not scored", got + at + first + scored, want + at + first + scored,
                   (size_t)n - first - scored, (op_tol){0, 1e-6});
    }
    op_end(e);
}

void op_table_row_stat(op_env *e)
{
    static const stat_case cases[] = {
        {.n = 0, .Hkv = 2, .D = 64},
        {.n = 1, .Hkv = 1, .D = 64},
        {.n = 3, .Hkv = 2, .D = 1},
        {.n = 63, .Hkv = 3, .D = 80},
        {.n = 65, .Hkv = 2, .D = 96},
        {.n = 129, .Hkv = 1, .D = 128},
        {.n = 300, .Hkv = 2, .D = 33},
        {.n = 1100, .Hkv = 1, .D = 64},
        {.n = 70, .Hkv = 2, .D = 256, .amplitude = 300},
        {.n = 70, .Hkv = 2, .D = 64, .amplitude = 1e-6},
        {.n = 70, .Hkv = 2, .D = 64, .zero_row = true},
        {.n = 1, .Hkv = 1, .D = 64, .zero_row = true},
        {.n = 70, .Hkv = 2, .D = 64, .nan_row = true},
    };
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < COUNT(cases); i++) {
            stat_row(e, (kve_dtype)t, KVE_STAT_NEG_NORM, &cases[i]);
            stat_row(e, (kve_dtype)t, KVE_STAT_NEG_COSINE, &cases[i]);
        }
        lag_row(e, (kve_dtype)t, 0, 2, 64, 4, 128);
        lag_row(e, (kve_dtype)t, 1, 2, 64, 4, 128);
        lag_row(e, (kve_dtype)t, 4, 1, 64, 4, 128);
        lag_row(e, (kve_dtype)t, 5, 1, 64, 4, 128);
        lag_row(e, (kve_dtype)t, 259, 2, 64, 4, 128); /* one short of two partitions */
        lag_row(e, (kve_dtype)t, 260, 2, 64, 4, 128);
        lag_row(e, (kve_dtype)t, 387, 1, 80, 4, 128);
        lag_row(e, (kve_dtype)t, 600, 3, 128, 4, 128);
        lag_row(e, (kve_dtype)t, 57, 2, 96, 0, 7);
        lag_row(e, (kve_dtype)t, 40, 1, 2, 3, 5);
    }
}
