/* NVTX ranges. Contract: trace.cuh. */
#include "kernels/cuda/trace.cuh"

#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>

#include <stdlib.h>
#include <string.h>

static nvtxDomainHandle_t domain()
{
    static nvtxDomainHandle_t the_domain = nvtxDomainCreateA("kveval");
    return the_domain;
}

static void push(const char *name, const int64_t *payload)
{
    nvtxEventAttributes_t event = {};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = name;
    if (payload) {
        event.payloadType = NVTX_PAYLOAD_TYPE_INT64;
        event.payload.llValue = *payload;
    }
    nvtxDomainRangePushEx(domain(), &event);
}

op_range::op_range(const char *op, int64_t size)
{
    push(op, &size);
}

op_range::~op_range()
{
    nvtxDomainRangePop(domain());
}

/* KVEVAL_PROFILE_RANGE=NAME: profilers that wait for cudaProfilerStart see the first range of that name only. */
static const char *profiled_range()
{
    static const char *name = getenv("KVEVAL_PROFILE_RANGE");
    return name;
}

static int depth, profiled_depth = -1; /* -1: not begun yet, -2: over */

void cuda_range_push(kve_backend *, const char *name)
{
    if (profiled_depth == -1 && profiled_range() && strcmp(name, profiled_range()) == 0) {
        profiled_depth = depth;
        (void)cudaProfilerStart();
    }
    depth++;
    push(name, nullptr);
}

void cuda_range_pop(kve_backend *be)
{
    nvtxDomainRangePop(domain());
    depth--;
    if (profiled_depth != depth)
        return;
    (void)cudaStreamSynchronize(cuda_of(be)->stream); /* the range's kernels belong to the profile */
    (void)cudaProfilerStop();
    profiled_depth = -2;
}
