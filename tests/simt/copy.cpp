/* Memory calls of the CUDA runtime: allocation, copies, fills. As documented for the real ones, a copy from pageable
 * host memory has taken its bytes when the call returns, one to pageable memory waits, and pinned memory does neither.
 */
#include "tests/simt/memory.h"
#include "tests/simt/stream.h"

#include <string.h>

using namespace simt;

static bool from_device(cudaMemcpyKind kind, const void *from)
{
    return kind == cudaMemcpyDefault ? is_device(from)
                                     : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
}

static bool to_device(cudaMemcpyKind kind, const void *to)
{
    return kind == cudaMemcpyDefault ? is_device(to)
                                     : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
}

/* A plane of rows; a plain copy is one row. */
struct rows {
    size_t n, bytes, to_pitch, from_pitch;
};

static void require_sides(const char *call, void *to, const void *from, const rows &r, cudaMemcpyKind kind)
{
    if (r.n == 0 || r.bytes == 0)
        return;
    if (to_device(kind, to))
        require_device(to, (r.n - 1) * r.to_pitch + r.bytes, call);
    else if (is_device(to))
        fault("%s to %p, which is device memory, is called a copy to the host", call, to);
    if (from_device(kind, from))
        require_device(from, (r.n - 1) * r.from_pitch + r.bytes, call);
    else if (is_device(from))
        fault("%s from %p, which is device memory, is called a copy from the host", call, from);
}

/* On the device thread. */
static void copy_rows(const char *call, void *to, const void *from, const rows &r, cudaMemcpyKind kind)
{
    require_sides(call, to, from, r, kind);
    for (size_t i = 0; i < r.n; i++) {
        char *row = static_cast<char *>(to) + i * r.to_pitch;
        const char *source = static_cast<const char *>(from) + i * r.from_pitch;
        memmove(row, source, r.bytes);
        checker::copy_values(row, source, r.bytes);
    }
}

static cudaError_t copy_async(const char *call, void *to, const void *from, rows r, cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    require_sides(call, to, from, r, kind);
    CUstream_st &s = stream_of(stream);
    bool pageable_source = !from_device(kind, from) && !is_pinned(from);
    bool pageable_target = !to_device(kind, to) && !is_pinned(to);
    if (s.capture || !pageable_source) {
        enqueue(stream, call, [=] { copy_rows(call, to, from, r, kind); });
    } else {
        auto staged = std::make_shared<std::vector<char>>(r.n * r.bytes);
        for (size_t i = 0; i < r.n; i++)
            memcpy(staged->data() + i * r.bytes, static_cast<const char *>(from) + i * r.from_pitch, r.bytes);
        r.from_pitch = r.bytes;
        enqueue(stream, call, [=] { copy_rows(call, to, staged->data(), r, kind); });
    }
    if (pageable_target && !s.capture)
        run_until_idle(s);
    return cudaSuccess;
}

static cudaError_t copy_now(const char *call, void *to, const void *from, rows r, cudaMemcpyKind kind)
{
    cudaError_t code = may_wait_for_all(call);
    if (code != cudaSuccess)
        return code;
    code = copy_async(call, to, from, r, kind, nullptr);
    run_until_idle(stream_of(nullptr));
    return code;
}

static void fill(const char *call, void *p, int value, size_t bytes)
{
    require_device(p, bytes, call);
    memset(p, value, bytes);
    checker::write_values(p, bytes);
}

static cudaError_t allocate(const char *call, void **out, size_t bytes)
{
    cudaError_t code = may_wait_for_all(call);
    *out = nullptr;
    if (code != cudaSuccess || bytes == 0) /* the real one gives NULL, too */
        return code;
    *out = device_alloc(bytes);
    return *out ? cudaSuccess : set_last_error(cudaErrorMemoryAllocation);
}

static cudaError_t release(const char *call, void *p)
{
    if (p && !device_free(p))
        return refuse(cudaErrorInvalidValue, "%s of %p, which is no live allocation", call, p);
    return cudaSuccess;
}

extern "C" {
cudaError_t cudaMalloc(void **out, size_t bytes)
{
    return allocate("cudaMalloc", out, bytes);
}

cudaError_t cudaFree(void *p)
{
    cudaError_t code = may_wait_for_all("cudaFree");
    if (code != cudaSuccess)
        return code;
    run_all(); /* as the real one does */
    return release("cudaFree", p);
}

cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream)
{
    cudaError_t code = allocate("cudaMallocAsync", out, bytes);
    enqueue(stream, "cudaMallocAsync", nullptr);
    return code;
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t stream)
{
    enqueue(stream, "cudaFreeAsync", [p] {
        if (release("cudaFreeAsync", p) != cudaSuccess)
            fault("cudaFreeAsync failed");
    });
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned)
{
    *out = pinned_alloc(bytes);
    return *out ? cudaSuccess : set_last_error(cudaErrorMemoryAllocation);
}

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    return cudaHostAlloc(out, bytes, 0);
}

cudaError_t cudaFreeHost(void *p)
{
    run_all();
    if (p && !pinned_free(p))
        return refuse(cudaErrorInvalidValue, "cudaFreeHost of %p, which is no live allocation", p);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return copy_now("cudaMemcpy", to, from, {1, bytes, 0, 0}, kind);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy_async("cudaMemcpyAsync", to, from, {1, bytes, 0, 0}, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    if (to_pitch < width || from_pitch < width)
        return refuse(cudaErrorInvalidPitchValue, "cudaMemcpy2D: rows of %zu bytes, pitches %zu and %zu", width,
                      to_pitch, from_pitch);
    return copy_async("cudaMemcpy2DAsync", to, from, {height, width, to_pitch, from_pitch}, kind, stream);
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind)
{
    cudaError_t code = may_wait_for_all("cudaMemcpy2D");
    if (code == cudaSuccess)
        code = cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
    if (code == cudaSuccess)
        run_until_idle(stream_of(nullptr));
    return code;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    require_device(p, bytes, "cudaMemsetAsync");
    enqueue(stream, "cudaMemsetAsync", [=] { fill("cudaMemsetAsync", p, value, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    cudaError_t code = may_wait_for_all("cudaMemset");
    if (code == cudaSuccess) /* not waited for: the real one returns before it is done, too */
        code = cudaMemsetAsync(p, value, bytes, nullptr);
    return code;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    *total_bytes = DEVICE_BYTES;
    *free_bytes = DEVICE_BYTES - device_bytes_in_use();
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *p)
{
    *out = {};
    out->type = is_device(p) ? cudaMemoryTypeDevice : is_pinned(p) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    out->devicePointer = is_device(p) || is_pinned(p) ? const_cast<void *>(p) : nullptr;
    out->hostPointer = is_device(p) ? nullptr : const_cast<void *>(p);
    return cudaSuccess;
}
}
