/* Device code's view of its surroundings: indices, barriers, warp collectives, fences. Part of simt.h; the functions of
 * namespace simt are defined in block.cpp and warp.cpp. Every synchronising call passes on the place it stands at,
 * which is what reports of deadlocks and divergence print. */
#ifndef KVE_TESTS_SIMT_DEVICE_H
#define KVE_TESTS_SIMT_DEVICE_H

#include <cuda_runtime_api.h>

#include <stdint.h>
#include <string.h>

#include <type_traits>

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace simt
{
struct place {
    const char *file;
    int line;
};
/* A default argument is evaluated where the call stands, so this is the caller's place. */
#define SIMT_HERE simt::place at_ = {__builtin_FILE(), __builtin_LINE()}

enum class vote { none, count, all, any };
enum class warp_op {
    sync,
    shuffle,
    ballot,
    match,
    sum,
    min_signed,
    max_signed,
    min_unsigned,
    max_unsigned,
    bit_and,
    bit_or,
    bit_xor
};

void *dynamic_shared();
unsigned lane_id();
void fence();
/* Waits for all threads of the block that have not returned; the vote's result. */
int block_meet(vote kind, int predicate, place at);
/* Waits until every lane of `mask` that has not returned asks for the same operation with the same mask. `source` is
 * the lane a shuffle reads. */
uint64_t warp_meet(warp_op op, unsigned mask, uint64_t value, int source, place at);

template <class T> uint64_t to_bits(T v)
{
    static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable<T>::value,
                  "no warp intrinsic takes this");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    return bits;
}

template <class T> T from_bits(uint64_t bits)
{
    T v;
    memcpy(static_cast<void *>(&v), &bits, sizeof v);
    return v;
}

/* `relative` counts from the first lane of the segment; outside of it a lane reads itself. */
template <class T> T shuffle(unsigned mask, T v, int relative, int width, place at)
{
    int lane = static_cast<int>(lane_id()), first = lane & ~(width - 1);
    bool inside = relative >= 0 && relative < width;
    return from_bits<T>(warp_meet(warp_op::shuffle, mask, to_bits(v), inside ? first + relative : lane, at));
}

inline int lane_in_segment(int width)
{
    return static_cast<int>(lane_id()) & (width - 1);
}
} // namespace simt

inline void __syncthreads(SIMT_HERE)
{
    simt::block_meet(simt::vote::none, 0, at_);
}

inline int __syncthreads_count(int predicate, SIMT_HERE)
{
    return simt::block_meet(simt::vote::count, predicate, at_);
}

inline int __syncthreads_and(int predicate, SIMT_HERE)
{
    return simt::block_meet(simt::vote::all, predicate, at_);
}

inline int __syncthreads_or(int predicate, SIMT_HERE)
{
    return simt::block_meet(simt::vote::any, predicate, at_);
}

inline void __syncwarp(unsigned mask = ~0u, SIMT_HERE)
{
    simt::warp_meet(simt::warp_op::sync, mask, 0, 0, at_);
}

template <class T> T __shfl_sync(unsigned mask, T v, int lane, int width = warpSize, SIMT_HERE)
{
    return simt::shuffle(mask, v, lane & (width - 1), width, at_);
}

template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = warpSize, SIMT_HERE)
{
    return simt::shuffle(mask, v, simt::lane_in_segment(width) - static_cast<int>(delta), width, at_);
}

template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = warpSize, SIMT_HERE)
{
    return simt::shuffle(mask, v, simt::lane_in_segment(width) + static_cast<int>(delta), width, at_);
}

template <class T> T __shfl_xor_sync(unsigned mask, T v, int bits, int width = warpSize, SIMT_HERE)
{
    return simt::shuffle(mask, v, simt::lane_in_segment(width) ^ bits, width, at_);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_HERE)
{
    return static_cast<unsigned>(simt::warp_meet(simt::warp_op::ballot, mask, predicate != 0, 0, at_));
}

inline int __any_sync(unsigned mask, int predicate, SIMT_HERE)
{
    return __ballot_sync(mask, predicate, at_) != 0;
}

inline int __all_sync(unsigned mask, int predicate, SIMT_HERE)
{
    return __ballot_sync(mask, !predicate, at_) == 0;
}

template <class T> unsigned __match_any_sync(unsigned mask, T v, SIMT_HERE)
{
    return static_cast<unsigned>(simt::warp_meet(simt::warp_op::match, mask, simt::to_bits(v), 0, at_));
}

template <class T> unsigned __match_all_sync(unsigned mask, T v, int *all_equal, SIMT_HERE)
{
    unsigned same = __match_any_sync(mask, v, at_);
    *all_equal = __ballot_sync(mask, same != mask, at_) == 0;
    return *all_equal ? mask : 0;
}

inline unsigned __activemask()
{
    return 1u << simt::lane_id(); /* one lane is all a thread may rely on */
}

/* Signed values travel sign-extended, so that one 64-bit comparison serves. */
#define SIMT_REDUCE(name, type, op)                                                                                    \
    inline type name(unsigned mask, type v, SIMT_HERE)                                                                 \
    {                                                                                                                  \
        return static_cast<type>(                                                                                      \
            simt::warp_meet(simt::warp_op::op, mask, static_cast<uint64_t>(static_cast<int64_t>(v)), 0, at_));         \
    }
SIMT_REDUCE(__reduce_add_sync, int, sum)
SIMT_REDUCE(__reduce_add_sync, unsigned, sum)
SIMT_REDUCE(__reduce_min_sync, int, min_signed)
SIMT_REDUCE(__reduce_min_sync, unsigned, min_unsigned)
SIMT_REDUCE(__reduce_max_sync, int, max_signed)
SIMT_REDUCE(__reduce_max_sync, unsigned, max_unsigned)
SIMT_REDUCE(__reduce_and_sync, unsigned, bit_and)
SIMT_REDUCE(__reduce_or_sync, unsigned, bit_or)
SIMT_REDUCE(__reduce_xor_sync, unsigned, bit_xor)
#undef SIMT_REDUCE

inline void __threadfence_block()
{
    simt::fence();
}

inline void __threadfence()
{
    simt::fence();
}

inline void __threadfence_system()
{
    simt::fence();
}

#endif
