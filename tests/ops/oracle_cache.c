/* The oracle's cache half: attention, scoring and eviction. See oracle.h. */
#include "tests/ops/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* `n` rows of one head, one after another in memory. */
typedef struct rows {
    const kve_kv *kv;
    size_t at;
    int32_t n;
} rows;

static rows rows_of(const kve_kv *kv, int32_t Hkv, int32_t D, int32_t i_layer, int32_t h, int32_t n)
{
    return (rows){kv, oracle_kv_at(kv, Hkv, D, i_layer, h, 0), n};
}

static double *new_doubles(int32_t n)
{
    double *p = calloc((size_t)n + 1, sizeof *p);
    if (!p)
        abort();
    return p;
}

/* p[0 .. a.n + b.n - 1] = softmax over the rows of a, then b, of q.k * scale. */
static void softmax_over(const float *q, rows a, rows b, int32_t D, kve_dtype t, double scale, double *p)
{
    double top = -INFINITY, sum = 0;
    int32_t n = a.n + b.n;
    for (int32_t j = 0; j < n; j++) {
        rows from = j < a.n ? a : b;
        size_t at = from.at + (size_t)(j < a.n ? j : j - a.n) * (size_t)D;
        p[j] = 0;
        for (int32_t d = 0; d < D; d++)
            p[j] += (double)q[d] * oracle_load(from.kv->k, at + (size_t)d, t);
        p[j] *= scale;
        top = p[j] > top ? p[j] : top;
    }
    for (int32_t j = 0; j < n; j++) {
        p[j] = exp(p[j] - top);
        sum += p[j];
    }
    for (int32_t j = 0; j < n; j++)
        p[j] /= sum;
}

/* out[D] = softmax(q.k scale) V over a, then b. */
static void attend(const float *q, rows a, rows b, int32_t D, kve_dtype t, double scale, double *out)
{
    double *p = new_doubles(a.n + b.n);
    softmax_over(q, a, b, D, t, scale, p);
    for (int32_t d = 0; d < D; d++) {
        out[d] = 0;
        for (int32_t j = 0; j < a.n; j++)
            out[d] += p[j] * oracle_load(a.kv->v, a.at + (size_t)j * (size_t)D + (size_t)d, t);
        for (int32_t j = 0; j < b.n; j++)
            out[d] += p[a.n + j] * oracle_load(b.kv->v, b.at + (size_t)j * (size_t)D + (size_t)d, t);
    }
    free(p);
}

void oracle_attention_prefill(const kve_attention_prefill_params *p, double *out)
{
    for (int32_t t = 0; t < p->T; t++)
        for (int32_t hq = 0; hq < p->Hq; hq++) {
            size_t at = ((size_t)t * (size_t)p->Hq + (size_t)hq) * (size_t)p->D;
            rows seen = rows_of(&p->kv, p->Hkv, p->D, p->i_layer, hq / (p->Hq / p->Hkv), p->start + t + 1);
            attend(p->q + at, seen, (rows){0}, p->D, p->kv_dtype, (double)p->scale, out + at);
        }
}

void oracle_attention_fork(const kve_attention_fork_params *p, double *out)
{
    for (int32_t x = 0; x < p->X; x++)
        for (int32_t i = 0; i < p->q_len[x]; i++)
            for (int32_t hq = 0; hq < p->Hq; hq++) {
                const kve_fork_slot *s = &p->slots[x];
                int32_t h = hq / (p->Hq / p->Hkv), kept = s->prefix_len[p->i_layer * p->Hkv + h];
                size_t at = ((size_t)(p->row_of[x] + i) * (size_t)p->Hq + (size_t)hq) * (size_t)p->D;
                rows prefix = rows_of(&s->prefix, p->Hkv, p->D, p->i_layer, h, kept);
                rows tail = rows_of(&s->tail, p->Hkv, p->D, p->i_layer, h, p->tail_len[x] + i + 1);
                attend(p->q + at, prefix, tail, p->D, p->kv_dtype, (double)p->scale, out + at);
            }
}

void oracle_attention_window(const kve_attention_window_params *p, double *out)
{
    double *a = new_doubles(p->n);
    for (int32_t hq = 0; hq < p->Hq; hq++) {
        double *to = out + (size_t)hq * (size_t)p->n;
        for (int32_t j = 0; j < p->n; j++)
            to[j] = 0;
        for (int32_t w = 0; w < p->W; w++) {
            int32_t seen = p->n - p->W + w + 1;
            const float *q = p->q + ((size_t)w * (size_t)p->Hq + (size_t)hq) * (size_t)p->D;
            softmax_over(q, rows_of(&p->kv, p->Hkv, p->D, p->i_layer, hq / (p->Hq / p->Hkv), seen), (rows){0}, p->D,
                         p->kv_dtype, (double)p->scale, a);
            for (int32_t j = 0; j < seen; j++)
                to[j] += a[j] / p->W;
        }
    }
    free(a);
}

