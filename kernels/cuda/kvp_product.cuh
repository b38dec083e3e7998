/* The arithmetic under kvp_score.cu: products of 16-row tiles in shared memory by tensor cores (bf16) or fused
 * multiply-adds (float), behind one interface, and what goes with the element type. Knows nothing of the network.
 *
 * A product leaves its sums in a layout with known rows and columns: of each 16 x 16 tile a lane has row lane / 2 and
 * the columns 4 (lane % 2) + {0 .. 3, 8 .. 11}. In rows of 24 floats that is free of bank conflicts. */
#ifndef KVE_KERNELS_CUDA_KVP_PRODUCT_CUH
#define KVE_KERNELS_CUDA_KVP_PRODUCT_CUH

#include "kernels/cuda/tensor.cuh"

#include <type_traits>

enum { OWN = 8, PATCH_LD = 24 };

/* Elements of 16 bytes: of a vector load, and of the padding that keeps rows off each other's banks. */
template <class E> constexpr int VEC = 16 / static_cast<int>(sizeof(E));
template <class E> constexpr bool IS_BF16 = sizeof(E) == 2;

__device__ static inline int lane_row()
{
    return static_cast<int>(threadIdx.x) % WARP / 2;
}

__device__ static inline int lane_column()
{
    return static_cast<int>(threadIdx.x) % 2 * 4;
}

struct octet {
    float x[OWN];
};

/* Two vectors of four floats, `gap` apart: TILE / 2 gives a lane's columns of a tile from the first of them on. */
__device__ static inline octet load_octet(const float *p, int gap)
{
    const float4 a = __ldg(reinterpret_cast<const float4 *>(p)), b = __ldg(reinterpret_cast<const float4 *>(p + gap));
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

/* Four elements as one store. Indexed as quads, that is: nvcc splits a vector store whose address it has counted in
 * elements. */
template <class E> using quad = std::conditional_t<IS_BF16<E>, uint2, float4>;

/* Floats are rounded to bf16 if asked for, bf16 always are. */
template <class E> __device__ static inline quad<E> pack(const float *x, bool round)
{
    if constexpr (IS_BF16<E>) {
        const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(x[0], x[1]), __floats2bfloat162_rn(x[2], x[3])};
        uint2 y;
        memcpy(&y.x, &pairs[0], sizeof y.x);
        memcpy(&y.y, &pairs[1], sizeof y.y);
        return y;
    } else {
        if (!round)
            return {x[0], x[1], x[2], x[3]};
        return {from_bf16(to_bf16(x[0])), from_bf16(to_bf16(x[1])), from_bf16(to_bf16(x[2])), from_bf16(to_bf16(x[3]))};
    }
}

/* x / (1 + e^-x). */
template <class E> __device__ static inline float silu(float x)
{
    if constexpr (IS_BF16<E>) /* a few units in the last place, far below what a bf16 keeps */
        return __fdividef(x, 1.0f + __expf(-x));
    else
        return x / (1.0f + expf(-x));
}

template <int RT, int CT> struct kvp_values {
    float v[RT][CT][OWN];
};

/* sums [16 RT][16 CT] += x [16 RT][depth] w [16 CT][depth]^T, k ascending. x and w are shared memory, rows ldx and ldw
 * elements apart, at multiples of 32 bytes. */
template <class E, int RT, int CT> struct kvp_product;

template <int RT, int CT> struct kvp_product<float, RT, CT> {
    kvp_values<RT, CT> sum;

    __device__ inline void clear()
    {
#pragma unroll
        for (int i = 0; i < RT * CT * OWN; i++)
            sum.v[i / (CT * OWN)][i / OWN % CT][i % OWN] = 0;
    }

    __device__ inline void add(const float *x, int ldx, const float *w, int ldw, int depth)
    {
        x += lane_row() * ldx;
        w += lane_column() * ldw;
        for (int k = 0; k < depth; k += 4) {
            float4 a[RT];
#pragma unroll
            for (int r = 0; r < RT; r++)
                a[r] = *reinterpret_cast<const float4 *>(x + r * TILE * ldx + k);
#pragma unroll
            for (int i = 0; i < CT * OWN; i++) {
                const int ct = i / OWN, e = i % OWN;
                const float4 b = *reinterpret_cast<const float4 *>(w + (ct * TILE + e / 4 * 8 + e % 4) * ldw + k);
#pragma unroll
                for (int r = 0; r < RT; r++) {
                    float s = fmaf(a[r].x, b.x, sum.v[r][ct][e]);
                    s = fmaf(a[r].y, b.y, s);
                    s = fmaf(a[r].z, b.z, s);
                    sum.v[r][ct][e] = fmaf(a[r].w, b.w, s);
                }
            }
        }
    }

    __device__ inline void take(kvp_values<RT, CT> &out, float *) const
    {
        out = sum;
    }
};

#if TENSOR_CORES
template <int RT, int CT> struct kvp_product<bf16, RT, CT> {
    sums_fragment sum[RT][CT];

    __device__ inline void clear()
    {
#pragma unroll
        for (int i = 0; i < RT * CT; i++)
            wmma::fill_fragment(sum[i / CT][i % CT], 0.0f);
    }

    __device__ inline void add(const bf16 *x, int ldx, const bf16 *w, int ldw, int depth)
    {
        for (int k = 0; k < depth; k += TILE) {
            rows_fragment a[RT];
#pragma unroll
            for (int r = 0; r < RT; r++)
                load_fragment<0>(a[r], x + r * TILE * ldx + k, ldx);
#pragma unroll
            for (int c = 0; c < CT; c++) {
                columns_fragment b;
                load_fragment<0>(b, w + c * TILE * ldw + k, ldw);
#pragma unroll
                for (int r = 0; r < RT; r++)
                    wmma::mma_sync(sum[r][c], a[r], b, sum[r][c]);
            }
        }
    }

    /* Through the warp's patch [TILE][PATCH_LD]: what a lane holds of a fragment is not specified. One lane writes what
     * another reads, and the next tile overwrites it, hence the two waits. */
    __device__ inline void take(kvp_values<RT, CT> &out, float *patch) const
    {
        const float *mine = patch + lane_row() * PATCH_LD + lane_column();
#pragma unroll
        for (int i = 0; i < RT * CT; i++) {
            wmma::store_matrix_sync(patch, sum[i / CT][i % CT], PATCH_LD, wmma::mem_row_major);
            __syncwarp();
            const float4 a = *reinterpret_cast<const float4 *>(mine);
            const float4 b = *reinterpret_cast<const float4 *>(mine + TILE / 2);
            __syncwarp();
            const float v[OWN] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int e = 0; e < OWN; e++)
                out.v[i / CT][i % CT][e] = v[e];
        }
    }
};
#endif

#endif
