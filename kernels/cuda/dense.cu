/* Row-wise ops of the forward pass: embed, rmsnorm, glu, nll, argmax. Formulas and shapes: kernels/ops.h; twin:
 * kernels/cpu/dense.c. One block per row (glu: a grid over elements), so a row's result depends on the row alone; trees
 * of sums depend on the block size, which is fixed. bytes: each input and output once (nll and argmax: logits once or
 * twice from L2); no op here is limited by anything but memory. */
#include "kernels/cuda/prim.cuh"

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS) embed_kernel(kve_embed_params p, const void *table, kve_dtype dtype)
{
    size_t t = blockIdx.x, row = static_cast<size_t>(p.ids[t]) * p.E;
    for (int32_t i = threadIdx.x; i < p.E; i += blockDim.x)
        p.out[t * p.E + i] = load_kv(table, row + i, dtype);
}

kve_status cuda_embed(kve_backend *be, const kve_embed_params *p)
{
    if (p->T == 0)
        return KVE_OK;
    KVE_LAUNCH(embed_kernel, p->T, THREADS, 0, cuda_of(be)->stream, *p, static_cast<const void *>(p->table->data),
               p->table->dtype);
    CUDA_LAUNCHED("embed");
    return KVE_OK;
}

/* The sum of squares in double, as on the CPU: E is small against the bandwidth that the row costs. */
static __global__ void __launch_bounds__(THREADS) rmsnorm_kernel(kve_rmsnorm_params p)
{
    __shared__ double slots[WARP];
    const float *x = p.x + static_cast<size_t>(blockIdx.x) * p.E;
    float *out = p.out + static_cast<size_t>(blockIdx.x) * p.E;
    double sum = 0;
    for (int32_t i = threadIdx.x; i < p.E; i += blockDim.x)
        sum += static_cast<double>(x[i]) * x[i];
    sum = block_sum(sum, slots);
    float scale = static_cast<float>(1.0 / sqrt(sum / p.E + static_cast<double>(p.eps)));
    for (int32_t i = threadIdx.x; i < p.E; i += blockDim.x)
        out[i] = x[i] * scale * p.gain[i];
}

kve_status cuda_rmsnorm(kve_backend *be, const kve_rmsnorm_params *p)
{
    if (p->T == 0)
        return KVE_OK;
    KVE_LAUNCH(rmsnorm_kernel, p->T, THREADS, 0, cuda_of(be)->stream, *p);
    CUDA_LAUNCHED("rmsnorm");
    return KVE_OK;
}

/* x / (1 + e^-x), with the exponential of a number that is never positive. */
__device__ static float silu(float x)
{
    float e = expf(-fabsf(x));
    return x * (x < 0 ? e : 1.0f) / (1.0f + e);
}

__device__ static float gelu_tanh(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

static __global__ void __launch_bounds__(THREADS) glu_kernel(kve_glu_params p)
{
    size_t count = static_cast<size_t>(p.T) * p.F, step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        size_t t = i / p.F, f = i % p.F;
        const float *gate = p.gate_up + t * 2 * p.F;
        p.out[i] = (p.act == KVE_SILU ? silu(gate[f]) : gelu_tanh(gate[f])) * gate[p.F + f];
    }
}

kve_status cuda_glu(kve_backend *be, const kve_glu_params *p)
{
    size_t blocks = (static_cast<size_t>(p->T) * p->F + THREADS - 1) / THREADS, most = 16 * cuda_of(be)->n_processors;
    if (blocks == 0)
        return KVE_OK;
    KVE_LAUNCH(glu_kernel, static_cast<unsigned>(blocks < most ? blocks : most), THREADS, 0, cuda_of(be)->stream, *p);
    CUDA_LAUNCHED("glu");
    return KVE_OK;
}

