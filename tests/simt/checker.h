/* What the run time tells the checker: checker.cpp in the check variant, no_checker.cpp, where it is nothing, in
 * others.
 *
 * The checker sees each access of a kernel through the calls that clang's -fsanitize=thread puts in front of it
 * (hooks.cpp), and orders accesses as a GPU does: by thread, __syncthreads, __syncwarp, fences with atomics, and by
 * streams and events between launches. */
#ifndef KVE_TESTS_SIMT_CHECKER_H
#define KVE_TESTS_SIMT_CHECKER_H

#include "tests/simt/runtime.h"

#include <vector>

namespace simt
{
/* For each stream, how many of its operations are known to be over. */
using stream_clock = std::vector<uint64_t>;

namespace checker
{
void add_device_memory(void *p, size_t bytes);
void forget_device_memory(void *p);
/* Operation `position` of stream number `stream` begins; those that `before` names are over for it. */
void begin_operation(const char *name, size_t stream, uint64_t position, const stream_clock &before);
void begin_kernel(const kernel_call &call, char *dynamic_shared);
void end_kernel(char *dynamic_shared);
void begin_block(size_t linear);
void enter_thread(int id, char *stack, size_t stack_bytes);
void leave_kernel();
void block_barrier();
void warp_sync(int warp, unsigned lanes);
void fence();
/* Accesses of copies and library calls. */
void read_values(const void *p, size_t bytes);
void write_values(void *p, size_t bytes);
void copy_values(void *to, const void *from, size_t bytes); /* undefined bytes stay so, unreported */
/* The end, if anything was reported. */
void require_no_reports();
} // namespace checker
} // namespace simt

#endif
