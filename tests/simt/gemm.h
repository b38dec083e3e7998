/* The matrix product behind cublas.cpp and cublaslt.cpp: column-major, every sum in double. */
#ifndef KVE_TESTS_SIMT_GEMM_H
#define KVE_TESTS_SIMT_GEMM_H

#include <cublas_v2.h>

#include <stddef.h>
#include <stdint.h>

namespace simt
{
struct gemm_matrix {
    const void *data;
    cudaDataType type;
    int64_t ld;
    bool transposed;
};

/* alpha or beta: a value that was read on the host, or where the device will read it. */
struct gemm_scalar {
    double value;
    const void *device; /* NULL: value counts */
};

enum class activation { none, relu, gelu };

/* d = activation(alpha a b + beta c + bias) */
struct gemm {
    const char *name; /* of the call */
    int64_t m, n, k;
    gemm_matrix a, b, c;
    void *d;
    int64_t ldd;
    cublasComputeType_t compute;
    gemm_scalar alpha, beta;
    activation act;
    const void *bias; /* [m] or NULL */
    cudaDataType bias_type;
};

gemm_scalar host_scalar(const void *p, cublasComputeType_t compute);
/* What the real library would answer to this; a line on stderr says why. */
cublasStatus_t gemm_check(const gemm &g);
/* On the device thread. */
void gemm_run(const gemm &g);
} // namespace simt

#endif
