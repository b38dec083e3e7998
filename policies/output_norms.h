/* What a cached value can write into the residual stream at most: the 1-norms of the values behind the output
 * projection.
 */
#ifndef KVE_POLICIES_OUTPUT_NORMS_H
#define KVE_POLICIES_OUTPUT_NORMS_H

#include "policies/policy.h"

/* out, host [Hkv][n]: the mean over the query heads h of a group of norm1(Wo_h v_j), where Wo_h are head h's columns of
 * the output projection. Needs values and output. */
kve_status kve_output_norms(const kve_policy_view *v, float *out);

#endif
