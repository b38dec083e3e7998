/* The op table: rows of inputs for every op of kernels/backend.h, run on any backend and held against the oracle. The
 * table may know backend.h and the oracle, and nothing of what is behind the vtable.
 *
 * Every device buffer of a row stands between guard bytes; outputs start as NaN (all bits set), rows of a cache beyond
 * those filled are NaN, and inputs must come out of the op unchanged. So an op that writes past its output, reads a row
 * that it must not see or spoils an input fails its row, whatever the backend. */
#ifndef KVE_TESTS_OPS_OPTABLE_H
#define KVE_TESTS_OPS_OPTABLE_H

#include "host/base/mem.h"
#include "host/base/rng.h"
#include "kernels/backend.h"
#include "tests/ops/oracle.h"

enum { OP_MAX_BUFFERS = 400, OP_GUARD_BYTES = 64, OP_MAX_PRINTED = 4 };

typedef struct op_buffer {
    char *base; /* device: guard, data, guard */
    size_t bytes;
    const void *must_stay; /* host copy of an input that the op may not change; NULL for outputs */
} op_buffer;

/* One run of rows on one backend. */
typedef struct op_env {
    kve_backend *be;
    char row[200]; /* name of the current row */
    int32_t n_rows, n_failed;
    int32_t row_failures; /* failures of the current row; the first few are printed */
    double worst;         /* largest error seen, as a share of its tolerance */
    char worst_row[200];
    size_t bytes_before;
    kve_rng rng; /* seeded by the row's name, so a row is the same wherever it stands */
    kve_arena arena;
    op_buffer buffers[OP_MAX_BUFFERS];
    int32_t n_buffers;
} op_env;

op_env *op_env_new(kve_backend *be);
int32_t op_env_free(op_env *e); /* returns the number of rows that failed */

/* The families. Each adds its rows and failures to e. */
void op_table_memory(op_env *e);
void op_table_dense(op_env *e);
void op_table_matmul(op_env *e);
void op_table_rope(op_env *e);
void op_table_prefill(op_env *e);
void op_table_fork(op_env *e);
void op_table_scoring(op_env *e);
void op_table_row_stat(op_env *e);
void op_table_kvp(op_env *e);
void op_table_eviction(op_env *e);
/* All of them on `be`; prints one line of summary and returns the number of rows that failed. */
int32_t op_table_run(kve_backend *be);

/* A row: begin names it and seeds the random numbers; end checks guards and inputs, and frees everything. */
void op_begin(op_env *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void op_end(op_env *e);
void op_fail(op_env *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Fails the row, with the diagnostic, where st is not KVE_OK. */
void op_ok(op_env *e, kve_status st);

/* Host memory of the row, zeroed. */
void *op_host(op_env *e, size_t n, size_t size);
float *op_random(op_env *e, size_t n, double amplitude); /* uniform on [-amplitude, amplitude) */
int32_t op_below(op_env *e, int32_t n);                  /* uniform on [0, n) */

/* Device memory of the row. bytes may be 0; a NULL host pointer gives NULL. */
void *op_in(op_env *e, const void *host, size_t bytes);    /* must stay as it is */
void *op_inout(op_env *e, const void *host, size_t bytes); /* the op may write it */
void *op_out(op_env *e, size_t bytes);                     /* starts as NaN */
void *op_read(op_env *e, const void *dev, size_t bytes);   /* host copy */
/* A weight filled from f32 rows [N][K] in uneven pieces; op_weight_free it before op_end. */
kve_weight *op_weight(op_env *e, kve_dtype t, int32_t N, int32_t K, const float *rows);
void op_weight_free(op_env *e, kve_weight *w);

/* |got - want| <= abs + rel |want|; infinities must be equal, and a NaN agrees with a NaN that is wanted only. */
typedef struct op_tol {
    double abs, rel;
} op_tol;
void op_compare(op_env *e, const char *what, const float *got, const double *want, size_t n, op_tol tol);
/* The same for elements of dtype t, from element `at` of a host buffer on. */
void op_compare_stored(op_env *e, const char *what, const void *got, size_t at, kve_dtype t, const double *want,
                       size_t n, op_tol tol);
void op_same_bytes(op_env *e, const char *what, const void *got, const void *want, size_t bytes);
void op_same_ints(op_env *e, const char *what, const int32_t *got, const int32_t *want, size_t n);

/* A K/V cache on the host, all NaN until rows are filled, and on the device. */
typedef struct op_kv {
    kve_kv host, dev;
    int32_t L, Hkv, D;
    kve_dtype dtype;
    size_t bytes; /* of k; v has as many */
} op_kv;
op_kv op_kv_make(op_env *e, int32_t L, int32_t Hkv, int32_t cap, int32_t D, kve_dtype t);
/* The same with rows[L * Hkv] rows of its own for each layer and head, without a gap. */
op_kv op_kv_ragged(op_env *e, int32_t L, int32_t Hkv, const int32_t *rows, int32_t D, kve_dtype t);
/* Random rows j0 .. j0 + n - 1 of one head. */
void op_kv_fill(op_env *e, op_kv *c, int32_t i_layer, int32_t h, int32_t j0, int32_t n, double amplitude);
void op_kv_in(op_env *e, op_kv *c);    /* to the device, must stay */
void op_kv_inout(op_env *e, op_kv *c); /* to the device, may change */
/* The device's k and v against the host's, bit by bit. */
void op_kv_same(op_env *e, const op_kv *c);

static inline const char *op_dtype_name(kve_dtype t)
{
    return t == KVE_F32 ? "f32" : "bf16";
}

#endif
