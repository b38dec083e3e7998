/* The oracle's kvp_score. It walks a blob by the comment of kernels/kvp.h, not by the functions there. See oracle.h. */
#include "kernels/kvp.h"
#include "tests/ops/oracle.h"

#include <math.h>
#include <stdlib.h>

/* The tensors of one head in the order of the blob. */
typedef struct network {
    const float *k_weight, *k_bias, *k_gain, *k_shift, *v_weight, *v_bias, *v_gain, *v_shift, *pos_gain, *pos_shift;
    const float *mix_weight, *mix_bias, *mix_gain, *mix_shift, *deep_weight, *deep_bias, *deep_gain, *deep_shift;
    const float *out_weight, *out_bias;
} network;

static const float *take(const float **at, int32_t rows, int32_t cols)
{
    const float *here = *at;
    *at += (size_t)rows * (size_t)cols;
    return here;
}

static network network_of(const kve_kvp_score_params *p, const float *at)
{
    int32_t H = p->H;
    network w;
    w.k_weight = take(&at, H, p->D);
    w.k_bias = take(&at, 1, H);
    w.k_gain = take(&at, 1, H);
    w.k_shift = take(&at, 1, H);
    w.v_weight = take(&at, H, p->D);
    w.v_bias = take(&at, 1, H);
    w.v_gain = take(&at, 1, H);
    w.v_shift = take(&at, 1, H);
    w.pos_gain = take(&at, 1, p->P);
    w.pos_shift = take(&at, 1, p->P);
    w.mix_weight = take(&at, H, 2 * H + p->P);
    w.mix_bias = take(&at, 1, H);
    w.mix_gain = take(&at, 1, H);
    w.mix_shift = take(&at, 1, H);
    w.deep_weight = take(&at, H, H);
    w.deep_bias = take(&at, 1, H);
    w.deep_gain = take(&at, 1, H);
    w.deep_shift = take(&at, 1, H);
    w.out_weight = take(&at, 1, H);
    w.out_bias = take(&at, 1, 1);
    return w;
}

static double rounded(double x, kve_dtype t)
{
    return t == KVE_BF16 ? (double)oracle_bf16((float)x) : x;
}

/* y = W x + b; W is rounded already, x is here. */
static void linear(const kve_kvp_score_params *p, const float *weight, const float *bias, const double *x, int32_t n_in,
                   double *y)
{
    double in[2 * KVE_KVP_MAX_H + KVE_KVP_MAX_P];
    for (int32_t i = 0; i < n_in; i++)
        in[i] = rounded(x[i], p->kv_dtype);
    for (int32_t o = 0; o < p->H; o++) {
        y[o] = (double)bias[o];
        for (int32_t i = 0; i < n_in; i++)
            y[o] += (double)weight[(size_t)o * (size_t)n_in + (size_t)i] * in[i];
    }
}

static void layer_norm(const double *x, const float *gain, const float *shift, int32_t n, bool silu, double *out)
{
    double mean = 0, var = 0;
    for (int32_t i = 0; i < n; i++)
        mean += x[i] / n;
    for (int32_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / n;
    for (int32_t i = 0; i < n; i++) {
        out[i] = (x[i] - mean) / sqrt(var + 1e-5) * (double)gain[i] + (double)shift[i];
        if (silu)
            out[i] /= 1 + exp(-out[i]);
    }
}

/* head counts over the layers of the call. */
static double score(const kve_kvp_score_params *p, const network *w, int32_t head, int32_t j)
{
    double row[KVE_KVP_MAX_D], y[KVE_KVP_MAX_H], x[2 * KVE_KVP_MAX_H + KVE_KVP_MAX_P] = {0}, sum = (double)*w->out_bias;
    size_t at = oracle_kv_at(&p->kv, p->Hkv, p->D, p->i_layer + head / p->Hkv, head % p->Hkv, j);
    if (p->inputs & KVE_KVP_K) {
        for (int32_t d = 0; d < p->D; d++)
            row[d] = oracle_load(p->kv.k, at + (size_t)d, p->kv_dtype);
        linear(p, w->k_weight, w->k_bias, row, p->D, y);
        layer_norm(y, w->k_gain, w->k_shift, p->H, false, x);
    }
    if (p->inputs & KVE_KVP_V) {
        for (int32_t d = 0; d < p->D; d++)
            row[d] = oracle_load(p->kv.v, at + (size_t)d, p->kv_dtype);
        linear(p, w->v_weight, w->v_bias, row, p->D, y);
        layer_norm(y, w->v_gain, w->v_shift, p->H, false, x + p->H);
    }
    if (p->inputs & KVE_KVP_POS) {
        size_t table = p->n_tables == 1 ? 0 : (size_t)head;
        size_t position = (size_t)(j < p->n_positions ? j : p->n_positions - 1);
        for (int32_t i = 0; i < p->P; i++)
            row[i] = (double)p->table[(table * (size_t)p->n_positions + position) * (size_t)p->P + (size_t)i];
        layer_norm(row, w->pos_gain, w->pos_shift, p->P, false, x + 2 * p->H);
    }
    linear(p, w->mix_weight, w->mix_bias, x, 2 * p->H + p->P, y);
    layer_norm(y, w->mix_gain, w->mix_shift, p->H, true, x);
    linear(p, w->deep_weight, w->deep_bias, x, p->H, y);
    layer_norm(y, w->deep_gain, w->deep_shift, p->H, true, y);
    for (int32_t i = 0; i < p->H; i++)
        sum += (double)w->out_weight[i] * y[i];
    return sum;
}

/* A matrix rounded for a bf16 cache, in memory of its own. */
static float *rounded_matrix(const kve_kvp_score_params *p, const float *weight, int32_t n_in)
{
    size_t count = (size_t)p->H * (size_t)n_in;
    float *copy = malloc(count * sizeof *copy);
    if (!copy)
        abort();
    for (size_t i = 0; i < count; i++)
        copy[i] = (float)rounded((double)weight[i], p->kv_dtype);
    return copy;
}

void oracle_kvp_score(const kve_kvp_score_params *p, double *out)
{
    kve_kvp_shape s = {p->D, p->H, p->P};
    for (int32_t head = 0; head < p->n_layers * p->Hkv; head++) {
        network w = network_of(p, p->weights + (size_t)head * kve_kvp_count(s));
        float *k = rounded_matrix(p, w.k_weight, p->D), *v = rounded_matrix(p, w.v_weight, p->D);
        float *mix = rounded_matrix(p, w.mix_weight, 2 * p->H + p->P), *deep = rounded_matrix(p, w.deep_weight, p->H);
        w.k_weight = k;
        w.v_weight = v;
        w.mix_weight = mix;
        w.deep_weight = deep;
        for (int32_t j = 0; j < p->n; j++)
            out[(size_t)head * (size_t)p->n + (size_t)j] = score(p, &w, head, j);
        free(k);
        free(v);
        free(mix);
        free(deep);
    }
}
