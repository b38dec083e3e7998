/* Mistakes of host code: what it gives to kernels, copies and cuBLAS, and what it does not wait for. See mutants.cu. */
#include "tests/simt/mutants.h"

#include <cublas_v2.h>

#include <string.h>

enum { N = 64 };

static __global__ void copy_kernel(const float *x, float *out)
{
    out[threadIdx.x] = x[threadIdx.x];
}

static __global__ void set_kernel(float *out, float value)
{
    out[threadIdx.x] = value;
}

static bool all_equal(const device_array<float> &a, float want)
{
    std::vector<float> got = a.values();
    return std::all_of(got.begin(), got.end(), [want](float v) { return v == want; });
}

/* --- Pointers */

template <bool wrong> static bool run_host_pointer()
{
    std::vector<float> host(N, 3);
    device_array<float> x(host), out(size_t{N});
    KVE_LAUNCH(copy_kernel, 1, N, 0, nullptr, wrong ? host.data() : x.p, out.p);
    return all_equal(out, 3);
}

template <bool wrong> static bool run_device_pointer()
{
    std::vector<float> host(N, 3);
    device_array<float> x(host);
    const volatile float *p = wrong ? x.p : host.data();
    return p[1] == 3.0f;
}

template <bool wrong> static bool run_use_after_free()
{
    float *x = nullptr;
    device_array<float> out(size_t{N});
    CHECK(cudaMalloc(&x, N * sizeof(float)) == cudaSuccess);
    KVE_LAUNCH(set_kernel, 1, N, 0, nullptr, x, 3.0f);
    if (wrong)
        (void)cudaFree(x);
    KVE_LAUNCH(copy_kernel, 1, N, 0, nullptr, x, out.p);
    bool ok = all_equal(out, 3);
    if (!wrong)
        (void)cudaFree(x);
    return ok;
}

template <bool wrong> static bool run_copy_size()
{
    std::vector<float> host(N + 1, 3);
    device_array<float> x(size_t{N});
    CHECK(cudaMemcpy(x.p, host.data(), (N + (wrong ? 1 : 0)) * sizeof(float), cudaMemcpyHostToDevice) == cudaSuccess);
    return all_equal(x, 3);
}

template <bool wrong> static bool run_copy_direction()
{
    std::vector<float> host(N, 3);
    device_array<float> x(host), out(size_t{N});
    CHECK(cudaMemcpy(out.p, x.p, N * sizeof(float), wrong ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice) ==
          cudaSuccess);
    return all_equal(out, 3);
}

/* --- Order */

struct two_streams {
    cudaStream_t a = nullptr, b = nullptr;
    cudaEvent_t event = nullptr;
    two_streams()
    {
        CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking) == cudaSuccess);
        CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking) == cudaSuccess);
        CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    }
    ~two_streams()
    {
        (void)cudaEventDestroy(event);
        (void)cudaStreamDestroy(a);
        (void)cudaStreamDestroy(b);
    }
};

/* One stream sets what the other copies. */
template <bool wrong> static bool run_stream_wait()
{
    device_array<float> x(std::vector<float>(N, 1)), out(size_t{N});
    two_streams s;
    KVE_LAUNCH(set_kernel, 1, N, 0, s.a, x.p, 3.0f);
    (void)cudaEventRecord(s.event, s.a);
    if (!wrong)
        (void)cudaStreamWaitEvent(s.b, s.event, 0);
    KVE_LAUNCH(copy_kernel, 1, N, 0, s.b, x.p, out.p);
    return all_equal(out, 3);
}

/* Pinned memory is read before the copy into it is waited for. */
template <bool wrong> static bool run_read_too_early()
{
    device_array<float> x(std::vector<float>(N, 3));
    two_streams s;
    float *host = nullptr;
    CHECK(cudaMallocHost(&host, N * sizeof(float)) == cudaSuccess);
    (void)cudaMemcpyAsync(host, x.p, N * sizeof(float), cudaMemcpyDeviceToHost, s.a);
    if (!wrong)
        (void)cudaStreamSynchronize(s.a);
    bool ok = host[5] == 3.0f;
    (void)cudaFreeHost(host);
    return ok;
}

/* --- cuBLAS: row-major y [T][M] = x [T][K] W^T with W [M][K] */

template <bool wrong, int ld_more> static bool run_gemm()
{
    enum { T = 3, M = 4, K = 5 };
    const float one = 1, zero = 0;
    std::vector<float> y(T * M);
    device_array<float> x(std::vector<float>(T * K, 2)), w(std::vector<float>(M * K, 3)), out(size_t{T * M});
    cublasHandle_t blas = nullptr;
    CHECK(cublasCreate(&blas) == CUBLAS_STATUS_SUCCESS);
    cublasStatus_t code =
        cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, M, T, K, &one, w.p, CUDA_R_32F, K, x.p, CUDA_R_32F,
                     K + (wrong ? ld_more : 0), &zero, out.p, CUDA_R_32F, M, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    CHECK(cublasDestroy(blas) == CUBLAS_STATUS_SUCCESS);
    return code == CUBLAS_STATUS_SUCCESS && all_equal(out, 2 * 3 * K);
}

template <bool wrong> static bool run_gemm_ld_small()
{
    return run_gemm<wrong, -1>();
}

template <bool wrong> static bool run_gemm_ld_large()
{
    return run_gemm<wrong, 1>();
}

#define ENTRY(name)                                                                                                    \
    {                                                                                                                  \
#name, run_##name < true>, run_##name < false>                                                                 \
    }
const std::vector<mutant> &host_mutants()
{
    static const std::vector<mutant> all = {
        ENTRY(host_pointer), ENTRY(device_pointer), ENTRY(use_after_free), ENTRY(copy_size),     ENTRY(copy_direction),
        ENTRY(stream_wait),  ENTRY(read_too_early), ENTRY(gemm_ld_small),  ENTRY(gemm_ld_large),
    };
    return all;
}
