/* How much attention every key gets from a block of queries: column sums of a softmax, on the host. Knows rows of
 * floats only. f32, every sum in a fixed order. */
#ifndef KVE_POLICIES_HOST_COLUMNS_H
#define KVE_POLICIES_HOST_COLUMNS_H

#include "host/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* sums[j] += sum over queries i of weight[i] softmax_j(scale q_i.k_j), where query i sees the first
 * min(n_keys, visible + i) keys. */
typedef struct kve_columns {
    const float *q;      /* [n_queries][width] */
    const float *k;      /* [n_keys][width] */
    const float *weight; /* [n_queries], or NULL: all 1 */
    float *sums;         /* [n_keys] */
    size_t width;        /* whole lanes */
    float scale;
    int32_t n_queries, n_keys, visible; /* visible >= 1 */
} kve_columns;

kve_status kve_column_sums(const kve_columns *c);

#endif
