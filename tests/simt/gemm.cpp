/* The matrix product. See gemm.h. Reads and writes exactly what a real one may, and tells the checker so. */
#include "tests/simt/gemm.h"
#include "tests/simt/checker.h"
#include "tests/simt/memory.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

namespace simt
{
static size_t element_bytes(cudaDataType type)
{
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

static double element(const void *p, cudaDataType type, int64_t i)
{
    switch (type) {
    case CUDA_R_64F:
        return static_cast<const double *>(p)[i];
    case CUDA_R_32F:
        return static_cast<double>(static_cast<const float *>(p)[i]);
    case CUDA_R_16BF:
        return static_cast<double>(__bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]));
    default:
        return static_cast<double>(__half2float(static_cast<const __half *>(p)[i]));
    }
}

static void set_element(void *p, cudaDataType type, int64_t i, double v)
{
    switch (type) {
    case CUDA_R_64F:
        static_cast<double *>(p)[i] = v;
        break;
    case CUDA_R_32F:
        static_cast<float *>(p)[i] = static_cast<float>(v);
        break;
    case CUDA_R_16BF:
        static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16_rn(static_cast<float>(v));
        break;
    default:
        static_cast<__half *>(p)[i] = __float2half_rn(static_cast<float>(v));
    }
}

/* Ten bits of mantissa, nearest, ties away: what tensor cores make of fp32 where the caller allows it. */
static double to_tf32(double v)
{
    uint32_t bits = from_bits<uint32_t>(to_bits(static_cast<float>(v)));
    if ((bits & 0x7f800000u) != 0x7f800000u)
        bits = (bits + 0x1000u) & ~0x1fffu;
    return static_cast<double>(from_bits<float>(bits));
}

gemm_scalar host_scalar(const void *p, cublasComputeType_t compute)
{
    bool wide = compute == CUBLAS_COMPUTE_64F;
    return {wide ? *static_cast<const double *>(p) : static_cast<double>(*static_cast<const float *>(p)), nullptr};
}

static cublasStatus_t refuse_gemm(cublasStatus_t code, const gemm &g, const char *why)
{
    fprintf(
        stderr,
        "simt: %s of %lld x %lld x %lld: %s (lda %lld, ldb %lld, ldc %lld, ldd %lld; types %d, %d, %d; compute %d)\n",
        g.name, static_cast<long long>(g.m), static_cast<long long>(g.n), static_cast<long long>(g.k), why,
        static_cast<long long>(g.a.ld), static_cast<long long>(g.b.ld), static_cast<long long>(g.c.ld),
        static_cast<long long>(g.ldd), g.a.type, g.b.type, g.c.type, g.compute);
    return code;
}

/* The combinations of types that this project may want, out of those that exist. */
static bool types_exist(const gemm &g)
{
    cudaDataType in = g.a.type, out = g.c.type;
    if (in != g.b.type)
        return false;
    if (g.compute == CUBLAS_COMPUTE_64F)
        return in == CUDA_R_64F && out == CUDA_R_64F;
    if (in == CUDA_R_32F)
        return out == CUDA_R_32F && (g.compute == CUBLAS_COMPUTE_32F || g.compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                                     g.compute == CUBLAS_COMPUTE_32F_FAST_TF32);
    return (in == CUDA_R_16BF || in == CUDA_R_16F) && (out == in || out == CUDA_R_32F) &&
           (g.compute == CUBLAS_COMPUTE_32F || g.compute == CUBLAS_COMPUTE_32F_PEDANTIC);
}

cublasStatus_t gemm_check(const gemm &g)
{
    if (g.m < 0 || g.n < 0 || g.k < 0)
        return refuse_gemm(CUBLAS_STATUS_INVALID_VALUE, g, "a size is negative");
    if (g.a.ld < (g.a.transposed ? g.k : g.m) || g.a.ld < 1)
        return refuse_gemm(CUBLAS_STATUS_INVALID_VALUE, g, "the leading dimension of A is less than its rows");
    if (g.b.ld < (g.b.transposed ? g.n : g.k) || g.b.ld < 1)
        return refuse_gemm(CUBLAS_STATUS_INVALID_VALUE, g, "the leading dimension of B is less than its rows");
    if (g.c.ld < g.m || g.ldd < g.m || g.c.ld < 1)
        return refuse_gemm(CUBLAS_STATUS_INVALID_VALUE, g, "the leading dimension of the result is less than its rows");
    if (!types_exist(g))
        return refuse_gemm(CUBLAS_STATUS_NOT_SUPPORTED, g, "this combination of types is not played here");
    return CUBLAS_STATUS_SUCCESS;
}

/* --- Running */

