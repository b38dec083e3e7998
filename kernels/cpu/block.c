/* Loading blocks of the cache into panels. Contract: block.h. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/simd.h"

/* [64][Dp] -> [D][64] in squares small enough to stay in registers or the nearest cache. */
CPU_INLINE void transpose(const float *from, size_t Dp, size_t D, float *to)
{
    enum { SIDE = 16 };
    for (size_t j0 = 0; j0 < BLOCK_KEYS; j0 += SIDE)
        for (size_t d0 = 0; d0 < D; d0 += SIDE) {
            float t[SIDE][SIDE];
            size_t width = D - d0 < SIDE ? D - d0 : SIDE;
            for (size_t j = 0; j < SIDE; j++)
                for (size_t d = 0; d < SIDE; d++)
                    t[d][j] = from[(j0 + j) * Dp + d0 + d];
            for (size_t d = 0; d < width; d++)
                memcpy(to + (d0 + d) * BLOCK_KEYS + j0, t[d], sizeof t[d]);
        }
}

CPU_INLINE void widen(const block_rows *from, size_t at, size_t n, float *to)
{
    if (from->dtype == KVE_F32) {
        memcpy(to, (const float *)from->base + at, n * sizeof *to);
        return;
    }
    const uint16_t *p = (const uint16_t *)from->base + at;
    for (size_t d = 0; d < n; d++)
        to[d] = cpu_from_bf16(p[d]);
}

CPU_INLINE void keys_body(const block_rows *from, int32_t key0, int32_t count, float *staging, float *panel)
{
    size_t D = (size_t)from->D, Dp = block_padded(from->D);
    if (count < BLOCK_KEYS)
        memset(staging, 0, Dp * BLOCK_KEYS * sizeof(float));
    for (size_t j = 0; j < (size_t)count; j++)
        widen(from, from->first + ((size_t)key0 + j) * D, D, staging + j * Dp);
    transpose(staging, Dp, D, panel);
}

CPU_INLINE void values_body(const block_rows *from, int32_t key0, int32_t count, float *panels, bool *finite)
{
    size_t D = (size_t)from->D;
    if (count < BLOCK_KEYS || D % CPU_PANEL)
        memset(panels, 0, block_padded(from->D) * BLOCK_KEYS * sizeof(float));
    for (size_t j = 0; j < (size_t)count; j++)
        for (size_t d = 0; d < D; d += CPU_PANEL)
            widen(from, from->first + ((size_t)key0 + j) * D + d, D - d < CPU_PANEL ? D - d : CPU_PANEL,
                  panels + d * BLOCK_KEYS + j * CPU_PANEL);
    uint32_t worst = 0;
    for (size_t i = 0; i < block_padded(from->D) * BLOCK_KEYS; i++) {
        uint32_t bits;
        memcpy(&bits, &panels[i], sizeof bits);
        bits &= 0x7f800000u;
        worst = bits > worst ? bits : worst;
    }
    *finite = worst != 0x7f800000u;
}

CPU_INSTANCES(keys, (const block_rows *from, int32_t key0, int32_t count, float *staging, float *panel),
              keys_body(from, key0, count, staging, panel))
CPU_INSTANCES(values, (const block_rows *from, int32_t key0, int32_t count, float *panels, bool *finite),
              values_body(from, key0, count, panels, finite))

void block_load_keys(cpu_isa isa, const block_rows *from, int32_t key0, int32_t count, float *staging, float *panel)
{
    keys_pick(isa)(from, key0, count, staging, panel);
}

bool block_load_values(cpu_isa isa, const block_rows *from, int32_t key0, int32_t count, float *panels)
{
    bool finite;
    values_pick(isa)(from, key0, count, panels, &finite);
    return finite;
}
