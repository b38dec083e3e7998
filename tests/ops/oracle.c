/* The oracle's dense half: bf16, embed, matmul, norms, RoPE, GLU, NLL, argmax. See oracle.h. */
#include "tests/ops/oracle.h"

#include <math.h>
#include <string.h>

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float oracle_bf16(float x)
{
    uint32_t bits;
    if (isnan(x) || isinf(x))
        return x;
    memcpy(&bits, &x, sizeof bits);
    /* The two bf16 neighbours towards and away from zero. The upper one may be infinite; its distance then counts as
     * if the exponent went on. */
    uint32_t low_bits = bits & 0xffff0000u, high_bits = low_bits + 0x10000u;
    double low = (double)from_bits(low_bits), high = (double)from_bits(high_bits);
    if (isinf(high))
        high = copysign(ldexp(1.0, 128), high);
    double to_low = fabs((double)x - low), to_high = fabs(high - (double)x);
    bool low_is_even = (low_bits >> 16) % 2 == 0;
    return from_bits(to_low < to_high || (to_low == to_high && low_is_even) ? low_bits : high_bits);
}

void oracle_store(void *base, size_t at, kve_dtype t, float x)
{
    uint32_t bits;
    if (t == KVE_F32) {
        ((float *)base)[at] = x;
        return;
    }
    x = oracle_bf16(x);
    memcpy(&bits, &x, sizeof bits);
    ((uint16_t *)base)[at] = (uint16_t)(bits >> 16);
}

size_t oracle_kv_at(const kve_kv *kv, int32_t Hkv, int32_t D, int32_t i_layer, int32_t h, int32_t j)
{
    size_t head = (size_t)i_layer * (size_t)Hkv + (size_t)h;
    return ((kv->first ? (size_t)kv->first[head] : head * (size_t)kv->cap) + (size_t)j) * (size_t)D;
}

static float stored(float x, kve_dtype t)
{
    return t == KVE_BF16 ? oracle_bf16(x) : x;
}

void oracle_embed(const kve_embed_params *p, const float *rows, kve_dtype t, double *out)
{
    for (int32_t r = 0; r < p->T; r++)
        for (int32_t e = 0; e < p->E; e++)
            out[(size_t)r * (size_t)p->E + (size_t)e] =
                (double)stored(rows[(size_t)p->ids[r] * (size_t)p->E + (size_t)e], t);
}

void oracle_matmul(const kve_matmul_params *p, const float *rows, kve_dtype t, int32_t N, int32_t K, const float *y0,
                   double *y)
{
    for (int32_t r = 0; r < p->T; r++) {
        for (int32_t c = 0; c < N; c++) {
            size_t at = (size_t)r * (size_t)N + (size_t)c;
            double sum = 0;
            for (int32_t k = 0; k < K; k++)
                sum += (double)stored(p->x[(size_t)r * (size_t)K + (size_t)k], t) *
                       (double)stored(rows[(size_t)c * (size_t)K + (size_t)k], t);
            if (p->bias)
                sum += (double)p->bias[c];
            y[at] = p->accumulate ? (double)y0[at] + sum : sum;
        }
    }
}

static void normalize(const double *x, const float *gain, int32_t n, double eps, double *out)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int32_t i = 0; i < n; i++)
        out[i] = x[i] / sqrt(sum / n + eps) * (double)gain[i];
}

void oracle_rmsnorm(const kve_rmsnorm_params *p, double *out)
{
    for (int32_t t = 0; t < p->T; t++) {
        double *to = out + (size_t)t * (size_t)p->E;
        for (int32_t e = 0; e < p->E; e++)
            to[e] = (double)p->x[(size_t)t * (size_t)p->E + (size_t)e];
        normalize(to, p->gain, p->E, (double)p->eps, to);
    }
}

/* One head of one row: copy, norm if asked for, rotation if `position` is not negative. */
static void rope_head(const kve_rope_append_params *p, const float *in, const float *gain, int32_t position,
                      double *out)
{
    int32_t half = p->R / 2;
    for (int32_t d = 0; d < p->D; d++)
        out[d] = (double)in[d];
    if (gain)
        normalize(out, gain, p->D, (double)p->norm_eps, out);
    for (int32_t d = 0; d < half && position >= 0; d++) {
        double c = (double)p->cos[(size_t)position * (size_t)half + (size_t)d];
        double s = (double)p->sin[(size_t)position * (size_t)half + (size_t)d];
        double a = out[d], b = out[d + half];
        out[d] = a * c - b * s;
        out[d + half] = b * c + a * s;
    }
}

void oracle_rope_append(const kve_rope_append_params *p, double *q, double *k, double *v)
{
    size_t D = (size_t)p->D;
    const float *in = p->qkv;
    for (int32_t t = 0; t < p->T; t++) {
        for (int32_t h = 0; h < p->Hq; h++, in += D, q += D)
            rope_head(p, in, p->q_norm, p->pos_of[t], q);
        for (int32_t h = 0; h < p->Hkv; h++, in += D, k += D)
            rope_head(p, in, p->k_norm, p->pos_of[t], k);
        for (int32_t h = 0; h < p->Hkv; h++, in += D, v += D)
            rope_head(p, in, NULL, -1, v);
    }
}

static double activate(kve_activation act, double x)
{
    const double pi = 3.14159265358979323846;
    if (act == KVE_SILU)
        return x / (1.0 + exp(-x));
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / pi) * (x + 0.044715 * x * x * x)));
}

void oracle_glu(const kve_glu_params *p, double *out)
{
    for (int32_t t = 0; t < p->T; t++) {
        const float *gate = p->gate_up + (size_t)t * 2 * (size_t)p->F, *up = gate + p->F;
        for (int32_t i = 0; i < p->F; i++)
            out[(size_t)t * (size_t)p->F + (size_t)i] = activate(p->act, (double)gate[i]) * (double)up[i];
    }
}

void oracle_nll(const kve_nll_params *p, double *nll)
{
    for (int32_t t = 0; t < p->T; t++) {
        const float *x = p->logits + (size_t)t * (size_t)p->V;
        double top = -INFINITY, sum = 0;
        bool nan = false;
        for (int32_t i = 0; i < p->V; i++) {
            nan = nan || isnan(x[i]);
            top = (double)x[i] > top ? (double)x[i] : top;
        }
        for (int32_t i = 0; i < p->V; i++)
            sum += exp((double)x[i] - top);
        double logsumexp = isinf(top) ? top : log(sum) + top;
        nll[t] = nan ? (double)NAN : logsumexp - (double)x[p->target[t]];
    }
}

void oracle_argmax(const kve_argmax_params *p, int32_t *ids)
{
    for (int32_t t = 0; t < p->T; t++) {
        const float *x = p->logits + (size_t)t * (size_t)p->V;
        ids[t] = -1;
        for (int32_t i = p->V - 1; i >= 0; i--)
            if (!isnan(x[i]) && (ids[t] < 0 || x[i] >= x[ids[t]]))
                ids[t] = i;
    }
}

void oracle_advance(const kve_advance_params *p)
{
    for (int32_t t = 0; t < p->T; t++) {
        p->ids[t] = p->next[t] > 0 ? p->next[t] : 0;
        p->pos_of[t] += 1;
        p->index_of[t] += 1;
        p->tail_len[p->slot_of[t]] += 1;
        p->log[*p->n_logged * p->T + t] = p->next[t];
    }
    *p->n_logged += p->T > 0;
}
