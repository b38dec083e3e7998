/* Events: a position in a stream, and the time at which it was reached. */
#include "tests/simt/stream.h"

#include <chrono>
#include <memory>

/* Behind cudaEvent_t. */
struct CUevent_st {
    CUstream_st *stream; /* NULL: never recorded */
    uint64_t position;
    simt::stream_clock clock;
    bool timed;
    std::shared_ptr<double> milliseconds; /* of the last record, once it is reached */
    CUgraph_st *capture;                  /* recorded into a capture */
};

using namespace simt;

static bool reached(const CUevent_st &e)
{
    return !e.stream || e.stream->n_done >= e.position;
}

static cudaError_t may_ask(const char *call, cudaEvent_t e)
{
    if (!e->capture)
        return cudaSuccess;
    return refuse(cudaErrorCapturedEvent, "%s of an event that was recorded into a capture", call);
}

extern "C" {
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    *out = new CUevent_st{nullptr, 0, {}, (flags & cudaEventDisableTiming) == 0, nullptr, nullptr};
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e; /* queued work holds what it needs of it */
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream)
{
    CUstream_st &s = stream_of(stream);
    auto when = std::make_shared<double>(0.0);
    enqueue(stream, "cudaEventRecord", [when] {
        std::chrono::duration<double, std::milli> now = std::chrono::steady_clock::now().time_since_epoch();
        *when = now.count();
    });
    e->stream = &s;
    e->position = s.n_queued;
    e->clock = s.clock;
    e->milliseconds = when;
    e->capture = s.capture;
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t stream, unsigned)
{
    return cudaEventRecord(e, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned)
{
    CUstream_st &s = stream_of(stream);
    if (!e->stream)
        return cudaSuccess; /* an event that was never recorded holds nobody up */
    if (e->capture) {
        s.capture = e->capture; /* the stream joins the capture; its nodes run in the order of capture */
        return cudaSuccess;
    }
    order_after(s, *e->stream, e->position, e->clock);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    cudaError_t code = may_ask("cudaEventSynchronize", e);
    if (code == cudaSuccess && e->stream)
        run_until(*e->stream, e->position, e->clock);
    return code;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    cudaError_t code = may_ask("cudaEventQuery", e);
    if (code != cudaSuccess)
        return code;
    if (!reached(*e))
        run_one_operation();
    return reached(*e) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *out, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->stream || !to->stream || !from->timed || !to->timed)
        return refuse(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime: an event without a recorded time");
    if (!reached(*from) || !reached(*to))
        return cudaErrorNotReady;
    *out = static_cast<float>(*to->milliseconds - *from->milliseconds);
    return cudaSuccess;
}
}
