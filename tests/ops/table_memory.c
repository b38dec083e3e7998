/* The op table: device memory and its accounting. */
#include "tests/ops/optable.h"

#include <string.h>

static void memory_row(op_env *e, size_t bytes)
{
    kve_backend *be = e->be;
    void *a = NULL, *b = NULL;
    op_begin(e, "memory of %zu bytes", bytes);
    char *data = op_host(e, bytes, 1), *back = op_host(e, bytes, 1), *zero = op_host(e, bytes, 1);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (char)op_below(e, 256);
    op_ok(e, be->vt->alloc(be, bytes, &a));
    op_ok(e, be->vt->alloc(be, bytes, &b));
    if (!a || !b || (uintptr_t)a % 64 || (uintptr_t)b % 64)
        op_fail(e, "alloc gave %p and %p, not aligned to 64 bytes", a, b);
    if (be->vt->bytes_in_use(be) != e->bytes_before + 2 * bytes)
        op_fail(e, "bytes_in_use grew by %zu, want %zu", be->vt->bytes_in_use(be) - e->bytes_before, 2 * bytes);
    op_ok(e, be->vt->read(be, back, a, bytes));
    op_same_bytes(e, "fresh memory", back, zero, bytes);
    op_ok(e, be->vt->write(be, a, data, bytes));
    op_ok(e, be->vt->copy(be, b, a, bytes));
    memset(back, 0, bytes);
    op_ok(e, be->vt->sync(be));
    op_ok(e, be->vt->read(be, back, b, bytes));
    op_same_bytes(e, "write, copy, read", back, data, bytes);
    be->vt->free(be, a);
    be->vt->free(be, b);
    op_end(e);
}

static void weight_row(op_env *e, kve_dtype t, int32_t N, int32_t K)
{
    op_begin(e, "bytes of a %s weight %d x %d", op_dtype_name(t), N, K);
    kve_weight *w = op_weight(e, t, N, K, op_random(e, (size_t)N * (size_t)K, 1));
    size_t grown = e->be->vt->bytes_in_use(e->be) - e->bytes_before;
    if (grown < (size_t)N * (size_t)K * kve_dtype_bytes(t))
        op_fail(e, "bytes_in_use grew by %zu only", grown);
    op_weight_free(e, w);
    op_end(e);
}

static void refusal_rows(op_env *e)
{
    kve_backend *be = e->be;
    kve_weight *w = NULL, *good = NULL;
    float row[3] = {0};
    op_begin(e, "weights of a bad shape, and rows beyond a weight, are refused");
    if (be->vt->weight_create(be, KVE_F32, 0, 4, &w) == KVE_OK)
        op_fail(e, "a weight of 0 x 4 was accepted");
    if (be->vt->weight_create(be, KVE_F32, 4, 0, &w) == KVE_OK)
        op_fail(e, "a weight of 4 x 0 was accepted");
    op_ok(e, be->vt->weight_create(be, KVE_F32, 2, 3, &good));
    if (be->vt->weight_fill(be, good, 2, 1, row) == KVE_OK)
        op_fail(e, "row 2 of a weight of 2 rows was accepted");
    if (be->vt->weight_fill(be, good, -1, 1, row) == KVE_OK)
        op_fail(e, "row -1 was accepted");
    be->vt->weight_free(be, good);
    be->vt->weight_free(be, NULL);
    be->vt->free(be, NULL);
    op_end(e);
}

void op_table_memory(op_env *e)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4097};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        memory_row(e, sizes[i]);
    weight_row(e, KVE_F32, 1, 1);
    weight_row(e, KVE_F32, 65, 33);
    weight_row(e, KVE_BF16, 1, 1);
    weight_row(e, KVE_BF16, 65, 33);
    refusal_rows(e);
}
