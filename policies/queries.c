/* Policies that look at the queries of the whole prefill: h2o (Zhang et al.; kvpress ObservedAttentionPress without its
 * division by the number of queries), finch (FinchPress: the question's attention, weighted by how much each of its
 * tokens could see), noncausal_attn (NonCausalAttnPress, with its padding done right: there, keys of padding take a
 * share of the last chunk's attention and queries of padding give some) and compactor (CompactorPress: that and
 * leverage, blended by the budget). h2o's attention is the backend's op, the rest is arithmetic on the host. */
#include "policies/queries.h"

#include "host/base/mem.h"
#include "policies/geometry.h"
#include "policies/host_columns.h"
#include "policies/host_rows.h"

#include <math.h>
#include <stdlib.h>

enum { CHUNK = 256, FIRST_EDGE = 8, LAST_EDGE = 4 };

static size_t layer_scores(const kve_policy_view *v)
{
    return (size_t)v->shape->Hkv * (size_t)v->n;
}

/* --- h2o */

static kve_status score_h2o(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    const kve_shape *s = v->shape;
    size_t count = layer_scores(v);
    kve_attention_window_params a = {.q = v->q,
                                     .kv = v->kv,
                                     .out = v->scratch,
                                     .scale = v->scale,
                                     .n = v->n,
                                     .W = v->n,
                                     .Hq = s->Hq,
                                     .Hkv = s->Hkv,
                                     .D = s->D,
                                     .i_layer = v->i_layer,
                                     .kv_dtype = v->kv_dtype};
    kve_pool_group_params pool = {
        .in = v->scratch, .out = scores, .n = v->n, .n_valid = v->n, .Hq = s->Hq, .Hkv = s->Hkv, .width = 1};
    float *host = NULL;
    KVE_TRY(v->be->vt->attention_window(v->be, &a));
    KVE_TRY(v->be->vt->pool_group(v->be, &pool));
    KVE_TRY(kve_alloc(count, sizeof *host, &host));
    kve_status st = v->be->vt->read(v->be, host, scores, count * sizeof *host);
    for (size_t i = 0; i < count; i++)
        host[i] *= (float)v->n; /* the op gives the mean over the queries */
    if (st == KVE_OK)
        st = kve_host_scores_out(v, host, scores);
    free(host);
    return st;
}

/* --- finch */

/* Of one KV head. keys [n][width], q [G][W][width], weight [W]. */
static kve_status finch_head(const kve_policy_view *v, const float *keys, const float *q, const float *weight,
                             float *out)
{
    int32_t W = v->n_question, G = kve_shape_group(v->shape);
    size_t width = kve_host_width(v->shape->D);
    for (int32_t g = 0; g < G; g++)
        KVE_TRY(kve_column_sums(&(kve_columns){.q = q + (size_t)g * (size_t)W * width,
                                               .k = keys,
                                               .weight = weight,
                                               .sums = out,
                                               .width = width,
                                               .scale = v->scale,
                                               .n_queries = W,
                                               .n_keys = v->n,
                                               .visible = v->n - W + 1}));
    for (int32_t j = 0; j < v->n - W; j++)
        out[j] /= (float)W * (float)G;
    for (int32_t i = 0; i < W; i++) /* on top, and where not all of it fits the newest */
        out[v->n - W + i] = 1e30f * (float)(1 + i);
    return KVE_OK;
}

