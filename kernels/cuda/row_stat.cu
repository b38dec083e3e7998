/* Scores that need keys and values only: knorm, keydiff, lagkv. Contracts: kernels/ops.h; twin:
 * kernels/cpu/row_stat.c; the formulas are kvpress's KnormPress, KeyDiffPress, LagKVPress.
 *
 * knorm: a warp per row. keydiff: partial sums of unit keys in double per 256 rows, added up in order; then a warp per
 * row. lagkv: a block per partition, a thread per row. All orders of sums are fixed, so results repeat bit by bit.
 * bytes: keys once (knorm), twice (keydiff), keys and values twice (lagkv). */
#include "kernels/cuda/prim.cuh"

enum { THREADS = 256, PART = 256, LAG_THREADS = 128 };

__device__ static float warp_norm(const kve_row_stat_params &p, int32_t h, int32_t j)
{
    size_t at = kv_row(p.kv.cap, p.Hkv, p.D, p.i_layer, h, j);
    float sum = 0;
    for (int32_t d = threadIdx.x % WARP; d < p.D; d += WARP) {
        float x = load_kv(p.kv.k, at + d, p.kv_dtype);
        sum += x * x;
    }
    return sqrtf(warp_sum(sum));
}

static __global__ void __launch_bounds__(THREADS) neg_norm_kernel(kve_row_stat_params p)
{
    int32_t j = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP, h = blockIdx.y;
    if (j >= p.n) /* a whole warp leaves */
        return;
    float norm = warp_norm(p, h, j);
    if (threadIdx.x % WARP == 0)
        p.out[static_cast<size_t>(h) * p.n + j] = -norm;
}

/* parts[h][part][d] = sum over the part's rows, in order, of k / max(|k|, 1e-12) (torch's normalize). */
static __global__ void __launch_bounds__(THREADS) unit_sum_kernel(kve_row_stat_params p, double *parts)
{
    __shared__ float norms[PART];
    int32_t h = blockIdx.y, j0 = blockIdx.x * PART, n = min(static_cast<int32_t>(PART), p.n - j0);
    for (int32_t i = threadIdx.x / WARP; i < n; i += THREADS / WARP) {
        float norm = warp_norm(p, h, j0 + i);
        if (threadIdx.x % WARP == 0)
            norms[i] = norm > 1e-12f || isnan(norm) ? norm : 1e-12f;
    }
    __syncthreads();
    for (int32_t d = threadIdx.x; d < p.D; d += THREADS) {
        double sum = 0;
        for (int32_t i = 0; i < n; i++)
            sum += static_cast<double>(
                load_kv(p.kv.k, kv_row(p.kv.cap, p.Hkv, p.D, p.i_layer, h, j0 + i) + d, p.kv_dtype) / norms[i]);
        parts[(static_cast<size_t>(h) * gridDim.x + blockIdx.x) * p.D + d] = sum;
    }
}

static __global__ void __launch_bounds__(THREADS)
    anchor_kernel(kve_row_stat_params p, const double *parts, int32_t n_parts, float *anchors)
{
    for (int32_t d = threadIdx.x; d < p.D; d += THREADS) {
        double sum = 0;
        for (int32_t i = 0; i < n_parts; i++)
            sum += parts[(static_cast<size_t>(blockIdx.x) * n_parts + i) * p.D + d];
        anchors[static_cast<size_t>(blockIdx.x) * p.D + d] = static_cast<float>(sum / p.n);
    }
}

static __global__ void __launch_bounds__(THREADS) neg_cosine_kernel(kve_row_stat_params p, const float *anchors)
{
    int32_t j = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP, h = blockIdx.y;
    if (j >= p.n)
        return;
    size_t at = kv_row(p.kv.cap, p.Hkv, p.D, p.i_layer, h, j);
    const float *anchor = anchors + static_cast<size_t>(h) * p.D;
    float dot = 0, own = 0, mean = 0;
    for (int32_t d = threadIdx.x % WARP; d < p.D; d += WARP) {
        float x = load_kv(p.kv.k, at + d, p.kv_dtype);
        dot += x * anchor[d];
        own += x * x;
        mean += anchor[d] * anchor[d];
    }
    dot = warp_sum(dot);
    own = sqrtf(warp_sum(own));
    mean = sqrtf(warp_sum(mean));
    if (threadIdx.x % WARP == 0) /* torch's cosine_similarity clamps each norm at 1e-8 */
        p.out[static_cast<size_t>(h) * p.n + j] = -dot / ((own < 1e-8f ? 1e-8f : own) * (mean < 1e-8f ? 1e-8f : mean));
}