/* Two walks over the row: the maximum, then the sum of exponentials in double. */
static __global__ void __launch_bounds__(THREADS) nll_kernel(kve_nll_params p)
{
    __shared__ float tops[WARP];
    __shared__ double slots[WARP];
    const float *x = p.logits + static_cast<size_t>(blockIdx.x) * p.V;
    float top = -CUDART_INF_F, nan = 0;
    for (int32_t i = threadIdx.x; i < p.V; i += blockDim.x) {
        top = fmaxf(top, x[i]); /* fmaxf drops a NaN */
        nan = isnan(x[i]) ? 1.0f : nan;
    }
    top = block_max(top, tops);
    nan = block_max(nan, tops);
    double sum = 0;
    for (int32_t i = threadIdx.x; i < p.V; i += blockDim.x)
        sum += static_cast<double>(expf(x[i] - top));
    sum = block_sum(sum, slots);
    if (threadIdx.x != 0)
        return;
    double log_sum = isinf(top) ? 0 : log(sum); /* an infinite maximum is its own logarithm of the sum */
    p.nll[blockIdx.x] =
        nan != 0
            ? CUDART_NAN_F
            : static_cast<float>(log_sum + static_cast<double>(top) - static_cast<double>(x[p.target[blockIdx.x]]));
}

kve_status cuda_nll(kve_backend *be, const kve_nll_params *p)
{
    if (p->T == 0)
        return KVE_OK;
    KVE_LAUNCH(nll_kernel, p->T, THREADS, 0, cuda_of(be)->stream, *p);
    CUDA_LAUNCHED("nll");
    return KVE_OK;
}

/* The better of two candidates: larger value, then lower index; index < 0 is none. */
__device__ static void keep_better(float &best, int32_t &at, float x, int32_t i)
{
    if (i >= 0 && (at < 0 || x > best || (x == best && i < at))) {
        best = x;
        at = i;
    }
}

static __global__ void __launch_bounds__(THREADS) argmax_kernel(kve_argmax_params p)
{
    __shared__ float values[WARP];
    __shared__ int32_t places[WARP];
    const float *x = p.logits + static_cast<size_t>(blockIdx.x) * p.V;
    float best = 0;
    int32_t at = -1;
    for (int32_t i = threadIdx.x; i < p.V; i += blockDim.x)
        if (!isnan(x[i]))
            keep_better(best, at, x[i], i);
    for (int d = WARP / 2; d > 0; d /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, best, d);
        int32_t place = __shfl_xor_sync(0xffffffffu, at, d);
        keep_better(best, at, other, place);
    }
    if (threadIdx.x % WARP == 0) {
        values[threadIdx.x / WARP] = best;
        places[threadIdx.x / WARP] = at;
    }
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int w = 1; w < static_cast<int>(blockDim.x) / WARP; w++)
        keep_better(best, at, values[w], places[w]);
    p.ids[blockIdx.x] = at;
}

kve_status cuda_argmax(kve_backend *be, const kve_argmax_params *p)
{
    if (p->T == 0)
        return KVE_OK;
    KVE_LAUNCH(argmax_kernel, p->T, THREADS, 0, cuda_of(be)->stream, *p);
    CUDA_LAUNCHED("argmax");
    return KVE_OK;
}

/* One block for all rows: the log's column is read by everybody before it moves on. */
static __global__ void __launch_bounds__(THREADS) advance_kernel(kve_advance_params p)
{
    int32_t column = *p.n_logged;
    for (int32_t t = threadIdx.x; t < p.T; t += blockDim.x) {
        int32_t id = p.next[t];
        p.log[static_cast<size_t>(column) * p.T + t] = id;
        p.ids[t] = id < 0 ? 0 : id;
        p.pos_of[t]++;
        p.index_of[t]++;
        p.tail_len[p.slot_of[t]]++; /* a slot has one row */
    }
    __syncthreads();
    if (threadIdx.x == 0)
        *p.n_logged = column + 1;
}

kve_status cuda_advance(kve_backend *be, const kve_advance_params *p)
{
    if (p->T == 0)
        return KVE_OK;
    KVE_LAUNCH(advance_kernel, 1, THREADS, 0, cuda_of(be)->stream, *p);
    CUDA_LAUNCHED("advance");
    return KVE_OK;
}
