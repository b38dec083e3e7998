/* Inside the CUDA backend: the backend object and one function per op. Included by kernels/cuda only. Everything runs
 * on one stream, so that ops are ordered as they are called; nothing but read() and sync() waits. */
#ifndef KVE_KERNELS_CUDA_CUDA_H
#define KVE_KERNELS_CUDA_CUDA_H

extern "C" {
#include "kernels/backend.h"
}

#include "kernels/cuda/launch.cuh"

#include <cublas_v2.h>

struct cuda_backend {
    kve_backend base; /* first: a kve_backend* is a cuda_backend* */
    cudaStream_t stream;
    cublasHandle_t blas;
    size_t bytes;  /* of live allocations and weights */
    void *scratch; /* device memory of one op; grown, never shrunk */
    size_t scratch_bytes;
    cudaEvent_t timer[2];
    size_t cache_bytes; /* of the L2 */
    int n_processors;
    char text[320];
};

static inline cuda_backend *cuda_of(kve_backend *be)
{
    return reinterpret_cast<cuda_backend *>(be);
}

/* A row-major matrix [N][K]. */
struct kve_weight {
    kve_dtype dtype;
    int32_t N, K;
    void *data; /* device */
    size_t bytes;
};

/* A status from a CUDA call; the message names the call. */
kve_status cuda_status(cudaError_t code, const char *what);
#define CUDA_TRY(call) KVE_TRY(cuda_status((call), #call))
/* After a launch: what the launch itself got wrong (a bad grid, too much shared memory). */
#define CUDA_LAUNCHED(what) KVE_TRY(cuda_status(cudaGetLastError(), what))

/* Makes be->scratch at least `bytes`; before the first use of an op only, since growing waits for the stream. */
kve_status cuda_scratch(cuda_backend *be, size_t bytes);

enum { CUDA_MAX_D = 256, CUDA_MAX_GROUP = 64 };

kve_status cuda_weight_create(kve_backend *be, kve_dtype dtype, int32_t N, int32_t K, kve_weight **out);
kve_status cuda_weight_fill(kve_backend *be, kve_weight *w, int32_t row0, int32_t n_rows, const float *host_rows);
kve_status cuda_weight_seal(kve_backend *be, kve_weight *w);
void cuda_weight_free(kve_backend *be, kve_weight *w);

kve_status cuda_embed(kve_backend *be, const kve_embed_params *p);
kve_status cuda_rmsnorm(kve_backend *be, const kve_rmsnorm_params *p);
kve_status cuda_matmul(kve_backend *be, const kve_matmul_params *p);
kve_status cuda_rope_append(kve_backend *be, const kve_rope_append_params *p);
kve_status cuda_attention_prefill(kve_backend *be, const kve_attention_prefill_params *p);
kve_status cuda_attention_fork(kve_backend *be, const kve_attention_fork_params *p);
kve_status cuda_glu(kve_backend *be, const kve_glu_params *p);
kve_status cuda_nll(kve_backend *be, const kve_nll_params *p);
kve_status cuda_argmax(kve_backend *be, const kve_argmax_params *p);
kve_status cuda_advance(kve_backend *be, const kve_advance_params *p);
kve_status cuda_attention_window(kve_backend *be, const kve_attention_window_params *p);
kve_status cuda_pool_group(kve_backend *be, const kve_pool_group_params *p);
kve_status cuda_future_importance(kve_backend *be, const kve_future_importance_params *p);
kve_status cuda_row_stat(kve_backend *be, const kve_row_stat_params *p);
kve_status cuda_kvp_score(kve_backend *be, const kve_kvp_score_params *p);
kve_status cuda_rank(kve_backend *be, const kve_rank_params *p);
kve_status cuda_gather(kve_backend *be, const kve_gather_params *p);
kve_status cuda_compact(kve_backend *be, const kve_compact_params *p);

#endif
