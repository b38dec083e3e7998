/* From a prefilled context to a ranked cache by a policy: the one place where engine and policies meet. */
#ifndef KVE_EVAL_SCORING_H
#define KVE_EVAL_SCORING_H

#include "host/engine/ranked.h"
#include "policies/policy.h"

typedef struct kve_scoring {
    const kve_model *m;
    const kve_context *ctx;
    const char *sample_name; /* task/sample_id */
    const float *importance; /* device [L][Hkv][n], or NULL: policies that need the future are refused */
    uint64_t seed;
    int32_t sink, recent; /* the run's; a policy's own recent window only adds to it */
} kve_scoring;

/* Recent tokens protected in this policy's ranking: the larger of the run's and the policy's own. (Own sinks are high
 * scores instead: ahead of the run's recent tokens they would let a policy beat the oracle at tiny budgets.) */
int32_t kve_protected_recent(const kve_policy *p, int32_t recent);

/* Scores all layers and gathers the context into rank order up to b_max (cut to n); the order is checked to be a
 * permutation. *score_us: the time of scoring alone. host_order: NULL, or [L][Hkv][n] to receive the ranking. The
 * caller frees *out with kve_ranked_free. */
kve_status kve_rank_context(const kve_scoring *s, const kve_policy *p, int32_t b_max, int32_t *host_order,
                            kve_ranked *out, int64_t *score_us);

/* The scores alone, host [L][Hkv][n]. */
kve_status kve_score_context(const kve_scoring *s, const kve_policy *p, float *host_scores);

#endif
