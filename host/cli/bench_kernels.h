/* Between the files of kveval bench kernels: device memory full of random numbers, cold and hot timing, floors, rows.
 * Everything is one layer's worth, where a row does not say otherwise. Data are never zeros: a device's clock and power
 * depend on them. */
#ifndef KVE_CLI_BENCH_KERNELS_H
#define KVE_CLI_BENCH_KERNELS_H

#include "host/base/rng.h"
#include "host/cli/bench_rows.h"
#include "kernels/cost.h"

enum { KVE_KBENCH_LIST = 16, KVE_KBENCH_OWNED = 128, KVE_KBENCH_NOISE = 1 << 20 };

typedef struct kve_kbench_list {
    int32_t v[KVE_KBENCH_LIST];
    size_t n;
} kve_kbench_list;

typedef struct kve_kbench {
    kve_backend *be;
    kve_dtype dtype; /* of weights and cache */
    const char *shape_name;
    kve_shape shape;
    kve_kbench_list tokens, lengths, budgets; /* T, n, b */
    bool own_lengths;                         /* lengths were asked for: they hold for rank too */
    kve_bench_rules rules;
    kve_bench_table table;
    double bytes_per_us, flops_per_us; /* what the floors are made of: the best that the probes saw on this device */
    kve_rng rng;
    float *noise;         /* [KVE_KBENCH_NOISE], uniform on [-1, 1): what all data are cut from */
    uint16_t *noise_bf16; /* the same */
    float *filler, *ones; /* device: [filler_rows][FILLER_WIDTH], written to push everything else out of the caches */
    int32_t filler_rows;
    void *owned[KVE_KBENCH_OWNED]; /* device memory of the op at work */
    kve_weight *weights[KVE_KBENCH_OWNED];
    size_t n_owned, n_weights;
} kve_kbench; /* zero-initialise, set the first fields up to rules, then kve_kbench_open */

/* Opens the table, makes the random numbers, and measures and prints the probes: copy bandwidth and GEMM rate. */
kve_status kve_kbench_open(kve_kbench *b, kve_bench_format format, const char *dtype, int32_t threads);
void kve_kbench_close(kve_kbench *b);

/* Device memory, weights and integers of the op at work; kve_kbench_release frees all of them. out_ptr: T **. */
kve_status kve_kbench_alloc(kve_kbench *b, size_t n, size_t size, void *out_ptr);
kve_status kve_kbench_floats(kve_kbench *b, int64_t n, void *out_ptr); /* random, f32 */
kve_status kve_kbench_upload(kve_kbench *b, const void *host, size_t n, size_t size, void *out_ptr);
kve_status kve_kbench_weight(kve_kbench *b, kve_dtype dtype, int32_t N, int32_t K, kve_weight **out);
/* `count` caches of one layer and `rows` rows, all in one block that begins at out[0].k; its size is *bytes. */
kve_status kve_kbench_caches(kve_kbench *b, int32_t count, int32_t rows, kve_kv *out, size_t *bytes);
/* One cache of several layers. */
kve_status kve_kbench_layers(kve_kbench *b, int32_t layers, int32_t rows, kve_kv *out);
void kve_kbench_release(kve_kbench *b);

/* One op at one size. */
typedef struct kve_kbench_call {
    const char *op;
    kve_cost cost;
    kve_status (*run)(kve_backend *be, const void *params);
    const void *params;
    bool hot_only; /* bound by arithmetic: where its data lie makes no difference worth a row */
    /* What the op spoils: copied back before each call, outside the time. */
    void *restore;
    const void *pristine;
    size_t restore_bytes;
} kve_kbench_call;

/* Measures and prints a call with cold caches and with hot ones; the format names its sizes. */
kve_status kve_kbench_measure(kve_kbench *b, const kve_kbench_call *call, const char *size_fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* call_OP, for kve_kbench_call.run. */
#define KVE_KBENCH_CALL(op)                                                                                            \
    static kve_status call_##op(kve_backend *be, const void *params)                                                   \
    {                                                                                                                  \
        return be->vt->op(be, params);                                                                                 \
    }

/* The ops: each makes its data and measures all its sizes. */
typedef struct kve_kbench_op {
    const char *name;
    kve_status (*run)(kve_kbench *b);
} kve_kbench_op;
extern const kve_kbench_op kve_kbench_dense[], kve_kbench_cache[]; /* end with an empty name */

#endif
