/* What CUB's block and warp primitives need on the host. The patched headers (make_cub_overlay.py) include it; a .cu
 * file includes <cub/...> as ever. */
#ifndef KVE_TESTS_SIMT_CUB_H
#define KVE_TESTS_SIMT_CUB_H

#include "tests/simt/simt.h"

namespace simt
{
namespace cub
{
/* PTX shfl: `flags` holds the lowest or highest lane to read and, eight bits up, the mask that cuts a warp in segments.
 * A lane outside of its segment reads itself. */
inline unsigned shuffle_word(unsigned word, int source, int flags, bool up, unsigned mask)
{
    int lane = static_cast<int>(lane_id()), segments = flags >> 8 & 31,
        bound = (lane & segments) | (flags & 31 & ~segments);
    bool inside = up ? source >= bound : source <= bound;
    return static_cast<unsigned>(
        warp_meet(warp_op::shuffle, mask, word, inside ? source : lane, {"a CUB primitive", 0}));
}

inline unsigned shuffle_up(unsigned word, int delta, int flags, unsigned mask)
{
    return shuffle_word(word, static_cast<int>(lane_id()) - (delta & 31), flags, true, mask);
}

inline unsigned shuffle_down(unsigned word, int delta, int flags, unsigned mask)
{
    return shuffle_word(word, static_cast<int>(lane_id()) + (delta & 31), flags, false, mask);
}

/* The lanes whose label has the same bit. */
inline unsigned same_bit(unsigned label, unsigned bit)
{
    unsigned with = __ballot_sync(~0u, (label & bit) != 0);
    return label & bit ? with : ~with;
}

inline unsigned bit_field(unsigned x, unsigned start, unsigned n)
{
    return x >> start & (n < 32 ? (1u << n) - 1 : ~0u);
}

[[noreturn]] inline void no_exit()
{
    fprintf(stderr, "simt: a kernel ends its thread with CUB's ThreadExit; return instead\n");
    abort();
}
} // namespace cub
} // namespace simt

namespace cuda
{
namespace ptx
{
inline unsigned get_sreg_laneid()
{
    return simt::lane_id();
}

inline unsigned get_sreg_lanemask_eq()
{
    return 1u << simt::lane_id();
}

inline unsigned get_sreg_lanemask_lt()
{
    return (1u << simt::lane_id()) - 1;
}

inline unsigned get_sreg_lanemask_le()
{
    return get_sreg_lanemask_lt() | get_sreg_lanemask_eq();
}

inline unsigned get_sreg_lanemask_gt()
{
    return ~get_sreg_lanemask_le();
}

inline unsigned get_sreg_lanemask_ge()
{
    return ~get_sreg_lanemask_lt();
}
} // namespace ptx
} // namespace cuda

/* Named by CUB for pairs of 16-bit values, which is a path of the device alone. */
inline unsigned __vmins2(unsigned, unsigned)
{
    abort();
}

inline unsigned __vminu2(unsigned, unsigned)
{
    abort();
}

inline unsigned __vmaxs2(unsigned, unsigned)
{
    abort();
}

inline unsigned __vmaxu2(unsigned, unsigned)
{
    abort();
}

#endif
