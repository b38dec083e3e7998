/* Streams as queues that wait: nothing runs before the host waits for something, and then any order that streams and
 * events allow may be taken (the schedule's choice). So whatever lacks a wait meets unfinished work sooner or later. */
#ifndef KVE_TESTS_SIMT_STREAM_H
#define KVE_TESTS_SIMT_STREAM_H

#include "tests/simt/checker.h"
#include "tests/simt/runtime.h"

#include <deque>

namespace simt
{
/* An operation may begin once these are over. */
struct requirement {
    CUstream_st *stream;
    uint64_t position;
};

struct operation {
    const char *name;
    std::function<void()> work;
    std::vector<requirement> needs;
    stream_clock before;
};
} // namespace simt

/* Behind cudaStream_t. Never deleted: events point at them. */
struct CUstream_st {
    size_t index;
    bool blocking; /* ordered with the default stream */
    bool destroyed;
    std::deque<simt::operation> queue;
    uint64_t n_queued, n_done;
    simt::stream_clock clock; /* what its next operation may rely on */
    CUgraph_st *capture;      /* operations go there, or NULL */
};

/* Behind cudaGraph_t and cudaGraphExec_t: what was captured, in order. */
struct CUgraph_st {
    std::vector<simt::operation> nodes;
    cudaStreamCaptureMode mode;
    bool invalid; /* something was called that a capture forbids */
};
struct CUgraphExec_st {
    std::vector<simt::operation> nodes;
};

namespace simt
{
/* NULL is the default stream. A fault for a stream that was destroyed. */
CUstream_st &stream_of(cudaStream_t stream);
const std::vector<CUstream_st *> &all_streams();
/* The last of `stream` so far must be over before `later`'s next operation. */
void order_after(CUstream_st &later, CUstream_st &stream, uint64_t position, const stream_clock &clock);
void enqueue(cudaStream_t stream, const char *name, std::function<void()> work);

/* Run queued work until an operation of a stream is over (`clock`: what the host knows then), a stream is idle, or all
 * are. */
void run_until(CUstream_st &stream, uint64_t position, const stream_clock &clock);
void run_until_idle(CUstream_st &stream);
void run_all();
void run_one_operation(); /* progress for those who poll */

/* cudaSuccess, or why a call that waits (or touches all streams) is not allowed now; that ends the capture, too. */
cudaError_t may_wait(const char *call, cudaStream_t stream);
cudaError_t may_wait_for_all(const char *call);
} // namespace simt

#endif
