/* cuBLAS and cublasLt stand-ins against a triple loop. */
#include "tests/simt/test.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_fp16.h>

#include <math.h>

static float to_float(float v)
{
    return v;
}

static float to_float(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}

static float to_float(__half v)
{
    return __half2float(v);
}

template <class T> static std::vector<T> numbers(size_t n)
{
    std::vector<T> v(n);
    for (T &x : v)
        x = static_cast<T>(static_cast<float>(test_random(17) - 8) / 4.0f);
    return v;
}

struct sizes {
    int m, n, k, lda, ldb, ldc;
    bool transpose_a, transpose_b;
};

/* C of the column-major product, where C was 1 everywhere: alpha 2, beta 3. */
template <class T> static double want(const std::vector<T> &a, const std::vector<T> &b, const sizes &s, int i, int j)
{
    double sum = 0;
    for (int p = 0; p < s.k; p++) {
        int at_a = s.transpose_a ? p + i * s.lda : i + p * s.lda, at_b = s.transpose_b ? j + p * s.ldb : p + j * s.ldb;
        sum += static_cast<double>(to_float(a[static_cast<size_t>(at_a)])) *
               static_cast<double>(to_float(b[static_cast<size_t>(at_b)]));
    }
    return 2 * sum + 3;
}

template <class T> static void test_gemm(cublasHandle_t blas, cudaDataType type, const sizes &s)
{
    const float alpha = 2, beta = 3;
    std::vector<T> a = numbers<T>(static_cast<size_t>(s.lda * (s.transpose_a ? s.m : s.k)));
    std::vector<T> b = numbers<T>(static_cast<size_t>(s.ldb * (s.transpose_b ? s.k : s.n)));
    device_array<T> da(a), db(b);
    device_array<float> dc(std::vector<float>(static_cast<size_t>(s.ldc * s.n), 1));
    CHECK(cublasGemmEx(blas, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, s.m,
                       s.n, s.k, &alpha, da.p, type, s.lda, db.p, type, s.ldb, &beta, dc.p, CUDA_R_32F, s.ldc,
                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
    std::vector<float> got = dc.values();
    for (int j = 0; j < s.n; j++)
        for (int i = 0; i < s.ldc; i++) {
            double expected = i < s.m ? want(a, b, s, i, j) : 1; /* between the columns nothing is written */
            CHECK(static_cast<double>(got[static_cast<size_t>(i + j * s.ldc)]) == expected);
        }
}

/* What a caller may get wrong, and what the library says. */
static void test_refusals(cublasHandle_t blas)
{
    const float one = 1, zero = 0;
    device_array<float> x(64);
    auto call = [&](int lda, int ldb, int ldc, cudaDataType type_b) {
        return cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, 4, 3, 5, &one, x.p, CUDA_R_32F, lda, x.p, type_b, ldb,
                            &zero, x.p, CUDA_R_32F, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    };
    CHECK(call(4, 5, 4, CUDA_R_32F) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(call(5, 4, 4, CUDA_R_32F) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(call(5, 5, 3, CUDA_R_32F) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(call(5, 5, 4, CUDA_R_16BF) == CUBLAS_STATUS_NOT_SUPPORTED);
}

/* beta = 0: what is in C, NaN here, must not get into the result; k = 0: the result is beta C. */
static void test_edges(cublasHandle_t blas)
{
    const float one = 1, zero = 0, two = 2;
    device_array<float> a(std::vector<float>{1, 2}), b(std::vector<float>{3, 4}), c(std::vector<float>{NAN});
    CHECK(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 2, &one, a.p, 1, b.p, 2, &zero, c.p, 1) ==
          CUBLAS_STATUS_SUCCESS);
    CHECK(c.values()[0] == 11.0f);
    CHECK(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 0, &one, a.p, 1, b.p, 1, &two, c.p, 1) ==
          CUBLAS_STATUS_SUCCESS);
    CHECK(c.values()[0] == 22.0f);
    /* with TF32 allowed, 1 + 2^-11 becomes 1 + 2^-10 */
    device_array<float> fine(std::vector<float>{1.00048828125f}), unit(std::vector<float>{1});
    CHECK(cublasSetMathMode(blas, CUBLAS_TF32_TENSOR_OP_MATH) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, fine.p, 1, unit.p, 1, &zero, c.p, 1) ==
          CUBLAS_STATUS_SUCCESS);
    CHECK(c.values()[0] == 1.0009765625f);
    CHECK(cublasSetMathMode(blas, CUBLAS_DEFAULT_MATH) == CUBLAS_STATUS_SUCCESS);
}

static void test_batches(cublasHandle_t blas)
{
    const float one = 1, zero = 0;
    device_array<float> a(std::vector<float>{1, 2, 3}), b(std::vector<float>{4, 5, 6}), c(3);
    CHECK(cublasSgemmStridedBatched(blas, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a.p, 1, 1, b.p, 1, 1, &zero, c.p, 1,
                                    1, 3) == CUBLAS_STATUS_SUCCESS);
    CHECK(c.values() == (std::vector<float>{4, 10, 18}));
    device_array<const void *> as(std::vector<const void *>{a.p, a.p + 2}), bs(std::vector<const void *>{b.p + 1, b.p});
    device_array<void *> cs(std::vector<void *>{c.p + 2, c.p});
    CHECK(cublasGemmBatchedEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, as.p, CUDA_R_32F, 1, bs.p, CUDA_R_32F, 1,
                              &zero, cs.p, CUDA_R_32F, 1, 2, CUBLAS_COMPUTE_32F,
                              CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
    CHECK(c.values() == (std::vector<float>{12, 10, 5}));
}

/* relu(A^T B + bias), bf16 in and out */
static void test_lt()
{
    const float one = 1, zero = 0;
    cublasLtHandle_t lt = nullptr;
    cublasLtMatmulDesc_t op = nullptr;
    cublasLtMatrixLayout_t la = nullptr, lb = nullptr, lc = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulHeuristicResult_t result;
    cublasOperation_t transpose = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
    int n_found = 0;
    using bf16 = __nv_bfloat16;
    sizes s = {3, 4, 5, 6, 5, 3, true, false};
    std::vector<bf16> a = numbers<bf16>(18), b = numbers<bf16>(20), bias = numbers<bf16>(3);
    device_array<bf16> da(a), db(b), dbias(bias), dc(12);
    CHECK(cublasLtCreate(&lt) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose) ==
          CUBLAS_STATUS_SUCCESS);
    CHECK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) ==
          CUBLAS_STATUS_SUCCESS);
    CHECK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &dbias.p, sizeof dbias.p) ==
          CUBLAS_STATUS_SUCCESS);
    CHECK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, 1) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasLtMatrixLayoutCreate(&la, CUDA_R_16BF, 5, 3, 6) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasLtMatrixLayoutCreate(&lb, CUDA_R_16BF, 5, 4, 5) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasLtMatrixLayoutCreate(&lc, CUDA_R_16BF, 3, 4, 3) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasLtMatmulAlgoGetHeuristic(lt, op, la, lb, lc, lc, preference, 1, &result, &n_found) ==
          CUBLAS_STATUS_SUCCESS);
    CHECK(n_found == 1 && result.workspaceSize == 0);
    CHECK(cublasLtMatmul(lt, op, &one, da.p, la, db.p, lb, &zero, dc.p, lc, dc.p, lc, &result.algo, nullptr, 0,
                         nullptr) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasLtMatmul(lt, op, &one, da.p, lb, db.p, la, &zero, dc.p, lc, dc.p, lc, &result.algo, nullptr, 0,
                         nullptr) == CUBLAS_STATUS_INVALID_VALUE);
    std::vector<bf16> got = dc.values();
    for (int j = 0; j < s.n; j++)
        for (int i = 0; i < s.m; i++) {
            double sum = (want(a, b, s, i, j) - 3) / 2 + static_cast<double>(to_float(bias[static_cast<size_t>(i)]));
            CHECK(to_float(got[static_cast<size_t>(i + j * 3)]) ==
                  to_float(__float2bfloat16(static_cast<float>(fmax(sum, 0)))));
        }
    cublasLtMatmulPreferenceDestroy(preference), cublasLtMatmulDescDestroy(op), cublasLtDestroy(lt);
    cublasLtMatrixLayoutDestroy(la), cublasLtMatrixLayoutDestroy(lb), cublasLtMatrixLayoutDestroy(lc);
}

void run_tests()
{
    cublasHandle_t blas = nullptr;
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cublasCreate(&blas) == CUBLAS_STATUS_SUCCESS && cublasSetStream(blas, stream) == CUBLAS_STATUS_SUCCESS);
    for (bool transpose_a : {false, true})
        for (bool transpose_b : {false, true}) {
            sizes s = {5, 6, 19, transpose_a ? 21 : 7, transpose_b ? 6 : 20, 8, transpose_a, transpose_b};
            test_gemm<float>(blas, CUDA_R_32F, s);
            test_gemm<__nv_bfloat16>(blas, CUDA_R_16BF, s);
            test_gemm<__half>(blas, CUDA_R_16F, s);
        }
    test_refusals(blas);
    test_edges(blas);
    test_batches(blas);
    test_lt();
    CHECK(cublasDestroy(blas) == CUBLAS_STATUS_SUCCESS && cudaStreamDestroy(stream) == cudaSuccess);
}
