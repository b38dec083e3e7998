/* Where hooks.cpp takes what the compiler's calls say. */
#ifndef KVE_TESTS_SIMT_HOOKS_H
#define KVE_TESTS_SIMT_HOOKS_H

#include <stddef.h>

namespace simt
{
namespace checker
{
void on_access(const void *p, size_t n, bool write, bool atomic, const void *return_address);
void on_misaligned(const void *p, size_t alignment, const char *file, unsigned line);
} // namespace checker
} // namespace simt

#endif
