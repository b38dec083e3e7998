/* The checker's interface where there is no checker. See checker.h. */
#include "tests/simt/checker.h"

namespace simt
{
namespace checker
{
void add_device_memory(void *, size_t)
{
}

void forget_device_memory(void *)
{
}

void begin_operation(const char *, size_t, uint64_t, const stream_clock &)
{
}

void begin_kernel(const kernel_call &, char *)
{
}

void end_kernel(char *)
{
}

void begin_block(size_t)
{
}

void enter_thread(int, char *, size_t)
{
}

void leave_kernel()
{
}

void block_barrier()
{
}

void warp_sync(int, unsigned)
{
}

void fence()
{
}

void read_values(const void *, size_t)
{
}

void write_values(void *, size_t)
{
}

void copy_values(void *, const void *, size_t)
{
}

void require_no_reports()
{
}
} // namespace checker
} // namespace simt
