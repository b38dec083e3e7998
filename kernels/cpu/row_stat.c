/* Scores that need keys and values only: knorm, keydiff, lagkv. Contracts: kernels/ops.h; the formulas are kvpress's
 * KnormPress, KeyDiffPress, LagKVPress. One item is one KV head. */
#include "host/base/mem.h"
#include "kernels/cpu/simd.h"

#include <stdlib.h>

typedef struct stat_job {
    const kve_row_stat_params *p;
    cpu_backend *be;
} stat_job;

static void load(const kve_row_stat_params *p, const void *base, int32_t h, int32_t j, float *row)
{
    cpu_load_row(base, cpu_kv_row(&p->kv, p->Hkv, p->D, p->i_layer, h, j), p->D, p->kv_dtype, row);
}

static void neg_norm(const kve_row_stat_params *p, int32_t h, float *out)
{
    float row[CPU_MAX_D];
    for (int32_t j = 0; j < p->n; j++) {
        load(p, p->kv.k, h, j, row);
        out[j] = -sqrtf(cpu_dot(row, row, p->D));
    }
}

static void neg_cosine(const kve_row_stat_params *p, int32_t h, float *out)
{
    const float tiny = 1e-12f; /* torch's normalize; torch's cosine_similarity clamps each norm at 1e-8 */
    double mean[CPU_MAX_D] = {0};
    float row[CPU_MAX_D], anchor[CPU_MAX_D];
    for (int32_t j = 0; j < p->n; j++) {
        load(p, p->kv.k, h, j, row);
        float norm = sqrtf(cpu_dot(row, row, p->D));
        for (int32_t d = 0; d < p->D; d++)
            mean[d] += (double)(row[d] / (norm > tiny || isnan(norm) ? norm : tiny));
    }
    for (int32_t d = 0; d < p->D; d++)
        anchor[d] = (float)(mean[d] / (double)p->n);
    float anchor_norm = sqrtf(cpu_dot(anchor, anchor, p->D));
    for (int32_t j = 0; j < p->n; j++) {
        load(p, p->kv.k, h, j, row);
        float norm = sqrtf(cpu_dot(row, row, p->D));
        float below = (norm < 1e-8f ? 1e-8f : norm) * (anchor_norm < 1e-8f ? 1e-8f : anchor_norm);
        out[j] = -cpu_dot(row, anchor, p->D) / below;
    }
}

/* Minimum and maximum per channel over the rows of one partition. */
static void partition_range(const kve_row_stat_params *p, const void *base, int32_t h, int32_t row0, float *low,
                            float *high)
{
    float row[CPU_MAX_D];
    for (int32_t d = 0; d < p->D; d++) {
        low[d] = INFINITY;
        high[d] = -INFINITY;
    }
    for (int32_t j = 0; j < p->lag; j++) {
        load(p, base, h, row0 + j, row);
        for (int32_t d = 0; d < p->D; d++) {
            low[d] = row[d] < low[d] ? row[d] : low[d];
            high[d] = row[d] > high[d] ? row[d] : high[d];
        }
    }
}

/* Unbiased standard deviation over the channels, in double: two passes. */
static float spread(const float *x, int32_t D)
{
    double mean = 0, sum = 0;
    for (int32_t d = 0; d < D; d++)
        mean += (double)x[d];
    mean /= D;
    for (int32_t d = 0; d < D; d++)
        sum += ((double)x[d] - mean) * ((double)x[d] - mean);
    return (float)sqrt(sum / (D - 1));
}

/* Adds softmax over the partition of the spread of (x - low) / (high - low), range of the NEXT partition, to s[lag]. */
static void lag_part(const kve_row_stat_params *p, const void *base, int32_t h, int32_t row0, double *s, float *spreads)
{
    float row[CPU_MAX_D], low[CPU_MAX_D], high[CPU_MAX_D];
    float top = -INFINITY;
    double sum = 0;
    partition_range(p, base, h, row0 + p->lag, low, high);
    for (int32_t j = 0; j < p->lag; j++) {
        load(p, base, h, row0 + j, row);
        for (int32_t d = 0; d < p->D; d++)
            row[d] = (row[d] - low[d]) / (high[d] - low[d]);
        spreads[j] = spread(row, p->D);
        top = spreads[j] > top ? spreads[j] : top;
    }
    for (int32_t j = 0; j < p->lag; j++)
        sum += exp((double)spreads[j] - (double)top);
    for (int32_t j = 0; j < p->lag; j++)
        s[j] += exp((double)spreads[j] - (double)top) / sum;
}

typedef struct lag_rank {
    double score;
    int32_t j;
} lag_rank;

/* NaN first, then ascending, ties by position. */
static int by_score(const void *a, const void *b)
{
    const lag_rank *x = a, *y = b;
    if (isnan(x->score) != isnan(y->score))
        return isnan(x->score) ? -1 : 1;
    if (x->score < y->score || x->score > y->score)
        return x->score < y->score ? -1 : 1;
    return (x->j > y->j) - (x->j < y->j);
}

static void lag_scores(const stat_job *x, int32_t h, float *out, char *scratch)
{
    const kve_row_stat_params *p = x->p;
    double *s = (double *)(void *)scratch;
    lag_rank *rank = (lag_rank *)(void *)(s + p->lag);
    float *spreads = (float *)(void *)(rank + p->lag);
    for (int32_t j = 0; j < p->n; j++)
        out[j] = 1;
    if (p->n < p->n_sink + 2 * p->lag) { /* too short for statistics: recency */
        for (int32_t j = p->n_sink; j < p->n; j++)
            out[j] = (float)(j - p->n_sink) / (float)(p->n - p->n_sink);
        return;
    }
    int32_t partitions = (p->n - p->n_sink) / p->lag;
    for (int32_t i = 0; i + 1 < partitions; i++) {
        int32_t row0 = p->n_sink + i * p->lag;
        memset(s, 0, (size_t)p->lag * sizeof *s);
        lag_part(p, p->kv.k, h, row0, s, spreads);
        lag_part(p, p->kv.v, h, row0, s, spreads);
        for (int32_t j = 0; j < p->lag; j++)
            rank[j] = (lag_rank){s[j], j};
        qsort(rank, (size_t)p->lag, sizeof *rank, by_score);
        for (int32_t r = 0; r < p->lag; r++)
            out[row0 + rank[r].j] = (float)r / (float)p->lag;
    }
}

static void stat_item(void *ctx, int64_t item, int32_t worker)
{
    const stat_job *x = ctx;
    float *out = x->p->out + (size_t)item * (size_t)x->p->n;
    switch (x->p->stat) {
    case KVE_STAT_NEG_NORM:
        neg_norm(x->p, (int32_t)item, out);
        break;
    case KVE_STAT_NEG_COSINE:
        neg_cosine(x->p, (int32_t)item, out);
        break;
    case KVE_STAT_LAG:
        lag_scores(x, (int32_t)item, out, cpu_scratch(x->be, worker));
        break;
    }
}

kve_status cpu_row_stat(kve_backend *be, const kve_row_stat_params *p)
{
    stat_job x = {p, cpu_of(be)};
    if (p->D > CPU_MAX_D)
        return kve_fail(KVE_ERR_USAGE, "cpu: head dimension %d is beyond %d", p->D, CPU_MAX_D);
    if (p->stat == KVE_STAT_LAG)
        KVE_TRY(cpu_scratch_reserve(x.be, (size_t)p->lag * (sizeof(double) + sizeof(lag_rank) + sizeof(float))));
    cpu_parallel_for(x.be, p->Hkv, stat_item, &x);
    return KVE_OK;
}
