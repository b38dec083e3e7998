/* A ranked cache: the context gathered into rank order once, so that every smaller budget is a prefix of it. Takes
 * scores; knows nothing of the policy that made them. */
#ifndef KVE_ENGINE_RANKED_H
#define KVE_ENGINE_RANKED_H

#include "host/engine/kv.h"

typedef struct kve_ranked {
    kve_kv kv;      /* [L][Hkv][b_max][D] in rank order */
    int32_t *order; /* device [L][Hkv][n]: the whole ranking, most important first */
    int32_t b_max, n;
    int64_t rank_us, compact_us;
} kve_ranked;

/* scores: device [L][Hkv][n]. sink and recent: the ranking's protected tokens (kernels/ops.h rank). b_max >= 1 is cut
 * to n. The caller frees with kve_ranked_free. */
kve_status kve_ranked_make(const kve_model *m, const kve_context *ctx, const float *scores, int32_t b_max, int32_t sink,
                           int32_t recent, kve_ranked *out);
void kve_ranked_free(const kve_model *m, kve_ranked *r);

/* A device array [L][Hkv] filled with min(b, n): the lengths of a uniform budget. Freed with the backend's free. */
kve_status kve_uniform_lengths(const kve_model *m, int32_t b, int32_t n, int32_t **out);

#endif
