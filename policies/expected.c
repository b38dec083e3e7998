/* expected_attention (kvpress ExpectedAttentionPress, epsilon 0): the attention that the next 512 positions would give
 * if their queries were drawn from the Gaussian of those before, times the values' norms. Arithmetic on the host. */
#include "policies/policy.h"

#include "host/base/mem.h"
#include "policies/host_rows.h"
#include "policies/kvp/dense.h"

#include <math.h>
#include <string.h>

enum { SINKS = 4, BLOCK = 256 };

/* What a head needs on the way. Rows of t: the tokens that are no sinks. */
typedef struct expected {
    const kve_policy_view *v;
    kve_span t;
    size_t width;
    float *cos, *sin;   /* [R/2] means over the future positions */
    float *mean;        /* [width] of the queries to come */
    float *covariance;  /* [width][width] */
    float *keys;        /* [t.count][width] */
    float *q, *product; /* [t.count][width] */
    float *layer_q;     /* [Hq][t.count][width] */
    double *exponent;   /* [t.count] */
} expected;

static void mean_rotation(expected *x)
{
    size_t half = (size_t)x->v->shape->R / 2, n = (size_t)x->v->n;
    for (size_t d = 0; d < half; d++) {
        double cos = 0, sin = 0;
        for (size_t i = 0; i < KVE_FUTURE_POSITIONS; i++) {
            cos += (double)x->v->cos[(n + i) * half + d];
            sin += (double)x->v->sin[(n + i) * half + d];
        }
        x->cos[d] = (float)(cos / KVE_FUTURE_POSITIONS);
        x->sin[d] = (float)(sin / KVE_FUTURE_POSITIONS);
    }
}

/* Mean and covariance of the rotated queries are those that a rotation of mean and covariance gives. */
static void query_statistics(expected *x)
{
    size_t half = (size_t)x->v->shape->R / 2, width = x->width;
    kve_host_unrotate(x->v, x->t, x->q, width);
    for (size_t j = 0; j < (size_t)x->t.count; j++) {
        float *low = x->q + j * width, *high = low + half;
        for (size_t d = 0; d < half; d++) {
            float a = low[d], b = high[d];
            low[d] = a * x->cos[d] - b * x->sin[d];
            high[d] = b * x->cos[d] + a * x->sin[d];
        }
    }
    kve_host_center(x->q, x->t.count, width, x->mean);
    memset(x->covariance, 0, width * width * sizeof *x->covariance);
    for (int32_t at = 0; at < x->t.count; at += BLOCK) /* sums of blocks: fewer roundings on the way of each product */
        kvp_math_pick()->gemm(&(kvp_gemm){.a = x->q + (size_t)at * width,
                                          .b = x->q + (size_t)at * width,
                                          .c = x->covariance,
                                          .a_row = 1,
                                          .a_step = width,
                                          .b_panel = KVP_LANES,
                                          .b_step = width,
                                          .c_row = width,
                                          .m = (int32_t)width,
                                          .n = (int32_t)width,
                                          .k = x->t.count - at < BLOCK ? x->t.count - at : BLOCK,
                                          .add = true});
    for (size_t i = 0; i < width * width; i++)
        x->covariance[i] /= (float)x->t.count;
}

static double dot(const float *a, const float *b, size_t width)
{
    double lane[KVP_LANES] = {0}, sum = 0;
    for (size_t d = 0; d < width; d += KVP_LANES)
        for (size_t l = 0; l < KVP_LANES; l++)
            lane[l] += (double)a[d + l] * (double)b[d + l];
    for (size_t l = 0; l < KVP_LANES; l++)
        sum += lane[l];
    return sum;
}

/* The softmax over the keys of what a query to come gives them on average, added to out [t.count]. */
static void add_expectation(expected *x, float *out)
{
    size_t width = x->width, count = (size_t)x->t.count;
    double scale = (double)x->v->scale, highest = -INFINITY, sum = 0;
    kvp_math_pick()->gemm(&(kvp_gemm){.a = x->keys,
                                      .b = x->covariance,
                                      .c = x->product,
                                      .a_row = width,
                                      .a_step = 1,
                                      .b_panel = KVP_LANES,
                                      .b_step = width,
                                      .c_row = width,
                                      .m = x->t.count,
                                      .n = (int32_t)width,
                                      .k = (int32_t)width});
    for (size_t j = 0; j < count; j++) {
        const float *k = x->keys + j * width;
        x->exponent[j] = scale * dot(k, x->mean, width) + 0.5 * scale * scale * dot(k, x->product + j * width, width);
        highest = x->exponent[j] > highest ? x->exponent[j] : highest;
    }
    for (size_t j = 0; j < count; j++)
        sum += x->exponent[j] = exp(x->exponent[j] - highest);
    for (size_t j = 0; j < count; j++)
        out[j] += (float)(x->exponent[j] / sum);
}

