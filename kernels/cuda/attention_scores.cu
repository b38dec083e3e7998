/* The two ops that look at attention itself: attention_window (SnapKV, TOVA) and future_importance (the KVP paper's I),
 * and the pooling over heads. Contracts: kernels/ops.h; twin: kernels/cpu/attention_scores.c.
 *
 * Two passes, no n-wide buffer: the first finds every query row's softmax maximum and sum (a block per row), the second
 * walks the tokens for a block of 32 keys (a lane is a key, warps share the tokens) and adds up probabilities; the
 * warps' sums are added in order. flops: 4 D per (query head, visible key). */
#include "kernels/cuda/prim.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP, KEYS = WARP };

struct scores {
    const float *q; /* [T][Hq][D] */
    kve_kv ctx, tail;
    float *out;
    float scale;
    int32_t T, n, Hq, Hkv, G, D, i_layer;
    bool window; /* causal inside the context, mean over T; otherwise all of it and a tail, the group's maximum */
    kve_dtype kv_dtype;
    bool maximum;     /* over the T tokens instead of the sum */
    float *top, *sum; /* [T][Hq] */
};

__device__ static float score_of(const scores &x, const float *q, const void *keys, size_t at)
{
    float dot = 0;
    for (int32_t d = 0; d < x.D; d++)
        dot += q[d] * load_kv(keys, at + d, x.kv_dtype);
    return dot * x.scale;
}

__device__ static int32_t sees_ctx(const scores &x, int32_t t)
{
    return x.window ? x.n - x.T + t + 1 : x.n;
}

/* The row's maximum, then its sum: scores are computed twice instead of being kept. */
static __global__ void __launch_bounds__(THREADS) statistics_kernel(scores x)
{
    __shared__ float slots[WARP];
    int32_t t = blockIdx.x, head = blockIdx.y, h = head / x.G;
    const float *q = x.q + (static_cast<size_t>(t) * x.Hq + head) * x.D;
    int32_t n_ctx = sees_ctx(x, t), n_all = n_ctx + (x.window ? 0 : t + 1);
    float top = -CUDART_INF_F, sum = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t j = threadIdx.x; j < n_all; j += THREADS) {
            bool in_ctx = j < n_ctx;
            size_t at = in_ctx ? kv_row(x.ctx.cap, x.Hkv, x.D, x.i_layer, h, j)
                               : kv_row(x.tail.cap, x.Hkv, x.D, x.i_layer, h, j - n_ctx);
            float s = score_of(x, q, in_ctx ? x.ctx.k : x.tail.k, at);
            if (pass == 0)
                top = fmaxf(top, s);
            else
                sum += expf(s - top);
        }
        if (pass == 0)
            top = block_max(top, slots);
        else
            sum = block_sum(sum, slots);
    }
    if (threadIdx.x == 0) {
        x.top[static_cast<size_t>(t) * x.Hq + head] = top;
        x.sum[static_cast<size_t>(t) * x.Hq + head] = sum;
    }
}

__device__ static float probability(const scores &x, int32_t t, int32_t head, const float *key)
{
    const float *q = x.q + (static_cast<size_t>(t) * x.Hq + head) * x.D;
    size_t at = static_cast<size_t>(t) * x.Hq + head;
    float dot = 0;
    for (int32_t d = 0; d < x.D; d++)
        dot += q[d] * key[d];
    return expf(dot * x.scale - x.top[at]) / x.sum[at];
}

/* Sum (or maximum) over the tokens of this warp's share: of one query head (window), or of the group's maximum. */
__device__ static float collect(const scores &x, int32_t h, int32_t g0, int32_t g1, int32_t j, const float *key)
{
    float acc = 0;
    for (int32_t t = threadIdx.x / WARP; t < x.T; t += WARPS) {
        float best = 0;
        if (j >= sees_ctx(x, t))
            continue;
        for (int32_t g = g0; g < g1; g++) { /* written so that a NaN wins */
            float p = probability(x, t, h * x.G + g, key);
            best = p <= best ? best : p;
        }
        acc = x.maximum ? (best <= acc ? acc : best) : acc + best;
    }
    return acc;
}

