/* A ranked cache: the context gathered into rank order once, so that every smaller budget is a prefix of it. Takes
 * scores; knows nothing of the policy that made them. */
#ifndef KVE_ENGINE_RANKED_H
#define KVE_ENGINE_RANKED_H

#include "host/engine/kv.h"

typedef struct kve_ranked {
    kve_kv kv;      /* in rank order; ragged where layers and heads keep different numbers of rows */
    int32_t *order; /* device [L][Hkv][n]: the whole ranking, most important first */
    int64_t *first; /* device: of a ragged kv, or NULL */
    int32_t n;
    int64_t rank_us, compact_us;
} kve_ranked;

/* Ranks. scores: device [L][Hkv][n]. sink and recent: the ranking's protected tokens (kernels/ops.h rank). The caller
 * frees with kve_ranked_free, also after a failure. */
kve_status kve_ranked_order(const kve_model *m, const kve_context *ctx, const float *scores, int32_t sink,
                            int32_t recent, kve_ranked *out);
/* Gathers the first rows[L * Hkv] (host, each 0 .. n, not all 0) of every ranking; memory for just these is taken. */
kve_status kve_ranked_gather(const kve_model *m, const kve_context *ctx, const int32_t *rows, kve_ranked *r);
void kve_ranked_free(const kve_model *m, kve_ranked *r);

/* A device array [L][Hkv] of these lengths, or filled with min(b, n). Freed with the backend's free. */
kve_status kve_upload_lengths(const kve_model *m, const int32_t *host, int32_t **out);
kve_status kve_uniform_lengths(const kve_model *m, int32_t b, int32_t n, int32_t **out);

#endif