static kve_status neg_cosine(cuda_backend *c, const kve_row_stat_params *p)
{
    int32_t n_parts = (p->n + PART - 1) / PART, warps = THREADS / WARP;
    size_t n_sums = static_cast<size_t>(p->Hkv) * n_parts * p->D;
    KVE_TRY(cuda_scratch(c, n_sums * sizeof(double) + static_cast<size_t>(p->Hkv) * p->D * sizeof(float)));
    double *parts = static_cast<double *>(c->scratch);
    float *anchors = reinterpret_cast<float *>(parts + n_sums);
    KVE_LAUNCH(unit_sum_kernel, dim3(n_parts, p->Hkv), THREADS, 0, c->stream, *p, parts);
    CUDA_LAUNCHED("keydiff: unit sums");
    KVE_LAUNCH(anchor_kernel, p->Hkv, THREADS, 0, c->stream, *p, static_cast<const double *>(parts), n_parts, anchors);
    CUDA_LAUNCHED("keydiff: anchor");
    KVE_LAUNCH(neg_cosine_kernel, dim3((p->n + warps - 1) / warps, p->Hkv), THREADS, 0, c->stream, *p,
               static_cast<const float *>(anchors));
    CUDA_LAUNCHED("keydiff");
    return KVE_OK;
}

/* --- lagkv */

/* Spread of row j: unbiased deviation over the channels of (x - low) / (high - low), two passes in double. */
__device__ static float lag_spread(const void *base, size_t at, const kve_row_stat_params &p, const float *low,
                                   const float *high)
{
    double mean = 0, sum = 0;
    for (int32_t d = 0; d < p.D; d++)
        mean += static_cast<double>((load_kv(base, at + d, p.kv_dtype) - low[d]) / (high[d] - low[d]));
    mean /= p.D;
    for (int32_t d = 0; d < p.D; d++) {
        double x = static_cast<double>((load_kv(base, at + d, p.kv_dtype) - low[d]) / (high[d] - low[d])) - mean;
        sum += x * x;
    }
    return static_cast<float>(sqrt(sum / (p.D - 1)));
}

