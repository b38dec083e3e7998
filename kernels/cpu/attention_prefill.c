/* Exact causal attention of a chunk over the context cache. Contract: kernels/ops.h; the arithmetic: attend.c. One item
 * is one KV head and up to TOKENS consecutive tokens with all query heads of the group. */
#include "kernels/cpu/attend.h"

enum { TOKENS = 48 };

typedef struct prefill {
    const kve_attention_prefill_params *p;
    attend a;
    int32_t n_blocks;
} prefill;

static void prefill_item(void *ctx, int64_t item, int32_t worker)
{
    const prefill *x = ctx;
    const kve_attention_prefill_params *p = x->p;
    attend_entry entries[TOKENS];
    /* Late blocks see the most keys: start with them, so that no long item is left for the end. */
    int32_t h = (int32_t)(item % p->Hkv), token0 = (x->n_blocks - 1 - (int32_t)(item / p->Hkv)) * TOKENS;
    int32_t n = p->T - token0 < TOKENS ? p->T - token0 : TOKENS;
    for (int32_t i = 0; i < n; i++)
        entries[i] = (attend_entry){.row = token0 + i, .sees_prefix = p->start + token0 + i + 1};
    attend_slice(&x->a, &p->kv, h, entries, n, worker);
}

kve_status cpu_attention_prefill(kve_backend *be, const kve_attention_prefill_params *p)
{
    prefill x = {.p = p, .n_blocks = (p->T + TOKENS - 1) / TOKENS};
    x.a = (attend){.be = cpu_of(be),
                   .q = p->q,
                   .out = p->out,
                   .scale = p->scale,
                   .Hq = p->Hq,
                   .Hkv = p->Hkv,
                   .D = p->D,
                   .i_layer = p->i_layer,
                   .kv_dtype = p->kv_dtype};
    KVE_TRY(attend_reserve(&x.a));
    cpu_parallel_for(cpu_of(be), (int64_t)x.n_blocks * p->Hkv, prefill_item, &x);
    return KVE_OK;
}
