/* Lost future attention: R^b of the KVP paper (arXiv 2602.10238), as shares of a head's whole. Knows two arrays. */
#ifndef KVE_EVAL_REWARD_H
#define KVE_EVAL_REWARD_H

#include "host/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* One head: importance I [n] >= 0 and an order [n] (a permutation, most important first). lost_share(b) = sum of I over
 * ranks after b / sum of I. */
typedef struct kve_head_reward {
    const float *importance; /* [n] */
    const int32_t *order;    /* [n] */
    int32_t n;
} kve_head_reward;

/* lost[r] for budgets[r] (0: all of it; at or above n the loss is exactly 0), and *sum over b = 1 .. n - 1.
 * A head whose importance sums to 0 has lost nothing. NaN in the importance gives NaN. Sums in double, from the last
 * rank backwards. */
void kve_reward_head(const kve_head_reward *h, const int32_t *budgets, size_t n_budgets, double *lost, double *sum);

/* The same two for all heads, given [heads][n] arrays: lost [n_budgets][heads] at lengths [n_budgets][heads], sums
 * [heads]. Without budgets (n_budgets 0; lengths and lost may be NULL) the sums alone. */
void kve_reward_all(const float *importance, const int32_t *order, size_t n_heads, int32_t n, const int32_t *lengths,
                    size_t n_budgets, double *lost, double *sums);

#endif
