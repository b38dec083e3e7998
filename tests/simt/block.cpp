/* Runs a kernel: block after block, each block's threads as fibers that change places at barriers and collectives only.
 * Which thread goes on is the schedule's choice. Reports barriers that can never be passed. */
#include "tests/simt/block.h"
#include "tests/simt/checker.h"
#include "tests/simt/memory.h"

#include <string.h>

#include <algorithm>
#include <numeric>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt
{
block_state the_block;

/* --- Run queue and switching */

void run_queue::add(cuda_thread *t)
{
    slots[(first + count++) % MAX_THREADS] = t;
}

cuda_thread *run_queue::take()
{
    order schedule = the_settings().schedule;
    unsigned last = (first + count - 1) % MAX_THREADS;
    if (schedule == order::random)
        std::swap(slots[(first + pick(count)) % MAX_THREADS], slots[last]);
    count--;
    if (schedule != order::fifo)
        return slots[last];
    cuda_thread *t = slots[first];
    first = (first + 1) % MAX_THREADS;
    return t;
}

static void print_waiting()
{
    const block_state &b = the_block;
    for (int i = 0; i < b.n_threads;) {
        const cuda_thread &t = b.threads[i];
        int end = i + 1;
        auto same = [&t](const cuda_thread &u) {
            return u.now == t.now && u.at.line == t.at.line && u.at.file == t.at.file && u.mask == t.mask &&
                   u.op == t.op;
        };
        while (end < b.n_threads && same(b.threads[end]))
            end++;
        if (t.now == state::at_barrier)
            fprintf(stderr, "  threads %d-%d wait in __syncthreads at %s:%d\n", i, end - 1, t.at.file, t.at.line);
        else if (t.now == state::at_warp)
            fprintf(stderr, "  threads %d-%d wait in %s, mask %08x, at %s:%d\n", i, end - 1, warp_op_name(t.op), t.mask,
                    t.at.file, t.at.line);
        else
            fprintf(stderr, "  threads %d-%d %s\n", i, end - 1, t.now == state::returned ? "have returned" : "can run");
        i = end;
    }
}

static void switch_to(cuda_thread *to, bool last)
{
    block_state &b = the_block;
    cuda_thread *from = b.current;
    if (from == to)
        return;
    b.current = to;
    if (to) {
        threadIdx = to->index;
        checker::enter_thread(to->id, to->f.stack, STACK_BYTES);
    } else {
        checker::leave_kernel();
    }
    fiber_switch(from ? from->f : b.scheduler, to ? to->f : b.scheduler, last);
}

/* The next thread, or the scheduler once all have returned. */
static void run_next(bool last)
{
    block_state &b = the_block;
    if (b.ready.count == 0 && b.n_alive > 0) {
        fprintf(stderr, "simt: these threads wait for others that will never come:\n");
        print_waiting();
        fault("deadlock");
    }
    switch_to(b.ready.count == 0 ? nullptr : b.ready.take(), last);
}

void wait_to_be_woken()
{
    run_next(false);
}

void wake(cuda_thread &t)
{
    t.now = state::ready;
    the_block.ready.add(&t);
}

/* --- Barriers */

static void open_barrier_if_complete()
{
    block_state &b = the_block;
    if (b.n_alive == 0 || b.n_arrived < b.n_alive)
        return;
    if (b.n_alive < b.n_threads && the_settings().strict) {
        print_waiting();
        fault("__syncthreads, but %d of the block's %d threads have returned", b.n_threads - b.n_alive, b.n_threads);
    }
    b.arrived_before = b.n_arrived;
    b.true_before = b.n_true;
    b.n_arrived = b.n_true = 0;
    checker::block_barrier();
    for (int i = 0; i < b.n_threads; i++)
        if (b.threads[i].now == state::at_barrier)
            wake(b.threads[i]);
}

static void require_same_barrier(const cuda_thread &me)
{
    for (int i = 0; i < the_block.n_threads; i++) {
        const cuda_thread &t = the_block.threads[i];
        if (t.now != state::at_barrier || &t == &me)
            continue;
        if (t.at.line != me.at.line || strcmp(t.at.file, me.at.file) != 0) {
            print_waiting();
            fault("threads of one block are at different barriers");
        }
        return; /* the others were held against this one when they came */
    }
}

int block_meet(vote kind, int predicate, place at)
{
    block_state &b = the_block;
    if (!b.current)
        fault("__syncthreads at %s:%d outside of a kernel", at.file, at.line);
    cuda_thread &me = *b.current;
    me.at = at;
    me.now = state::at_barrier;
    if (b.n_arrived > 0)
        require_same_barrier(me);
    b.n_arrived++;
    b.n_true += predicate != 0;
    open_barrier_if_complete();
    run_next(false);
    switch (kind) {
    case vote::count:
        return b.true_before;
    case vote::all:
        return b.true_before == b.arrived_before;
    case vote::any:
        return b.true_before > 0;
    default:
        return 0;
    }
}

/* --- Threads, blocks, the grid */

static void thread_entry()
{
    fiber_entered();
    block_state &b = the_block;
    cuda_thread &me = *b.current;
    b.call->run_thread(b.call->arguments.get());
    me.now = state::returned;
    b.n_alive--;
    b.warps[me.warp].alive &= ~(1u << me.lane);
    warp_lost_lane(me.warp);
    open_barrier_if_complete();
    run_next(true);
    abort(); /* a thread that has returned is never switched to */
}

static void run_block(const kernel_call &call, size_t linear)
{
    block_state &b = the_block;
    range shared = static_shared();
    blockIdx = {static_cast<unsigned>(linear % call.grid.x), static_cast<unsigned>(linear / call.grid.x % call.grid.y),
                static_cast<unsigned>(linear / call.grid.x / call.grid.y)};
    checker::begin_block(linear);
    memset(shared.from, 0xff, shared.bytes);
    memset(b.dynamic, 0xff, call.shared_bytes);
    b.n_alive = b.n_threads;
    b.n_arrived = b.n_true = 0;
    b.ready.first = b.ready.count = 0;
    memset(b.warps, 0, sizeof b.warps);
    for (int i = 0; i < b.n_threads; i++) {
        cuda_thread &t = b.threads[i];
        unsigned u = static_cast<unsigned>(i);
        t.id = i;
        t.lane = i % WARP_LANES;
        t.warp = i / WARP_LANES;
        t.index = {u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y};
        t.at = {nullptr, 0};
        t.mask = 0;
        t.op = warp_op::sync;
        b.warps[t.warp].alive |= 1u << t.lane;
        fiber_make_stack(t.f);
        fiber_start_at(t.f, thread_entry);
        wake(t);
    }
    run_next(false);
}

static std::vector<uint32_t> block_order(size_t n)
{
    std::vector<uint32_t> blocks(n);
    std::iota(blocks.begin(), blocks.end(), 0u);
    if (the_settings().schedule == order::reverse)
        std::reverse(blocks.begin(), blocks.end());
    if (the_settings().schedule == order::random)
        for (size_t i = n; i > 1; i--)
            std::swap(blocks[i - 1], blocks[pick(i)]);
    return blocks;
}

void run_kernel(const kernel_call &call)
{
    block_state &b = the_block;
    gridDim = call.grid;
    blockDim = call.block;
    b.call = &call;
    b.n_threads = static_cast<int>(call.block.x * call.block.y * call.block.z);
    b.dynamic = dynamic_shared_alloc(call.shared_bytes);
    checker::begin_kernel(call, b.dynamic);
    for (uint32_t linear : block_order(static_cast<size_t>(call.grid.x) * call.grid.y * call.grid.z))
        run_block(call, linear);
    checker::end_kernel(b.dynamic);
    b.call = nullptr;
}

/* --- What device code asks */

void *dynamic_shared()
{
    return the_block.dynamic;
}

unsigned lane_id()
{
    return static_cast<unsigned>(the_block.current->lane);
}

void fence()
{
    checker::fence();
}

void misaligned_load(const void *p, size_t alignment, place at)
{
    fault("a load at %s:%d of %p, which is no multiple of %zu", at.file, at.line, p, alignment);
}

void print_position(FILE *out)
{
    const block_state &b = the_block;
    if (!b.call || !b.current || !is_device_thread()) {
        fprintf(out, "  in host code or a library call\n");
        return;
    }
    const cuda_thread &t = *b.current;
    fprintf(out, "  in kernel %s, block (%u,%u,%u), thread (%u,%u,%u); last barrier or collective: %s:%d\n",
            b.call->name, blockIdx.x, blockIdx.y, blockIdx.z, t.index.x, t.index.y, t.index.z,
            t.at.file ? t.at.file : "none", t.at.line);
}
} // namespace simt
