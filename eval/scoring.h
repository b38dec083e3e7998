/* From a prefilled context to a ranked cache by a policy: the one place where engine and policies meet. */
#ifndef KVE_EVAL_SCORING_H
#define KVE_EVAL_SCORING_H

#include "host/base/mem.h"
#include "host/engine/ranked.h"
#include "policies/policy.h"

typedef struct kve_scoring {
    const kve_model *m;
    const kve_context *ctx;
    const char *sample_name; /* task/sample_id */
    const float *importance; /* device [L][Hkv][n]; of these five: NULL or 0, and policies that need it are refused */
    const float *replay;     /* device [L][Hkv][n] (eval/replay.h) */
    const float *cos, *sin;  /* host [n + KVE_FUTURE_POSITIONS][R/2] (kve_rope_tables) */
    int32_t n_question;      /* the last tokens of the context, from the question on */
    int32_t budget;          /* for policies by_budget; others do not see it */
    uint64_t seed;
    int32_t sink, recent; /* the run's; a policy's own recent window only adds to it */
} kve_scoring;

/* Recent tokens protected in this policy's ranking: the larger of the run's and the policy's own. (Own sinks are high
 * scores instead: ahead of the run's recent tokens they would let a policy beat the oracle at tiny budgets.) */
int32_t kve_protected_recent(const kve_policy *p, int32_t recent);

/* What is made of a ranking. */
typedef struct kve_ranking {
    const int32_t *budgets; /* [n_budgets], each >= 1, cut to n; one where the policy is by_budget: kve_scoring's */
    size_t n_budgets;
    int32_t *lengths;  /* out, host [n_budgets][L][Hkv]: how much of its ranking every layer and head keeps */
    int32_t *order;    /* out, host [L][Hkv][n], or NULL */
    float *scores;     /* likewise */
    kve_ranked ranked; /* out: holds the longest of the lengths; the caller's to free with kve_ranked_free */
    int64_t score_us;  /* out: of scoring alone */
} kve_ranking;

/* Scores all layers, ranks, shares every budget out and gathers the context into rank order. The order is checked to be
 * a permutation, the lengths to be the budget in all. */
kve_status kve_rank_context(const kve_scoring *s, const kve_policy *p, kve_ranking *r);

/* Fills cos and sin for a context of n tokens; total_len: the session's positions (kve_rope_tables). */
kve_status kve_scoring_tables(const kve_model *m, int32_t n, int32_t total_len, kve_arena *arena, kve_scoring *s);

/* The first b ranks of every head (order: host [heads][n]), by position. */
void kve_ranks_by_position(int32_t *order, size_t heads, int32_t n, int32_t b);
/* Eviction while decoding: s->ctx is a cache of n rows, in order of position. Scores and ranks them, and keeps the
 * first `budget` < n of every layer and head, in place and in order of position. The policy is one `while_decoding`. */
kve_status kve_evict(const kve_scoring *s, const kve_policy *p, int32_t budget);

#endif
