/* Exact causal attention of new tokens over the context cache, in fp32: f32 caches, and bf16 caches where
 * attention_prefill_wmma.cu cannot run. Contract: kernels/ops.h; core: attend.cuh. One block per KV head and 16 rows of
 * (token, query head of the group), token slowest; late tokens see the most keys, so their blocks come first. flops:
 * 4 D per (query head, visible key). */
#include "kernels/cuda/attend.cuh"

template <int NV>
static __global__ void __launch_bounds__(ATTEND_THREADS, 4) prefill_kernel(kve_attention_prefill_params p)
{
    KVE_DYN_SHARED(float, memory);
    attend_shared m = attend_carve(memory, p.D);
    attend_state<NV> s;
    int32_t G = p.Hq / p.Hkv, h = blockIdx.y, n_rows = p.T * G, warp = threadIdx.x / WARP;
    int32_t row0 = static_cast<int32_t>(gridDim.x - 1 - blockIdx.x) * ATTEND_ROWS, seen[ATTEND_OWN];
    int32_t last = min(row0 + static_cast<int32_t>(ATTEND_ROWS), n_rows) - 1, most = p.start + last / G + 1;
    for (int32_t i = threadIdx.x; i < ATTEND_ROWS * p.D; i += ATTEND_THREADS) {
        int32_t row = row0 + i / p.D;
        m.q[i] = row < n_rows ? p.q[(static_cast<size_t>(row / G) * p.Hq + h * G + row % G) * p.D + i % p.D] : 0;
    }
#pragma unroll
    for (int r = 0; r < ATTEND_OWN; r++) {
        int32_t row = row0 + warp * ATTEND_OWN + r;
        seen[r] = row < n_rows ? p.start + row / G + 1 : 0;
    }
    attend_begin(s);
    attend_segment(s, m, attend_keys_of(p.kv, p.Hkv, p.D, p.i_layer, h, most, p.kv_dtype), seen, most, p.D, p.scale);
#pragma unroll
    for (int r = 0; r < ATTEND_OWN; r++) {
        int32_t row = row0 + warp * ATTEND_OWN + r;
        if (row < n_rows)
            attend_store(s, r, p.out + (static_cast<size_t>(row / G) * p.Hq + h * G + row % G) * p.D, p.D);
    }
}

template <int NV> static kve_status launch(cuda_backend *c, const kve_attention_prefill_params *p)
{
    int32_t n_tiles = (p->T * (p->Hq / p->Hkv) + ATTEND_ROWS - 1) / ATTEND_ROWS;
    size_t shared = attend_shared_bytes(p->D);
    CUDA_TRY(cudaFuncSetAttribute(prefill_kernel<NV>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared)));
    KVE_LAUNCH(prefill_kernel<NV>, dim3(n_tiles, p->Hkv), ATTEND_THREADS, shared, c->stream, *p);
    CUDA_LAUNCHED("attention_prefill");
    return KVE_OK;
}

kve_status cuda_attention_prefill(kve_backend *be, const kve_attention_prefill_params *p)
{
    cuda_backend *c = cuda_of(be);
    if (p->D > CUDA_MAX_D)
        return kve_fail(KVE_ERR_USAGE, "cuda: head dimension %d is beyond %d", p->D, static_cast<int>(CUDA_MAX_D));
    if (p->T == 0)
        return KVE_OK;
    bool taken;
    KVE_TRY(attend_prefill_wmma(c, p, &taken));
    if (taken)
        return KVE_OK;
    ATTEND_FOR_D(p->D, launch)
}
