/* The list of policies, look-up by name, and the gate that hides what a policy did not ask for. */
#include "policies/policy.h"

#include "host/base/mem.h"
#include "host/base/text.h"

static const kve_policy *const g_policies[] = {
    &kve_policy_full,
    &kve_policy_random,
    &kve_policy_streaming_llm,
    &kve_policy_knorm,
    &kve_policy_keydiff,
    &kve_policy_lagkv,
    &kve_policy_cur,
    &kve_policy_leverage,
    &kve_policy_snapkv,
    &kve_policy_tova,
    &kve_policy_h2o,
    &kve_policy_finch,
    &kve_policy_noncausal_attn,
    &kve_policy_compactor,
    &kve_policy_expected_attention,
    &kve_policy_criticalkv,
    &kve_policy_pyramidkv,
    &kve_policy_adakv,
    &kve_policy_kvzip,
    &kve_policy_oracle,
};

size_t kve_policy_count(void)
{
    return sizeof g_policies / sizeof *g_policies;
}

const kve_policy *kve_policy_at(size_t i)
{
    return g_policies[i];
}

const char *kve_policy_info(const kve_policy *p)
{
    if (p->needs & KVE_NEED_UNKNOWN)
        return NULL;
    if (p->needs & KVE_NEED_FUTURE)
        return "future-attention";
    if (p->needs & KVE_NEED_REPLAY)
        return "second-pass";
    if (p->needs & (KVE_NEED_WINDOW | KVE_NEED_QUERIES))
        return "prefill-attention";
    return p->keeps_all ? "none" : "attention-free";
}

kve_status kve_policy_find(const char *name, const kve_policy **out)
{
    const char *names[sizeof g_policies / sizeof *g_policies];
    kve_str all = {0};
    for (size_t i = 0; i < kve_policy_count(); i++) {
        names[i] = g_policies[i]->name;
        if (kve_same_name(name, names[i])) {
            *out = g_policies[i];
            kve_str_free(&all);
            return KVE_OK;
        }
        (void)kve_str_printf(&all, "%s%s", i ? ", " : "", names[i]);
    }
    kve_status st = kve_fail(KVE_ERR_USAGE, "--policy: '%s' is unknown; did you mean '%s'? Known: %s", name,
                             kve_nearest(name, names, kve_policy_count()), all.p ? all.p : "");
    kve_str_free(&all);
    return st;
}

kve_status kve_policy_score(const kve_policy *p, const kve_policy_view *full_view, float *scores)
{
    kve_policy_view v = *full_view;
    if (!(p->needs & KVE_NEED_KEYS))
        v.kv.k = NULL;
    if (!(p->needs & KVE_NEED_VALUES))
        v.kv.v = NULL;
    if (!(p->needs & KVE_NEED_WINDOW)) {
        v.q_window = NULL;
        v.W = 0;
    }
    if (!(p->needs & KVE_NEED_QUERIES))
        v.q = NULL;
    if (!(p->needs & KVE_NEED_FUTURE))
        v.future = NULL;
    if (!(p->needs & KVE_NEED_REPLAY))
        v.replay = NULL;
    if (!(p->needs & KVE_NEED_ROTATION))
        v.cos = v.sin = NULL;
    if (!(p->needs & KVE_NEED_OUTPUT))
        v.output = NULL;
    if (!(p->needs & KVE_NEED_QUESTION))
        v.n_question = 0;
    if (!p->by_budget)
        v.budget = 0;
    return p->score(p, &v, scores);
}
