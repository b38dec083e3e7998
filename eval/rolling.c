/* Eviction while decoding: the policy scores all rows of a fork's own cache again and again, kept ones and new ones
 * alike, and the cache is cut back to the budget in place. Positions go on: what was evicted leaves a gap, and no key
 * is turned again (the StreamingLLM paper renumbers the rows that are left; this does not). */
#include "eval/evaluator_internal.h"

#include "host/base/mem.h"
#include "host/engine/keep.h"

#include <stdlib.h>
#include <string.h>

int32_t rolling_kept(const sample_run *r, const kve_cell *c)
{
    return c->budget < r->n ? (int32_t)c->budget : r->n;
}

int32_t rolling_rows(const sample_run *r, const kve_cell *c)
{
    int64_t most = c->budget + r->e->opt.evict_every, all = (int64_t)rolling_kept(r, c) + tail_rows(r);
    return (int32_t)(most < all ? most : all);
}

kve_status rolling_fill(const sample_run *r, const kve_cell *c, const int32_t *order, kve_kv to)
{
    size_t heads = run_heads(r), count = heads * (size_t)r->n;
    int32_t *rows = NULL, b = rolling_kept(r, c);
    KVE_TRY(kve_alloc(count, sizeof *rows, &rows));
    memcpy(rows, order, count * sizeof *rows);
    kve_ranks_by_position(rows, heads, r->n, b);
    kve_status st = kve_keep_gather(r->e->m, &r->ctx.kv, &(kve_keep){.rows = rows, .n = r->n, .b = b}, &to);
    free(rows);
    return st;
}

/* The random policy would draw the same numbers at every eviction: its seed takes in how many there were. The forks of
 * a cell's choices draw alike, and no other policy looks at it. */
static uint64_t fold_seed(uint64_t seed, int32_t n_before)
{
    return seed + 0x9e3779b97f4a7c15u * ((uint64_t)n_before + 1);
}

kve_status rolling_evict(const sample_run *r, const kve_cell *c, kve_kv kv, int32_t n, int32_t n_before)
{
    const kve_context rows = {.kv = kv, .n = n};
    const kve_scoring scoring = {.m = r->e->m,
                                 .ctx = &rows,
                                 .sample_name = r->name,
                                 .seed = fold_seed(r->e->opt.seed, n_before),
                                 .sink = r->e->opt.sink,
                                 .recent = r->e->opt.recent};
    return kve_evict(&scoring, c->policy, (int32_t)c->budget);
}
