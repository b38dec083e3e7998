/* Atomics on global and shared memory. Part of simt.h. Threads change places at synchronising calls only, so any code
 * would be atomic here; the compiler's atomics are used all the same, because the checker must know these accesses from
 * plain ones. */
#ifndef KVE_TESTS_SIMT_ATOMICS_H
#define KVE_TESTS_SIMT_ATOMICS_H

#include "tests/simt/device.h"

namespace simt
{
template <size_t bytes> struct atomic_word;
template <> struct atomic_word<2> {
    using type = unsigned short;
};
template <> struct atomic_word<4> {
    using type = unsigned;
};
template <> struct atomic_word<8> {
    using type = unsigned long long;
};

/* *p = f(*p); the old value. Inlined, so that the checker reports the kernel's line. */
template <class T, class F> __attribute__((always_inline)) inline T atomic_update(T *p, F f)
{
    using word = typename atomic_word<sizeof(T)>::type;
    word *at = reinterpret_cast<word *>(p);
    word old = __atomic_load_n(at, __ATOMIC_RELAXED), next;
    do
        next = static_cast<word>(to_bits(f(from_bits<T>(old))));
    while (!__atomic_compare_exchange_n(at, &old, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return from_bits<T>(old);
}
} // namespace simt

/* The operand is no deduction context: atomicAdd(unsigned *, 1) adds an unsigned, as the real one does. */
#define SIMT_ATOMIC(name, expression)                                                                                  \
    template <class T> __attribute__((always_inline)) inline T name(T *p, std::common_type_t<T> v)                     \
    {                                                                                                                  \
        return simt::atomic_update(p, [v](T old) { return static_cast<T>(expression); });                              \
    }                                                                                                                  \
    template <class T> __attribute__((always_inline)) inline T name##_block(T *p, std::common_type_t<T> v)             \
    {                                                                                                                  \
        return name(p, v);                                                                                             \
    }
SIMT_ATOMIC(atomicAdd, old + v)
SIMT_ATOMIC(atomicSub, old - v)
SIMT_ATOMIC(atomicMin, v < old ? v : old)
SIMT_ATOMIC(atomicMax, old < v ? v : old)
SIMT_ATOMIC(atomicAnd, old &v)
SIMT_ATOMIC(atomicOr, old | v)
SIMT_ATOMIC(atomicXor, old ^ v)
SIMT_ATOMIC(atomicExch, ((void)old, v))
SIMT_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
SIMT_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
#undef SIMT_ATOMIC

template <class T>
__attribute__((always_inline)) inline T atomicCAS(T *p, std::common_type_t<T> expected, std::common_type_t<T> v)
{
    return simt::atomic_update(p, [expected, v](T old) { return old == expected ? v : old; });
}

#endif
