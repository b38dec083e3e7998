/* Lost future attention. Contract: reward.h. */
#include "eval/reward.h"

void kve_reward_head(const kve_head_reward *h, const int32_t *budgets, size_t n_budgets, double *lost, double *sum)
{
    double total = 0, after = 0, all = 0;
    for (int32_t r = h->n - 1; r >= 0; r--)
        total += (double)h->importance[h->order[r]];
    for (size_t i = 0; i < n_budgets; i++)
        lost[i] = 0;
    /* `after` is what ranks r .. n - 1 carry: lost at budget r. */
    for (int32_t r = h->n - 1; r >= 0; r--) {
        after += (double)h->importance[h->order[r]];
        all += r ? after : 0;
        for (size_t i = 0; i < n_budgets; i++)
            if (budgets[i] == r)
                lost[i] = after;
    }
    if (total == 0)
        total = 1;
    for (size_t i = 0; i < n_budgets; i++)
        lost[i] /= total;
    *sum = all / total;
}

void kve_reward_all(const float *importance, const int32_t *order, size_t n_heads, int32_t n, const int32_t *lengths,
                    size_t n_budgets, double *lost, double *sums)
{
    enum { MOST = 256 };
    double row[MOST];
    int32_t budgets[MOST];
    for (size_t h = 0; h < n_heads; h++) {
        kve_head_reward head = {importance + h * (size_t)n, order + h * (size_t)n, n};
        size_t first = 0;
        do { /* once also without budgets: the sum does not depend on them */
            size_t count = n_budgets - first < MOST ? n_budgets - first : MOST;
            for (size_t i = 0; i < count; i++)
                budgets[i] = lengths[(first + i) * n_heads + h];
            kve_reward_head(&head, budgets, count, row, &sums[h]);
            for (size_t i = 0; i < count; i++)
                lost[(first + i) * n_heads + h] = row[i];
            first += count;
        } while (first < n_budgets);
    }
}
