/* Weights: row-major [N][K] in device memory, rounded on the way in. */
#include "kernels/cuda/prim.cuh"

#include <stdlib.h>

enum { THREADS = 256 };

kve_status cuda_weight_create(kve_backend *be, kve_dtype dtype, int32_t N, int32_t K, kve_weight **out)
{
    if (N < 1 || K < 1)
        return kve_fail(KVE_ERR_USAGE, "cuda: a weight of %d x %d; both must be at least 1", N, K);
    kve_weight *w = static_cast<kve_weight *>(calloc(1, sizeof *w));
    if (!w)
        return kve_fail(KVE_ERR_MEMORY, "cuda: no host memory for a weight");
    w->dtype = dtype;
    w->N = N;
    w->K = K;
    w->bytes = static_cast<size_t>(N) * static_cast<size_t>(K) * kve_dtype_bytes(dtype);
    kve_status st = cuda_status(cudaMalloc(&w->data, w->bytes), "cudaMalloc of a weight");
    if (st != KVE_OK) {
        free(w);
        return st;
    }
    cuda_of(be)->bytes += w->bytes;
    *out = w;
    return KVE_OK;
}

static __global__ void __launch_bounds__(THREADS)
    round_kernel(const float *in, void *out, size_t at, size_t count, kve_dtype dtype)
{
    size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
        store_kv(out, at + i, dtype, in[i]);
}

kve_status cuda_weight_fill(kve_backend *be, kve_weight *w, int32_t row0, int32_t n_rows, const float *host_rows)
{
    cuda_backend *c = cuda_of(be);
    if (row0 < 0 || n_rows < 0 || row0 > w->N - n_rows)
        return kve_fail(KVE_ERR_USAGE, "cuda: rows %d to %d of a weight of %d rows", row0, row0 + n_rows, w->N);
    size_t count = static_cast<size_t>(n_rows) * static_cast<size_t>(w->K);
    if (count == 0)
        return KVE_OK;
    KVE_TRY(cuda_scratch(c, count * sizeof(float)));
    CUDA_TRY(cudaMemcpyAsync(c->scratch, host_rows, count * sizeof(float), cudaMemcpyHostToDevice, c->stream));
    KVE_LAUNCH(round_kernel, 4 * c->n_processors, THREADS, 0, c->stream, static_cast<const float *>(c->scratch),
               w->data, static_cast<size_t>(row0) * static_cast<size_t>(w->K), count, w->dtype);
    CUDA_LAUNCHED("weight_fill");
    return cuda_status(cudaStreamSynchronize(c->stream), "weight_fill"); /* the caller may reuse host_rows */
}

kve_status cuda_weight_seal(kve_backend *, kve_weight *)
{
    return KVE_OK;
}

void cuda_weight_free(kve_backend *be, kve_weight *w)
{
    if (!w)
        return;
    (void)cudaStreamSynchronize(cuda_of(be)->stream);
    cuda_of(be)->bytes -= w->bytes;
    (void)cudaFree(w->data);
    free(w);
}
