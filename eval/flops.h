/* Arithmetic of a sample, counted from shapes as kernels/cost.h counts it. Knows no times. */
#ifndef KVE_EVAL_FLOPS_H
#define KVE_EVAL_FLOPS_H

#include "host/shape.h"
#include "policies/policy.h"

/* Of the prefill of n tokens: all layers, no logits. */
double kve_flops_prefill(const kve_shape *s, int32_t n);
/* Of a policy's scores of all layers; NaN where the policy does not say. */
double kve_flops_score(const kve_policy *p, const kve_shape *s, int32_t n);

#endif
