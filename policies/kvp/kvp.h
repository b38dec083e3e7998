/* The learned policy: a file of kveval train as a policy. */
#ifndef KVE_POLICIES_KVP_KVP_H
#define KVE_POLICIES_KVP_KVP_H

#include "host/base/mem.h"
#include "policies/policy.h"

#define KVE_KVP_PREFIX "kvp:"

/* The policy `name`, or "kvp:<file name without folder and .safetensors>" where that is NULL. What it needs follows
 * from the file's inputs. Weights go to the backend with the first score; close() takes them back, before the backend
 * closes and before another one is used. The policy lives in the arena. */
kve_status kve_kvp_policy(const char *path, const char *name, kve_arena *arena, const kve_policy **out);

/* The SHA-256 of the file behind such a policy; NULL for any other policy. */
const char *kve_kvp_policy_sha256(const kve_policy *p);

#endif