static kve_status score_finch(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    int32_t W = v->n_question;
    size_t n = (size_t)v->n, width = kve_host_width(v->shape->D), per_head = (size_t)W * width;
    float *keys = NULL, *q = NULL;
    if (W < 1 || W >= v->n)
        return kve_fail(
            KVE_ERR_USAGE,
            "%s: policy '%s' ranks the context by the question behind it, and %d of the %d tokens prefilled are "
            "question; use --question in and a task with context and question, or leave the policy out",
            v->sample_name ? v->sample_name : "sample", p->name, W, v->n);
    KVE_TRY(kve_alloc(n * width + layer_scores(v), sizeof *keys, &keys)); /* then the scores */
    float *out = keys + n * width;
    kve_status st = kve_alloc((size_t)v->shape->Hq * per_head + (size_t)W, sizeof *q, &q); /* then the weights */
    if (st != KVE_OK) {
        free(keys);
        return st;
    }
    float *weight = q + (size_t)v->shape->Hq * per_head;
    for (int32_t i = 0; i < W; i++)
        weight[i] = (float)(v->n - W + i); /* keys before it */
    st = kve_host_queries(v, (kve_span){v->n - W, W}, q);
    for (int32_t h = 0; h < v->shape->Hkv && st == KVE_OK; h++) {
        st = kve_host_rows(v, KVE_HOST_KEYS, h, (kve_span){0, v->n}, keys);
        if (st == KVE_OK)
            st = finch_head(v, keys, q + (size_t)(h * kve_shape_group(v->shape)) * per_head, weight,
                            out + (size_t)h * n);
    }
    if (st == KVE_OK)
        st = kve_host_scores_out(v, out, scores);
    free(keys);
    free(q);
    return st;
}

/* --- noncausal_attn */

/* Means over groups of one chunk's column sums, times the values' norms: out [Hkv][stride]. */
static kve_status noncausal_chunk(const kve_policy_view *v, kve_span t, float *q, float *rows, float *out,
                                  size_t stride)
{
    int32_t G = kve_shape_group(v->shape);
    size_t width = kve_host_width(v->shape->D), per_group = (size_t)G * (size_t)t.count * width;
    KVE_TRY(kve_host_queries(v, t, q));
    for (size_t h = 0; h < (size_t)v->shape->Hkv; h++) {
        float sums[CHUNK] = {0}, norms[CHUNK];
        KVE_TRY(kve_host_rows(v, KVE_HOST_KEYS, (int32_t)h, t, rows));
        KVE_TRY(kve_column_sums(&(kve_columns){.q = q + h * per_group,
                                               .k = rows,
                                               .sums = sums,
                                               .width = width,
                                               .scale = 1,
                                               .n_queries = G * t.count,
                                               .n_keys = t.count,
                                               .visible = t.count}));
        KVE_TRY(kve_host_rows(v, KVE_HOST_VALUES, (int32_t)h, t, rows));
        kve_host_norms(rows, t.count, width, norms);
        for (int32_t j = 0; j < t.count; j++)
            out[h * stride + (size_t)j] = sums[j] / (float)G * norms[j];
    }
    return KVE_OK;
}

/* Means of three neighbours; beyond the ends are zeros, which count. */
static void pool_three(float *x, int32_t n)
{
    float left = 0;
    for (int32_t j = 0; j < n; j++) {
        float here = x[j];
        x[j] = (left + here + (j + 1 < n ? x[j + 1] : 0)) / 3;
        left = here;
    }
}

/* out [Hkv][t.count], the chunks counted from t.first. */
static kve_status noncausal_z(const kve_policy_view *v, kve_span t, float *out)
{
    size_t width = kve_host_width(v->shape->D), count = (size_t)t.count;
    float *q = NULL;
    KVE_TRY(kve_alloc(((size_t)v->shape->Hq + 1) * CHUNK, width * sizeof *q, &q)); /* then rows of a KV head */
    float *rows = q + (size_t)v->shape->Hq * CHUNK * width;
    kve_status st = KVE_OK;
    for (int32_t at = 0; at < t.count && st == KVE_OK; at += CHUNK) {
        int32_t left = t.count - at;
        st = noncausal_chunk(v, (kve_span){t.first + at, left < CHUNK ? left : CHUNK}, q, rows, out + at, count);
    }
    free(q);
    KVE_TRY(st);
    for (size_t h = 0; h < (size_t)v->shape->Hkv; h++)
        pool_three(out + h * count, t.count);
    kve_host_z_scores(out, (size_t)v->shape->Hkv * count);
    return KVE_OK;
}