static __global__ void __launch_bounds__(THREADS) collect_kernel(scores x)
{
    KVE_DYN_SHARED(float, keys); /* [KEYS][D + 1] */
    __shared__ float part[WARPS][KEYS];
    int32_t h = blockIdx.y, j0 = blockIdx.x * KEYS, lane = threadIdx.x % WARP, n_out = x.window ? x.G : 1;
    for (int32_t i = threadIdx.x; i < KEYS * x.D; i += THREADS) {
        int32_t j = j0 + i / x.D;
        keys[i / x.D * (x.D + 1) + i % x.D] =
            j < x.n ? load_kv(x.ctx.k, kv_row(x.ctx.cap, x.Hkv, x.D, x.i_layer, h, j) + i % x.D, x.kv_dtype) : 0;
    }
    __syncthreads();
    for (int32_t o = 0; o < n_out; o++) {
        int32_t j = j0 + lane;
        part[threadIdx.x / WARP][lane] =
            j < x.n ? collect(x, h, x.window ? o : 0, x.window ? o + 1 : x.G, j, keys + lane * (x.D + 1)) : 0;
        __syncthreads();
        if (threadIdx.x < KEYS && j < x.n) {
            float sum = 0;
            for (int w = 0; w < WARPS; w++)
                sum = x.maximum ? (part[w][lane] <= sum ? sum : part[w][lane]) : sum + part[w][lane];
            x.out[static_cast<size_t>(h * n_out + o) * x.n + j] = x.window ? sum / x.T : sum;
        }
        __syncthreads(); /* before the parts are written again */
    }
}

static kve_status run(cuda_backend *c, scores x)
{
    x.G = x.Hq / x.Hkv;
    if (x.D > CUDA_MAX_D)
        return kve_fail(KVE_ERR_USAGE, "cuda: head dimension %d is beyond %d", x.D, static_cast<int>(CUDA_MAX_D));
    if (x.n == 0)
        return KVE_OK;
    size_t rows = static_cast<size_t>(x.T) * x.Hq;
    KVE_TRY(cuda_scratch(c, 2 * rows * sizeof(float) + 1));
    x.top = static_cast<float *>(c->scratch);
    x.sum = x.top + rows;
    if (rows > 0) {
        KVE_LAUNCH(statistics_kernel, dim3(x.T, x.Hq), THREADS, 0, c->stream, x);
        CUDA_LAUNCHED("attention scores: statistics");
    }
    KVE_LAUNCH(collect_kernel, dim3((x.n + KEYS - 1) / KEYS, x.Hkv), THREADS, sizeof(float) * KEYS * (x.D + 1),
               c->stream, x);
    CUDA_LAUNCHED("attention scores: sums");
    return KVE_OK;
}

kve_status cuda_attention_window(kve_backend *be, const kve_attention_window_params *p)
{
    scores x = {p->q, p->kv, {},         p->out, p->scale,    p->W,  p->n,    p->Hq,  p->Hkv,
                1,    p->D,  p->i_layer, true,   p->kv_dtype, false, nullptr, nullptr};
    return run(cuda_of(be), x);
}

kve_status cuda_future_importance(kve_backend *be, const kve_future_importance_params *p)
{
    scores x = {p->q, p->ctx, p->tail,    p->out, p->scale,    p->f,       p->n,    p->Hq,  p->Hkv,
                1,    p->D,   p->i_layer, false,  p->kv_dtype, p->maximum, nullptr, nullptr};
    return run(cuda_of(be), x);
}

static __global__ void __launch_bounds__(THREADS) pool_group_kernel(kve_pool_group_params p)
{
    int32_t j = blockIdx.x * THREADS + threadIdx.x, h = blockIdx.y;
    int32_t G = p.all_heads ? p.Hq : p.Hq / p.Hkv, first = p.all_heads ? 0 : h * G;
    if (j >= p.n)
        return;
    float sum = 0;
    for (int32_t g = 0; g < G && j < p.n_valid; g++) {
        const float *in = p.in + static_cast<size_t>(first + g) * p.n;
        float pooled = 0;
        for (int32_t i = max(j - p.width / 2, 0); i <= min(j + p.width / 2, p.n_valid - 1); i++)
            pooled += in[i];
        sum += pooled / static_cast<float>(p.width);
    }
    p.out[static_cast<size_t>(h) * p.n + j] = j < p.n_valid ? sum / static_cast<float>(G) : CUDART_INF_F;
}

kve_status cuda_pool_group(kve_backend *be, const kve_pool_group_params *p)
{
    if (p->n == 0)
        return KVE_OK;
    KVE_LAUNCH(pool_group_kernel, dim3((p->n + THREADS - 1) / THREADS, p->Hkv), THREADS, 0, cuda_of(be)->stream, *p);
    CUDA_LAUNCHED("pool_group");
    return KVE_OK;
}
