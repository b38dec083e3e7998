/* The run-time vtable: everything the engine may ask of a device. Two backends can live in one process (differential
 * testing needs that). "cpu" is kernels/cpu; "cuda" plugs in beside it. The host never dereferences what alloc gave.
 *
 * Order: calls on one backend run in program order. read() waits for what came before it; ops may be asynchronous.
 * One backend object is used by one thread at a time. */
#ifndef KVE_KERNELS_BACKEND_H
#define KVE_KERNELS_BACKEND_H

#include "host/base/status.h"
#include "kernels/ops.h"

typedef struct kve_backend_options {
    int32_t threads; /* 0 = one per usable core */
} kve_backend_options;

typedef struct kve_backend kve_backend;
typedef struct kve_graph kve_graph; /* recorded ops */

typedef struct kve_backend_vt {
    const char *name; /* "cpu" | "cuda" */
    void (*close)(kve_backend *be);
    /* "cpu, avx512-bf16, 2 threads": for manifests and tables. Lives as long as the backend. */
    const char *(*describe)(kve_backend *be);

    /* Device memory, 64-byte aligned, zeroed on the CPU and by the backend elsewhere. bytes = 0 gives a valid pointer.
     */
    kve_status (*alloc)(kve_backend *be, size_t bytes, void *out_ptr);
    void (*free)(kve_backend *be, void *p); /* NULL allowed */
    kve_status (*write)(kve_backend *be, void *dst, const void *host_src, size_t bytes);
    kve_status (*read)(kve_backend *be, void *host_dst, const void *src, size_t bytes);
    kve_status (*copy)(kve_backend *be, void *dst, const void *src, size_t bytes); /* device to device, no overlap */
    kve_status (*sync)(kve_backend *be);
    size_t (*bytes_in_use)(kve_backend *be); /* sum of live alloc() and weight bytes */
    /* Bytes that could still be allocated; on the CPU, what the system counts as available. */
    kve_status (*free_bytes)(kve_backend *be, size_t *out);

    /* The microseconds that the device spent between the two calls, whatever the host did meanwhile: CUDA events there,
     * the clock on the CPU. One stretch at a time; timer_stop waits for its end. */
    kve_status (*timer_start)(kve_backend *be);
    kve_status (*timer_stop)(kve_backend *be, double *out_us);
    size_t (*cache_bytes)(kve_backend *be); /* of the last level of cache: who overwrites that much finds it cold */

    /* Names what the calls up to the matching pop belong to ("prefill", "layer", "sample ruler-4k/vt/7"), for
     * profilers. Ranges nest. NULL where nobody could look; the host uses kve_range_push and kve_range_pop. */
    void (*range_push)(kve_backend *be, const char *name);
    void (*range_pop)(kve_backend *be);

    /* Takes [N][K] host rows in f32 and stores them as `dtype` (bf16: nearest even) in its own packing. Rows come in
     * pieces so that a dequantised matrix never exists whole: create, fill all rows once, seal. */
    kve_status (*weight_create)(kve_backend *be, kve_dtype dtype, int32_t N, int32_t K, kve_weight **out);
    kve_status (*weight_fill)(kve_backend *be, kve_weight *w, int32_t row0, int32_t n_rows, const float *host_rows);
    kve_status (*weight_seal)(kve_backend *be, kve_weight *w);
    void (*weight_free)(kve_backend *be, kve_weight *w); /* NULL allowed */

    kve_status (*embed)(kve_backend *be, const kve_embed_params *p);
    kve_status (*rmsnorm)(kve_backend *be, const kve_rmsnorm_params *p);
    kve_status (*matmul)(kve_backend *be, const kve_matmul_params *p);
    kve_status (*rope_append)(kve_backend *be, const kve_rope_append_params *p);
    kve_status (*attention_prefill)(kve_backend *be, const kve_attention_prefill_params *p);
    kve_status (*attention_fork)(kve_backend *be, const kve_attention_fork_params *p);
    kve_status (*glu)(kve_backend *be, const kve_glu_params *p);
    kve_status (*nll)(kve_backend *be, const kve_nll_params *p);
    kve_status (*argmax)(kve_backend *be, const kve_argmax_params *p);
    kve_status (*advance)(kve_backend *be, const kve_advance_params *p);
    kve_status (*attention_window)(kve_backend *be, const kve_attention_window_params *p);
    kve_status (*pool_group)(kve_backend *be, const kve_pool_group_params *p);
    kve_status (*future_importance)(kve_backend *be, const kve_future_importance_params *p);
    kve_status (*row_stat)(kve_backend *be, const kve_row_stat_params *p);
    kve_status (*kvp_score)(kve_backend *be, const kve_kvp_score_params *p);
    kve_status (*rank)(kve_backend *be, const kve_rank_params *p);
    kve_status (*gather)(kve_backend *be, const kve_gather_params *p);
    kve_status (*compact)(kve_backend *be, const kve_compact_params *p);

    /* Records the ops between begin and end instead of running them, to be repeated with one call; all pointers and
     * sizes are those of the recording. In between nothing may allocate, read, write or wait. All four are NULL where a
     * backend has no such thing. */
    kve_status (*graph_begin)(kve_backend *be);
    kve_status (*graph_end)(kve_backend *be, kve_graph **out); /* also after a failed op: ends the recording */
    kve_status (*graph_launch)(kve_backend *be, kve_graph *g);
    void (*graph_free)(kve_backend *be, kve_graph *g); /* NULL allowed */
} kve_backend_vt;

struct kve_backend {
    const kve_backend_vt *vt;
};

static inline void kve_range_push(kve_backend *be, const char *name)
{
    if (be->vt->range_push)
        be->vt->range_push(be, name);
}

static inline void kve_range_pop(kve_backend *be)
{
    if (be->vt->range_pop)
        be->vt->range_pop(be);
}

/* Opens the CPU backend. SIMD is chosen here from what the processor reports; KVEVAL_ISA=portable|avx2|avx512|
 * avx512bf16 in the environment asks for a lower one (tests run all of them); another value, or more than the processor
 * has, is KVE_ERR_USAGE. Every row of every op depends on that row alone, bit for bit, at any batch, chunk size and
 * thread count. */
kve_status kve_cpu_open(const kve_backend_options *opt, kve_backend **out);

/* Opens the CUDA backend on the first device that CUDA shows (CUDA_VISIBLE_DEVICES picks another). KVE_ERR_USAGE where
 * no device answers. In builds with KVEVAL_CUDA only: the host asks through kve_open_backend (host/cli/cli.h). */
kve_status kve_cuda_open(const kve_backend_options *opt, kve_backend **out);

#endif
