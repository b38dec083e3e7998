/* A trainer's state: weights, AdamW, EMA. Contract: state.h. */
#include "policies/kvp/state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 100 };

kve_status kvp_state_create(kve_kvp_shape shape, int32_t heads, kvp_state *s)
{
    *s = (kvp_state){.heads = heads, .count = kve_kvp_count(shape)};
    kve_status st = KVE_OK;
    for (int a = 0; a < KVP_ARRAYS && st == KVE_OK; a++)
        st = kve_alloc((size_t)heads * s->count, sizeof(float), &s->array[a]);
    if (st == KVE_OK)
        st = kve_alloc((size_t)heads, sizeof *s->best_ratio, &s->best_ratio);
    if (st != KVE_OK)
        kvp_state_free(s);
    return st;
}

void kvp_state_free(kvp_state *s)
{
    for (int a = 0; a < KVP_ARRAYS; a++)
        free(s->array[a]);
    free(s->best_ratio);
    kve_str_free(&s->log);
    *s = (kvp_state){0};
}

float *kvp_state_at(const kvp_state *s, kvp_array a, int32_t head)
{
    return s->array[a] + (size_t)head * s->count;
}

void kvp_stream(kve_rng *rng, uint64_t seed, int64_t step, int32_t layer, int32_t head)
{
    kve_rng_init(rng, seed, (uint64_t)step, (uint64_t)layer, (uint64_t)head);
}

static bool is_gain(kve_kvp_tensor t)
{
    return t == KVE_KVP_K_GAIN || t == KVE_KVP_V_GAIN || t == KVE_KVP_POS_GAIN || t == KVE_KVP_MIX_GAIN ||
           t == KVE_KVP_DEEP_GAIN;
}

/* Inputs of the Linear that a weight or a bias belongs to; 0 for a LayerNorm's tensor. */
static int32_t linear_inputs(kve_kvp_shape s, kve_kvp_tensor t)
{
    switch (t) {
    case KVE_KVP_K_WEIGHT:
    case KVE_KVP_V_WEIGHT:
    case KVE_KVP_MIX_WEIGHT:
    case KVE_KVP_DEEP_WEIGHT:
    case KVE_KVP_OUT_WEIGHT:
        return kve_kvp_cols(s, t);
    case KVE_KVP_K_BIAS:
    case KVE_KVP_V_BIAS:
    case KVE_KVP_MIX_BIAS:
    case KVE_KVP_DEEP_BIAS:
    case KVE_KVP_OUT_BIAS:
        return kve_kvp_cols(s, t - 1);
    default:
        return 0;
    }
}

static void init_head(kve_kvp_shape s, kve_rng *rng, float *w)
{
    for (int t = 0; t < KVE_KVP_TENSORS; t++) {
        int32_t inputs = linear_inputs(s, (kve_kvp_tensor)t);
        float bound = inputs ? 1.0f / sqrtf((float)inputs) : 0, fixed = is_gain((kve_kvp_tensor)t) ? 1.0f : 0.0f;
        for (size_t i = kve_kvp_offset(s, (kve_kvp_tensor)t); i < kve_kvp_offset(s, (kve_kvp_tensor)(t + 1)); i++)
            w[i] = inputs ? bound * (2 * kve_rng_float(rng) - 1) : fixed;
    }
}

void kvp_state_init(kvp_state *s, kve_kvp_shape shape, uint64_t seed, int32_t Hkv)
{
    size_t bytes = s->count * sizeof(float);
    for (int32_t h = 0; h < s->heads; h++) {
        kve_rng rng;
        kvp_stream(&rng, seed, -1, h / Hkv, h % Hkv);
        init_head(shape, &rng, kvp_state_at(s, KVP_WEIGHTS, h));
        memcpy(kvp_state_at(s, KVP_EMA, h), kvp_state_at(s, KVP_WEIGHTS, h), bytes);
        memcpy(kvp_state_at(s, KVP_BEST, h), kvp_state_at(s, KVP_WEIGHTS, h), bytes);
        s->best_ratio[h] = INFINITY;
    }
}

double kvp_rate(double lr, int32_t step, int32_t steps)
{
    const double start = 0.01, end = lr < 1e-6 ? lr : 1e-6, pi = 3.141592653589793;
    if (step < WARM_UP)
        return lr * (start + (1 - start) * step / WARM_UP);
    return end + (lr - end) * (1 + cos(pi * (step - WARM_UP) / (steps - WARM_UP))) / 2;
}

kve_status kvp_state_update(kvp_state *s, const kvp_math *math, int32_t head, const float *grad, double rate,
                            double *norm)
{
    const double clip = 5, beta1 = 0.9, beta2 = 0.999;
    const int32_t t = s->step + 1;
    float *weights = kvp_state_at(s, KVP_WEIGHTS, head), *ema = kvp_state_at(s, KVP_EMA, head);
    *norm = sqrt(math->square_sum(grad, s->count));
    if (!isfinite(*norm))
        return kve_fail(KVE_ERR_USAGE, "step %d: the training of head %d diverged; use a lower --lr", t, head);
    math->adamw(&(kvp_adamw){.w = weights,
                             .mean = kvp_state_at(s, KVP_MEAN, head),
                             .square = kvp_state_at(s, KVP_SQUARE, head),
                             .grad = grad,
                             .n = s->count,
                             .factor = *norm > clip ? (float)(clip / *norm) : 1.0f,
                             .lr = (float)rate,
                             .decay = 1e-3f,
                             .beta1 = (float)beta1,
                             .beta2 = (float)beta2,
                             .eps = 1e-8f,
                             .fix1 = (float)(1 / (1 - pow(beta1, t))),
                             .fix2 = (float)(1 / (1 - pow(beta2, t)))});
    math->blend(ema, weights, s->count, t > WARM_UP ? 0.99f : 0.0f);
    return KVE_OK;
}
