/* How a budget is shared between rankings: whole numbers and scores, and no device. */
#ifndef KVE_POLICIES_SHARES_H
#define KVE_POLICIES_SHARES_H

#include <stdint.h>

/* Rankings to share `total` places. From place `base` on, every ranking's scores fall (NaN counts as -inf). */
typedef struct kve_share {
    const float *scores;  /* [heads][n] */
    const int32_t *order; /* [heads][n] */
    int32_t heads, n;
    int32_t base;  /* places that every head gets whatever the scores */
    int64_t total; /* heads base <= total <= heads n */
} kve_share;

/* lengths [heads]: base each, then the highest scores beyond over all heads together; equal ones go to the lower head,
 * within a head to the earlier place. They add up to total. */
void kve_share_by_score(const kve_share *s, int32_t *lengths);

/* lengths [L] of layers that fall linearly from 2 b - b / beta to b / beta, the first no longer than n - window (the
 * last takes what it gives up, and all are b where that would turn the slope round or there is one layer). Largest
 * remainders round, every layer has 1 at least (b >= 1), and they add up to L b. b <= n. */
void kve_share_pyramid(int32_t L, int32_t n, int32_t b, int32_t window, int32_t beta, int32_t *lengths);

#endif
