/* How the .cu files of this folder launch kernels and ask for dynamic shared memory. nvcc sees the usual forms; the
 * tests compile the same files for the host (tests/simt), where KVE_SIMT is set and simt.h gives both macros. */
#ifndef KVE_KERNELS_CUDA_LAUNCH_CUH
#define KVE_KERNELS_CUDA_LAUNCH_CUH

#ifndef KVE_SIMT
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#define KVE_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                     \
    kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
#define KVE_DYN_SHARED(T, name)                                                                                        \
    extern __shared__ __align__(16) unsigned char kve_dynamic_shared[];                                                \
    T *name = reinterpret_cast<T *>(kve_dynamic_shared)
#endif

#endif
