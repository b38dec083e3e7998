/* Blocks of 64 cached rows as fp32 panels for the register tile (cpu.h). Included by kernels/cpu only. */
#ifndef KVE_KERNELS_CPU_BLOCK_H
#define KVE_KERNELS_CPU_BLOCK_H

#include "kernels/cpu/cpu.h"

enum { BLOCK_KEYS = CPU_PANEL };

/* The rows of one layer and KV head. */
typedef struct block_rows {
    const void *base; /* kve_kv.k or .v */
    size_t first;     /* element offset of row 0 */
    int32_t D;
    kve_dtype dtype;
} block_rows;

static inline block_rows block_rows_of(const kve_kv *kv, bool values, int32_t Hkv, int32_t D, int32_t i_layer,
                                       int32_t h, kve_dtype dtype)
{
    return (block_rows){values ? kv->v : kv->k, cpu_kv_row(kv, Hkv, D, i_layer, h, 0), D, dtype};
}

/* D up to the next multiple of 64. */
static inline size_t block_padded(int32_t D)
{
    return ((size_t)D + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL;
}

/* Rows [key0, key0 + count), count <= 64, widened and transposed: panel [D][64]; columns from count on are zero.
 * staging: [64][padded D] floats. */
void block_load_keys(cpu_isa isa, const block_rows *from, int32_t key0, int32_t count, float *staging, float *panel);

/* The same rows, 64 columns of D at a time: panels [padded D / 64][64 rows][64]; rows from count on are zero. Tells
 * whether all values are finite. */
bool block_load_values(cpu_isa isa, const block_rows *from, int32_t key0, int32_t count, float *panels);

#endif
