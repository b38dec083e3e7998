/* The stand-ins for the CUDA runtime: order of streams and events, copies, graphs, limits and codes; NVTX runs with no
 * tool attached. */
#include "tests/simt/test.h"

#include <nvtx3/nvToolsExt.h>

#include <string.h>

enum { N = 256 };

static __global__ void scale_kernel(float *x, int n, float by)
{
    int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        x[i] *= by;
}

static __global__ void add_kernel(float *out, const float *x, const float *y, int n)
{
    int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        out[i] = x[i] + y[i];
}

static std::vector<float> ramp()
{
    std::vector<float> v(N);
    for (int i = 0; i < N; i++)
        v[static_cast<size_t>(i)] = static_cast<float>(i);
    return v;
}

/* Two streams that meet through an event, with pinned memory on both ends. */
static void test_streams()
{
    cudaStream_t first = nullptr, second = nullptr;
    cudaEvent_t scaled = nullptr, begin = nullptr, end = nullptr;
    float *in = nullptr, *out = nullptr, milliseconds = -1;
    device_array<float> x(size_t{N}), y(ramp()), sum(size_t{N});
    CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&scaled, cudaEventDisableTiming) == cudaSuccess);
    CHECK(cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess);
    CHECK(cudaMallocHost(&in, N * sizeof(float)) == cudaSuccess &&
          cudaMallocHost(&out, N * sizeof(float)) == cudaSuccess);
    memcpy(in, ramp().data(), N * sizeof(float));
    cudaEventRecord(begin, first);
    cudaMemcpyAsync(x.p, in, N * sizeof(float), cudaMemcpyHostToDevice, first);
    KVE_LAUNCH(scale_kernel, 2, N / 2, 0, first, x.p, static_cast<int>(N), 2.0f);
    cudaEventRecord(scaled, first);
    cudaEventRecord(end, first);
    CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaErrorNotReady);
    cudaStreamWaitEvent(second, scaled, 0);
    KVE_LAUNCH(add_kernel, 2, N / 2, 0, second, sum.p, x.p, y.p, static_cast<int>(N));
    cudaMemcpyAsync(out, sum.p, N * sizeof(float), cudaMemcpyDeviceToHost, second);
    CHECK(cudaStreamSynchronize(second) == cudaSuccess);
    for (int i = 0; i < N; i++)
        CHECK(out[i] == 3.0f * static_cast<float>(i));
    CHECK(cudaEventSynchronize(end) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess && milliseconds >= 0);
    CHECK(cudaEventElapsedTime(&milliseconds, begin, scaled) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamQuery(first) == cudaSuccess && cudaEventQuery(end) == cudaSuccess);
    cudaEventDestroy(scaled), cudaEventDestroy(begin), cudaEventDestroy(end);
    CHECK(cudaStreamDestroy(first) == cudaSuccess && cudaStreamDestroy(second) == cudaSuccess);
    CHECK(cudaFreeHost(in) == cudaSuccess && cudaFreeHost(out) == cudaSuccess);
}