/* Shared memory of one partition: [D] low, [D] high, [lag] spreads (float), [lag] scores (double, first). */
static __global__ void __launch_bounds__(LAG_THREADS, 4) lag_kernel(kve_row_stat_params p)
{
    KVE_DYN_SHARED(double, score);
    __shared__ double total;
    float *spread = reinterpret_cast<float *>(score + p.lag), *low = spread + p.lag, *high = low + p.D;
    int32_t h = blockIdx.y, row0 = p.n_sink + static_cast<int32_t>(blockIdx.x) * p.lag;
    float *out = p.out + static_cast<size_t>(h) * p.n;
    for (int32_t j = threadIdx.x; j < p.lag; j += blockDim.x)
        score[j] = 0;
    for (int values = 0; values < 2; values++) {
        const void *base = values ? p.kv.v : p.kv.k;
        size_t at = kv_row(p.kv.cap, p.Hkv, p.D, p.i_layer, h, row0), next = at + static_cast<size_t>(p.lag) * p.D;

        /* 1: the range of the NEXT partition, per channel */
        for (int32_t d = threadIdx.x; d < p.D; d += blockDim.x) {
            low[d] = CUDART_INF_F;
            high[d] = -CUDART_INF_F;
            for (int32_t j = 0; j < p.lag; j++) {
                float x = load_kv(base, next + static_cast<size_t>(j) * p.D + d, p.kv_dtype);
                low[d] = x < low[d] ? x : low[d];
                high[d] = x > high[d] ? x : high[d];
            }
        }
        __syncthreads();

        /* 2: spreads, and their softmax over the partition; one thread sums, in order */
        for (int32_t j = threadIdx.x; j < p.lag; j += blockDim.x)
            spread[j] = lag_spread(base, at + static_cast<size_t>(j) * p.D, p, low, high);
        __syncthreads();
        float top = -CUDART_INF_F;
        for (int32_t j = 0; j < p.lag; j++)
            top = spread[j] > top ? spread[j] : top;
        if (threadIdx.x == 0) {
            total = 0;
            for (int32_t j = 0; j < p.lag; j++)
                total += exp(static_cast<double>(spread[j]) - static_cast<double>(top));
        }
        __syncthreads();
        for (int32_t j = threadIdx.x; j < p.lag; j += blockDim.x)
            score[j] += exp(static_cast<double>(spread[j]) - static_cast<double>(top)) / total;
        __syncthreads();
    }

    /* 3: each row's rank inside the partition: NaN first, then ascending, ties by position */
    for (int32_t j = threadIdx.x; j < p.lag; j += blockDim.x) {
        int32_t below = 0;
        for (int32_t i = 0; i < p.lag; i++) {
            bool nan_i = isnan(score[i]), nan_j = isnan(score[j]), equal = nan_i ? nan_j : score[i] == score[j];
            below += equal ? i < j : nan_i != nan_j ? nan_i : score[i] < score[j];
        }
        out[row0 + j] = static_cast<float>(below) / static_cast<float>(p.lag);
    }
}

/* What no partition scores: 1, or recency where the text is too short for statistics. */
static __global__ void __launch_bounds__(THREADS) lag_rest_kernel(kve_row_stat_params p, int32_t first)
{
    bool too_short = p.n < p.n_sink + 2 * p.lag;
    float *out = p.out + static_cast<size_t>(blockIdx.y) * p.n;
    for (int32_t j = blockIdx.x * blockDim.x + threadIdx.x; j < p.n; j += gridDim.x * blockDim.x)
        if (j < p.n_sink || j >= first)
            out[j] = too_short && j >= p.n_sink ? static_cast<float>(j - p.n_sink) / static_cast<float>(p.n - p.n_sink)
                                                : 1.0f;
}

static kve_status lag(cuda_backend *c, const kve_row_stat_params *p)
{
    int32_t scored = p->n < p->n_sink + 2 * p->lag ? 0 : (p->n - p->n_sink) / p->lag - 1;
    size_t shared = static_cast<size_t>(p->lag) * (sizeof(double) + sizeof(float)) + 2 * sizeof(float) * p->D;
    KVE_LAUNCH(lag_rest_kernel, dim3((p->n + THREADS - 1) / THREADS, p->Hkv), THREADS, 0, c->stream, *p,
               p->n_sink + scored * p->lag);
    CUDA_LAUNCHED("lagkv: the rest");
    if (scored == 0)
        return KVE_OK;
    KVE_LAUNCH(lag_kernel, dim3(scored, p->Hkv), LAG_THREADS, shared, c->stream, *p);
    CUDA_LAUNCHED("lagkv");
    return KVE_OK;
}

kve_status cuda_row_stat(kve_backend *be, const kve_row_stat_params *p)
{
    cuda_backend *c = cuda_of(be);
    int32_t warps = THREADS / WARP;
    if (p->D > CUDA_MAX_D)
        return kve_fail(KVE_ERR_USAGE, "cuda: head dimension %d is beyond %d", p->D, static_cast<int>(CUDA_MAX_D));
    if (p->n == 0 || p->Hkv == 0)
        return KVE_OK;
    if (p->stat == KVE_STAT_LAG)
        return lag(c, p);
    if (p->stat == KVE_STAT_NEG_COSINE)
        return neg_cosine(c, p);
    KVE_LAUNCH(neg_norm_kernel, dim3((p->n + warps - 1) / warps, p->Hkv), THREADS, 0, c->stream, *p);
    CUDA_LAUNCHED("knorm");
    return KVE_OK;
}
