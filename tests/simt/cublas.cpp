/* cuBLAS: handles and the matrix products, one at a time, strided, or through arrays of pointers. Everything runs in
 * the handle's stream. What is not here does not link. */
#include "tests/simt/gemm.h"
#include "tests/simt/memory.h"
#include "tests/simt/stream.h"

/* Behind cublasHandle_t. */
struct cublasContext {
    cudaStream_t stream;
    cublasMath_t math;
    cublasPointerMode_t pointers;
    void *workspace;
};

using namespace simt;

/* The leading part of every call, as cuBLAS gives it. */
struct gemm_shape {
    cublasOperation_t op_a, op_b;
    int64_t m, n, k;
};

static gemm_scalar scalar_of(cublasHandle_t h, const void *p, cublasComputeType_t compute)
{
    return h->pointers == CUBLAS_POINTER_MODE_DEVICE ? gemm_scalar{0, p} : host_scalar(p, compute);
}

static gemm make_gemm(cublasHandle_t h, const char *name, const gemm_shape &s, const void *alpha, const void *beta,
                      cublasComputeType_t compute, const gemm_matrix &a, const gemm_matrix &b, void *c,
                      cudaDataType c_type, int64_t ldc)
{
    if (compute == CUBLAS_COMPUTE_32F && a.type == CUDA_R_32F && (h->math & CUBLAS_TF32_TENSOR_OP_MATH))
        compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    gemm g = {name,
              s.m,
              s.n,
              s.k,
              a,
              b,
              {c, c_type, ldc, false},
              c,
              ldc,
              compute,
              scalar_of(h, alpha, compute),
              scalar_of(h, beta, compute),
              activation::none,
              nullptr,
              CUDA_R_32F};
    g.a.transposed = s.op_a != CUBLAS_OP_N;
    g.b.transposed = s.op_b != CUBLAS_OP_N;
    return g;
}

static const void *moved(const void *p, int64_t elements, cudaDataType type)
{
    int64_t bytes = type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
    return static_cast<const char *>(p) + elements * bytes;
}

/* Matrix i of each side begins i strides further. */
static cublasStatus_t run_strided(cublasHandle_t h, gemm g, int64_t stride_a, int64_t stride_b, int64_t stride_c, int n)
{
    cublasStatus_t code = gemm_check(g);
    if (code != CUBLAS_STATUS_SUCCESS || n < 0)
        return n < 0 ? CUBLAS_STATUS_INVALID_VALUE : code;
    for (int i = 0; i < n; i++) {
        gemm one = g;
        one.a.data = moved(g.a.data, i * stride_a, g.a.type);
        one.b.data = moved(g.b.data, i * stride_b, g.b.type);
        one.c.data = one.d = const_cast<void *>(moved(g.c.data, i * stride_c, g.c.type));
        enqueue(h->stream, g.name, [one] { gemm_run(one); });
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* The arrays of pointers lie in device memory and are read when the work runs. */
static void run_pointers(gemm g, const void *const *as, const void *const *bs, void *const *cs, int n)
{
    size_t bytes = static_cast<size_t>(n) * sizeof(void *);
    for (const void *array :
         {static_cast<const void *>(as), static_cast<const void *>(bs), static_cast<const void *>(cs)}) {
        require_device(array, bytes, "cublasGemmBatchedEx, an array of pointers");
        checker::read_values(array, bytes);
    }
    for (int i = 0; i < n; i++) {
        g.a.data = as[i];
        g.b.data = bs[i];
        g.c.data = g.d = cs[i];
        gemm_run(g);
    }
}

extern "C" {
cublasStatus_t cublasCreate_v2(cublasHandle_t *out)
{
    *out = new cublasContext{nullptr, CUBLAS_DEFAULT_MATH, CUBLAS_POINTER_MODE_HOST, nullptr};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t h)
{
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t stream)
{
    h->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t h, cudaStream_t *out)
{
    *out = h->stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t mode)
{
    h->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t mode)
{
    h->pointers = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t h, void *workspace, size_t bytes)
{
    require_device(workspace, bytes, "cublasSetWorkspace");
    h->workspace = workspace;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int *version)
{
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusName(cublasStatus_t code)
{
    switch (code) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "another cuBLAS status";
    }
}

const char *cublasGetStatusString(cublasStatus_t code)
{
    return cublasGetStatusName(code);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                          int n, int k, const void *alpha, const void *a, cudaDataType a_type, int lda,
                                          long long stride_a, const void *b, cudaDataType b_type, int ldb,
                                          long long stride_b, const void *beta, void *c, cudaDataType c_type, int ldc,
                                          long long stride_c, int n_batches, cublasComputeType_t compute,
                                          cublasGemmAlgo_t)
{
    gemm g = make_gemm(h, "cublasGemmStridedBatchedEx", {op_a, op_b, m, n, k}, alpha, beta, compute,
                       {a, a_type, lda, false}, {b, b_type, ldb, false}, c, c_type, ldc);
    return run_strided(h, g, stride_a, stride_b, stride_c, n_batches);
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType a_type, int lda, const void *b,
                            cudaDataType b_type, int ldb, const void *beta, void *c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t)
{
    gemm g = make_gemm(h, "cublasGemmEx", {op_a, op_b, m, n, k}, alpha, beta, compute, {a, a_type, lda, false},
                       {b, b_type, ldb, false}, c, c_type, ldc);
    return run_strided(h, g, 0, 0, 0, 1);
}

cublasStatus_t cublasGemmBatchedEx(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                                   int k, const void *alpha, const void *const as[], cudaDataType a_type, int lda,
                                   const void *const bs[], cudaDataType b_type, int ldb, const void *beta,
                                   void *const cs[], cudaDataType c_type, int ldc, int n_batches,
                                   cublasComputeType_t compute, cublasGemmAlgo_t)
{
    gemm g = make_gemm(h, "cublasGemmBatchedEx", {op_a, op_b, m, n, k}, alpha, beta, compute,
                       {nullptr, a_type, lda, false}, {nullptr, b_type, ldb, false}, nullptr, c_type, ldc);
    cublasStatus_t code = gemm_check(g);
    if (code == CUBLAS_STATUS_SUCCESS)
        enqueue(h->stream, g.name, [=] { run_pointers(g, as, bs, cs, n_batches); });
    return code;
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                              const float *alpha, const float *a, int lda, const float *b, int ldb, const float *beta,
                              float *c, int ldc)
{
    gemm g = make_gemm(h, "cublasSgemm", {op_a, op_b, m, n, k}, alpha, beta, CUBLAS_COMPUTE_32F,
                       {a, CUDA_R_32F, lda, false}, {b, CUDA_R_32F, ldb, false}, c, CUDA_R_32F, ldc);
    return run_strided(h, g, 0, 0, 0, 1);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                                         int k, const float *alpha, const float *a, int lda, long long stride_a,
                                         const float *b, int ldb, long long stride_b, const float *beta, float *c,
                                         int ldc, long long stride_c, int n_batches)
{
    return cublasGemmStridedBatchedEx(h, op_a, op_b, m, n, k, alpha, a, CUDA_R_32F, lda, stride_a, b, CUDA_R_32F, ldb,
                                      stride_b, beta, c, CUDA_R_32F, ldc, stride_c, n_batches, CUBLAS_COMPUTE_32F,
                                      CUBLAS_GEMM_DEFAULT);
}
}
