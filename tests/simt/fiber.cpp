/* Fibers for x86-64: fifteen lines of assembly instead of swapcontext(), which makes a system call per switch. */
#include "tests/simt/fiber.h"
#include "tests/simt/runtime.h"

#include <sys/mman.h>

#ifdef SIMT_ASAN
extern "C" void __sanitizer_start_switch_fiber(void **fake_stack_save, const void *bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void *fake_stack_save, const void **bottom_old, size_t *size_old);
#endif

/* What the System V ABI lets a callee expect unchanged goes on the old stack, then the stack changes. */
extern "C" void simt_switch_stack(void **save_stack_pointer, void *stack_pointer);
__asm__(R"(
    .text
    .globl simt_switch_stack
    .type simt_switch_stack, @function
simt_switch_stack:
    endbr64
    pushq %rbx
    pushq %rbp
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbp
    popq %rbx
    ret
    .size simt_switch_stack, .-simt_switch_stack
)");

namespace simt
{
constexpr size_t PAGE_BYTES = 4096;
constexpr int SAVED_REGISTERS = 6;

#ifdef SIMT_ASAN
/* The device thread's own stack, learnt by the first fiber that is entered from it. */
static const void *thread_stack;
static size_t thread_stack_bytes;
#endif

void fiber_make_stack(fiber &f)
{
    if (f.stack)
        return;
    void *p = mmap(nullptr, STACK_BYTES + PAGE_BYTES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (p == MAP_FAILED || mprotect(p, PAGE_BYTES, PROT_NONE) != 0)
        fault("no memory for the stacks of a block's threads");
    f.stack = static_cast<char *>(p) + PAGE_BYTES;
}

void fiber_start_at(fiber &f, void (*entry)())
{
    /* entry() is reached by `ret`: it must find the stack as after a call, 8 bytes off a multiple of 16 */
    void **top = reinterpret_cast<void **>(f.stack + STACK_BYTES) - 1;
    *--top = reinterpret_cast<void *>(entry);
    for (int i = 0; i < SAVED_REGISTERS; i++)
        *--top = nullptr;
    f.stack_pointer = top;
    f.fake_stack = nullptr;
}

void fiber_switch(fiber &from, fiber &to, bool last)
{
#ifdef SIMT_ASAN
    __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.stack ? to.stack : thread_stack,
                                   to.stack ? STACK_BYTES : thread_stack_bytes);
    simt_switch_stack(&from.stack_pointer, to.stack_pointer);
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#else
    (void)last;
    simt_switch_stack(&from.stack_pointer, to.stack_pointer);
#endif
}

void fiber_entered()
{
#ifdef SIMT_ASAN
    const void *bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (!thread_stack) {
        thread_stack = bottom;
        thread_stack_bytes = bytes;
    }
#endif
}
} // namespace simt