static kve_status score_noncausal(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    float *out = NULL;
    KVE_TRY(kve_alloc(layer_scores(v), sizeof *out, &out));
    kve_status st = noncausal_z(v, (kve_span){0, v->n}, out);
    if (st == KVE_OK)
        st = kve_host_scores_out(v, out, scores);
    free(out);
    return st;
}

/* --- compactor */

/* The middle's scores, and the edges as high as the highest of them. lev and att [Hkv][t.count]. */
static void blend(const kve_policy_view *v, kve_span t, const float *lev, const float *att, float *out)
{
    size_t Hkv = (size_t)v->shape->Hkv, n = (size_t)v->n, count = (size_t)t.count;
    float lambda = (float)(1 - (double)v->budget / v->n), highest = -INFINITY;
    for (size_t h = 0; h < Hkv; h++)
        for (size_t j = 0; j < count; j++) {
            float x = lambda * lev[h * count + j] + att[h * count + j];
            out[h * n + (size_t)t.first + j] = x;
            highest = x > highest ? x : highest;
        }
    for (size_t h = 0; h < Hkv; h++)
        for (size_t j = 0; j < n; j++)
            if (j < (size_t)t.first || j >= (size_t)t.first + count)
                out[h * n + j] = highest;
}

kve_status kve_compactor_scores(const kve_policy_view *v, const float *sketch, float *scores)
{
    kve_span middle = {FIRST_EDGE, v->n - FIRST_EDGE - LAST_EDGE};
    if (middle.count < 1)
        return kve_host_scores_equal(v, scores);
    size_t count = (size_t)v->shape->Hkv * (size_t)middle.count;
    float *lev = NULL; /* then those of attention, then the result */
    KVE_TRY(kve_alloc(2 * count + layer_scores(v), sizeof *lev, &lev));
    float *att = lev + count, *out = att + count;
    kve_status st = kve_leverage_z(v, sketch, middle, lev);
    if (st == KVE_OK)
        st = noncausal_z(v, middle, att);
    if (st == KVE_OK) {
        blend(v, middle, lev, att, out);
        st = kve_host_scores_out(v, out, scores);
    }
    free(lev);
    return st;
}

static kve_status score_compactor(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    float *sketch = NULL;
    KVE_TRY(kve_alloc((size_t)v->shape->Hkv * (size_t)v->shape->D, KVE_SKETCH * sizeof *sketch, &sketch));
    kve_draw_sketch(v, sketch);
    kve_status st = kve_compactor_scores(v, sketch, scores);
    free(sketch);
    return st;
}

const kve_policy kve_policy_h2o = {.name = "h2o",
                                   .summary = "attention of all queries, summed",
                                   .needs = KVE_NEED_KEYS | KVE_NEED_QUERIES,
                                   .score = score_h2o};
const kve_policy kve_policy_finch = {.name = "finch",
                                     .summary = "attention of the question's queries",
                                     .needs = KVE_NEED_KEYS | KVE_NEED_QUERIES | KVE_NEED_QUESTION,
                                     .score = score_finch};
const kve_policy kve_policy_noncausal_attn = {.name = "noncausal_attn",
                                              .summary = "attention within chunks of 256, both ways, by value norm",
                                              .needs = KVE_NEED_KEYS | KVE_NEED_VALUES | KVE_NEED_QUERIES,
                                              .score = score_noncausal};
const kve_policy kve_policy_compactor = {.name = "compactor",
                                         .summary = "noncausal_attn and leverage, blended by the budget",
                                         .needs =
                                             KVE_NEED_KEYS | KVE_NEED_VALUES | KVE_NEED_QUERIES | KVE_NEED_ROTATION,
                                         .by_budget = true,
                                         .score = score_compactor};
