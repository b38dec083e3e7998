/* What each op costs at the least, from its parameters alone: for floors in benches and for ranges in profiles. Knows
 * ops.h; neither a backend nor a pointer's content.
 *
 * bytes: every input element is read once and every output element written once; a cached row once for all query heads
 * and queries that see it. flops: additions, multiplications, divisions and exponentials count one each, comparisons
 * none. Where a parameter lies on the device (lengths of forks, kept rows) the caller says what it put there. */
#ifndef KVE_KERNELS_COST_H
#define KVE_KERNELS_COST_H

#include "kernels/ops.h"

typedef struct kve_cost {
    double bytes, flops;
} kve_cost;

kve_cost kve_cost_embed(const kve_embed_params *p, kve_dtype table);
kve_cost kve_cost_rmsnorm(const kve_rmsnorm_params *p);
kve_cost kve_cost_matmul(const kve_matmul_params *p, int32_t N, int32_t K, kve_dtype weight);
kve_cost kve_cost_rope_append(const kve_rope_append_params *p);
kve_cost kve_cost_attention_prefill(const kve_attention_prefill_params *p);
/* rows: cached rows per KV head, those that forks share counted once. pairs: (query, row it sees), per query head. */
kve_cost kve_cost_attention_fork(const kve_attention_fork_params *p, double rows, double pairs);
kve_cost kve_cost_glu(const kve_glu_params *p);
kve_cost kve_cost_nll(const kve_nll_params *p);
kve_cost kve_cost_argmax(const kve_argmax_params *p);
kve_cost kve_cost_advance(const kve_advance_params *p);
kve_cost kve_cost_attention_window(const kve_attention_window_params *p);
kve_cost kve_cost_pool_group(const kve_pool_group_params *p);
kve_cost kve_cost_future_importance(const kve_future_importance_params *p);
kve_cost kve_cost_row_stat(const kve_row_stat_params *p);
kve_cost kve_cost_kvp_score(const kve_kvp_score_params *p);
kve_cost kve_cost_rank(const kve_rank_params *p);
kve_cost kve_cost_gather(const kve_gather_params *p);
kve_cost kve_cost_compact(const kve_compact_params *p, double kept); /* sum of keep_len */

#endif
