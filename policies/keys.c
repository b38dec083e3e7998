/* Attention-free policies on cached keys and values: knorm (kvpress KnormPress), keydiff (KeyDiffPress), lagkv
 * (LagKVPress: sink 4, lag 128). The arithmetic is the backend's row_stat op. */
#include "kernels/cost.h"
#include "policies/policy.h"

enum { LAGKV_SINK = 4, LAGKV_LAG = 128 };

static kve_status row_stat(const kve_policy_view *v, kve_row_stat stat, float *scores)
{
    kve_row_stat_params p = {.kv = v->kv,
                             .out = scores,
                             .stat = stat,
                             .n = v->n,
                             .Hkv = v->shape->Hkv,
                             .D = v->shape->D,
                             .i_layer = v->i_layer,
                             .n_sink = LAGKV_SINK,
                             .lag = LAGKV_LAG,
                             .kv_dtype = v->kv_dtype};
    return v->be->vt->row_stat(v->be, &p);
}

static double flops_of(const kve_shape *s, int32_t n, kve_row_stat stat)
{
    const kve_row_stat_params p = {
        .stat = stat, .n = n, .Hkv = s->Hkv, .D = s->D, .n_sink = LAGKV_SINK, .lag = LAGKV_LAG};
    return kve_cost_row_stat(&p).flops;
}

static double flops_knorm(const kve_policy *p, const kve_shape *s, int32_t n)
{
    (void)p;
    return flops_of(s, n, KVE_STAT_NEG_NORM);
}

static double flops_keydiff(const kve_policy *p, const kve_shape *s, int32_t n)
{
    (void)p;
    return flops_of(s, n, KVE_STAT_NEG_COSINE);
}

static double flops_lagkv(const kve_policy *p, const kve_shape *s, int32_t n)
{
    (void)p;
    return flops_of(s, n, KVE_STAT_LAG);
}

static kve_status score_knorm(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    return row_stat(v, KVE_STAT_NEG_NORM, scores);
}

static kve_status score_keydiff(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    return row_stat(v, KVE_STAT_NEG_COSINE, scores);
}

static kve_status score_lagkv(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    return row_stat(v, KVE_STAT_LAG, scores);
}

const kve_policy kve_policy_knorm = {.name = "knorm",
                                     .summary = "keeps keys of small norm",
                                     .needs = KVE_NEED_KEYS,
                                     .while_decoding = true,
                                     .score = score_knorm,
                                     .flops = flops_knorm};
const kve_policy kve_policy_keydiff = {.name = "keydiff",
                                       .summary = "keeps keys unlike the mean key",
                                       .needs = KVE_NEED_KEYS,
                                       .while_decoding = true,
                                       .score = score_keydiff,
                                       .flops = flops_keydiff};
const kve_policy kve_policy_lagkv = {.name = "lagkv",
                                     .summary = "keeps rows that stand out against the next 128",
                                     .needs = KVE_NEED_KEYS | KVE_NEED_VALUES,
                                     .while_decoding = true,
                                     .score = score_lagkv,
                                     .flops = flops_lagkv};
