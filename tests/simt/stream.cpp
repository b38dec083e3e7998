/* Streams: queues, their order, and the runtime's stream calls. See stream.h. */
#include "tests/simt/stream.h"

#include <algorithm>

namespace simt
{
static CUstream_st *new_stream(size_t index, bool blocking)
{
    return new CUstream_st{index, blocking, false, {}, 0, 0, {}, nullptr};
}

static std::vector<CUstream_st *> &streams()
{
    static auto *all = new std::vector<CUstream_st *>{new_stream(0, true)};
    return *all;
}
static stream_clock host_clock; /* what the host has waited for */

const std::vector<CUstream_st *> &all_streams()
{
    return streams();
}

CUstream_st &stream_of(cudaStream_t stream)
{
    if (stream == nullptr || stream == cudaStreamLegacy)
        return *streams()[0];
    if (stream == cudaStreamPerThread)
        fault("cudaStreamPerThread is not played here; create a stream");
    if (stream->destroyed)
        fault("stream %zu is used after cudaStreamDestroy", stream->index);
    return *stream;
}

static void learn(stream_clock &clock, const stream_clock &other)
{
    if (clock.size() < other.size())
        clock.resize(other.size());
    for (size_t i = 0; i < other.size(); i++)
        clock[i] = std::max(clock[i], other[i]);
}

static void learn(stream_clock &clock, const CUstream_st &stream, uint64_t position)
{
    if (clock.size() <= stream.index)
        clock.resize(stream.index + 1);
    clock[stream.index] = std::max(clock[stream.index], position);
}

/* An empty operation carries the requirement, so that it holds for all that follow. */
void order_after(CUstream_st &later, CUstream_st &stream, uint64_t position, const stream_clock &clock)
{
    learn(later.clock, clock);
    learn(later.clock, stream, position);
    if (stream.n_done >= position)
        return;
    later.queue.push_back({"wait", nullptr, {{&stream, position}}, later.clock});
    learn(later.clock, later, ++later.n_queued);
}

/* The default stream waits for every blocking stream, and they for it. */
static void order_with_default(CUstream_st &s)
{
    CUstream_st &first = *streams()[0];
    if (s.index != 0 && s.blocking)
        order_after(s, first, first.n_queued, first.clock);
    for (CUstream_st *other : streams())
        if (s.index == 0 && other->index != 0 && other->blocking)
            order_after(s, *other, other->n_queued, other->clock);
}

void enqueue(cudaStream_t stream, const char *name, std::function<void()> work)
{
    CUstream_st &s = stream_of(stream);
    if (s.capture) {
        s.capture->nodes.push_back({name, std::move(work), {}, {}});
        return;
    }
    order_with_default(s);
    learn(s.clock, host_clock);
    s.queue.push_back({name, std::move(work), {}, s.clock});
    learn(s.clock, s, ++s.n_queued);
}

/* --- Running */

static bool may_run(const CUstream_st &s)
{
    if (s.queue.empty())
        return false;
    for (const requirement &r : s.queue.front().needs)
        if (r.stream->n_done < r.position)
            return false;
    return true;
}

static bool step()
{
    std::vector<CUstream_st *> able;
    for (CUstream_st *s : streams())
        if (may_run(*s))
            able.push_back(s);
    if (able.empty())
        return false;
    CUstream_st &s = *able[pick(able.size())];
    operation op = std::move(s.queue.front());
    s.queue.pop_front();
    checker::begin_operation(op.name, s.index, s.n_done + 1, op.before);
    if (op.work)
        op.work();
    s.n_done++;
    return true;
}

template <class F> static void run_while(F unfinished)
{
    on_device([&] {
        while (unfinished())
            if (!step())
                fault("every stream waits for another one's event");
        checker::require_no_reports();
    });
}

void run_until(CUstream_st &s, uint64_t position, const stream_clock &clock)
{
    run_while([&] { return s.n_done < position; });
    learn(host_clock, s, position);
    learn(host_clock, clock);
}

void run_until_idle(CUstream_st &s)
{
    run_until(s, s.n_queued, s.clock);
}

void run_all()
{
    run_while([] {
        return std::any_of(streams().begin(), streams().end(), [](CUstream_st *s) { return !s->queue.empty(); });
    });
    for (CUstream_st *s : streams())
        learn(host_clock, s->clock);
}

void run_one_operation()
{
    on_device([] { step(); });
}

/* --- What a capture forbids */

cudaError_t may_wait(const char *call, cudaStream_t stream)
{
    CUstream_st &s = stream_of(stream);
    if (!s.capture)
        return cudaSuccess;
    s.capture->invalid = true;
    return refuse(cudaErrorStreamCaptureUnsupported, "%s of a stream that is being captured", call);
}

cudaError_t may_wait_for_all(const char *call)
{
    for (CUstream_st *s : streams()) {
        if (!s->capture || s->capture->mode == cudaStreamCaptureModeRelaxed)
            continue;
        s->capture->invalid = true;
        return refuse(cudaErrorStreamCaptureUnsupported, "%s while stream %zu is being captured", call, s->index);
    }
    return cudaSuccess;
}
} // namespace simt

using namespace simt;

extern "C" {
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    *out = new_stream(streams().size(), flags != cudaStreamNonBlocking);
    streams().push_back(*out);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithFlags(out, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(out, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t code = may_wait("cudaStreamSynchronize", stream);
    if (code == cudaSuccess)
        run_until_idle(stream_of(stream));
    return code;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    CUstream_st &s = stream_of(stream);
    cudaError_t code = may_wait("cudaStreamDestroy", stream);
    if (code != cudaSuccess)
        return code;
    run_until_idle(s); /* the real one lets the work finish behind the host's back */
    s.destroyed = true;
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t code = may_wait("cudaStreamQuery", stream);
    if (code != cudaSuccess)
        return code;
    CUstream_st &s = stream_of(stream);
    if (s.n_done < s.n_queued)
        run_one_operation();
    return s.n_done < s.n_queued ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    cudaError_t code = may_wait_for_all("cudaDeviceSynchronize");
    if (code == cudaSuccess)
        run_all();
    return code;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    enqueue(stream, "a host function", [=] { function(data); });
    return cudaSuccess;
}
}
