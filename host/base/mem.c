/* Checked allocation, byte strings and the arena. */
#include "host/base/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_long g_fail_after;

void kve_alloc_fail_after(long n)
{
    atomic_store(&g_fail_after, n);
}

static bool injected_failure(void)
{
    return atomic_load(&g_fail_after) > 0 && atomic_fetch_sub(&g_fail_after, 1) == 1;
}

static kve_status fail_memory(size_t n, size_t size)
{
    return kve_fail(KVE_ERR_MEMORY,
                    "out of memory: %zu x %zu bytes were needed; free some, or lower the batch or the budgets", n,
                    size);
}

kve_status kve_alloc(size_t n, size_t size, void *out_ptr)
{
    size_t bytes = 0;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX - 64 || injected_failure())
        return fail_memory(n, size);
    bytes = (bytes + 63) & ~(size_t)63;
    if (bytes == 0)
        bytes = 64;
    void *p = aligned_alloc(64, bytes);
    if (!p)
        return fail_memory(n, size);
    memset(p, 0, bytes);
    memcpy(out_ptr, &p, sizeof p);
    return KVE_OK;
}

kve_status kve_strndup(const char *s, size_t len, char **out)
{
    char *p = NULL;
    KVE_TRY(kve_alloc(len + 1, 1, &p));
    memcpy(p, s, len);
    *out = p;
    return KVE_OK;
}

static kve_status str_reserve(kve_str *s, size_t more)
{
    if (more > SIZE_MAX - s->len - 1)
        return fail_memory(more, 1);
    size_t need = s->len + more + 1;
    if (need <= s->cap)
        return KVE_OK;
    size_t cap = s->cap ? s->cap : 64;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    if (injected_failure())
        return fail_memory(cap, 1);
    char *p = realloc(s->p, cap);
    if (!p)
        return fail_memory(cap, 1);
    s->p = p;
    s->cap = cap;
    return KVE_OK;
}

kve_status kve_str_append(kve_str *s, const char *bytes, size_t len)
{
    KVE_TRY(str_reserve(s, len));
    if (len)
        memcpy(s->p + s->len, bytes, len);
    s->len += len;
    s->p[s->len] = '\0';
    return KVE_OK;
}

kve_status kve_str_puts(kve_str *s, const char *text)
{
    return kve_str_append(s, text, strlen(text));
}

kve_status kve_str_printf(kve_str *s, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int need = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    kve_status st = need < 0 ? kve_fail(KVE_ERR_INTERNAL, "bad format '%s'", fmt) : str_reserve(s, (size_t)need);
    if (st == KVE_OK) {
        vsnprintf(s->p + s->len, (size_t)need + 1, fmt, again);
        s->len += (size_t)need;
    }
    va_end(again);
    return st;
}

void kve_str_clear(kve_str *s)
{
    s->len = 0;
    if (s->p)
        s->p[0] = '\0';
}

void kve_str_free(kve_str *s)
{
    free(s->p);
    *s = (kve_str){0};
}

struct kve_arena_block {
    kve_arena_block *next;
    size_t used, cap;
};

enum { BLOCK_HEADER = 64, BLOCK_BYTES = 64 * 1024 };

kve_status kve_arena_alloc(kve_arena *a, size_t n, size_t size, void *out_ptr)
{
    size_t bytes = 0;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 2)
        return fail_memory(n, size);
    bytes = (bytes + 15) & ~(size_t)15;
    kve_arena_block *blk = a->head;
    if (!blk || blk->cap - blk->used < bytes) {
        size_t cap = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        KVE_TRY(kve_alloc(BLOCK_HEADER + cap, 1, &blk));
        blk->cap = cap;
        blk->next = a->head;
        a->head = blk;
    }
    char *p = (char *)blk + BLOCK_HEADER + blk->used;
    blk->used += bytes;
    memcpy(out_ptr, &p, sizeof p);
    return KVE_OK;
}

kve_status kve_arena_strndup(kve_arena *a, const char *s, size_t len, char **out)
{
    char *p = NULL;
    KVE_TRY(kve_arena_alloc(a, len + 1, 1, &p));
    if (len)
        memcpy(p, s, len);
    *out = p;
    return KVE_OK;
}

void kve_arena_free(kve_arena *a)
{
    while (a->head) {
        kve_arena_block *next = a->head->next;
        free(a->head);
        a->head = next;
    }
}
