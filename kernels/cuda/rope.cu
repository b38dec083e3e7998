/* rope_append: head norms (qwen3), rotate-half RoPE, append to the row's slot. Contract: kernels/ops.h; twin:
 * kernels/cpu/rope.c. One block per (row, head of q, k or v); a slot's rows are distinct, so no two blocks write the
 * same place. The head stays in shared memory between its phases. bytes: qkv once, q and one cache row once. */
#include "kernels/cuda/prim.cuh"

enum { THREADS = 128 };

static __global__ void __launch_bounds__(THREADS) rope_append_kernel(kve_rope_append_params p)
{
    __shared__ float head[CUDA_MAX_D];
    __shared__ double slots[WARP];
    int32_t t = blockIdx.x, h = blockIdx.y, half = p.R / 2;
    bool is_q = h < p.Hq, is_v = h >= p.Hq + p.Hkv;
    const float *in = p.qkv + (static_cast<size_t>(t) * (p.Hq + 2 * p.Hkv) + h) * p.D;
    const float *gain = is_q ? p.q_norm : is_v ? nullptr : p.k_norm;

    /* 1: load, and normalise the head where the model asks for it */
    double sum = 0;
    for (int32_t d = threadIdx.x; d < p.D; d += blockDim.x) {
        head[d] = in[d];
        sum += static_cast<double>(in[d]) * in[d];
    }
    if (gain) {
        float scale = static_cast<float>(1.0 / sqrt(block_sum(sum, slots) / p.D + static_cast<double>(p.norm_eps)));
        for (int32_t d = threadIdx.x; d < p.D; d += blockDim.x)
            head[d] = head[d] * scale * gain[d];
    }
    __syncthreads();

    /* 2: rotate queries and keys; a thread owns the pair (d, d + half) */
    const float *cosines = p.cos + static_cast<size_t>(p.pos_of[t]) * half;
    const float *sines = p.sin + static_cast<size_t>(p.pos_of[t]) * half;
    for (int32_t d = threadIdx.x; d < half && !is_v; d += blockDim.x) {
        float a = head[d], b = head[d + half];
        head[d] = a * cosines[d] - b * sines[d];
        head[d + half] = b * cosines[d] + a * sines[d];
    }
    __syncthreads();

    /* 3: store */
    if (is_q) {
        float *q = p.q + (static_cast<size_t>(t) * p.Hq + h) * p.D;
        for (int32_t d = threadIdx.x; d < p.D; d += blockDim.x)
            q[d] = head[d];
        return;
    }
    const kve_kv to = p.slots[p.slot_of[t]].tail;
    size_t at = kv_row(to.cap, p.Hkv, p.D, p.i_layer, h - p.Hq - (is_v ? p.Hkv : 0), p.index_of[t]);
    for (int32_t d = threadIdx.x; d < p.D; d += blockDim.x)
        store_kv(is_v ? to.v : to.k, at + d, p.kv_dtype, head[d]);
}

kve_status cuda_rope_append(kve_backend *be, const kve_rope_append_params *p)
{
    if (p->D > CUDA_MAX_D)
        return kve_fail(KVE_ERR_USAGE, "cuda: head dimension %d is beyond %d", p->D, CUDA_MAX_D);
    if (p->T == 0)
        return KVE_OK;
    dim3 grid(p->T, p->Hq + 2 * p->Hkv);
    KVE_LAUNCH(rope_append_kernel, grid, THREADS, 0, cuda_of(be)->stream, *p);
    CUDA_LAUNCHED("rope_append");
    return KVE_OK;
}
