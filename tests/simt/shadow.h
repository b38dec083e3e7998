/* The checker's memory of memory: for each granule of device and shared memory, its last write and last reads. Knows
 * nothing of hooks and reports. */
#ifndef KVE_TESTS_SIMT_SHADOW_H
#define KVE_TESTS_SIMT_SHADOW_H

#include <stddef.h>
#include <stdint.h>

namespace simt
{
/* Who made an access, and when: counts of what orders threads of a launch. */
struct access {
    uint32_t launch; /* 0: none */
    uint32_t block, fences, barriers, warp_syncs, pc;
    uint16_t thread;
    bool atomic;
};

/* Four reads are kept, so that a later write meets the one that it must not: the last, and the last before it by
 * another thread of the warp, by another warp of the block, by another block. */
struct granule {
    access write, last_read, lane_read, warp_read, block_read;
};

enum class memory_kind : uint8_t { device, shared };

/* A piece of memory and its granules of 4, 2 or 1 bytes: as small as the smallest access that was seen in it. */
struct region {
    uintptr_t from;
    size_t bytes;
    memory_kind kind;
    unsigned shift; /* a granule has 1 << shift bytes */
    granule *granules;
    bool *defined;

    size_t count() const
    {
        return (bytes + (size_t{1} << shift) - 1) >> shift;
    }
    /* Makes [address, address + n) a whole number of granules. */
    void refine(uintptr_t address, size_t n);
};

void shadow_add(const void *p, size_t bytes, memory_kind kind);
void shadow_forget(const void *p);
/* The region that holds the address, or NULL. */
region *shadow_find(uintptr_t address);
} // namespace simt

#endif
