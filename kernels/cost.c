/* Bytes and flops of the ops. Contract: cost.h. */
#include "kernels/cost.h"

#include "kernels/kvp.h"

enum {
    F32 = sizeof(float),
    I32 = sizeof(int32_t),
    SOFTMAX = 3,    /* of one weight: scale, exponential, sum */
    LAYER_NORM = 7, /* of one element: mean 1, variance 3, scale 1, gain and shift 2 */
    SILU = 3
};

/* Elements of `rows` rows of width `width`. */
static double area(double rows, double width)
{
    return rows * width;
}

/* (query, row) pairs of T queries in a row, the first of which sees `first` rows. */
static double causal_pairs(double T, double first)
{
    return T * first + T * (T - 1) / 2;
}

kve_cost kve_cost_embed(const kve_embed_params *p, kve_dtype table)
{
    return (kve_cost){area(p->T, p->E) * ((double)kve_dtype_bytes(table) + F32) + (double)p->T * I32, 0};
}

kve_cost kve_cost_rmsnorm(const kve_rmsnorm_params *p)
{
    return (kve_cost){(2 * area(p->T, p->E) + p->E) * F32, 4 * area(p->T, p->E)};
}

kve_cost kve_cost_matmul(const kve_matmul_params *p, int32_t N, int32_t K, kve_dtype weight)
{
    double out = area(p->T, N);
    double floats = area(p->T, K) + out * (p->accumulate ? 2 : 1) + (p->bias ? N : 0);
    return (kve_cost){area(N, K) * (double)kve_dtype_bytes(weight) + floats * F32,
                      out * (2 * (double)K + (p->accumulate ? 1 : 0) + (p->bias ? 1 : 0))};
}

kve_cost kve_cost_rope_append(const kve_rope_append_params *p)
{
    double T = p->T, q = T * p->Hq * p->D, kv = 2 * T * p->Hkv * p->D;
    double turned = T * (p->Hq + p->Hkv) * p->R, normed = (p->q_norm ? q : 0) + (p->k_norm ? kv / 2 : 0);
    return (kve_cost){(2 * q + kv + T * p->R) * F32 + kv * (double)kve_dtype_bytes(p->kv_dtype) + 3 * T * I32,
                      3 * turned + 4 * normed};
}

kve_cost kve_cost_attention_prefill(const kve_attention_prefill_params *p)
{
    double T = p->T, rows = T > 0 ? T + p->start : 0;
    return (kve_cost){2 * T * p->Hq * p->D * F32 + 2 * rows * p->Hkv * p->D * (double)kve_dtype_bytes(p->kv_dtype),
                      p->Hq * causal_pairs(T, p->start + 1.0) * (4.0 * p->D + SOFTMAX)};
}

kve_cost kve_cost_attention_fork(const kve_attention_fork_params *p, double rows, double pairs)
{
    double T = p->T;
    return (kve_cost){2 * T * p->Hq * p->D * F32 + 2 * rows * p->Hkv * p->D * (double)kve_dtype_bytes(p->kv_dtype),
                      p->Hq * pairs * (4.0 * p->D + SOFTMAX)};
}

kve_cost kve_cost_glu(const kve_glu_params *p)
{
    double out = area(p->T, p->F);
    return (kve_cost){3 * out * F32, out * (p->act == KVE_SILU ? SILU + 1 : 9)};
}

kve_cost kve_cost_nll(const kve_nll_params *p)
{
    return (kve_cost){area(p->T, p->V) * F32 + (double)p->T * (F32 + I32), 3 * area(p->T, p->V)};
}

kve_cost kve_cost_argmax(const kve_argmax_params *p)
{
    return (kve_cost){area(p->T, p->V) * F32 + (double)p->T * I32, 0};
}

/* next, slot_of; ids, log; and four bytes read and written of the position, the tail row and the tail's length. */
kve_cost kve_cost_advance(const kve_advance_params *p)
{
    double T = p->T;
    return (kve_cost){(2 + 2 + 2 * 3) * T * I32 + 2 * I32, 3 * T};
}