/* Columns of rows elements, ld apart: one range to the outside, one per column for the checker. */
static void require_matrix(const gemm &g, const char *which, const void *p, cudaDataType type, int64_t rows,
                           int64_t columns, int64_t ld)
{
    char what[100];
    if (rows == 0 || columns == 0)
        return;
    snprintf(what, sizeof what, "%s, matrix %s", g.name, which);
    require_device(p,
                   (static_cast<size_t>(columns - 1) * static_cast<size_t>(ld) + static_cast<size_t>(rows)) *
                       element_bytes(type),
                   what);
    if (reinterpret_cast<uintptr_t>(p) % element_bytes(type) != 0)
        fault("%s: %p is no multiple of its element's %zu bytes", what, p, element_bytes(type));
}

static size_t column_offset(int64_t column, int64_t ld, cudaDataType type)
{
    return static_cast<size_t>(column) * static_cast<size_t>(ld) * element_bytes(type);
}

static void note_read(const void *p, cudaDataType type, int64_t rows, int64_t columns, int64_t ld)
{
    for (int64_t j = 0; j < columns; j++)
        checker::read_values(static_cast<const char *>(p) + column_offset(j, ld, type),
                             static_cast<size_t>(rows) * element_bytes(type));
}

static void note_write(void *p, cudaDataType type, int64_t rows, int64_t columns, int64_t ld)
{
    for (int64_t j = 0; j < columns; j++)
        checker::write_values(static_cast<char *>(p) + column_offset(j, ld, type),
                              static_cast<size_t>(rows) * element_bytes(type));
}

/* op(x) with the K axis fastest: n vectors of k. `k_is_column`: that axis runs along the columns of what is stored. */
static std::vector<double> pack(const gemm &g, const gemm_matrix &x, int64_t n, bool k_is_column, const char *which)
{
    int64_t rows = k_is_column ? n : g.k, columns = k_is_column ? g.k : n;
    bool rounded = g.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    require_matrix(g, which, x.data, x.type, rows, columns, x.ld);
    note_read(x.data, x.type, rows, columns, x.ld);
    std::vector<double> packed(static_cast<size_t>(n) * static_cast<size_t>(g.k));
    for (int64_t i = 0; i < n; i++)
        for (int64_t p = 0; p < g.k; p++) {
            double v = element(x.data, x.type, k_is_column ? i + p * x.ld : p + i * x.ld);
            packed[static_cast<size_t>(i * g.k + p)] = rounded ? to_tf32(v) : v;
        }
    return packed;
}

static double dot(const double *a, const double *b, int64_t k)
{
    double sums[8] = {}, total = 0;
    int64_t p = 0;
    for (; p + 8 <= k; p += 8)
        for (int i = 0; i < 8; i++)
            sums[i] += a[p + i] * b[p + i];
    for (; p < k; p++)
        total += a[p] * b[p];
    for (double s : sums)
        total += s;
    return total;
}

static double scalar(const gemm &g, const gemm_scalar &s)
{
    if (!s.device)
        return s.value;
    cudaDataType type = g.compute == CUBLAS_COMPUTE_64F ? CUDA_R_64F : CUDA_R_32F;
    require_matrix(g, "alpha or beta", s.device, type, 1, 1, 1);
    note_read(s.device, type, 1, 1, 1);
    return element(s.device, type, 0);
}

static double activate(activation act, double x)
{
    switch (act) {
    case activation::relu:
        return x > 0 ? x : 0;
    case activation::gelu:
        return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    default:
        return x;
    }
}

void gemm_run(const gemm &g)
{
    if (g.m == 0 || g.n == 0)
        return;
    double alpha = scalar(g, g.alpha), beta = scalar(g, g.beta);
    std::vector<double> a = pack(g, g.a, g.m, !g.a.transposed, "A"), b = pack(g, g.b, g.n, g.b.transposed, "B");
    require_matrix(g, "of the result", g.d, g.c.type, g.m, g.n, g.ldd);
    if (beta != 0) { /* what beta = 0 multiplies is not read: it may be NaN */
        require_matrix(g, "C", g.c.data, g.c.type, g.m, g.n, g.c.ld);
        note_read(g.c.data, g.c.type, g.m, g.n, g.c.ld);
    }
    if (g.bias) {
        require_matrix(g, "of the bias", g.bias, g.bias_type, g.m, 1, g.m);
        note_read(g.bias, g.bias_type, g.m, 1, g.m);
    }
    for (int64_t j = 0; j < g.n; j++)
        for (int64_t i = 0; i < g.m; i++) {
            double x = alpha * dot(a.data() + i * g.k, b.data() + j * g.k, g.k);
            if (beta != 0)
                x += beta * element(g.c.data, g.c.type, i + j * g.c.ld);
            if (g.bias)
                x += element(g.bias, g.bias_type, i);
            set_element(g.d, g.c.type, i + j * g.ldd, activate(g.act, x));
        }
    note_write(g.d, g.c.type, g.m, g.n, g.ldd);
}
} // namespace simt
