/* The op table's runner: rows, guarded device buffers, comparisons. See optable.h. */
#include "tests/ops/optable.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAN_BYTE = 0xff, GUARD_BYTE = 0xa5 };

void op_begin(op_env *e, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->row, sizeof e->row, fmt, args);
    va_end(args);
    e->row_failures = 0;
    e->n_buffers = 0;
    e->n_rows++;
    e->bytes_before = e->be->vt->bytes_in_use(e->be);
    kve_rng_init(&e->rng, kve_hash_text(e->row, strlen(e->row)), 0, 0, 0);
}

void op_fail(op_env *e, const char *fmt, ...)
{
    va_list args;
    if (e->row_failures == 0)
        e->n_failed++;
    if (e->row_failures++ >= OP_MAX_PRINTED)
        return;
    fprintf(stderr, "FAIL [%s] %s: ", e->be->vt->describe(e->be), e->row);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

void op_ok(op_env *e, kve_status st)
{
    if (st != KVE_OK)
        op_fail(e, "status %d: %s", (int)st, kve_diag());
}

void *op_host(op_env *e, size_t n, size_t size)
{
    void *p = NULL;
    if (kve_arena_alloc(&e->arena, n + 1, size, &p) != KVE_OK)
        abort(); /* the test's own memory, not the subject of a row */
    return p;
}

float *op_random(op_env *e, size_t n, double amplitude)
{
    float *p = op_host(e, n, sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(amplitude * (2 * kve_rng_double(&e->rng) - 1));
    return p;
}

int32_t op_below(op_env *e, int32_t n)
{
    return (int32_t)kve_rng_below(&e->rng, (uint64_t)n);
}

static void *upload(op_env *e, const void *host, int fill, size_t bytes, bool must_stay)
{
    size_t whole = bytes + 2 * OP_GUARD_BYTES;
    char *image = op_host(e, whole, 1), *base = NULL;
    if (e->n_buffers == OP_MAX_BUFFERS)
        abort(); /* a row of the table needs more; raise the limit */
    memset(image, GUARD_BYTE, whole);
    memset(image + OP_GUARD_BYTES, fill, bytes);
    if (host)
        memcpy(image + OP_GUARD_BYTES, host, bytes);
    if (e->be->vt->alloc(e->be, whole, &base) != KVE_OK || e->be->vt->write(e->be, base, image, whole) != KVE_OK) {
        fprintf(stderr, "%s: no device memory: %s\n", e->row, kve_diag());
        abort();
    }
    e->buffers[e->n_buffers++] = (op_buffer){base, bytes, must_stay ? image + OP_GUARD_BYTES : NULL};
    return base + OP_GUARD_BYTES;
}

void *op_in(op_env *e, const void *host, size_t bytes)
{
    return host ? upload(e, host, 0, bytes, true) : NULL;
}

void *op_inout(op_env *e, const void *host, size_t bytes)
{
    return upload(e, host, 0, bytes, false);
}

void *op_out(op_env *e, size_t bytes)
{
    return upload(e, NULL, NAN_BYTE, bytes, false);
}

void *op_read(op_env *e, const void *dev, size_t bytes)
{
    void *host = op_host(e, bytes, 1);
    op_ok(e, e->be->vt->read(e->be, host, dev, bytes));
    return host;
}

static bool all_guard(const char *p)
{
    for (int i = 0; i < OP_GUARD_BYTES; i++)
        if ((unsigned char)p[i] != GUARD_BYTE)
            return false;
    return true;
}

void op_end(op_env *e)
{
    for (int32_t i = 0; i < e->n_buffers; i++) {
        const op_buffer *b = &e->buffers[i];
        const char *now = op_read(e, b->base, b->bytes + 2 * OP_GUARD_BYTES);
        if (!all_guard(now))
            op_fail(e, "bytes in front of buffer %d (%zu bytes) were written", i, b->bytes);
        if (!all_guard(now + OP_GUARD_BYTES + b->bytes))
            op_fail(e, "bytes behind buffer %d (%zu bytes) were written", i, b->bytes);
        if (b->must_stay && memcmp(now + OP_GUARD_BYTES, b->must_stay, b->bytes) != 0)
            op_fail(e, "input buffer %d (%zu bytes) was changed", i, b->bytes);
        e->be->vt->free(e->be, b->base);
    }
    size_t after = e->be->vt->bytes_in_use(e->be);
    if (after != e->bytes_before)
        op_fail(e, "bytes_in_use was %zu before the row and is %zu after it", e->bytes_before, after);
    kve_arena_free(&e->arena);
}

kve_weight *op_weight(op_env *e, kve_dtype t, int32_t N, int32_t K, const float *rows)
{
    kve_weight *w = NULL;
    if (e->be->vt->weight_create(e->be, t, N, K, &w) != KVE_OK) {
        fprintf(stderr, "%s: no weight: %s\n", e->row, kve_diag());
        abort();
    }
    for (int32_t row = 0, piece = 1; row < N; row += piece, piece = 2 * piece + 3) {
        int32_t n = N - row < piece ? N - row : piece;
        op_ok(e, e->be->vt->weight_fill(e->be, w, row, n, rows + (size_t)row * (size_t)K));
    }
    op_ok(e, e->be->vt->weight_seal(e->be, w));
    return w;
}

void op_weight_free(op_env *e, kve_weight *w)
{
    e->be->vt->weight_free(e->be, w);
}

/* One number; returns whether it passes. */
static bool agrees(op_env *e, double got, double want, op_tol tol)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got);
    if (isinf(want) || isinf(got))
        return want == got;
    double share = fabs(got - want) / (tol.abs + tol.rel * fabs(want));
    if (got == want) /* also where the tolerance is zero */
        share = 0;
    if (share > e->worst && share <= 1) {
        e->worst = share;
        memcpy(e->worst_row, e->row, sizeof e->row);
    }
    return share <= 1;
}

