/* A fiber: a stack of its own and a place to continue at. Knows nothing of CUDA. */
#ifndef KVE_TESTS_SIMT_FIBER_H
#define KVE_TESTS_SIMT_FIBER_H

#include <stddef.h>

namespace simt
{
struct fiber {
    void *stack_pointer;
    char *stack;      /* lowest address; NULL for the thread's own stack */
    void *fake_stack; /* AddressSanitizer's */
};

constexpr size_t STACK_BYTES = 256 << 10;

/* Gives f a stack (with an inaccessible page below it) if it has none. */
void fiber_make_stack(fiber &f);
/* f will start in entry(), which may not return. */
void fiber_start_at(fiber &f, void (*entry)());
/* Continues `to`; returns when something switches back to `from`. `last`: `from` will never continue. */
void fiber_switch(fiber &from, fiber &to, bool last);
/* First thing in entry(): completes the switch for the sanitizer. */
void fiber_entered();
} // namespace simt

#endif
