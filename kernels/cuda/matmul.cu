/* y = x W^T (+ bias), or y += ...: cuBLAS, with fp32 accumulation. Contract: kernels/ops.h; twin: kernels/cpu/matmul.c.
 * cuBLAS thinks in columns: row-major y [T][N] is its N x T, so W [N][K] goes in transposed and x [T][K] as it is.
 * With a bf16 weight, x is rounded to bf16 into scratch first. A bias is written to y beforehand (beta = 1 adds to it).
 *
 * cuBLAS may choose another kernel for another T, with another order of sums: on this backend a row's last bits can
 * depend on how many rows a call has. bytes: W once, x and y once. */
#include "kernels/cuda/prim.cuh"

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS) to_bf16_kernel(const float *x, uint16_t *out, size_t count)
{
    size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
        out[i] = to_bf16(x[i]);
}

static __global__ void __launch_bounds__(THREADS)
    bias_kernel(const float *bias, float *y, int32_t N, size_t count, bool accumulate)
{
    size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
        y[i] = bias[i % N] + (accumulate ? y[i] : 0.0f);
}

static unsigned grid_for(const cuda_backend *c, size_t count)
{
    size_t blocks = (count + THREADS - 1) / THREADS, most = 16 * static_cast<size_t>(c->n_processors);
    return static_cast<unsigned>(blocks < most ? blocks : most);
}

kve_status cuda_matmul(kve_backend *be, const kve_matmul_params *p)
{
    cuda_backend *c = cuda_of(be);
    const kve_weight *w = p->w;
    const float one = 1.0f, beta = p->accumulate || p->bias ? 1.0f : 0.0f;
    const void *x = p->x;
    size_t n_in = static_cast<size_t>(p->T) * w->K, n_out = static_cast<size_t>(p->T) * w->N;
    if (p->T == 0)
        return KVE_OK;
    if (w->dtype == KVE_BF16) {
        KVE_TRY(cuda_scratch(c, n_in * sizeof(uint16_t)));
        KVE_LAUNCH(to_bf16_kernel, grid_for(c, n_in), THREADS, 0, c->stream, p->x, static_cast<uint16_t *>(c->scratch),
                   n_in);
        CUDA_LAUNCHED("matmul: rounding");
        x = c->scratch;
    }
    if (p->bias) {
        KVE_LAUNCH(bias_kernel, grid_for(c, n_out), THREADS, 0, c->stream, p->bias, p->y, w->N, n_out, p->accumulate);
        CUDA_LAUNCHED("matmul: bias");
    }
    cudaDataType_t type = w->dtype == KVE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    cublasStatus_t code =
        cublasGemmEx(c->blas, CUBLAS_OP_T, CUBLAS_OP_N, w->N, p->T, w->K, &one, w->data, type, w->K, x, type, w->K,
                     &beta, p->y, CUDA_R_32F, w->N, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (code != CUBLAS_STATUS_SUCCESS)
        return kve_fail(KVE_ERR_INTERNAL, "cuda: cublasGemmEx of %d x %d x %d: status %d", p->T, w->N, w->K,
                        static_cast<int>(code));
    return KVE_OK;
}
