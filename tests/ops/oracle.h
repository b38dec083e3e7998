/* The oracle: every op of kernels/ops.h restated in double precision with the plainest loops that say what it means.
 * It takes the op's own params struct, with HOST pointers in every field, and writes doubles. It may know ops.h and
 * nothing of any backend: the bf16 rounding here is its own. Shapes: kernels/ops.h; letters: host/shape.h. */
#ifndef KVE_TESTS_OPS_ORACLE_H
#define KVE_TESTS_OPS_ORACLE_H

#include "kernels/ops.h"

#include <string.h>

/* The bf16 number nearest to x (ties to the even mantissa), as a float; NaN and infinities stay. */
float oracle_bf16(float x);
/* Element `at` of a buffer of dtype t. Inline, because the oracle's loops do little else. */
static inline double oracle_load(const void *base, size_t at, kve_dtype t)
{
    float f;
    if (t == KVE_F32)
        return (double)((const float *)base)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)base)[at] << 16;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}
/* Puts x into element `at`, rounded to t. */
void oracle_store(void *base, size_t at, kve_dtype t, float x);
/* Element offset of (i_layer, h, row j, 0) in a kve_kv. */
size_t oracle_kv_at(const kve_kv *kv, int32_t Hkv, int32_t D, int32_t i_layer, int32_t h, int32_t j);

/* Weights arrive as the f32 rows that filled them, and the dtype they are stored in. */
void oracle_embed(const kve_embed_params *p, const float *rows, kve_dtype t, double *out);
/* y0 is y before the call (only read when p->accumulate). */
void oracle_matmul(const kve_matmul_params *p, const float *rows, kve_dtype t, int32_t N, int32_t K, const float *y0,
                   double *y);
void oracle_rmsnorm(const kve_rmsnorm_params *p, double *out);
/* q [T][Hq][D]; k and v [T][Hkv][D] are the values before they are rounded to the cache dtype. */
void oracle_rope_append(const kve_rope_append_params *p, double *q, double *k, double *v);
void oracle_attention_prefill(const kve_attention_prefill_params *p, double *out);
/* Rows that no fork owns are left alone. */
void oracle_attention_fork(const kve_attention_fork_params *p, double *out);
void oracle_glu(const kve_glu_params *p, double *out);
void oracle_nll(const kve_nll_params *p, double *nll);
void oracle_argmax(const kve_argmax_params *p, int32_t *ids);
void oracle_advance(const kve_advance_params *p); /* changes what it points to */

void oracle_attention_window(const kve_attention_window_params *p, double *out);
void oracle_pool_group(const kve_pool_group_params *p, double *out);
void oracle_future_importance(const kve_future_importance_params *p, double *out);
/* KVE_STAT_NEG_NORM and KVE_STAT_NEG_COSINE. */
void oracle_row_stat(const kve_row_stat_params *p, double *out);
/* KVE_STAT_LAG before its last step: rows of scored partitions get the mean of the two softmaxes (the op then replaces
 * it by rank / lag inside the partition), all other rows 1 (or the recency ramp when n < n_sink + 2 lag). Returns the
 * number of scored partitions. */
int32_t oracle_lag(const kve_row_stat_params *p, double *out);
void oracle_kvp_score(const kve_kvp_score_params *p, double *out);
void oracle_rank(const kve_rank_params *p, int32_t *order);
/* gather and compact move bytes: they change the host buffers of p as the op would. */
void oracle_gather(const kve_gather_params *p);
void oracle_compact(const kve_compact_params *p);

#endif
