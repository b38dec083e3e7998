/* Device memory: every allocation on pages of its own, filled with 0xFF, never at an address that was used before. The
 * host cannot touch it (protection keys, where the processor has them), nobody can once it is freed, and what stands
 * beside an allocation on its pages is checked when it is freed. */
#ifndef KVE_TESTS_SIMT_MEMORY_H
#define KVE_TESTS_SIMT_MEMORY_H

#include "tests/simt/runtime.h"

namespace simt
{
/* launch.cuh promises this much for dynamic shared memory; here it is never more, so that nobody relies on more. */
enum { DEVICE_ALIGNMENT = 256, DYNAMIC_SHARED_ALIGNMENT = 16, MAX_DYNAMIC_SHARED = 227 << 10 };
constexpr size_t DEVICE_BYTES = size_t{8} << 30;

struct allocation {
    uintptr_t from;
    size_t bytes;
    unsigned number;   /* 1, 2, ... in order of allocation */
    bool live, pinned; /* pinned: host memory that the device may touch, too */
};

void *device_alloc(size_t bytes); /* NULL: out of memory */
/* What is written outside of p's bytes is a fault. False: p is no live allocation. */
bool device_free(void *p);
void *pinned_alloc(size_t bytes);
bool pinned_free(void *p);
size_t device_bytes_in_use();

/* The allocation that holds p, or else the nearest one below it; NULL if there is none. */
const allocation *find_allocation(const void *p);
bool is_device(const void *p);
bool is_pinned(const void *p);
/* Among the addresses that device memory comes from: what isn't (or is no longer) allocated is close to what is. */
bool in_device_range(const void *p);
/* A fault unless all of [p, p + bytes) is one live allocation of device memory. */
void require_device(const void *p, size_t bytes, const char *what);
/* "4 bytes past the end of allocation 3 (1024 bytes)" */
void describe_address(FILE *out, const void *p);

/* Valid until the next call. */
char *dynamic_shared_alloc(size_t bytes);
void device_thread_may_touch_memory();
/* Says what a bad address belongs to before the process dies. Once per thread. */
void install_fault_handler();
} // namespace simt

#endif
