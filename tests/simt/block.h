/* The block that is running: its threads, warps and run queue. Shared by block.cpp (scheduling, barriers) and warp.cpp
 * (collectives); everything here is used on the device thread only. */
#ifndef KVE_TESTS_SIMT_BLOCK_H
#define KVE_TESTS_SIMT_BLOCK_H

#include "tests/simt/fiber.h"
#include "tests/simt/runtime.h"

namespace simt
{
enum { MAX_THREADS = 1024, WARP_LANES = 32, MAX_WARPS = MAX_THREADS / WARP_LANES };
enum class state { ready, at_barrier, at_warp, returned };

struct cuda_thread {
    fiber f;
    uint3 index;
    int id, lane, warp;
    state now;
    place at; /* of the last barrier or collective */
    /* what it asks of its warp, and what it gets */
    warp_op op;
    unsigned mask;
    uint64_t value, answer;
    int source;
};

struct warp_state {
    unsigned alive, waiting; /* lanes that have not returned; lanes inside a collective */
};

/* Threads that may run. */
struct run_queue {
    cuda_thread *slots[MAX_THREADS];
    unsigned first, count;
    void add(cuda_thread *t);
    cuda_thread *take(); /* the next under the schedule */
};

struct block_state {
    const kernel_call *call; /* NULL: no kernel is running */
    int n_threads, n_alive;
    int n_arrived, n_true;           /* at the barrier, and those of them with a true predicate */
    int arrived_before, true_before; /* of the barrier that was passed last */
    cuda_thread threads[MAX_THREADS];
    warp_state warps[MAX_WARPS];
    run_queue ready;
    cuda_thread *current; /* NULL: the scheduler itself */
    fiber scheduler;
    char *dynamic;
};
extern block_state the_block;

/* Lets other threads run until somebody wakes the current one, which has set its state. */
void wait_to_be_woken();
void wake(cuda_thread &t);
/* After a thread of the warp has returned: collectives that waited for it only. */
void warp_lost_lane(int warp);
const char *warp_op_name(warp_op op);
} // namespace simt

#endif
