/* The leverage of keys, which two policies share, with a sketch of the caller's choice: tests pass the one that the
 * reference drew. */
#ifndef KVE_POLICIES_GEOMETRY_H
#define KVE_POLICIES_GEOMETRY_H

#include "policies/host_rows.h"

enum { KVE_SKETCH = 48 };

/* out [Hkv][D][KVE_SKETCH]: N(0, 1), a stream of its own for each (seed, sample, layer, head). */
void kve_draw_sketch(const kve_policy_view *v, float *out);

/* out [Hkv][t.count]: z-scores over the layer of x_j (X'X + 0.01 I)^-1 x_j', where X = (Kp - mean) sketch / sqrt(48)
 * and Kp are the keys of tokens t before RoPE. Needs keys and rotation. */
kve_status kve_leverage_z(const kve_policy_view *v, const float *sketch, kve_span t, float *out);

#endif
