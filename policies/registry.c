/* The list of policies, look-up by name, and the gate that hides what a policy did not ask for. */
#include "policies/policy.h"

#include "host/base/mem.h"

#include <string.h>

static const kve_policy *const g_policies[] = {
    &kve_policy_full,  &kve_policy_random, &kve_policy_streaming_llm, &kve_policy_knorm,  &kve_policy_keydiff,
    &kve_policy_lagkv, &kve_policy_snapkv, &kve_policy_tova,          &kve_policy_oracle,
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
    if (p->needs & KVE_NEED_FUTURE)
        return "future-attention";
    if (p->needs & KVE_NEED_WINDOW)
        return "prefill-attention";
    return p->keeps_all ? "none" : "attention-free";
}

static bool same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b))
            return false;
    return *a == *b;
}

enum { MAX_NAME = 32 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Levenshtein distance; names are short. */
static size_t distance(const char *a, const char *b)
{
    size_t row[MAX_NAME + 1], la = strlen(a), lb = strlen(b);
    if (la > MAX_NAME || lb > MAX_NAME)
        return MAX_NAME;
    for (size_t j = 0; j <= lb; j++)
        row[j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = least(change, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[lb];
}

kve_status kve_policy_find(const char *name, const kve_policy **out)
{
    const kve_policy *nearest = g_policies[0];
    kve_str all = {0};
    for (size_t i = 0; i < kve_policy_count(); i++) {
        if (same_name(name, g_policies[i]->name)) {
            *out = g_policies[i];
            kve_str_free(&all);
            return KVE_OK;
        }
        if (distance(name, g_policies[i]->name) < distance(name, nearest->name))
            nearest = g_policies[i];
        (void)kve_str_printf(&all, "%s%s", i ? ", " : "", g_policies[i]->name);
    }
    kve_status st = kve_fail(KVE_ERR_USAGE, "--policy: '%s' is unknown; did you mean '%s'? Known: %s", name,
                             nearest->name, all.p ? all.p : "");
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
    if (!(p->needs & KVE_NEED_FUTURE))
        v.future = NULL;
    return p->score(p, &v, scores);
}
