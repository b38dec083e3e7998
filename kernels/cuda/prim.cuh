/* What kernels share: warp and block reductions in a fixed order, cached rows in either dtype, the key of the total
 * order. Device code only; knows no op. */
#ifndef KVE_KERNELS_CUDA_PRIM_CUH
#define KVE_KERNELS_CUDA_PRIM_CUH

#include "kernels/cuda/cuda.h"

#include <math_constants.h>

constexpr int WARP = 32;

template <class T> __device__ inline T warp_sum(T x)
{
    for (int d = WARP / 2; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

__device__ inline float warp_max(float x)
{
    for (int d = WARP / 2; d > 0; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

/* Sum over the block, the same in every thread. `slots` is shared memory for 32 values; every thread of the block (a
 * multiple of 32 threads) calls it. The tree depends on the block size alone. */
template <class T> __device__ inline T block_sum(T x, T *slots)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;
    x = warp_sum(x);
    __syncthreads(); /* the slots may still be read from the call before */
    if (lane == 0)
        slots[warp] = x;
    __syncthreads();
    T sum = 0;
    for (int w = 0; w < n_warps; w++)
        sum += slots[w];
    return sum;
}

__device__ inline float block_max(float x, float *slots)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0)
        slots[warp] = x;
    __syncthreads();
    float top = slots[0];
    for (int w = 1; w < n_warps; w++)
        top = fmaxf(top, slots[w]);
    return top;
}

/* Element offset of row j of (i_layer, h) in a kve_kv. */
__device__ inline size_t kv_row(int32_t cap, int32_t Hkv, int32_t D, int32_t i_layer, int32_t h, int32_t j)
{
    return ((static_cast<size_t>(i_layer) * Hkv + h) * cap + j) * D;
}

/* The same where the cache may be ragged. */
__device__ inline size_t kv_ragged_row(const kve_kv &kv, int32_t Hkv, int32_t D, int32_t i_layer, int32_t h, int32_t j)
{
    return kv.first ? (kv.first[static_cast<size_t>(i_layer) * Hkv + h] + j) * D
                    : kv_row(kv.cap, Hkv, D, i_layer, h, j);
}

/* bf16 is the upper half of an f32. */
__device__ inline float from_bf16(uint16_t x)
{
    return __uint_as_float(static_cast<uint32_t>(x) << 16);
}

/* Nearest even; NaN stays NaN. */
__device__ inline uint16_t to_bf16(float f)
{
    uint32_t bits = __float_as_uint(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ inline float load_kv(const void *base, size_t at, kve_dtype t)
{
    return t == KVE_F32 ? static_cast<const float *>(base)[at] : from_bf16(static_cast<const uint16_t *>(base)[at]);
}

__device__ inline void store_kv(void *base, size_t at, kve_dtype t, float x)
{
    if (t == KVE_F32)
        static_cast<float *>(base)[at] = x;
    else
        static_cast<uint16_t *>(base)[at] = to_bf16(x);
}

/* Ascending keys are descending scores; NaN counts as -inf, -0 as +0 (kernels/ops.h rank). */
__device__ inline uint32_t descending_key(float score)
{
    uint32_t bits = __float_as_uint(isnan(score) ? -CUDART_INF_F : score);
    if (bits == 0x80000000u)
        bits = 0;
    return ~(bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

#endif
