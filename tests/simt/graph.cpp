/* Stream capture and graphs: what is enqueued during a capture is kept with its arguments, and every launch of the
 * graph enqueues it again. Nodes of several captured streams run in the order of capture. */
#include "tests/simt/stream.h"

using namespace simt;

extern "C" {
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    CUstream_st &s = stream_of(stream);
    if (s.index == 0)
        return refuse(cudaErrorStreamCaptureUnsupported, "the default stream cannot be captured");
    if (s.capture)
        return refuse(cudaErrorIllegalState, "stream %zu is being captured already", s.index);
    s.capture = new CUgraph_st{{}, mode, false};
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    CUgraph_st *graph = stream_of(stream).capture;
    *out = nullptr;
    if (!graph)
        return refuse(cudaErrorIllegalState, "cudaStreamEndCapture: no capture has begun");
    for (CUstream_st *s : all_streams())
        if (s->capture == graph)
            s->capture = nullptr;
    if (graph->invalid) {
        delete graph;
        return refuse(cudaErrorStreamCaptureInvalidated, "the capture was spoilt by a call that it forbids");
    }
    *out = graph;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *out)
{
    const CUgraph_st *graph = stream_of(stream).capture;
    *out = !graph           ? cudaStreamCaptureStatusNone
           : graph->invalid ? cudaStreamCaptureStatusInvalidated
                            : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    *out = new CUgraphExec_st{graph->nodes};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    for (const operation &node : graph->nodes)
        enqueue(stream, node.name, node.work);
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
    if (nodes)
        return refuse(cudaErrorNotSupported, "cudaGraphGetNodes gives the number of nodes only");
    *n = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    delete graph; /* launches that are queued have copies */
    return cudaSuccess;
}
}