/* out [n]; the sinks are set when the layer's highest score is known. */
static kve_status expected_head(expected *x, int32_t h, float *out)
{
    int32_t G = kve_shape_group(x->v->shape);
    size_t rows = (size_t)x->t.count * x->width;
    float *mid = out + x->t.first;
    KVE_TRY(kve_host_rows(x->v, KVE_HOST_KEYS, h, x->t, x->keys));
    for (int32_t g = 0; g < G; g++) {
        x->q = x->layer_q + (size_t)(h * G + g) * rows;
        query_statistics(x);
        add_expectation(x, mid);
    }
    KVE_TRY(kve_host_rows(x->v, KVE_HOST_VALUES, h, x->t, x->keys));
    kve_host_norms(x->keys, x->t.count, x->width, x->product);
    for (int32_t j = 0; j < x->t.count; j++)
        mid[j] = mid[j] / (float)G * x->product[j];
    return KVE_OK;
}

static kve_status expected_layer(expected *x, float *out)
{
    size_t Hkv = (size_t)x->v->shape->Hkv, n = (size_t)x->v->n;
    float highest = -INFINITY;
    mean_rotation(x);
    KVE_TRY(kve_host_queries(x->v, x->t, x->layer_q));
    for (size_t h = 0; h < Hkv; h++)
        KVE_TRY(expected_head(x, (int32_t)h, out + h * n));
    for (size_t h = 0; h < Hkv; h++)
        for (size_t j = SINKS; j < n; j++)
            highest = out[h * n + j] > highest ? out[h * n + j] : highest;
    for (size_t h = 0; h < Hkv; h++)
        for (size_t j = 0; j < SINKS; j++)
            out[h * n + j] = highest + 1;
    return KVE_OK;
}

static kve_status score_expected(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    if (v->n <= SINKS)
        return kve_host_scores_equal(v, scores);
    expected x = {.v = v, .t = {SINKS, v->n - SINKS}, .width = kve_host_width(v->shape->D)};
    size_t rows = (size_t)x.t.count * x.width;
    kve_arena arena = {0};
    float *out = NULL;
    kve_status st;
    KVE_TRY_GOTO(st, kve_arena_alloc(&arena, (size_t)v->shape->Hkv * (size_t)v->n, sizeof *out, &out), done);
    KVE_TRY_GOTO(st, kve_arena_alloc(&arena, (size_t)v->shape->R, sizeof *x.cos, &x.cos), done);
    x.sin = x.cos + v->shape->R / 2;
    KVE_TRY_GOTO(st, kve_arena_alloc(&arena, x.width, sizeof *x.mean, &x.mean), done);
    KVE_TRY_GOTO(st, kve_arena_alloc(&arena, x.width * x.width, sizeof *x.covariance, &x.covariance), done);
    KVE_TRY_GOTO(st, kve_arena_alloc(&arena, rows, sizeof *x.keys, &x.keys), done);
    KVE_TRY_GOTO(st, kve_arena_alloc(&arena, rows, sizeof *x.product, &x.product), done);
    KVE_TRY_GOTO(st, kve_arena_alloc(&arena, (size_t)v->shape->Hq * rows, sizeof *x.layer_q, &x.layer_q), done);
    KVE_TRY_GOTO(st, kve_arena_alloc(&arena, (size_t)x.t.count, sizeof *x.exponent, &x.exponent), done);
    KVE_TRY_GOTO(st, expected_layer(&x, out), done);
    st = kve_host_scores_out(v, out, scores);
done:
    kve_arena_free(&arena);
    return st;
}

const kve_policy kve_policy_expected_attention = {.name = "expected_attention",
                                                  .summary = "attention that queries to come would give, by value norm",
                                                  .needs = KVE_NEED_KEYS | KVE_NEED_VALUES | KVE_NEED_QUERIES |
                                                           KVE_NEED_ROTATION,
                                                  .score = score_expected};
