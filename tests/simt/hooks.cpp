/* The functions that clang calls in code compiled with -fsanitize=thread and -fsanitize=alignment. The program is
 * linked without either flag, so that these stand in for the sanitizers' own run time. Names and arguments are the
 * compiler's interface (compiler-rt, tsan_interface.h and ubsan_handlers.h). */
#include "tests/simt/hooks.h"

#include <stdint.h>
#include <string.h>

using simt::checker::on_access;

#define CALLER __builtin_return_address(0)

extern "C" {
void __tsan_init()
{
}

void __tsan_func_entry(void *)
{
}

void __tsan_func_exit()
{
}

void __tsan_vptr_update(void **, void *)
{
}

void __tsan_vptr_read(void **)
{
}

#define ACCESS(n)                                                                                                      \
    void __tsan_read##n(void *p)                                                                                       \
    {                                                                                                                  \
        on_access(p, n, false, false, CALLER);                                                                         \
    }                                                                                                                  \
    void __tsan_write##n(void *p)                                                                                      \
    {                                                                                                                  \
        on_access(p, n, true, false, CALLER);                                                                          \
    }                                                                                                                  \
    void __tsan_read_write##n(void *p)                                                                                 \
    {                                                                                                                  \
        on_access(p, n, false, false, CALLER);                                                                         \
        on_access(p, n, true, false, CALLER);                                                                          \
    }                                                                                                                  \
    void __tsan_unaligned_read##n(void *p)                                                                             \
    {                                                                                                                  \
        on_access(p, n, false, false, CALLER);                                                                         \
    }                                                                                                                  \
    void __tsan_unaligned_write##n(void *p)                                                                            \
    {                                                                                                                  \
        on_access(p, n, true, false, CALLER);                                                                          \
    }                                                                                                                  \
    void __tsan_unaligned_read_write##n(void *p)                                                                       \
    {                                                                                                                  \
        on_access(p, n, false, false, CALLER);                                                                         \
        on_access(p, n, true, false, CALLER);                                                                          \
    }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void __tsan_read_range(void *p, size_t n)
{
    on_access(p, n, false, false, CALLER);
}

void __tsan_write_range(void *p, size_t n)
{
    on_access(p, n, true, false, CALLER);
}

void *__tsan_memcpy(void *to, const void *from, size_t n)
{
    on_access(from, n, false, false, CALLER);
    on_access(to, n, true, false, CALLER);
    return memcpy(to, from, n);
}

void *__tsan_memmove(void *to, const void *from, size_t n)
{
    on_access(from, n, false, false, CALLER);
    on_access(to, n, true, false, CALLER);
    return memmove(to, from, n);
}

void *__tsan_memset(void *p, int value, size_t n)
{
    on_access(p, n, true, false, CALLER);
    return memset(p, value, n);
}

/* Only what atomics.h makes the compiler emit. Threads change places at synchronising calls only, so plain code is
 * atomic enough. */
#define ATOMIC(bits, type)                                                                                             \
    type __tsan_atomic##bits##_load(const volatile type *p, int)                                                       \
    {                                                                                                                  \
        on_access(const_cast<const type *>(p), sizeof(type), false, true, CALLER);                                     \
        return *p;                                                                                                     \
    }                                                                                                                  \
    void __tsan_atomic##bits##_store(volatile type *p, type v, int)                                                    \
    {                                                                                                                  \
        on_access(const_cast<const type *>(p), sizeof(type), true, true, CALLER);                                      \
        *p = v;                                                                                                        \
    }                                                                                                                  \
    type __tsan_atomic##bits##_fetch_add(volatile type *p, type v, int)                                                \
    {                                                                                                                  \
        type old = *p;                                                                                                 \
        on_access(const_cast<const type *>(p), sizeof(type), true, true, CALLER);                                      \
        *p = static_cast<type>(old + v);                                                                               \
        return old;                                                                                                    \
    }                                                                                                                  \
    type __tsan_atomic##bits##_fetch_sub(volatile type *p, type v, int)                                                \
    {                                                                                                                  \
        type old = *p;                                                                                                 \
        on_access(const_cast<const type *>(p), sizeof(type), true, true, CALLER);                                      \
        *p = static_cast<type>(old - v);                                                                               \
        return old;                                                                                                    \
    }                                                                                                                  \
    type __tsan_atomic##bits##_exchange(volatile type *p, type v, int)                                                 \
    {                                                                                                                  \
        type old = *p;                                                                                                 \
        on_access(const_cast<const type *>(p), sizeof(type), true, true, CALLER);                                      \
        *p = v;                                                                                                        \
        return old;                                                                                                    \
    }                                                                                                                  \
    type __tsan_atomic##bits##_compare_exchange_val(volatile type *p, type expected, type v, int, int)                 \
    {                                                                                                                  \
        type old = *p;                                                                                                 \
        on_access(const_cast<const type *>(p), sizeof(type), true, true, CALLER);                                      \
        if (old == expected)                                                                                           \
            *p = v;                                                                                                    \
        return old;                                                                                                    \
    }
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)

void __tsan_atomic_thread_fence(int)
{
}

/* What -fsanitize=alignment passes on. */
struct mismatch {
    const char *file;
    uint32_t line, column;
    const void *type;
    unsigned char log_alignment, kind;
};

void __ubsan_handle_type_mismatch_v1(const mismatch *at, const void *p)
{
    simt::checker::on_misaligned(p, size_t{1} << at->log_alignment, at->file, at->line);
}
}
