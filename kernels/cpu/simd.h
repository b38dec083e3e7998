/* Small pieces that several kernels share, written so that the compiler vectorises them under whatever target the
 * including function has; explicit lanes keep the order of every sum fixed. Included by kernels/cpu only. */
#ifndef KVE_KERNELS_CPU_SIMD_H
#define KVE_KERNELS_CPU_SIMD_H

#include "kernels/cpu/cpu.h"

#include <math.h>

#define CPU_INLINE static inline __attribute__((always_inline))

/* Full-width vectors by each compiler's own words. */
#ifdef __clang__
#define CPU_WIDE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"), min_vector_width(512)))
#else
#define CPU_WIDE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif

/* Defines NAME(ARGS) as CALL compiled for three instruction sets, and NAME##_pick(isa). CALL is a CPU_INLINE function.
 */
#if defined(__x86_64__)
#define CPU_INSTANCES(NAME, ARGS, CALL)                                                                                \
    typedef void(*NAME##_fn) ARGS;                                                                                     \
    static void NAME##_portable ARGS                                                                                   \
    {                                                                                                                  \
        CALL;                                                                                                          \
    }                                                                                                                  \
    __attribute__((target("avx2,fma"))) static void NAME##_avx2 ARGS                                                   \
    {                                                                                                                  \
        CALL;                                                                                                          \
    }                                                                                                                  \
    CPU_WIDE static void NAME##_avx512 ARGS                                                                            \
    {                                                                                                                  \
        CALL;                                                                                                          \
    }                                                                                                                  \
    static NAME##_fn NAME##_pick(cpu_isa isa)                                                                          \
    {                                                                                                                  \
        return isa >= CPU_AVX512 ? NAME##_avx512 : isa == CPU_AVX2 ? NAME##_avx2 : NAME##_portable;                    \
    }
#else
#define CPU_INSTANCES(NAME, ARGS, CALL)                                                                                \
    typedef void(*NAME##_fn) ARGS;                                                                                     \
    static void NAME##_portable ARGS                                                                                   \
    {                                                                                                                  \
        CALL;                                                                                                          \
    }                                                                                                                  \
    static NAME##_fn NAME##_pick(cpu_isa isa)                                                                          \
    {                                                                                                                  \
        (void)isa;                                                                                                     \
        return NAME##_portable;                                                                                        \
    }
#endif

/* e^x for x <= 0 to about 1e-7 relative: x = n ln2 + r, a degree-6 polynomial in r, 2^n by exponent bits. Below -87 it
 * is 0 (e^-87 is the last normal float's neighbourhood); NaN stays NaN. No branches, no library call. */
CPU_INLINE float cpu_exp(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits */
    float shifted = x * 1.44269504f + magic, n = shifted - magic;
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.0f / 720 * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    float scale;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127u) << 23;
    memcpy(&scale, &bits, sizeof scale);
    float y = p * scale;
    return x < -87.0f ? 0.0f : y;
}

enum { CPU_LANES = 16 };

/* Sum of 16 lanes by a fixed tree. */
CPU_INLINE float cpu_sum_lanes(float lane[CPU_LANES])
{
    for (int w = CPU_LANES / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            lane[i] += lane[i + w];
    return lane[0];
}

/* a.b over D (a multiple of 16 runs in lanes, the rest joins lane by lane). */
CPU_INLINE float cpu_dot(const float *a, const float *b, int32_t D)
{
    float lane[CPU_LANES] = {0};
    int32_t d = 0;
    for (; d + CPU_LANES <= D; d += CPU_LANES)
        for (int i = 0; i < CPU_LANES; i++)
            lane[i] += a[d + i] * b[d + i];
    for (int i = 0; d + i < D; i++)
        lane[i] += a[d + i] * b[d + i];
    return cpu_sum_lanes(lane);
}

/* Turns s[0..count) into exp(s * scale - new max), updates the running max and sum, and returns the factor by which
 * what was summed before shrinks. */
CPU_INLINE float cpu_softmax_block(float *s, int32_t count, float scale, float *running_max, float *running_sum)
{
    float lane_max[CPU_LANES], lane[CPU_LANES] = {0}, top = *running_max;
    for (int i = 0; i < CPU_LANES; i++)
        lane_max[i] = -INFINITY;
    for (int32_t j = 0; j < count; j++)
        s[j] *= scale;
    int32_t whole = count / CPU_LANES * CPU_LANES;
    for (int32_t j = 0; j < whole; j += CPU_LANES)
        for (int i = 0; i < CPU_LANES; i++)
            lane_max[i] = s[j + i] > lane_max[i] ? s[j + i] : lane_max[i];
    for (int32_t j = whole; j < count; j++)
        lane_max[j - whole] = s[j] > lane_max[j - whole] ? s[j] : lane_max[j - whole];
    for (int i = 0; i < CPU_LANES; i++)
        top = lane_max[i] > top ? lane_max[i] : top;
    float from = top == -INFINITY ? 0.0f : top; /* nothing but -inf so far: all weights are 0, not NaN */
    for (int32_t j = 0; j < count; j++)
        s[j] = cpu_exp(s[j] - from);
    for (int32_t j = 0; j < whole; j += CPU_LANES)
        for (int i = 0; i < CPU_LANES; i++)
            lane[i] += s[j + i];
    for (int32_t j = whole; j < count; j++)
        lane[j - whole] += s[j];
    float shrink = *running_max == -INFINITY ? 0.0f : cpu_exp(*running_max - top);
    *running_sum = *running_sum * shrink + cpu_sum_lanes(lane);
    *running_max = top;
    return shrink;
}

#endif
