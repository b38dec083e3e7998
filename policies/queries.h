/* Compactor's scores with a sketch of the caller's choice (policies/geometry.h): tests pass the one that the reference
 * drew. */
#ifndef KVE_POLICIES_QUERIES_H
#define KVE_POLICIES_QUERIES_H

#include "policies/policy.h"

/* scores: device [Hkv][n]; sketch: host [Hkv][D][KVE_SKETCH]. */
kve_status kve_compactor_scores(const kve_policy_view *v, const float *sketch, float *scores);

#endif
