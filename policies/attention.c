/* Policies that look at attention: snapkv (kvpress SnapKVPress: window 64, pooling 5, group mean), tova (TOVAPress: the
 * last query, mean over all query heads), and oracle (future importance itself: an upper bound, KVP paper section on
 * the reward). */
#include "policies/attention.h"
#include "policies/policy.h"

/* Mean attention of the last `window` queries, then pooling and the group mean. */
static kve_status window_score(const kve_policy_view *v, int32_t window, kve_pool_group_params pool, float *scores)
{
    const kve_shape *s = v->shape;
    int32_t W = v->W < window ? v->W : window;
    size_t skip = (size_t)(v->W - W) * (size_t)s->Hq * (size_t)s->D;
    kve_attention_window_params a = {.q = v->q_window + skip,
                                     .kv = v->kv,
                                     .out = v->scratch,
                                     .scale = v->scale,
                                     .n = v->n,
                                     .W = W,
                                     .Hq = s->Hq,
                                     .Hkv = s->Hkv,
                                     .D = s->D,
                                     .i_layer = v->i_layer,
                                     .kv_dtype = v->kv_dtype};
    pool.in = v->scratch;
    pool.out = scores;
    pool.n = v->n;
    pool.Hq = s->Hq;
    pool.Hkv = s->Hkv;
    KVE_TRY(v->be->vt->attention_window(v->be, &a));
    return v->be->vt->pool_group(v->be, &pool);
}

static kve_status score_snapkv(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    int32_t W = v->W < KVE_SNAPKV_WINDOW ? v->W : KVE_SNAPKV_WINDOW;
    return window_score(v, W, (kve_pool_group_params){.n_valid = v->n - W, .width = KVE_SNAPKV_POOL}, scores);
}

static kve_status score_tova(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    return window_score(v, 1, (kve_pool_group_params){.n_valid = v->n, .width = 1, .all_heads = true}, scores);
}

static kve_status score_oracle(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    return v->be->vt->copy(v->be, scores, v->future, (size_t)v->shape->Hkv * (size_t)v->n * sizeof *scores);
}

const kve_policy kve_policy_snapkv = {.name = "snapkv",
                                      .summary = "mean attention of the last 64 queries, pooled",
                                      .needs = KVE_NEED_KEYS | KVE_NEED_WINDOW,
                                      .own_recent = KVE_SNAPKV_WINDOW,
                                      .score = score_snapkv};
const kve_policy kve_policy_tova = {.name = "tova",
                                    .summary = "attention of the last query, mean over heads",
                                    .needs = KVE_NEED_KEYS | KVE_NEED_WINDOW,
                                    .score = score_tova};
const kve_policy kve_policy_oracle = {.name = "oracle",
                                      .summary = "the future attention itself: an upper bound, not a policy",
                                      .needs = KVE_NEED_FUTURE,
                                      .score = score_oracle};
