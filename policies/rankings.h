/* A policy that was computed elsewhere: every sample's ranking comes from a file, so that an idea can be evaluated from
 * numpy or torch before anybody writes C. */
#ifndef KVE_POLICIES_RANKINGS_H
#define KVE_POLICIES_RANKINGS_H

#include "host/base/mem.h"
#include "policies/policy.h"

#define KVE_RANKINGS_PREFIX "rankings:"

/* The policy "rankings:DIR". Of each sample it reads DIR/<task>/<sample id>.safetensors: tensor `ranking` I32
 * [L][Hkv][n], per layer and KV head a permutation of 0 .. n - 1, most important first. The run's --sink and --recent
 * still come first, as for every policy; with both at 0 the file's order is the order. What such a ranking was allowed
 * to see is not known here, so its records carry no information class. KVE_ERR_FILE if DIR is no folder. The policy
 * lives in the arena. */
kve_status kve_rankings_policy(const char *dir, kve_arena *arena, const kve_policy **out);

#endif
