/* The CUDA backend's vtable, memory with byte accounting, transfers. Contract: kernels/backend.h. */
#include "kernels/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kve_status cuda_status(cudaError_t code, const char *what)
{
    if (code == cudaSuccess)
        return KVE_OK;
    if (code == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, total = 0;
        (void)cudaMemGetInfo(&free_bytes, &total);
        return kve_fail(KVE_ERR_MEMORY, "cuda: %s: out of memory; %zu of %zu bytes of the device are free", what,
                        free_bytes, total);
    }
    return kve_fail(KVE_ERR_INTERNAL, "cuda: %s: %s", what, cudaGetErrorString(code));
}

/* --- Memory. Every allocation has a header of its own size in front, so that free() can account for it. */

enum { HEADER = 256 }; /* keeps cudaMalloc's alignment */

static kve_status cuda_alloc(kve_backend *be, size_t bytes, void *out_ptr)
{
    char *p = nullptr;
    if (bytes > SIZE_MAX - HEADER)
        return kve_fail(KVE_ERR_MEMORY, "cuda: %zu bytes were asked for", bytes);
    kve_status st = cuda_status(cudaMalloc(reinterpret_cast<void **>(&p), bytes + HEADER), "cudaMalloc");
    if (st != KVE_OK)
        return st == KVE_ERR_MEMORY ? kve_fail_context(st, "%zu bytes were asked for", bytes) : st;
    cudaStream_t stream = cuda_of(be)->stream;
    CUDA_TRY(cudaMemcpyAsync(p, &bytes, sizeof bytes, cudaMemcpyHostToDevice, stream));
    CUDA_TRY(cudaMemsetAsync(p + HEADER, 0, bytes, stream));
    CUDA_TRY(cudaStreamSynchronize(stream)); /* `bytes` is on this stack */
    cuda_of(be)->bytes += bytes;
    p += HEADER;
    memcpy(out_ptr, &p, sizeof p);
    return KVE_OK;
}

static void cuda_free(kve_backend *be, void *p)
{
    size_t bytes = 0;
    if (!p)
        return;
    char *base = static_cast<char *>(p) - HEADER;
    (void)cudaStreamSynchronize(cuda_of(be)->stream);
    (void)cudaMemcpy(&bytes, base, sizeof bytes, cudaMemcpyDeviceToHost);
    cuda_of(be)->bytes -= bytes;
    (void)cudaFree(base);
}

static kve_status cuda_write(kve_backend *be, void *dst, const void *host_src, size_t bytes)
{
    if (bytes == 0)
        return KVE_OK;
    CUDA_TRY(cudaMemcpyAsync(dst, host_src, bytes, cudaMemcpyHostToDevice, cuda_of(be)->stream));
    return cuda_status(cudaStreamSynchronize(cuda_of(be)->stream), "write"); /* the caller may reuse host_src */
}

static kve_status cuda_read(kve_backend *be, void *host_dst, const void *src, size_t bytes)
{
    if (bytes == 0)
        return KVE_OK;
    CUDA_TRY(cudaMemcpyAsync(host_dst, src, bytes, cudaMemcpyDeviceToHost, cuda_of(be)->stream));
    return cuda_status(cudaStreamSynchronize(cuda_of(be)->stream), "read");
}

static kve_status cuda_copy(kve_backend *be, void *dst, const void *src, size_t bytes)
{
    if (bytes == 0)
        return KVE_OK;
    return cuda_status(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, cuda_of(be)->stream), "copy");
}

static kve_status cuda_sync(kve_backend *be)
{
    return cuda_status(cudaStreamSynchronize(cuda_of(be)->stream), "sync");
}

static size_t cuda_bytes_in_use(kve_backend *be)
{
    return cuda_of(be)->bytes;
}