void oracle_pool_group(const kve_pool_group_params *p, double *out)
{
    int32_t G = p->all_heads ? p->Hq : p->Hq / p->Hkv;
    for (int32_t h = 0; h < p->Hkv; h++)
        for (int32_t j = 0; j < p->n; j++) {
            double sum = 0;
            for (int32_t g = 0; g < G; g++)
                for (int32_t i = j - p->width / 2; i <= j + p->width / 2; i++)
                    if (i >= 0 && i < p->n_valid)
                        sum += (double)p->in[(size_t)((p->all_heads ? 0 : h * G) + g) * (size_t)p->n + (size_t)i];
            out[(size_t)h * (size_t)p->n + (size_t)j] = j < p->n_valid ? sum / p->width / G : (double)INFINITY;
        }
}

void oracle_future_importance(const kve_future_importance_params *p, double *out)
{
    double *a = new_doubles(p->n + p->f), *most = new_doubles(p->n);
    int32_t G = p->Hq / p->Hkv;
    for (int32_t h = 0; h < p->Hkv; h++) {
        double *to = out + (size_t)h * (size_t)p->n;
        for (int32_t j = 0; j < p->n; j++)
            to[j] = 0;
        for (int32_t i = 0; i < p->f; i++) {
            for (int32_t g = 0; g < G; g++) {
                const float *q = p->q + ((size_t)i * (size_t)p->Hq + (size_t)(h * G + g)) * (size_t)p->D;
                softmax_over(q, rows_of(&p->ctx, p->Hkv, p->D, p->i_layer, h, p->n),
                             rows_of(&p->tail, p->Hkv, p->D, p->i_layer, h, i + 1), p->D, p->kv_dtype, (double)p->scale,
                             a);
                for (int32_t j = 0; j < p->n; j++)
                    most[j] = g == 0 || a[j] > most[j] ? a[j] : most[j];
            }
            for (int32_t j = 0; j < p->n; j++)
                to[j] = !p->maximum ? to[j] + most[j] : most[j] > to[j] ? most[j] : to[j];
        }
    }
    free(a);
    free(most);
}

static double norm_of(const void *base, size_t at, int32_t D, kve_dtype t)
{
    double sum = 0;
    for (int32_t d = 0; d < D; d++)
        sum += oracle_load(base, at + (size_t)d, t) * oracle_load(base, at + (size_t)d, t);
    return sqrt(sum);
}

void oracle_row_stat(const kve_row_stat_params *p, double *out)
{
    size_t D = (size_t)p->D;
    double *mean = new_doubles(p->D);
    for (int32_t h = 0; h < p->Hkv; h++) {
        size_t base = oracle_kv_at(&p->kv, p->Hkv, p->D, p->i_layer, h, 0);
        double length = 0;
        for (size_t d = 0; d < D; d++) {
            mean[d] = 0;
            for (size_t j = 0; j < (size_t)p->n; j++)
                mean[d] += oracle_load(p->kv.k, base + j * D + d, p->kv_dtype) /
                           fmax(norm_of(p->kv.k, base + j * D, p->D, p->kv_dtype), 1e-12) / p->n;
            length += mean[d] * mean[d];
        }
        for (size_t j = 0; j < (size_t)p->n; j++) {
            double norm = norm_of(p->kv.k, base + j * D, p->D, p->kv_dtype), dot = 0;
            for (size_t d = 0; d < D; d++)
                dot += oracle_load(p->kv.k, base + j * D + d, p->kv_dtype) * mean[d];
            /* The cosine of a zero row is 0, as in torch.cosine_similarity (eps 1e-8 under each norm). */
            double cosine = dot / (fmax(norm, 1e-8) * fmax(sqrt(length), 1e-8));
            out[(size_t)h * (size_t)p->n + j] = p->stat == KVE_STAT_NEG_NORM ? -norm : -cosine;
        }
    }
    free(mean);
}

/* Softmax inside one partition (first row at element `at`) of the channels' standard deviation after each channel is
 * scaled by the minimum and maximum of the next partition; half of it is added to out. */
static void lag_partition(const void *base, size_t at, int32_t lag, int32_t D, kve_dtype t, double *out)
{
    double *spread = new_doubles(lag), *x = new_doubles(D), total = 0;
    for (int32_t j = 0; j < lag; j++) {
        double mean = 0, square = 0;
        for (int32_t d = 0; d < D; d++) {
            double low = INFINITY, high = -INFINITY;
            for (int32_t r = lag; r < 2 * lag; r++) {
                low = fmin(low, oracle_load(base, at + (size_t)r * (size_t)D + (size_t)d, t));
                high = fmax(high, oracle_load(base, at + (size_t)r * (size_t)D + (size_t)d, t));
            }
            x[d] = (oracle_load(base, at + (size_t)j * (size_t)D + (size_t)d, t) - low) / (high - low);
            mean += x[d] / D;
        }
        for (int32_t d = 0; d < D; d++)
            square += (x[d] - mean) * (x[d] - mean);
        spread[j] = exp(sqrt(square / (D - 1)));
        total += spread[j];
    }
    for (int32_t j = 0; j < lag; j++)
        out[j] += 0.5 * spread[j] / total;
    free(spread);
    free(x);
}

