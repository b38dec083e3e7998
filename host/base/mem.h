/* Host memory: checked allocation (a size that overflows is an error, not a wrap), growable byte strings, and the
 * arena that owns everything of one sample. Tests can make the n-th allocation fail. Knows only status.h. */
#ifndef KVE_BASE_MEM_H
#define KVE_BASE_MEM_H

#include "host/base/status.h"

#include <stddef.h>

/* n * size zeroed bytes, 64-byte aligned; the caller frees with free(). n * size == 0 gives a valid pointer.
 * *out is set only on success. KVE_ERR_MEMORY names the bytes asked for. */
kve_status kve_alloc(size_t n, size_t size, void *out_ptr);

/* A NUL-terminated copy of s[0..len); the caller frees. */
kve_status kve_strndup(const char *s, size_t len, char **out);

/* Test hook: the n-th allocation from now (1 = the next) fails once; 0 turns it off. */
void kve_alloc_fail_after(long n);

/* A growable byte string, always NUL-terminated after the first append. Zero-initialise; free with kve_str_free. */
typedef struct kve_str {
    char *p;
    size_t len, cap;
} kve_str;

kve_status kve_str_append(kve_str *s, const char *bytes, size_t len);
kve_status kve_str_puts(kve_str *s, const char *text);
kve_status kve_str_printf(kve_str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void kve_str_clear(kve_str *s); /* keeps the memory */
void kve_str_free(kve_str *s);

/* A bump allocator: everything in it is freed at once. Zero-initialise. */
typedef struct kve_arena_block kve_arena_block;
typedef struct kve_arena {
    kve_arena_block *head;
} kve_arena;

kve_status kve_arena_alloc(kve_arena *a, size_t n, size_t size, void *out_ptr); /* zeroed, 16-byte aligned */
kve_status kve_arena_strndup(kve_arena *a, const char *s, size_t len, char **out);
void kve_arena_free(kve_arena *a); /* leaves it empty and usable */

#endif
