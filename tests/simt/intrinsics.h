/* Arithmetic that nvcc knows and a host compiler does not: bits, casts between words and floats, fast math, min and
 * max, read-only loads. Part of simt.h. Fast math is exact here: compare with tolerances that a GPU meets, too. */
#ifndef KVE_TESTS_SIMT_INTRINSICS_H
#define KVE_TESTS_SIMT_INTRINSICS_H

#include "tests/simt/device.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

namespace simt
{
[[noreturn]] void misaligned_load(const void *p, size_t alignment, place at);

/* The host forgives a misaligned vector load in most places, a GPU never does. */
template <class T> __attribute__((always_inline)) inline T aligned_load(const T *p, place at)
{
    if (reinterpret_cast<uintptr_t>(p) % alignof(T) != 0)
        misaligned_load(p, alignof(T), at);
    return *p;
}
} // namespace simt

#define SIMT_LOAD(name)                                                                                                \
    template <class T> __attribute__((always_inline)) inline T name(const T *p, SIMT_HERE)                             \
    {                                                                                                                  \
        return simt::aligned_load(p, at_);                                                                             \
    }
SIMT_LOAD(__ldg)
SIMT_LOAD(__ldca)
SIMT_LOAD(__ldcg)
SIMT_LOAD(__ldcs)
#undef SIMT_LOAD

/* name(arguments) = expression, for the plain ones. */
#define SIMT_FUNCTION(type, name, arguments, expression)                                                               \
    inline type name arguments                                                                                         \
    {                                                                                                                  \
        return expression;                                                                                             \
    }
SIMT_FUNCTION(int, __popc, (unsigned x), __builtin_popcount(x))
SIMT_FUNCTION(int, __popcll, (unsigned long long x), __builtin_popcountll(x))
SIMT_FUNCTION(int, __clz, (int x), x ? __builtin_clz(static_cast<unsigned>(x)) : 32)
SIMT_FUNCTION(int, __clzll, (long long x), x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64)
SIMT_FUNCTION(int, __ffs, (int x), __builtin_ffs(x))
SIMT_FUNCTION(int, __ffsll, (long long x), __builtin_ffsll(x))
SIMT_FUNCTION(unsigned, __umulhi, (unsigned x, unsigned y), static_cast<unsigned>(uint64_t{x} * y >> 32))
SIMT_FUNCTION(unsigned, __float_as_uint, (float x), simt::from_bits<unsigned>(simt::to_bits(x)))
SIMT_FUNCTION(int, __float_as_int, (float x), simt::from_bits<int>(simt::to_bits(x)))
SIMT_FUNCTION(float, __uint_as_float, (unsigned x), simt::from_bits<float>(simt::to_bits(x)))
SIMT_FUNCTION(float, __int_as_float, (int x), simt::from_bits<float>(simt::to_bits(x)))
SIMT_FUNCTION(long long, __double_as_longlong, (double x), simt::from_bits<long long>(simt::to_bits(x)))
SIMT_FUNCTION(double, __longlong_as_double, (long long x), simt::from_bits<double>(simt::to_bits(x)))
SIMT_FUNCTION(int, __float2int_rn, (float x), static_cast<int>(nearbyintf(x)))
SIMT_FUNCTION(float, __int2float_rn, (int x), static_cast<float>(x))
SIMT_FUNCTION(float, __expf, (float x), expf(x))
SIMT_FUNCTION(float, __logf, (float x), logf(x))
SIMT_FUNCTION(float, __log2f, (float x), log2f(x))
SIMT_FUNCTION(float, __sinf, (float x), sinf(x))
SIMT_FUNCTION(float, __cosf, (float x), cosf(x))
SIMT_FUNCTION(float, __powf, (float x, float y), powf(x, y))
SIMT_FUNCTION(float, __fdividef, (float x, float y), x / y)
SIMT_FUNCTION(float, __frcp_rn, (float x), 1.0f / x)
SIMT_FUNCTION(float, __fsqrt_rn, (float x), sqrtf(x))
SIMT_FUNCTION(float, __fadd_rn, (float x, float y), x + y)
SIMT_FUNCTION(float, __fmul_rn, (float x, float y), x *y)
SIMT_FUNCTION(float, __fmaf_rn, (float x, float y, float z), fmaf(x, y, z))
SIMT_FUNCTION(float, __saturatef, (float x), x > 0 ? (x < 1 ? x : 1.0f) : 0.0f)
SIMT_FUNCTION(float, rsqrtf, (float x), 1.0f / sqrtf(x))
SIMT_FUNCTION(double, rsqrt, (double x), 1.0 / sqrt(x))
#undef SIMT_FUNCTION

inline unsigned __brev(unsigned x)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++)
        r |= (x >> i & 1u) << (31 - i);
    return r;
}

template <class A, class B> std::common_type_t<A, B> min(A a, B b)
{
    return b < a ? b : a;
}

template <class A, class B> std::common_type_t<A, B> max(A a, B b)
{
    return a < b ? b : a;
}

#endif
