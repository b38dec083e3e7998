/* Launching a kernel, and the C++ forms of runtime calls that only nvcc declares. Part of simt.h. */
#ifndef KVE_TESTS_SIMT_LAUNCH_H
#define KVE_TESTS_SIMT_LAUNCH_H

#include "tests/simt/device.h"

#include <memory>
#include <tuple>
#include <utility>

namespace simt
{
/* A kernel with its arguments copied, as a launch copies them: it may run, or be replayed by a graph, much later. */
struct kernel_call {
    const char *name;
    const void *function;
    dim3 grid, block;
    size_t shared_bytes;
    std::shared_ptr<void> arguments;
    size_t argument_bytes;
    void (*run_thread)(void *arguments);
};

void enqueue_kernel(const kernel_call &call, cudaStream_t stream);

/* Converts as a call would, without what a cast would let pass. */
template <class T> T converted(T v)
{
    return v;
}

template <class... P, class... A>
void launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            A &&...arguments)
{
    struct bound {
        void (*kernel)(P...);
        std::tuple<std::decay_t<P>...> arguments;
        static void run_thread(void *self)
        {
            std::apply(static_cast<bound *>(self)->kernel, static_cast<bound *>(self)->arguments);
        }
    };
    auto call = std::make_shared<bound>(bound{kernel, {converted<std::decay_t<P>>(std::forward<A>(arguments))...}});
    enqueue_kernel({name, reinterpret_cast<const void *>(kernel), grid, block, shared_bytes, call, sizeof(bound),
                    bound::run_thread},
                   stream);
}
} // namespace simt

template <class... P> cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}

template <class... P> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, void (*kernel)(P...))
{
    return cudaFuncGetAttributes(out, reinterpret_cast<const void *>(kernel));
}

template <class... P>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n_blocks, void (*kernel)(P...), int block_size,
                                                          size_t shared_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n_blocks, reinterpret_cast<const void *>(kernel), block_size,
                                                         shared_bytes);
}

#endif
