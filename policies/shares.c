/* Shares of a budget. Contract: shares.h. */
#include "policies/shares.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* A whole number that grows with the score: NaN as -inf, -0 as +0. */
static uint32_t key_of(float score)
{
    uint32_t bits;
    if (isnan(score))
        score = -INFINITY;
    score += 0.0f;
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* How many places of head h, from base on, have a key of at least `least`. */
static int32_t places(const kve_share *s, int32_t h, uint32_t least)
{
    const float *scores = s->scores + (size_t)h * (size_t)s->n;
    const int32_t *order = s->order + (size_t)h * (size_t)s->n;
    int32_t low = s->base, high = s->n; /* all before low have it, none from high on */
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (key_of(scores[order[mid]]) >= least)
            low = mid + 1;
        else
            high = mid;
    }
    return low - s->base;
}

static int64_t all_places(const kve_share *s, uint32_t least)
{
    int64_t sum = 0;
    for (int32_t h = 0; h < s->heads; h++)
        sum += places(s, h, least);
    return sum;
}

void kve_share_by_score(const kve_share *s, int32_t *lengths)
{
    int64_t rest = s->total - (int64_t)s->heads * s->base;
    uint32_t threshold = 0; /* the highest key that `rest` places reach; all reach 0 */
    for (int32_t h = 0; h < s->heads; h++)
        lengths[h] = s->base;
    if (rest == 0)
        return;
    for (int bit = 31; bit >= 0; bit--)
        if (all_places(s, threshold | 1u << bit) >= rest)
            threshold |= 1u << bit;
    int64_t ties = rest - all_places(s, threshold + 1);
    for (int32_t h = 0; h < s->heads; h++) {
        int32_t above = places(s, h, threshold + 1), equal = places(s, h, threshold) - above;
        int32_t taken = ties < equal ? (int32_t)ties : equal;
        lengths[h] += above + taken;
        ties -= taken;
    }
}

/* Layer l's share in units of 1 / (beta (L - 1)), so that nothing is rounded: from `first` to `last` by equal steps. */
static int64_t numerator(int64_t first, int64_t last, int32_t L, int32_t l)
{
    return first * (L - 1 - l) + last * l;
}

/* One more to the layers of the largest remainders, the lower layer first, until all is given out. */
static void give_remainders(int64_t first, int64_t last, int32_t L, int32_t beta, int64_t left, int32_t *lengths)
{
    int64_t unit = (int64_t)beta * (L - 1);
    for (; left > 0; left--) {
        int32_t best = -1;
        int64_t best_remainder = -1;
        for (int32_t l = 0; l < L; l++) {
            int64_t floor = numerator(first, last, L, l) / unit, remainder = numerator(first, last, L, l) % unit;
            if (lengths[l] == floor && remainder > best_remainder) {
                best = l;
                best_remainder = remainder;
            }
        }
        lengths[best]++;
    }
}

/* Every layer has one at least: the longest gives, of equals the last, so that no layer is longer than the one before.
 */
static void fill_empty(int32_t L, int32_t *lengths)
{
    for (int32_t l = 0; l < L; l++)
        if (lengths[l] == 0) {
            int32_t longest = 0;
            for (int32_t i = 1; i < L; i++)
                longest = lengths[i] >= lengths[longest] ? i : longest;
            lengths[longest]--;
            lengths[l]++;
        }
}

void kve_share_pyramid(int32_t L, int32_t n, int32_t b, int32_t window, int32_t beta, int32_t *lengths)
{
    int64_t last = b, first = (2 * (int64_t)beta - 1) * b,
            most = (int64_t)beta * (n - window); /* in units of 1 / beta */
    if (first > most) {
        first = most;
        last = 2 * (int64_t)beta * b - first;
    }
    if (L == 1 || first < last) {
        for (int32_t l = 0; l < L; l++)
            lengths[l] = b;
        return;
    }
    int64_t left = (int64_t)L * b;
    for (int32_t l = 0; l < L; l++) {
        lengths[l] = (int32_t)(numerator(first, last, L, l) / ((int64_t)beta * (L - 1)));
        left -= lengths[l];
    }
    give_remainders(first, last, L, beta, left, lengths);
    fill_empty(L, lengths);
}