void op_compare_stored(op_env *e, const char *what, const void *got, size_t at, kve_dtype t, const double *want,
                       size_t n, op_tol tol)
{
    size_t bad = 0, first = 0;
    for (size_t i = 0; i < n; i++)
        if (!agrees(e, oracle_load(got, at + i, t), want[i], tol) && bad++ == 0)
            first = i;
    if (bad)
        op_fail(e, "%s: %zu of %zu differ; element %zu is %.9g, want %.9g within %.2g + %.2g |want|", what, bad, n,
                first, oracle_load(got, at + first, t), want[first], tol.abs, tol.rel);
}

void op_compare(op_env *e, const char *what, const float *got, const double *want, size_t n, op_tol tol)
{
    op_compare_stored(e, what, got, 0, KVE_F32, want, n, tol);
}

void op_same_bytes(op_env *e, const char *what, const void *got, const void *want, size_t bytes)
{
    const unsigned char *a = got, *b = want;
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i]) {
            op_fail(e, "%s: byte %zu of %zu is %02x, want %02x", what, i, bytes, a[i], b[i]);
            return;
        }
}

void op_same_ints(op_env *e, const char *what, const int32_t *got, const int32_t *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i]) {
            op_fail(e, "%s: element %zu of %zu is %d, want %d", what, i, n, got[i], want[i]);
            return;
        }
}

op_kv op_kv_make(op_env *e, int32_t L, int32_t Hkv, int32_t cap, int32_t D, kve_dtype t)
{
    op_kv c = {.L = L, .Hkv = Hkv, .D = D, .dtype = t};
    c.bytes = (size_t)L * (size_t)Hkv * (size_t)cap * (size_t)D * kve_dtype_bytes(t);
    c.host = (kve_kv){.k = op_host(e, c.bytes, 1), .v = op_host(e, c.bytes, 1), .cap = cap};
    memset(c.host.k, NAN_BYTE, c.bytes);
    memset(c.host.v, NAN_BYTE, c.bytes);
    return c;
}

op_kv op_kv_ragged(op_env *e, int32_t L, int32_t Hkv, const int32_t *rows, int32_t D, kve_dtype t)
{
    int64_t *first = op_host(e, (size_t)(L * Hkv), sizeof *first), total = 0;
    int32_t longest = 0;
    for (int32_t i = L * Hkv - 1; i >= 0; i--) { /* the last head first: nobody may count on an order */
        first[i] = total;
        total += rows[i];
        longest = rows[i] > longest ? rows[i] : longest;
    }
    op_kv c = op_kv_make(e, 1, 1, (int32_t)total, D, t);
    c.L = L;
    c.Hkv = Hkv;
    c.host.cap = longest;
    c.host.first = first;
    return c;
}

void op_kv_fill(op_env *e, op_kv *c, int32_t i_layer, int32_t h, int32_t j0, int32_t n, double amplitude)
{
    size_t at = oracle_kv_at(&c->host, c->Hkv, c->D, i_layer, h, j0);
    for (size_t i = 0; i < (size_t)n * (size_t)c->D; i++) {
        oracle_store(c->host.k, at + i, c->dtype, (float)(amplitude * (2 * kve_rng_double(&e->rng) - 1)));
        oracle_store(c->host.v, at + i, c->dtype, (float)(2 * kve_rng_double(&e->rng) - 1));
    }
}

static const int64_t *first_in(op_env *e, const op_kv *c)
{
    return c->host.first ? op_in(e, c->host.first, (size_t)(c->L * c->Hkv) * sizeof *c->host.first) : NULL;
}

void op_kv_in(op_env *e, op_kv *c)
{
    c->dev = (kve_kv){op_in(e, c->host.k, c->bytes), op_in(e, c->host.v, c->bytes), c->host.cap, first_in(e, c)};
}

void op_kv_inout(op_env *e, op_kv *c)
{
    c->dev = (kve_kv){op_inout(e, c->host.k, c->bytes), op_inout(e, c->host.v, c->bytes), c->host.cap, first_in(e, c)};
}

void op_kv_same(op_env *e, const op_kv *c)
{
    op_same_bytes(e, "k", op_read(e, c->dev.k, c->bytes), c->host.k, c->bytes);
    op_same_bytes(e, "v", op_read(e, c->dev.v, c->bytes), c->host.v, c->bytes);
}

op_env *op_env_new(kve_backend *be)
{
    op_env *e = NULL;
    if (kve_alloc(1, sizeof *e, &e) != KVE_OK)
        abort();
    e->be = be;
    return e;
}

int32_t op_env_free(op_env *e)
{
    int32_t failed = e->n_failed;
    free(e);
    return failed;
}

int32_t op_table_run(kve_backend *be)
{
    op_env *e = op_env_new(be);
    op_table_memory(e);
    op_table_dense(e);
    op_table_matmul(e);
    op_table_rope(e);
    op_table_prefill(e);
    op_table_fork(e);
    op_table_scoring(e);
    op_table_row_stat(e);
    op_table_kvp(e);
    op_table_eviction(e);
    printf("%s: %d rows, %d failed; largest passing error: %.2f of the tolerance (%s)\n", be->vt->describe(be),
           e->n_rows, e->n_failed, e->worst, e->worst_row);
    return op_env_free(e);
}
