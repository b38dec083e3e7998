/* cublasLt: descriptors, one algorithm, cublasLtMatmul with bias, ReLU and GELU epilogues. Column order only. */
#include "tests/simt/gemm.h"
#include "tests/simt/memory.h"
#include "tests/simt/stream.h"

#include <cublasLt.h>

#include <new>

using namespace simt;

/* What the opaque descriptors hold. */
struct lt_layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld, stride;
    int32_t n_batches;
};

struct lt_operation {
    cublasComputeType_t compute;
    cudaDataType scale;
    cublasOperation_t op_a, op_b;
    cublasLtPointerMode_t pointers;
    cublasLtEpilogue_t epilogue;
    const void *bias;
    cudaDataType bias_type; /* < 0: that of the result */
};
static_assert(sizeof(lt_layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits");
static_assert(sizeof(lt_operation) <= sizeof(cublasLtMatmulDescOpaque_t), "fits");

static lt_layout &of(cublasLtMatrixLayout_t p)
{
    return *reinterpret_cast<lt_layout *>(p);
}

static lt_operation &of(cublasLtMatmulDesc_t p)
{
    return *reinterpret_cast<lt_operation *>(p);
}

/* Copies an attribute's value if it has the size that it must have. */
template <class T> static cublasStatus_t take(T &to, const void *value, size_t bytes)
{
    if (!value || bytes != sizeof(T))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t not_played(const char *call, int attribute)
{
    fprintf(stderr, "simt: %s: attribute %d is not played here\n", call, attribute);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

static gemm_matrix matrix_of(const void *p, const lt_layout &l, cublasOperation_t op)
{
    return {p, l.type, l.ld, op != CUBLAS_OP_N};
}

static gemm gemm_of(const lt_operation &op, const lt_layout &a, const lt_layout &b, const lt_layout &c,
                    const lt_layout &d)
{
    gemm g = {};
    g.name = "cublasLtMatmul";
    g.m = static_cast<int64_t>(d.rows);
    g.n = static_cast<int64_t>(d.columns);
    g.k = static_cast<int64_t>(op.op_a == CUBLAS_OP_N ? a.columns : a.rows);
    g.a = matrix_of(nullptr, a, op.op_a);
    g.b = matrix_of(nullptr, b, op.op_b);
    g.c = matrix_of(nullptr, c, CUBLAS_OP_N);
    g.ldd = d.ld;
    g.compute = op.compute;
    g.act = op.epilogue & CUBLASLT_EPILOGUE_RELU   ? activation::relu
            : op.epilogue & CUBLASLT_EPILOGUE_GELU ? activation::gelu
                                                   : activation::none;
    g.bias_type = op.bias_type < 0 ? d.type : op.bias_type;
    return g;
}

static cublasStatus_t check(const lt_operation &op, const lt_layout &a, const lt_layout &b, const lt_layout &c,
                            const lt_layout &d)
{
    gemm g = gemm_of(op, a, b, c, d);
    int known = CUBLASLT_EPILOGUE_DEFAULT | CUBLASLT_EPILOGUE_RELU | CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_GELU;
    uint64_t m = op.op_a == CUBLAS_OP_N ? a.rows : a.columns, k = op.op_a == CUBLAS_OP_N ? a.columns : a.rows;
    bool fit = m == d.rows &&
               (op.op_b == CUBLAS_OP_N ? b.rows == k && b.columns == d.columns : b.columns == k && b.rows == d.columns);
    if (!fit || c.rows != d.rows || c.columns != d.columns || c.type != d.type || a.n_batches != d.n_batches ||
        b.n_batches != d.n_batches || c.n_batches != d.n_batches) {
        fprintf(stderr, "simt: cublasLtMatmul: the layouts do not fit each other\n");
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (op.epilogue & ~known || (op.epilogue & CUBLASLT_EPILOGUE_BIAS && !op.bias))
        return op.epilogue & ~known ? not_played("cublasLtMatmul, epilogue", op.epilogue) : CUBLAS_STATUS_INVALID_VALUE;
    return gemm_check(g);
}

static const char *advanced(const void *p, const lt_layout &l, int32_t i)
{
    int64_t bytes = l.type == CUDA_R_64F ? 8 : l.type == CUDA_R_32F ? 4 : 2;
    return static_cast<const char *>(p) + i * l.stride * bytes;
}

extern "C" {
cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    static char context; /* a handle has no state here */
    *out = reinterpret_cast<cublasLtHandle_t>(&context);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld)
{
    *out = new cublasLtMatrixLayoutOpaque_t;
    new (*out) lt_layout{type, rows, columns, ld, 0, 1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return take(of(l).n_batches, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return take(of(l).stride, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return take(of(l).ld, value, bytes);
    default:
        return not_played("cublasLtMatrixLayoutSetAttribute", attribute);
    }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    *out = new cublasLtMatmulDescOpaque_t;
    new (*out) lt_operation{compute,
                            scale,
                            CUBLAS_OP_N,
                            CUBLAS_OP_N,
                            CUBLASLT_POINTER_MODE_HOST,
                            CUBLASLT_EPILOGUE_DEFAULT,
                            nullptr,
                            static_cast<cudaDataType>(-1)};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t op)
{
    delete op;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return take(of(op).op_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return take(of(op).op_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        return take(of(op).pointers, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return take(of(op).epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return take(of(op).bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return take(of(op).bias_type, value, bytes);
    default:
        return not_played("cublasLtMatmulDescSetAttribute", attribute);
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = new cublasLtMatmulPreferenceOpaque_t{};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                    const void *, size_t)
{
    return CUBLAS_STATUS_SUCCESS; /* there is one algorithm, and it needs no workspace */
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int n_wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *n_found)
{
    cublasStatus_t code = check(of(op), of(a), of(b), of(c), of(d));
    *n_found = 0;
    if (n_wanted < 1 || code != CUBLAS_STATUS_SUCCESS)
        return n_wanted < 1 ? CUBLAS_STATUS_INVALID_VALUE : code;
    results[0] = {};
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].wavesCount = 1;
    *n_found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *c, cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream)
{
    const lt_operation &op = of(desc);
    cublasStatus_t code = check(op, of(la), of(lb), of(lc), of(ld));
    if (code != CUBLAS_STATUS_SUCCESS)
        return code;
    require_device(workspace, workspace_bytes, "cublasLtMatmul, the workspace");
    gemm g = gemm_of(op, of(la), of(lb), of(lc), of(ld));
    bool on_host = op.pointers == CUBLASLT_POINTER_MODE_HOST;
    g.alpha = on_host ? host_scalar(alpha, op.compute) : gemm_scalar{0, alpha};
    g.beta = on_host ? host_scalar(beta, op.compute) : gemm_scalar{0, beta};
    g.bias = op.epilogue & CUBLASLT_EPILOGUE_BIAS ? op.bias : nullptr;
    for (int32_t i = 0; i < of(ld).n_batches; i++) {
        g.a.data = advanced(a, of(la), i);
        g.b.data = advanced(b, of(lb), i);
        g.c.data = advanced(c, of(lc), i);
        g.d = const_cast<char *>(advanced(d, of(ld), i));
        enqueue(stream, g.name, [g] { gemm_run(g); });
    }
    return CUBLAS_STATUS_SUCCESS;
}
}
