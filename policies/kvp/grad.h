/* The network of kernels/ops.h kvp_score forward and backward in f32: one head, rows in blocks. What a row gives is the
 * op's result up to rounding. Knows no objective, no files. */
#ifndef KVE_POLICIES_KVP_GRAD_H
#define KVE_POLICIES_KVP_GRAD_H

#include "host/base/status.h"
#include "kernels/kvp.h"
#include "policies/kvp/dense.h"

typedef struct kvp_head {
    const kvp_math *math;
    kve_kvp_shape shape;
    unsigned inputs;      /* kve_kvp_input bits */
    const float *weights; /* [kve_kvp_count] */
} kvp_head;

/* Rows as a trace holds them. */
typedef struct kvp_rows {
    const unsigned char *keys, *values; /* [m][D] floats at any alignment; NULL where inputs leaves them out */
    const float *positions;             /* [m][P] of kvp_position_rows */
    int32_t m;
} kvp_rows;

/* One thread's memory: what backward needs of every row, and blocks. */
typedef struct kvp_work kvp_work;
kve_status kvp_work_create(kve_kvp_shape shape, int32_t max_rows, kvp_work **out);
void kvp_work_free(kvp_work *w); /* NULL is fine */

/* out [n][P]: the analytic position feature (policies/kvp/net.h) after LayerNorm without gain and shift, which no
 * weight changes: computed once for all heads and steps. */
kve_status kvp_position_rows(const kvp_math *math, int32_t n, int32_t P, float *out);

/* scores [m] */
void kvp_forward(const kvp_head *head, const kvp_rows *rows, kvp_work *w, float *scores);

/* After kvp_forward with the same arguments: grad [kve_kvp_count] = the gradient of a loss by the weights, given that
 * by the scores, d_scores [m]. */
void kvp_backward(const kvp_head *head, const kvp_rows *rows, kvp_work *w, const float *d_scores, float *grad);

#endif
