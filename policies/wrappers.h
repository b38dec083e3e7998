/* Policies over another policy, by name: "adakv:BASE" shares the budget by BASE's scores, "criticalkv:BASE" weighs
 * them. */
#ifndef KVE_POLICIES_WRAPPERS_H
#define KVE_POLICIES_WRAPPERS_H

#include "host/base/mem.h"
#include "policies/policy.h"

/* *is_wrapped: whether `item` has the form above; else *out is left alone. BASE is a policy of the registry that shares
 * or weighs nothing itself; KVE_ERR_USAGE names those. What BASE needs, protects and depends on, the policy does too.
 * It lives in the arena. (Without ":BASE", both are policies of the registry, over snapkv.) */
kve_status kve_wrapped_policy(const char *item, kve_arena *arena, bool *is_wrapped, const kve_policy **out);

#endif