static void test_copies()
{
    std::vector<float> host = ramp(), back(N, -1);
    device_array<float> x(size_t{N}), plane(size_t{N});
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreate(&stream) == cudaSuccess);
    cudaMemcpyAsync(x.p, host.data(), N * sizeof(float), cudaMemcpyHostToDevice, stream);
    host.assign(N, 0); /* a copy from pageable memory has taken it already */
    cudaMemcpyAsync(back.data(), x.p, N * sizeof(float), cudaMemcpyDeviceToHost, stream);
    CHECK(back == ramp()); /* and one to pageable memory has waited */
    CHECK(cudaMemsetAsync(plane.p, 0, N * sizeof(float), stream) == cudaSuccess);
    CHECK(cudaMemcpy2DAsync(plane.p, 32 * sizeof(float), x.p, 16 * sizeof(float), 4 * sizeof(float), 8,
                            cudaMemcpyDeviceToDevice, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    std::vector<float> got = plane.values();
    for (size_t i = 0; i < N; i++)
        CHECK(got[i] == (i % 32 < 4 ? static_cast<float>(i / 32 * 16 + i % 32) : 0.0f));
    CHECK(cudaMemcpy2D(plane.p, 1, x.p, 4, 4, 8, cudaMemcpyDeviceToDevice) == cudaErrorInvalidPitchValue);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    CHECK(cudaGetLastError() == cudaErrorInvalidPitchValue && cudaGetLastError() == cudaSuccess);
}

/* The default stream waits for blocking streams and they for it. */
static void test_default_stream()
{
    device_array<float> x(ramp());
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreate(&stream) == cudaSuccess);
    KVE_LAUNCH(scale_kernel, 1, N, 0, stream, x.p, static_cast<int>(N), 2.0f);
    KVE_LAUNCH(add_kernel, 1, N, 0, nullptr, x.p, x.p, x.p, static_cast<int>(N));
    KVE_LAUNCH(scale_kernel, 1, N, 0, stream, x.p, static_cast<int>(N), 3.0f);
    std::vector<float> got = x.values();
    CHECK(got[5] == 60.0f);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

static void test_graphs()
{
    device_array<float> x(ramp());
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    cudaStreamCaptureStatus status;
    size_t n_nodes = 0;
    CHECK(cudaStreamCreate(&stream) == cudaSuccess);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    for (float by : {2.0f, 0.5f, 3.0f})
        KVE_LAUNCH(scale_kernel, 1, N, 0, stream, x.p, static_cast<int>(N), by);
    CHECK(cudaStreamIsCapturing(stream, &status) == cudaSuccess && status == cudaStreamCaptureStatusActive);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    CHECK(x.values() == ramp()); /* a capture runs nothing */
    CHECK(cudaGraphGetNodes(graph, nullptr, &n_nodes) == cudaSuccess && n_nodes == 3);
    CHECK(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess && cudaGraphDestroy(graph) == cudaSuccess);
    for (int i = 0; i < 2; i++)
        CHECK(cudaGraphLaunch(ready, stream) == cudaSuccess);
    CHECK(cudaGraphExecDestroy(ready) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess && x.values()[7] == 63.0f);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorStreamCaptureUnsupported); /* which spoils the capture */
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated && !graph);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    (void)cudaGetLastError();
}

static __global__ void dynamic_kernel(float *out)
{
    KVE_DYN_SHARED(float, memory);
    memory[0] = 4;
    out[0] = memory[0];
}

static void test_limits()
{
    device_array<float> out(1);
    cudaDeviceProp device;
    void *p = nullptr;
    int n = 0;
    CHECK(cudaGetDeviceProperties(&device, 0) == cudaSuccess && device.warpSize == 32);
    CHECK(cudaMalloc(&p, device.totalGlobalMem + 1) == cudaErrorMemoryAllocation && !p);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
    KVE_LAUNCH(dynamic_kernel, 1, 1, 64 << 10, nullptr, out.p);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue); /* 48 KiB are the limit until the kernel asks for more */
    CHECK(cudaFuncSetAttribute(dynamic_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10) == cudaSuccess);
    KVE_LAUNCH(dynamic_kernel, 1, 1, 64 << 10, nullptr, out.p);
    CHECK(cudaGetLastError() == cudaSuccess && out.values()[0] == 4.0f);
    KVE_LAUNCH(dynamic_kernel, 1, 1025, 4, nullptr, out.p);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    KVE_LAUNCH(dynamic_kernel, 0, 1, 4, nullptr, out.p);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, dynamic_kernel, 256, 32 << 10) == cudaSuccess && n == 6);
    CHECK(cudaFree(&n) == cudaErrorInvalidValue); /* no pointer of cudaMalloc's */
    (void)cudaGetLastError();
}

void run_tests()
{
    nvtxRangePushA("the tests"); /* loads no tool, does nothing, and must link */
    test_streams();
    test_copies();
    test_default_stream();
    test_graphs();
    test_limits();
    nvtxRangePop();
}
