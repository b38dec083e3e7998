/* The memory of a run, from a model's configuration alone: what stands on the device at once, and how many forks fit
 * beside it. Knows sizes; no backend, no policy. */
#ifndef KVE_ENGINE_PLAN_H
#define KVE_ENGINE_PLAN_H

#include "host/engine/session.h"

typedef struct kve_plan_request {
    const kve_config *cfg;
    kve_dtype dtype;
    size_t weight_bytes;
    size_t free_bytes;        /* of the device, before anything is loaded */
    int32_t n, n_tail;        /* tokens of the context; of question and answer */
    int32_t chunk;            /* rows of one forward */
    int32_t b_max, n_budgets; /* of one policy */
    int32_t n_policies;       /* that evict */
} kve_plan_request;

typedef struct kve_plan {
    size_t weights, scratch, context;
    size_t ranked;            /* one policy's ranked cache and ranking */
    size_t fork;              /* one fork's tail and lengths */
    size_t fixed;             /* weights + scratch + context */
    size_t all;               /* fixed + every policy with all its budgets */
    int32_t policies_at_once; /* that fit with all their budgets; 0: not even one */
    int32_t forks_at_once;
} kve_plan;

void kve_plan_make(const kve_plan_request *r, kve_plan *out);

#endif
