/* The device that is played, the limits of a launch, error codes, function attributes. Its properties are those of a
 * small sm_80: few processors, so that grids cut to the device stay small here. */
#include "tests/simt/block.h"
#include "tests/simt/memory.h"
#include "tests/simt/stream.h"

#include <cuda_profiler_api.h>
#include <string.h>

#include <map>

namespace simt
{
enum {
    N_PROCESSORS = 4,
    DEFAULT_DYNAMIC_SHARED = 48 << 10,
    SHARED_OF_PROCESSOR = 228 << 10,
    THREADS_OF_PROCESSOR = 2048
};

static cudaError_t last_error = cudaSuccess;
static std::map<const void *, int> max_dynamic_shared; /* kernels that asked for more or less than the default */

cudaError_t set_last_error(cudaError_t code)
{
    if (code != cudaSuccess)
        last_error = code;
    return code;
}

static size_t dynamic_shared_limit(const void *function)
{
    auto found = max_dynamic_shared.find(function);
    return found == max_dynamic_shared.end() ? static_cast<size_t>(DEFAULT_DYNAMIC_SHARED)
                                             : static_cast<size_t>(found->second);
}

cudaError_t check_launch(const kernel_call &call)
{
    const dim3 &g = call.grid, &b = call.block;
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > INT32_MAX || g.y > UINT16_MAX || g.z > UINT16_MAX)
        return refuse(cudaErrorInvalidConfiguration, "kernel %s: a grid of %u x %u x %u", call.name, g.x, g.y, g.z);
    if (b.x == 0 || b.y == 0 || b.z == 0 || b.x > MAX_THREADS || b.y > MAX_THREADS || b.z > 64 ||
        size_t{b.x} * b.y * b.z > MAX_THREADS)
        return refuse(cudaErrorInvalidConfiguration, "kernel %s: a block of %u x %u x %u", call.name, b.x, b.y, b.z);
    if (call.shared_bytes > dynamic_shared_limit(call.function))
        return refuse(cudaErrorInvalidValue, "kernel %s: %zu bytes of dynamic shared memory; its limit is %zu",
                      call.name, call.shared_bytes, dynamic_shared_limit(call.function));
    return cudaSuccess;
}

void enqueue_kernel(const kernel_call &call, cudaStream_t stream)
{
    if (check_launch(call) == cudaSuccess)
        enqueue(stream, call.name, [call] { run_kernel(call); });
}
} // namespace simt

using namespace simt;

extern "C" {
cudaError_t cudaProfilerStart() /* nobody looks */
{
    return cudaSuccess;
}

cudaError_t cudaProfilerStop()
{
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : refuse(cudaErrorInvalidDevice, "device %d; there is device 0 only", device);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
    *p = {};
    strcpy(p->name, "host CPU (tests/simt)");
    p->totalGlobalMem = DEVICE_BYTES;
    p->sharedMemPerBlock = DEFAULT_DYNAMIC_SHARED;
    p->sharedMemPerBlockOptin = MAX_DYNAMIC_SHARED;
    p->sharedMemPerMultiprocessor = SHARED_OF_PROCESSOR;
    p->reservedSharedMemPerBlock = 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = WARP_LANES;
    p->maxThreadsPerBlock = MAX_THREADS;
    p->maxThreadsPerMultiProcessor = THREADS_OF_PROCESSOR;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = MAX_THREADS;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = INT32_MAX;
    p->maxGridSize[1] = p->maxGridSize[2] = UINT16_MAX;
    p->major = 8;
    p->multiProcessorCount = N_PROCESSORS;
    p->maxBlocksPerMultiProcessor = 32;
    p->l2CacheSize = 4 << 20;
    p->memoryBusWidth = 64;
    p->concurrentKernels = p->asyncEngineCount = p->unifiedAddressing = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, device);
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = static_cast<int>(p.sharedMemPerBlockOptin);
        return cudaSuccess;
    default:
        return refuse(cudaErrorNotSupported, "cudaDeviceGetAttribute of attribute %d", static_cast<int>(attribute));
    }
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    return cudaRuntimeGetVersion(version);
}

cudaError_t cudaGetLastError()
{
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

cudaError_t cudaPeekAtLastError()
{
    return last_error;
}

const char *cudaGetErrorName(cudaError_t code)
{
    switch (code) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorInvalidValue:
        return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
        return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidResourceHandle:
        return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
        return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported:
        return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
        return "cudaErrorStreamCaptureInvalidated";
    default:
        return "another CUDA error";
    }
}

const char *cudaGetErrorString(cudaError_t code)
{
    return cudaGetErrorName(code);
}

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute, int value)
{
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess; /* hints */
    if (value < 0 || value > MAX_DYNAMIC_SHARED)
        return refuse(cudaErrorInvalidValue, "%d bytes of dynamic shared memory; at most %d are possible", value,
                      static_cast<int>(MAX_DYNAMIC_SHARED));
    max_dynamic_shared[function] = value;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *function)
{
    *out = {};
    out->maxThreadsPerBlock = MAX_THREADS;
    out->maxDynamicSharedSizeBytes = static_cast<int>(dynamic_shared_limit(function));
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n_blocks, const void *function, int block_size,
                                                          size_t shared_bytes)
{
    if (block_size < 1 || block_size > MAX_THREADS || shared_bytes > dynamic_shared_limit(function))
        return refuse(cudaErrorInvalidValue, "occupancy of a block of %d threads and %zu bytes", block_size,
                      shared_bytes);
    int by_threads = THREADS_OF_PROCESSOR / block_size;
    int by_shared = static_cast<int>(SHARED_OF_PROCESSOR / (shared_bytes + 1024));
    *n_blocks = by_threads < by_shared ? by_threads : by_shared;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n_blocks, const void *function, int block_size,
                                                                   size_t shared_bytes, unsigned)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n_blocks, function, block_size, shared_bytes);
}
}