kve_status cuda_scratch(cuda_backend *be, size_t bytes)
{
    if (bytes <= be->scratch_bytes)
        return KVE_OK;
    CUDA_TRY(cudaStreamSynchronize(be->stream));
    (void)cudaFree(be->scratch);
    be->scratch = nullptr;
    be->scratch_bytes = 0;
    CUDA_TRY(cudaMalloc(&be->scratch, bytes));
    be->scratch_bytes = bytes;
    return KVE_OK;
}

/* --- Opening */

static const char *cuda_describe(kve_backend *be)
{
    return cuda_of(be)->text;
}

static void cuda_close(kve_backend *be)
{
    cuda_backend *c = cuda_of(be);
    if (c->stream)
        (void)cudaStreamSynchronize(c->stream);
    (void)cudaFree(c->scratch);
    if (c->blas)
        (void)cublasDestroy(c->blas);
    if (c->stream)
        (void)cudaStreamDestroy(c->stream);
    free(c);
}

static const kve_backend_vt *cuda_vt()
{
    static kve_backend_vt vt; /* filled by name: C++17 has no designated initialisers */
    vt.close = cuda_close;
    vt.describe = cuda_describe;
    vt.alloc = cuda_alloc;
    vt.free = cuda_free;
    vt.write = cuda_write;
    vt.read = cuda_read;
    vt.copy = cuda_copy;
    vt.sync = cuda_sync;
    vt.bytes_in_use = cuda_bytes_in_use;
    vt.weight_create = cuda_weight_create;
    vt.weight_fill = cuda_weight_fill;
    vt.weight_seal = cuda_weight_seal;
    vt.weight_free = cuda_weight_free;
    vt.embed = cuda_embed;
    vt.rmsnorm = cuda_rmsnorm;
    vt.matmul = cuda_matmul;
    vt.rope_append = cuda_rope_append;
    vt.attention_prefill = cuda_attention_prefill;
    vt.attention_fork = cuda_attention_fork;
    vt.glu = cuda_glu;
    vt.nll = cuda_nll;
    vt.argmax = cuda_argmax;
    vt.attention_window = cuda_attention_window;
    vt.pool_group = cuda_pool_group;
    vt.future_importance = cuda_future_importance;
    vt.row_stat = cuda_row_stat;
    vt.rank = cuda_rank;
    vt.gather = cuda_gather;
    vt.compact = cuda_compact;
    return &vt;
}

static kve_status open_device(cuda_backend *c)
{
    int device = 0;
    cudaDeviceProp prop;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaGetDeviceProperties(&prop, device));
    CUDA_TRY(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    if (cublasCreate(&c->blas) != CUBLAS_STATUS_SUCCESS)
        return kve_fail(KVE_ERR_INTERNAL, "cuda: cuBLAS cannot be opened on %s", prop.name);
    if (cublasSetStream(c->blas, c->stream) != CUBLAS_STATUS_SUCCESS)
        return kve_fail(KVE_ERR_INTERNAL, "cuda: cuBLAS does not take the stream");
    c->n_processors = prop.multiProcessorCount;
    snprintf(c->text, sizeof c->text, "cuda, %s, sm_%d%d, %zu MiB", prop.name, prop.major, prop.minor,
             prop.totalGlobalMem >> 20);
    return KVE_OK;
}

extern "C" kve_status kve_cuda_open(const kve_backend_options *, kve_backend **out)
{
    int n = 0;
    cudaError_t code = cudaGetDeviceCount(&n);
    if (code != cudaSuccess || n == 0)
        return kve_fail(KVE_ERR_USAGE, "cuda: no device answers (%s); use --backend cpu",
                        code == cudaSuccess ? "none found" : cudaGetErrorString(code));
    cuda_backend *c = static_cast<cuda_backend *>(calloc(1, sizeof *c));
    if (!c)
        return kve_fail(KVE_ERR_MEMORY, "cuda: no host memory for the backend");
    c->base.vt = cuda_vt();
    kve_status st = open_device(c);
    if (st != KVE_OK) {
        cuda_close(&c->base);
        return st;
    }
    *out = &c->base;
    return KVE_OK;
}