int32_t oracle_lag(const kve_row_stat_params *p, double *out)
{
    int32_t parts = p->n < p->n_sink + 2 * p->lag ? 0 : (p->n - p->n_sink) / p->lag - 1;
    for (int32_t h = 0; h < p->Hkv; h++) {
        double *to = out + (size_t)h * (size_t)p->n;
        for (int32_t j = 0; j < p->n; j++) {
            bool scored = parts && j >= p->n_sink && j < p->n_sink + parts * p->lag;
            to[j] = scored ? 0 : 1;
            if (!parts && j >= p->n_sink)
                to[j] = (double)(j - p->n_sink) / (p->n - p->n_sink);
        }
        for (int32_t i = 0; i < parts; i++) {
            int32_t first = p->n_sink + i * p->lag;
            size_t at = oracle_kv_at(&p->kv, p->Hkv, p->D, p->i_layer, h, first);
            lag_partition(p->kv.k, at, p->lag, p->D, p->kv_dtype, to + first);
            lag_partition(p->kv.v, at, p->lag, p->D, p->kv_dtype, to + first);
        }
    }
    return parts;
}

/* Is position a before position b in the total order of one row? */
static bool ranks_before(const kve_rank_params *p, const float *scores, int32_t a, int32_t b)
{
    bool sink_a = a < p->sink, sink_b = b < p->sink;
    bool recent_a = a >= p->n - p->recent, recent_b = b >= p->n - p->recent;
    if (sink_a || sink_b)
        return sink_a && sink_b ? a < b : sink_a;
    if (recent_a || recent_b)
        return recent_a && recent_b ? a > b : recent_a;
    double x = isnan(scores[a]) ? (double)-INFINITY : (double)scores[a];
    double y = isnan(scores[b]) ? (double)-INFINITY : (double)scores[b];
    return x != y ? x > y : a < b;
}

void oracle_rank(const kve_rank_params *p, int32_t *order)
{
    for (int32_t r = 0; r < p->rows; r++)
        for (int32_t j = 0; j < p->n; j++) {
            int32_t place = 0;
            for (int32_t i = 0; i < p->n; i++)
                place += i != j && ranks_before(p, p->scores + (size_t)r * (size_t)p->n, i, j);
            if (place < p->n_out)
                order[(size_t)r * (size_t)p->n_out + (size_t)place] = j;
        }
}

void oracle_gather(const kve_gather_params *p)
{
    size_t size = kve_dtype_bytes(p->kv_dtype), bytes = (size_t)p->D * size;
    const int32_t *order = p->order, *counts = p->counts;
    for (int32_t layer = p->i_layer; layer < p->i_layer + p->n_layers; layer++)
        for (int32_t h = 0; h < p->Hkv; h++, order += p->order_stride)
            for (int32_t r = 0, n = counts ? *counts++ : p->count; r < n; r++) {
                size_t from = oracle_kv_at(&p->from, p->Hkv, p->D, layer, h, order[r]) * size;
                size_t to = oracle_kv_at(&p->to, p->Hkv, p->D, layer, h, r) * size;
                memcpy((char *)p->to.k + to, (const char *)p->from.k + from, bytes);
                memcpy((char *)p->to.v + to, (const char *)p->from.v + from, bytes);
            }
}

void oracle_compact(const kve_compact_params *p)
{
    size_t size = kve_dtype_bytes(p->kv_dtype), bytes = (size_t)p->D * size;
    for (int32_t h = 0; h < p->Hkv; h++)
        for (int32_t r = 0; r < p->n; r++) {
            size_t to = oracle_kv_at(&p->kv, p->Hkv, p->D, p->i_layer, h, r);
            if (r < p->keep_len[h]) { /* ascending, so the source is never behind r: it is still the old row */
                int32_t j = p->keep[(size_t)h * (size_t)p->keep_stride + (size_t)r];
                size_t from = oracle_kv_at(&p->kv, p->Hkv, p->D, p->i_layer, h, j);
                memmove((char *)p->kv.k + to * size, (const char *)p->kv.k + from * size, bytes);
                memmove((char *)p->kv.v + to * size, (const char *)p->kv.v + from * size, bytes);
            }
            for (int32_t d = 0; r >= p->keep_len[h] && d < p->D; d++) {
                oracle_store(p->kv.k, to + (size_t)d, p->kv_dtype, NAN);
                oracle_store(p->kv.v, to + (size_t)d, p->kv_dtype, NAN);
            }
        }
}
