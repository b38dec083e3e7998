/* The dimension letters of kveval. Every pointer comment in the project uses these and no others.
 *
 *   L    transformer layers              Hq   query heads             Hkv  key/value heads
 *   G    Hq / Hkv (GQA group size)       D    head dimension          R    rotary dimensions (R <= D)
 *   E    model width                     F    feed-forward width      V    vocabulary size
 *   n    context tokens (prefilled)      b    budget: tokens kept per layer and KV head
 *   f    future tokens (after the cut)   T    tokens (rows) of one call
 *   X    forks in a batch                W    attention-window queries (the last W of the context)
 *
 * Query head h reads KV head h / G. Layouts are row-major with the last letter fastest.
 * This header knows nothing but integers. */
#ifndef KVE_SHAPE_H
#define KVE_SHAPE_H

#include <stdint.h>

typedef struct kve_shape {
    int32_t L, Hq, Hkv, D, R, E, F, V;
} kve_shape;

static inline int32_t kve_shape_group(const kve_shape *s)
{
    return s->Hq / s->Hkv;
}

#endif
