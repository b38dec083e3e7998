/* Moving cache rows: out of place in ranked order (gather) and in place (compact). Contracts: kernels/ops.h. */
#include "kernels/cpu/cpu.h"

enum { ROWS = 1024 }; /* of one gather item */

static char *row_at(const kve_kv *kv, bool values, size_t element, kve_dtype t)
{
    return (char *)(values ? kv->v : kv->k) + element * kve_dtype_bytes(t);
}

static void gather_item(void *ctx, int64_t item, int32_t worker)
{
    const kve_gather_params *p = ctx;
    (void)worker;
    int32_t heads = p->n_layers * p->Hkv; /* a head beyond Hkv is one of the next layer, in the cache and in order */
    int32_t h = (int32_t)(item % heads), r0 = (int32_t)(item / heads) * ROWS;
    int32_t count = p->counts ? p->counts[h] : p->count, r1 = count - r0 < ROWS ? count : r0 + ROWS;
    size_t bytes = (size_t)p->D * kve_dtype_bytes(p->kv_dtype);
    for (int32_t r = r0; r < r1; r++) {
        int32_t j = p->order[(size_t)h * (size_t)p->order_stride + (size_t)r];
        size_t from = cpu_kv_row(&p->from, p->Hkv, p->D, p->i_layer, h, j);
        size_t to = cpu_kv_row(&p->to, p->Hkv, p->D, p->i_layer, h, r);
        for (int values = 0; values < 2; values++)
            memcpy(row_at(&p->to, values, to, p->kv_dtype), row_at(&p->from, values, from, p->kv_dtype), bytes);
    }
}

kve_status cpu_gather(kve_backend *be, const kve_gather_params *p)
{
    int64_t blocks = (p->count + ROWS - 1) / ROWS;
    cpu_parallel_for(cpu_of(be), blocks * p->n_layers * p->Hkv, gather_item, (void *)(uintptr_t)p);
    return KVE_OK;
}

static void compact_item(void *ctx, int64_t item, int32_t worker)
{
    const kve_compact_params *p = ctx;
    (void)worker;
    int32_t h = (int32_t)item, kept = p->keep_len[h];
    size_t bytes = (size_t)p->D * kve_dtype_bytes(p->kv_dtype);
    for (int values = 0; values < 2; values++) {
        for (int32_t r = 0; r < kept; r++) {
            int32_t j = p->keep[(size_t)h * (size_t)p->keep_stride + (size_t)r];
            if (j != r) /* ascending: row j > r was not overwritten yet */
                memcpy(row_at(&p->kv, values, cpu_kv_row(&p->kv, p->Hkv, p->D, p->i_layer, h, r), p->kv_dtype),
                       row_at(&p->kv, values, cpu_kv_row(&p->kv, p->Hkv, p->D, p->i_layer, h, j), p->kv_dtype), bytes);
        }
        if (kept < p->n) /* all bits set is a NaN in fp32 and in bf16 */
            memset(row_at(&p->kv, values, cpu_kv_row(&p->kv, p->Hkv, p->D, p->i_layer, h, kept), p->kv_dtype), 0xff,
                   (size_t)(p->n - kept) * bytes);
    }
}

kve_status cpu_compact(kve_backend *be, const kve_compact_params *p)
{
    cpu_parallel_for(cpu_of(be), p->Hkv, compact_item, (void *)(uintptr_t)p);
    return KVE_OK;
}
