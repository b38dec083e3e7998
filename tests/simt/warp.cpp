/* Warp collectives: lanes that ask for the same operation with the same mask meet, and each gets its answer. Shuffles
 * and votes order no memory, __syncwarp does: only it tells the checker. */
#include "tests/simt/block.h"
#include "tests/simt/checker.h"

namespace simt
{
const char *warp_op_name(warp_op op)
{
    switch (op) {
    case warp_op::sync:
        return "__syncwarp";
    case warp_op::shuffle:
        return "__shfl_*_sync";
    case warp_op::ballot:
        return "a vote";
    case warp_op::match:
        return "__match_*_sync";
    default:
        return "__reduce_*_sync";
    }
}

template <class F> static void for_lanes(unsigned lanes, cuda_thread *first, F f)
{
    for (; lanes; lanes &= lanes - 1)
        f(first[__builtin_ctz(lanes)]);
}

static uint64_t combine(warp_op op, uint64_t a, const cuda_thread &t)
{
    uint64_t b = t.value;
    int64_t sa = static_cast<int64_t>(a), sb = static_cast<int64_t>(b);
    switch (op) {
    case warp_op::ballot:
        return a | b << t.lane;
    case warp_op::sum:
        return a + b;
    case warp_op::min_signed:
        return sb < sa ? b : a;
    case warp_op::max_signed:
        return sb > sa ? b : a;
    case warp_op::min_unsigned:
        return b < a ? b : a;
    case warp_op::max_unsigned:
        return b > a ? b : a;
    case warp_op::bit_and:
        return a & b;
    case warp_op::bit_or:
        return a | b;
    case warp_op::bit_xor:
        return a ^ b;
    default:
        return 0;
    }
}

/* The neutral element. */
static uint64_t combine_start(warp_op op)
{
    switch (op) {
    case warp_op::min_signed:
        return static_cast<uint64_t>(INT64_MAX);
    case warp_op::max_signed:
        return static_cast<uint64_t>(INT64_MIN);
    case warp_op::min_unsigned:
    case warp_op::bit_and:
        return ~uint64_t{0};
    default:
        return 0;
    }
}

static void answer_shuffle(unsigned lanes, cuda_thread *first)
{
    for_lanes(lanes, first, [&](cuda_thread &t) {
        if (!(lanes >> t.source & 1)) {
            the_block.current = &t;
            fault("a shuffle at %s:%d reads lane %d, which is outside its mask %08x or has returned", t.at.file,
                  t.at.line, t.source, t.mask);
        }
        t.answer = first[t.source].value;
    });
}

static void answer_match(unsigned lanes, cuda_thread *first)
{
    for_lanes(lanes, first, [&](cuda_thread &t) {
        t.answer = 0;
        for_lanes(lanes, first, [&](cuda_thread &u) { t.answer |= uint64_t{u.value == t.value} << u.lane; });
    });
}

static void answer_all(warp_op op, unsigned lanes, cuda_thread *first)
{
    if (op == warp_op::sync)
        return;
    if (op == warp_op::shuffle) {
        answer_shuffle(lanes, first);
        return;
    }
    if (op == warp_op::match) {
        answer_match(lanes, first);
        return;
    }
    uint64_t result = combine_start(op);
    for_lanes(lanes, first, [&](cuda_thread &t) { result = combine(op, result, t); });
    for_lanes(lanes, first, [&](cuda_thread &t) { t.answer = result; });
}

/* Completes the collective that `asking` waits in, if all its lanes have come. */
static bool complete(cuda_thread &asking)
{
    warp_state &w = the_block.warps[asking.warp];
    cuda_thread *first = &the_block.threads[asking.warp * WARP_LANES];
    unsigned lanes = asking.mask & w.alive;
    bool agreed = (w.waiting & lanes) == lanes;
    for_lanes(agreed ? lanes : 0u, first,
              [&](cuda_thread &t) { agreed = agreed && t.op == asking.op && t.mask == asking.mask; });
    if (!agreed)
        return false;
    if (lanes != asking.mask && the_settings().strict)
        fault("%s at %s:%d: lanes %08x of its mask %08x have returned or do not exist", warp_op_name(asking.op),
              asking.at.file, asking.at.line, asking.mask & ~w.alive, asking.mask);
    answer_all(asking.op, lanes, first);
    if (asking.op == warp_op::sync)
        checker::warp_sync(asking.warp, lanes);
    w.waiting &= ~lanes;
    for_lanes(lanes, first, wake);
    return true;
}

void warp_lost_lane(int warp)
{
    cuda_thread *first = &the_block.threads[warp * WARP_LANES];
    for (int i = 0; i < WARP_LANES; i++)
        if (the_block.warps[warp].waiting >> i & 1)
            complete(first[i]);
}

uint64_t warp_meet(warp_op op, unsigned mask, uint64_t value, int source, place at)
{
    if (!the_block.current)
        fault("%s at %s:%d outside of a kernel", warp_op_name(op), at.file, at.line);
    cuda_thread &me = *the_block.current;
    me.at = at;
    me.op = op;
    me.mask = mask;
    me.value = value;
    me.source = source;
    me.now = state::at_warp;
    if (!(mask >> me.lane & 1))
        fault("%s at %s:%d: lane %d calls with mask %08x, which leaves it out", warp_op_name(op), at.file, at.line,
              me.lane, mask);
    the_block.warps[me.warp].waiting |= 1u << me.lane;
    complete(me);
    wait_to_be_woken();
    return me.answer;
}
} // namespace simt
