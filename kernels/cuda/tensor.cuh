/* bf16 in vectors and in tensor cores' fragments. Used by attention_prefill_wmma.cu and kvp_product.cuh; knows no op.
 */
#ifndef KVE_KERNELS_CUDA_TENSOR_CUH
#define KVE_KERNELS_CUDA_TENSOR_CUH

#include "kernels/cuda/prim.cuh"

#include <mma.h>
#include <string.h>

#include <utility>

/* wmma has bf16 from compute capability 8 on; the host's pass over this file sees it always. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define TENSOR_CORES 0
#else
#define TENSOR_CORES 1
#endif

using bf16 = __nv_bfloat16;

enum { TILE = 16, VECTOR = 8 }; /* elements of a tile's side; of a 16-byte access */

/* Two f32 as bf16 in one word, the first in the lower half. */
__device__ static inline uint32_t packed(float a, float b)
{
    const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    uint32_t word;
    memcpy(&word, &both, sizeof word);
    return word;
}

__device__ static inline float low(uint32_t word)
{
    return __uint_as_float(word << 16);
}

__device__ static inline float high(uint32_t word)
{
    return __uint_as_float(word & 0xffff0000u);
}

/* Zero for what is not finite in either half; tells whether there was such a thing. */
__device__ static inline bool keep_finite(uint32_t &word)
{
    const bool odd_low = (word & 0x7f80u) == 0x7f80u, odd_high = (word & 0x7f800000u) == 0x7f800000u;
    word &= (odd_low ? 0xffff0000u : ~0u) & (odd_high ? 0x0000ffffu : ~0u);
    return odd_low || odd_high;
}

/* Eight bf16 at once. */
__device__ static inline void put(bf16 *to, const uint4 &x)
{
    *reinterpret_cast<uint4 *>(to) = x;
}

#if TENSOR_CORES
namespace wmma = nvcuda::wmma;
using rows_fragment = wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, bf16, wmma::row_major>;
using columns_fragment = wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, bf16, wmma::col_major>;
using values_fragment = wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, bf16, wmma::row_major>;
using sums_fragment = wmma::fragment<wmma::accumulator, TILE, TILE, TILE, float>;

enum { HELD_SUMS = sums_fragment::num_elements };

/* load_matrix_sync from shared memory, OFFSET elements behind p. nvcc loads bf16 word by word from what it takes for a
 * generic address; with the address space spelled out it is one ldmatrix into the same registers, and with the offset
 * as an immediate all fragments of a matrix share one address register. */
#ifdef KVE_SIMT
template <int OFFSET, class F> __device__ static inline void load_fragment(F &f, const bf16 *p, unsigned ld)
{
    wmma::load_matrix_sync(f, p + OFFSET, ld);
}
#else
#define LOAD_FRAGMENT(type, matrix)                                                                                    \
    template <int OFFSET> __device__ static inline void load_fragment(type &f, const bf16 *p, unsigned ld)             \
    {                                                                                                                  \
        unsigned *r = reinterpret_cast<unsigned *>(f.x);                                                               \
        asm volatile("wmma.load." matrix ".m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4 + %6], %5;"                     \
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                                  \
                     : "r"(static_cast<unsigned>(__cvta_generic_to_shared(p))), "r"(ld), "n"(2 * OFFSET)               \
                     : "memory");                                                                                      \
    }
LOAD_FRAGMENT(rows_fragment, "a.sync.aligned.row")
LOAD_FRAGMENT(columns_fragment, "b.sync.aligned.col")
LOAD_FRAGMENT(values_fragment, "b.sync.aligned.row")
#endif

/* f(0), .. f(N - 1), each with a number that the compiler knows. */
template <int I> struct constant {
    __host__ __device__ constexpr operator int() const
    {
        return I;
    }
};

template <class F, int... I> __device__ static inline void for_each(std::integer_sequence<int, I...>, const F &f)
{
    (f(constant<I>()), ...);
}

template <int N, class F> __device__ static inline void for_each(const F &f)
{
    for_each(std::make_integer_sequence<int, N>(), f);
}

/* Row and column of each element that this lane holds of an accumulator: four bits each. */
struct elements {
    uint32_t rows, columns;

    /* patch: TILE rows of `ld` floats that are this warp's for the moment. */
    __device__ void ask(float *patch, int ld)
    {
        sums_fragment f;
        for (int i = static_cast<int>(threadIdx.x) % WARP; i < TILE * TILE; i += WARP)
            patch[i / TILE * ld + i % TILE] = static_cast<float>(i);
        __syncwarp();
        wmma::load_matrix_sync(f, patch, ld, wmma::mem_row_major);
        rows = columns = 0;
#pragma unroll
        for (int i = 0; i < HELD_SUMS; i++) {
            rows |= static_cast<uint32_t>(f.x[i]) / TILE << 4 * i;
            columns |= static_cast<uint32_t>(f.x[i]) % TILE << 4 * i;
        }
    }

    /* The same; nvcc does not know that, and so does not unpack all elements ahead of a loop that scales with them. */
    __device__ elements again() const
    {
        elements e = *this;
#ifndef KVE_SIMT
        asm volatile("" : "+r"(e.rows));
#endif
        return e;
    }

    __device__ int row(int i) const
    {
        return static_cast<int>(rows >> 4 * i & 15u);
    }

    __device__ int column(int i) const
    {
        return static_cast<int>(columns >> 4 * i & 15u);
    }
};
#endif

#endif
