/* The attention core in fp32: softmax(q.k scale) V with an online softmax, for 16 query rows of one KV head. For
 * attention_prefill.cu. Twin: kernels/cpu/attend.c.
 *
 * Keys come in blocks of 32 at fixed boundaries; K and V of a block stand in shared memory as fp32. A warp owns 4 rows:
 * for the scores a lane is a key (K rows are D + 1 floats apart, so 32 lanes hit 32 banks), for the output a lane owns
 * the dimensions lane, lane + 32, ... in registers. Rows of a block that a query may not see are masked; rows that no
 * query of the tile sees are never read. Two barriers a block: before the tile is overwritten, and once it is complete.
 * Nothing depends on how many tiles there are: a row's result is the same in any call. */
#ifndef KVE_KERNELS_CUDA_ATTEND_CUH
#define KVE_KERNELS_CUDA_ATTEND_CUH

#include "kernels/cuda/prim.cuh"

enum { ATTEND_KEYS = 32, ATTEND_ROWS = 16, ATTEND_WARPS = 4, ATTEND_THREADS = ATTEND_WARPS * WARP };
enum { ATTEND_OWN = ATTEND_ROWS / ATTEND_WARPS }; /* rows of a warp */

/* Rows 0 .. n - 1 of one (layer, head). */
struct attend_keys {
    const void *k, *v;
    size_t at; /* element offset of row 0 */
    int32_t n;
    kve_dtype dtype;
};

__device__ inline attend_keys attend_keys_of(const kve_kv &kv, int32_t Hkv, int32_t D, int32_t i_layer, int32_t h,
                                             int32_t n, kve_dtype dtype)
{
    return {kv.k, kv.v, kv_row(kv.cap, Hkv, D, i_layer, h, 0), n, dtype};
}

/* Shared memory of a tile. */
struct attend_shared {
    float *q; /* [ATTEND_ROWS][D] */
    float *k; /* [ATTEND_KEYS][D + 1] */
    float *v; /* [ATTEND_KEYS][D] */
};

inline size_t attend_shared_bytes(int32_t D)
{
    return sizeof(float) * (static_cast<size_t>(ATTEND_ROWS) * D + static_cast<size_t>(ATTEND_KEYS) * (2 * D + 1));
}

__device__ inline attend_shared attend_carve(float *memory, int32_t D)
{
    return {memory, memory + ATTEND_ROWS * D, memory + ATTEND_ROWS * D + ATTEND_KEYS * (D + 1)};
}

/* A warp's rows. NV = ceil(D / 32). */
template <int NV> struct attend_state {
    float top[ATTEND_OWN], sum[ATTEND_OWN], out[ATTEND_OWN][NV];
};

template <int NV> __device__ inline void attend_begin(attend_state<NV> &s)
{
#pragma unroll
    for (int r = 0; r < ATTEND_OWN; r++) {
        s.top[r] = -CUDART_INF_F;
        s.sum[r] = 0;
#pragma unroll
        for (int i = 0; i < NV; i++)
            s.out[r][i] = 0;
    }
}

__device__ inline void attend_load_block(const attend_shared &m, const attend_keys &keys, int32_t key0, int32_t D)
{
    int32_t count = min(static_cast<int32_t>(ATTEND_KEYS), keys.n - key0);
    __syncthreads(); /* the block before is used up */
    for (int32_t i = threadIdx.x; i < ATTEND_KEYS * D; i += ATTEND_THREADS) {
        int32_t j = i / D, d = i % D;
        size_t at = keys.at + static_cast<size_t>(key0) * D + i;
        m.k[j * (D + 1) + d] = j < count ? load_kv(keys.k, at, keys.dtype) : 0;
        m.v[i] = j < count ? load_kv(keys.v, at, keys.dtype) : 0;
    }
    __syncthreads();
}

/* One row against the loaded block, of which it sees `visible` keys. */
template <int NV>
__device__ inline void attend_row(attend_state<NV> &s, int own, const float *q, const attend_shared &m, int32_t visible,
                                  int32_t D, float scale)
{
    int lane = threadIdx.x % WARP;
    float dot = 0;
    for (int32_t d = 0; d < D; d++)
        dot += q[d] * m.k[lane * (D + 1) + d];
    float score = lane < visible ? dot * scale : -CUDART_INF_F;
    float top = fmaxf(s.top[own], warp_max(score));
    /* a NaN score must reach the output: fmaxf drops it, the exponential below does not */
    float shrink = top == -CUDART_INF_F ? 1.0f : expf(s.top[own] - top);
    float p = score == -CUDART_INF_F ? 0.0f : expf(score - top); /* also where all scores so far are -inf */
    s.top[own] = top;
    s.sum[own] = s.sum[own] * shrink + warp_sum(p);
#pragma unroll
    for (int i = 0; i < NV; i++)
        s.out[own][i] *= shrink;
    for (int32_t j = 0; j < visible; j++) { /* the same for the whole warp */
        float pj = __shfl_sync(0xffffffffu, p, j);
#pragma unroll
        for (int i = 0; i < NV; i++)
            if (lane + WARP * i < D)
                s.out[own][i] += pj * m.v[j * D + lane + WARP * i];
    }
}

/* All blocks of a segment. seen[own]: how many of its keys the warp's row sees (0 for a row that is not there); most:
 * the largest of them over the whole tile. */
template <int NV>
__device__ inline void attend_segment(attend_state<NV> &s, const attend_shared &m, const attend_keys &keys,
                                      const int32_t *seen, int32_t most, int32_t D, float scale)
{
    int warp = threadIdx.x / WARP;
    for (int32_t key0 = 0; key0 < most; key0 += ATTEND_KEYS) {
        attend_load_block(m, keys, key0, D);
#pragma unroll
        for (int r = 0; r < ATTEND_OWN; r++) {
            int32_t visible = min(max(seen[r] - key0, 0), static_cast<int32_t>(ATTEND_KEYS));
            if (visible > 0)
                attend_row(s, r, m.q + (warp * ATTEND_OWN + r) * D, m, visible, D, scale);
        }
    }
}

template <int NV> __device__ inline void attend_store(const attend_state<NV> &s, int own, float *out, int32_t D)
{
#pragma unroll
    for (int i = 0; i < NV; i++) {
        int32_t d = threadIdx.x % WARP + WARP * i;
        if (d < D)
            out[d] = s.out[own][i] / s.sum[own];
    }
}

/* attention_prefill on tensor cores (attention_prefill_wmma.cu). *taken: false where the cache, the head dimension or
 * the device is none for it; nothing has run then. */
kve_status attend_prefill_wmma(cuda_backend *c, const kve_attention_prefill_params *p, bool *taken);

/* Calls launch<NV>() for the head dimension. */
#define ATTEND_FOR_D(D, launch)                                                                                        \
    switch (((D) + WARP - 1) / WARP) {                                                                                 \
    case 1:                                                                                                            \
        return launch<1>(c, p);                                                                                        \
    case 2:                                                                                                            \
        return launch<2>(c, p);                                                                                        \
    case 3:                                                                                                            \
        return launch<3>(c, p);                                                                                        \
    case 4:                                                                                                            \
        return launch<4>(c, p);                                                                                        \
    default:                                                                                                           \
        return launch<8>(c, p);                                                                                        \
    }

#endif