kve_cost kve_cost_attention_window(const kve_attention_window_params *p)
{
    double keys = area(p->n, (double)p->Hkv * p->D) * (double)kve_dtype_bytes(p->kv_dtype);
    double floats = area(p->W, (double)p->Hq * p->D) + area(p->Hq, p->n);
    double pairs = causal_pairs(p->W, (double)p->n - p->W + 1);
    return (kve_cost){keys + floats * F32, p->Hq * pairs * (2.0 * p->D + SOFTMAX + 2)}; /* share, mean */
}

kve_cost kve_cost_pool_group(const kve_pool_group_params *p)
{
    return (kve_cost){(area(p->Hq, p->n_valid) + area(p->Hkv, p->n)) * F32, area(p->Hq, p->n_valid) * p->width};
}

kve_cost kve_cost_future_importance(const kve_future_importance_params *p)
{
    double keys = area((double)p->n + p->f, (double)p->Hkv * p->D) * (double)kve_dtype_bytes(p->kv_dtype);
    double floats = area(p->f, (double)p->Hq * p->D) + area(p->Hkv, p->n);
    double pairs = causal_pairs(p->f, p->n + 1.0);
    return (kve_cost){keys + floats * F32,
                      p->Hq * pairs * (2.0 * p->D + SOFTMAX + 1) + area(p->f, p->n) * p->Hkv}; /* share; sum */
}

kve_cost kve_cost_row_stat(const kve_row_stat_params *p)
{
    double x = area(p->n, (double)p->Hkv * p->D), scores = area(p->Hkv, p->n) * F32;
    double bytes = x * (double)kve_dtype_bytes(p->kv_dtype);
    if (p->stat == KVE_STAT_NEG_NORM)
        return (kve_cost){bytes + scores, 2 * x};
    if (p->stat == KVE_STAT_NEG_COSINE)
        return (kve_cost){bytes + scores, 6 * x};     /* norms, mean direction, products with it */
    return (kve_cost){2 * bytes + scores, 2 * 6 * x}; /* keys and values: into the range (2), mean (1), spread (3) */
}

/* What each (layer, head) costs: a blob of weights, then the network once for every row. */
kve_cost kve_cost_kvp_score(const kve_kvp_score_params *p)
{
    double heads = area(p->n_layers, p->Hkv), H = p->H, D = p->D;
    double n_cached = ((p->inputs & KVE_KVP_K) ? 1 : 0) + ((p->inputs & KVE_KVP_V) ? 1 : 0);
    double P = (p->inputs & KVE_KVP_POS) ? p->P : 0, positions = p->n < p->n_positions ? p->n : p->n_positions;
    size_t count = kve_kvp_count((kve_kvp_shape){p->D, p->H, p->P});
    double bytes = heads * p->n * (n_cached * D * (double)kve_dtype_bytes(p->kv_dtype) + F32) +
                   heads * (double)count * F32 + positions * P * p->n_tables * F32;
    double inputs = n_cached * H * (2 * D + 1 + LAYER_NORM) + P * LAYER_NORM;
    double hidden = 2 * H * (n_cached * H + P) + 2 * H * H + 2 * H * (1 + LAYER_NORM + SILU);
    return (kve_cost){bytes, heads * p->n * (inputs + hidden + 2 * H)};
}

kve_cost kve_cost_rank(const kve_rank_params *p)
{
    return (kve_cost){area(p->rows, p->n) * F32 + area(p->rows, p->n_out) * I32, 0};
}

kve_cost kve_cost_gather(const kve_gather_params *p)
{
    double rows = p->n_layers * area(p->Hkv, p->count);
    return (kve_cost){2 * 2 * rows * p->D * (double)kve_dtype_bytes(p->kv_dtype) + rows * I32, 0};
}

kve_cost kve_cost_compact(const kve_compact_params *p, double kept)
{
    double gone = area(p->Hkv, p->n) - kept;
    return (kve_cost){2 * (2 * kept + gone) * p->D * (double)kve_dtype_bytes(p->kv_dtype) + (kept + p->Hkv) * I32, 0};
}
