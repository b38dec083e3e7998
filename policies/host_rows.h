/* A layer's keys, values and queries as f32 rows on the host, for policies whose arithmetic is no op of the backend:
 * reading, turning RoPE back, and what several of them do with finished scores. Knows views, and no policy.
 *
 * Rows are `width` floats apart, the head dimension padded with zeros to whole lanes (kve_host_width), as the product
 * of matrices wants them. */
#ifndef KVE_POLICIES_HOST_ROWS_H
#define KVE_POLICIES_HOST_ROWS_H

#include "policies/policy.h"

/* Tokens first .. first + count - 1. */
typedef struct kve_span {
    int32_t first, count;
} kve_span;

typedef enum kve_host_kind { KVE_HOST_KEYS, KVE_HOST_VALUES } kve_host_kind;

size_t kve_host_width(int32_t D);

/* out [count][width]: of KV head h. */
kve_status kve_host_rows(const kve_policy_view *v, kve_host_kind kind, int32_t h, kve_span t, float *out);
/* out [Hq][count][width] */
kve_status kve_host_queries(const kve_policy_view *v, kve_span t, float *out);

/* Turns rows of tokens t back by their positions' RoPE, whatever amplitude the tables carry. */
void kve_host_unrotate(const kve_policy_view *v, kve_span t, float *rows, size_t width);

/* mean [width] of the rows, which lose it. */
void kve_host_center(float *rows, int32_t count, size_t width, float *mean);

/* out[j] = the 2-norm of row j. */
void kve_host_norms(const float *rows, int32_t count, size_t width, float *out);

/* (x - mean) / max(std, 1e-6) over all n values, with the unbiased standard deviation. */
void kve_host_z_scores(float *x, size_t n);

/* Host scores [Hkv][n] to the device. */
kve_status kve_host_scores_out(const kve_policy_view *v, const float *host, float *scores);
/* Every token the same: where a definition has nothing to say. */
kve_status kve_host_scores_equal(const kve_policy_view *v, float *scores);

#endif
