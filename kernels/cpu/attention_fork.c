/* Attention of many forks in one call. Contract: kernels/ops.h; the arithmetic: attend.c. Neighbouring forks that share
 * a prefix (the budgets of one policy) go into one slice, which loads each block of the prefix once for all of them. */
#include "host/base/mem.h"
#include "kernels/cpu/attend.h"

#include <stdlib.h>

typedef struct place {
    int32_t fork, i; /* the fork's i-th row */
} place;

typedef struct slice {
    int32_t first, n; /* of the places */
} slice;

typedef struct forks {
    const kve_attention_fork_params *p;
    attend a;
    place *places; /* [T] */
    slice *slices; /* at most T */
    int32_t n_slices;
} forks;

static void cut_slices(forks *x)
{
    const kve_attention_fork_params *p = x->p;
    int32_t n_places = 0;
    const void *prefix = NULL;
    for (int32_t f = 0; f < p->X; f++)
        for (int32_t i = 0; i < p->q_len[f]; i++, n_places++) {
            slice *last = x->n_slices ? &x->slices[x->n_slices - 1] : NULL;
            if (!last || p->slots[f].prefix.k != prefix || last->n == ATTEND_ENTRIES) {
                x->slices[x->n_slices++] = (slice){n_places, 0};
                last = &x->slices[x->n_slices - 1];
                prefix = p->slots[f].prefix.k;
            }
            x->places[n_places] = (place){f, i};
            last->n++;
        }
}

static void fork_item(void *ctx, int64_t item, int32_t worker)
{
    const forks *x = ctx;
    const kve_attention_fork_params *p = x->p;
    const slice *s = &x->slices[item / p->Hkv];
    const place *places = x->places + s->first;
    int32_t h = (int32_t)(item % p->Hkv);
    attend_entry entries[ATTEND_ENTRIES];
    for (int32_t e = 0; e < s->n; e++) {
        const kve_fork_slot *slot = &p->slots[places[e].fork];
        entries[e] = (attend_entry){.row = p->row_of[places[e].fork] + places[e].i,
                                    .sees_prefix = slot->prefix_len[p->i_layer * p->Hkv + h],
                                    .sees_tail = p->tail_len[places[e].fork] + places[e].i + 1,
                                    .tail = &slot->tail};
    }
    attend_slice(&x->a, &p->slots[places[0].fork].prefix, h, entries, s->n, worker);
}

kve_status cpu_attention_fork(kve_backend *be, const kve_attention_fork_params *p)
{
    forks x = {.p = p};
    x.a = (attend){.be = cpu_of(be),
                   .q = p->q,
                   .out = p->out,
                   .scale = p->scale,
                   .Hq = p->Hq,
                   .Hkv = p->Hkv,
                   .D = p->D,
                   .i_layer = p->i_layer,
                   .kv_dtype = p->kv_dtype};
    if (p->T == 0)
        return KVE_OK;
    KVE_TRY(attend_reserve(&x.a));
    KVE_TRY(kve_alloc((size_t)p->T, sizeof *x.places, &x.places));
    kve_status st = kve_alloc((size_t)p->T, sizeof *x.slices, &x.slices);
    if (st == KVE_OK) {
        cut_slices(&x);
        cpu_parallel_for(cpu_of(be), (int64_t)x.n_slices * p->Hkv, fork_item, &x);
    }
    free(x.slices);
    free(x.places);
    return st;
}
