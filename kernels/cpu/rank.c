/* The total order of a ranking (kernels/ops.h): protected rows first, then a stable radix sort by descending score, so
 * that ties go to the lower position by construction. One item is one row. */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, PASSES = 3 };

typedef struct keyed {
    uint32_t key; /* ascending = score descending */
    int32_t index;
} keyed;

/* NaN counts as -inf, -0 as +0. */
static uint32_t descending_key(float score)
{
    uint32_t bits;
    if (isnan(score))
        score = -INFINITY;
    memcpy(&bits, &score, sizeof bits);
    if (bits == 0x80000000u)
        bits = 0;
    uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ~ascending;
}

static void radix_pass(const keyed *from, keyed *to, size_t n, unsigned shift)
{
    uint32_t at[DIGITS] = {0}, sum = 0;
    for (size_t i = 0; i < n; i++)
        at[(from[i].key >> shift) & (DIGITS - 1)]++;
    for (size_t d = 0; d < DIGITS; d++) {
        uint32_t count = at[d];
        at[d] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++)
        to[at[(from[i].key >> shift) & (DIGITS - 1)]++] = from[i];
}

typedef struct rank_job {
    const kve_rank_params *p;
    cpu_backend *be;
} rank_job;

static void rank_item(void *ctx, int64_t item, int32_t worker)
{
    const rank_job *x = ctx;
    const kve_rank_params *p = x->p;
    const float *score = p->scores + (size_t)item * (size_t)p->n;
    int32_t *order = p->order + (size_t)item * (size_t)p->n_out, r = 0;
    int32_t sink = p->sink < p->n ? p->sink : p->n, recent = p->recent < p->n - sink ? p->recent : p->n - sink;
    keyed *a = cpu_scratch(x->be, worker), *b = a + p->n;
    size_t m = (size_t)(p->n - sink - recent);
    for (; r < sink && r < p->n_out; r++)
        order[r] = r;
    for (int32_t i = 0; i < recent && r < p->n_out; i++)
        order[r++] = p->n - 1 - i;
    if (r == p->n_out)
        return;
    for (size_t i = 0; i < m; i++)
        a[i] = (keyed){descending_key(score[(size_t)sink + i]), sink + (int32_t)i};
    for (unsigned pass = 0; pass < PASSES; pass++) {
        radix_pass(a, b, m, pass * DIGIT_BITS);
        keyed *t = a;
        a = b;
        b = t;
    }
    for (size_t i = 0; i < m && r < p->n_out; i++)
        order[r++] = a[i].index;
}

kve_status cpu_rank(kve_backend *be, const kve_rank_params *p)
{
    rank_job x = {p, cpu_of(be)};
    KVE_TRY(cpu_scratch_reserve(x.be, 2 * (size_t)p->n * sizeof(keyed)));
    cpu_parallel_for(x.be, p->rows, rank_item, &x);
    return KVE_OK;
}
