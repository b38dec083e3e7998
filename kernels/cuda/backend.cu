/* The CUDA backend's vtable, memory with byte accounting, transfers. Contract: kernels/backend.h. */
#include "kernels/cuda/trace.cuh"

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

/* --- Recording: stream capture into a CUDA graph. */

struct kve_graph {
    cudaGraphExec_t exec;
};

static kve_status cuda_graph_begin(kve_backend *be)
{
    return cuda_status(cudaStreamBeginCapture(cuda_of(be)->stream, cudaStreamCaptureModeThreadLocal), "graph_begin");
}

static kve_status cuda_graph_end(kve_backend *be, kve_graph **out)
{
    cudaGraph_t graph = nullptr;
    kve_graph *g = static_cast<kve_graph *>(calloc(1, sizeof *g));
    cudaError_t code = cudaStreamEndCapture(cuda_of(be)->stream, &graph);
    if (code == cudaSuccess && g)
        code = cudaGraphInstantiate(&g->exec, graph, 0);
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (!g)
        return kve_fail(KVE_ERR_MEMORY, "cuda: no host memory for a graph");
    if (code != cudaSuccess) {
        free(g);
        return cuda_status(code, "graph_end");
    }
    *out = g;
    return KVE_OK;
}

static kve_status cuda_graph_launch(kve_backend *be, kve_graph *g)
{
    return cuda_status(cudaGraphLaunch(g->exec, cuda_of(be)->stream), "graph_launch");
}

static void cuda_graph_free(kve_backend *be, kve_graph *g)
{
    if (!g)
        return;
    (void)cudaStreamSynchronize(cuda_of(be)->stream);
    (void)cudaGraphExecDestroy(g->exec);
    free(g);
}

/* KVEVAL_CUDA_GRAPHS=off: every op is a launch of its own, which profilers show better. */
static kve_status wants_graphs(bool *out)
{
    const char *text = getenv("KVEVAL_CUDA_GRAPHS");
    *out = !text || strcmp(text, "on") == 0;
    if (*out || strcmp(text, "off") == 0)
        return KVE_OK;
    return kve_fail(KVE_ERR_USAGE, "KVEVAL_CUDA_GRAPHS: '%s' is unknown; use on or off", text);
}

static kve_status cuda_timer_start(kve_backend *be)
{
    return cuda_status(cudaEventRecord(cuda_of(be)->timer[0], cuda_of(be)->stream), "timer_start");
}

static kve_status cuda_timer_stop(kve_backend *be, double *out_us)
{
    const cuda_backend *c = cuda_of(be);
    float ms = 0;
    CUDA_TRY(cudaEventRecord(c->timer[1], c->stream));
    CUDA_TRY(cudaEventSynchronize(c->timer[1]));
    CUDA_TRY(cudaEventElapsedTime(&ms, c->timer[0], c->timer[1]));
    *out_us = 1e3 * static_cast<double>(ms);
    return KVE_OK;
}

static size_t cuda_cache_bytes(kve_backend *be)
{
    return cuda_of(be)->cache_bytes;
}

static kve_status cuda_free_bytes(kve_backend *, size_t *out)
{
    size_t total;
    return cuda_status(cudaMemGetInfo(out, &total), "cudaMemGetInfo");
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
    for (cudaEvent_t event : c->timer)
        if (event)
            (void)cudaEventDestroy(event);
    if (c->stream)
        (void)cudaStreamDestroy(c->stream);
    free(c);
}

/* An op inside its range. */
#define RANGED(op)                                                                                                     \
    [](kve_backend *be, const kve_##op##_params *p) {                                                                  \
        op_range range(#op, op_size(*p, 0));                                                                           \
        return cuda_##op(be, p);                                                                                       \
    }

static const kve_backend_vt *cuda_vt(bool graphs)
{
    static kve_backend_vt both[2];
    kve_backend_vt &vt = both[graphs]; /* filled by name: C++17 has no designated initialisers */
    vt.name = "cuda";
    vt.close = cuda_close;
    vt.describe = cuda_describe;
    vt.alloc = cuda_alloc;
    vt.free = cuda_free;
    vt.write = cuda_write;
    vt.read = cuda_read;
    vt.copy = cuda_copy;
    vt.sync = cuda_sync;
    vt.bytes_in_use = cuda_bytes_in_use;
    vt.free_bytes = cuda_free_bytes;
    vt.timer_start = cuda_timer_start;
    vt.timer_stop = cuda_timer_stop;
    vt.cache_bytes = cuda_cache_bytes;
    vt.range_push = cuda_range_push;
    vt.range_pop = cuda_range_pop;
    vt.weight_create = cuda_weight_create;
    vt.weight_fill = cuda_weight_fill;
    vt.weight_seal = cuda_weight_seal;
    vt.weight_free = cuda_weight_free;
    vt.embed = RANGED(embed);
    vt.rmsnorm = RANGED(rmsnorm);
    vt.matmul = RANGED(matmul);
    vt.rope_append = RANGED(rope_append);
    vt.attention_prefill = RANGED(attention_prefill);
    vt.attention_fork = RANGED(attention_fork);
    vt.glu = RANGED(glu);
    vt.nll = RANGED(nll);
    vt.argmax = RANGED(argmax);
    vt.advance = RANGED(advance);
    vt.attention_window = RANGED(attention_window);
    vt.pool_group = RANGED(pool_group);
    vt.future_importance = RANGED(future_importance);
    vt.row_stat = RANGED(row_stat);
    vt.kvp_score = RANGED(kvp_score);
    vt.rank = RANGED(rank);
    vt.gather = RANGED(gather);
    vt.compact = RANGED(compact);
    if (graphs) {
        vt.graph_begin = cuda_graph_begin;
        vt.graph_end = cuda_graph_end;
        vt.graph_launch = cuda_graph_launch;
        vt.graph_free = cuda_graph_free;
    }
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
    for (cudaEvent_t &event : c->timer)
        CUDA_TRY(cudaEventCreate(&event));
    c->n_processors = prop.multiProcessorCount;
    c->cache_bytes = static_cast<size_t>(prop.l2CacheSize);
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
    bool graphs;
    KVE_TRY(wants_graphs(&graphs));
    cuda_backend *c = static_cast<cuda_backend *>(calloc(1, sizeof *c));
    if (!c)
        return kve_fail(KVE_ERR_MEMORY, "cuda: no host memory for the backend");
    c->base.vt = cuda_vt(graphs);
    kve_status st = open_device(c);
    if (st != KVE_OK) {
        cuda_close(&c->base);
        return st;
    }
    *out = &c->base;
    return KVE_OK;
}
