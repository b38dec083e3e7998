/* The attention core that prefill and forks share: query rows over a shared prefix and private tails, by blocks of 64
 * keys at fixed boundaries. Included by kernels/cpu only. */
#ifndef KVE_KERNELS_CPU_ATTEND_H
#define KVE_KERNELS_CPU_ATTEND_H

#include "kernels/cpu/cpu.h"

enum { ATTEND_ENTRIES = 64 }; /* tokens of one slice; each brings the G query heads of the group */

/* One token's view: it sees rows 0 .. sees_prefix - 1 of the slice's prefix, then 0 .. sees_tail - 1 of its tail. */
typedef struct attend_entry {
    int32_t row; /* of q and out */
    int32_t sees_prefix, sees_tail;
    const kve_kv *tail; /* NULL where sees_tail is 0; equal pointers side by side share the loading */
} attend_entry;

typedef struct attend {
    cpu_backend *be;
    const float *q; /* [T][Hq][D] */
    float *out;     /* [T][Hq][D] */
    float scale;
    int32_t Hq, Hkv, D, i_layer;
    kve_dtype kv_dtype;
} attend;

/* Scratch of a worker for slices of up to ATTEND_ENTRIES tokens; fails where D is beyond CPU_MAX_D. */
kve_status attend_reserve(const attend *a);

/* The n <= ATTEND_ENTRIES entries of KV head h. A row's sums depend on the row and on its keys' places only. */
void attend_slice(const attend *a, const kve_kv *prefix, int32_t h, const attend_entry *entries, int32_t n,
                  int32_t worker);

#endif
