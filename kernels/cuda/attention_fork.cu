/* Attention of the rows of forks, each over its own prefix and tail. Contract: kernels/ops.h; core: attend.cuh. One
 * block per row of the call, KV head and 16 query heads of its group: prefix blocks first, then tail blocks, one online
 * softmax over both. Lengths are read on the device, so the launch knows T and X only. */
#include "kernels/cuda/attend.cuh"

/* The fork that owns row t, or -1; the forks' rows may stand in any order, so the whole block looks. */
__device__ static int32_t fork_of(const kve_attention_fork_params &p, int32_t t)
{
    __shared__ int32_t owner;
    if (threadIdx.x == 0)
        owner = -1;
    __syncthreads();
    for (int32_t x = threadIdx.x; x < p.X; x += ATTEND_THREADS)
        if (t >= p.row_of[x] && t < p.row_of[x] + p.q_len[x])
            owner = x;
    __syncthreads();
    return owner;
}

template <int NV> static __global__ void __launch_bounds__(ATTEND_THREADS, 4) fork_kernel(kve_attention_fork_params p)
{
    KVE_DYN_SHARED(float, memory);
    attend_shared m = attend_carve(memory, p.D);
    attend_state<NV> s;
    int32_t G = p.Hq / p.Hkv, t = blockIdx.x, h = blockIdx.y, g0 = blockIdx.z * ATTEND_ROWS, warp = threadIdx.x / WARP;
    int32_t x = fork_of(p, t), prefix[ATTEND_OWN], tail[ATTEND_OWN];
    if (x < 0) /* a row of the call that no fork owns */
        return;
    const kve_fork_slot slot = p.slots[x];
    int32_t n_prefix = slot.prefix_len[static_cast<size_t>(p.i_layer) * p.Hkv + h];
    int32_t n_tail = p.tail_len[x] + (t - p.row_of[x]) + 1;
    for (int32_t i = threadIdx.x; i < ATTEND_ROWS * p.D; i += ATTEND_THREADS) {
        int32_t g = g0 + i / p.D;
        m.q[i] = g < G ? p.q[(static_cast<size_t>(t) * p.Hq + h * G + g) * p.D + i % p.D] : 0;
    }
#pragma unroll
    for (int r = 0; r < ATTEND_OWN; r++) {
        bool there = g0 + warp * ATTEND_OWN + r < G;
        prefix[r] = there ? n_prefix : 0;
        tail[r] = there ? n_tail : 0;
    }
    attend_begin(s);
    attend_segment(s, m, attend_keys_of(slot.prefix, p.Hkv, p.D, p.i_layer, h, n_prefix, p.kv_dtype), prefix, n_prefix,
                   p.D, p.scale);
    attend_segment(s, m, attend_keys_of(slot.tail, p.Hkv, p.D, p.i_layer, h, n_tail, p.kv_dtype), tail, n_tail, p.D,
                   p.scale);
#pragma unroll
    for (int r = 0; r < ATTEND_OWN; r++) {
        int32_t g = g0 + warp * ATTEND_OWN + r;
        if (g < G)
            attend_store(s, r, p.out + (static_cast<size_t>(t) * p.Hq + h * G + g) * p.D, p.D);
    }
}

template <int NV> static kve_status launch(cuda_backend *c, const kve_attention_fork_params *p)
{
    int32_t n_groups = (p->Hq / p->Hkv + ATTEND_ROWS - 1) / ATTEND_ROWS;
    size_t shared = attend_shared_bytes(p->D);
    CUDA_TRY(
        cudaFuncSetAttribute(fork_kernel<NV>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
    KVE_LAUNCH(fork_kernel<NV>, dim3(p->T, p->Hkv, n_groups), ATTEND_THREADS, shared, c->stream, *p);
    CUDA_LAUNCHED("attention_fork");
    return KVE_OK;
}

kve_status cuda_attention_fork(kve_backend *be, const kve_attention_fork_params *p)
{
    cuda_backend *c = cuda_of(be);
    if (p->D > CUDA_MAX_D)
        return kve_fail(KVE_ERR_USAGE, "cuda: head dimension %d is beyond %d", p->D, static_cast<int>(CUDA_MAX_D));
    if (p->T == 0 || p->X == 0)
        return KVE_OK;
    ATTEND_FOR_D(p->D, launch)
}
