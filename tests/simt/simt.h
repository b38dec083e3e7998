/* What a .cu file sees instead of nvcc: this header is included in front of every .cu file that the tests compile for
 * the host (-x c++ -DKVE_SIMT -include simt.h). A kernel then runs on the CPU, one fiber per CUDA thread, one block
 * after another. Types and prototypes are NVIDIA's own headers; what they declare is defined by the files beside this
 * one. Knows nothing of the project but the two macros of kernels/cuda/launch.cuh. README.md tells how to use it. */
#ifndef KVE_TESTS_SIMT_SIMT_H
#define KVE_TESTS_SIMT_SIMT_H

#ifndef __cplusplus
#error "simt.h is for .cu files, which are compiled as C++"
#endif

/* As nvcc and kernels/cuda/launch.cuh do. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "tests/simt/device.h"
// device.h first: the other two are built on it
#include "tests/simt/atomics.h"
#include "tests/simt/intrinsics.h"
#include "tests/simt/launch.h"

/* Static shared memory is one instance for all threads of a block, and blocks run one after another on one OS thread.
 * Thread-local storage is such an instance, and it lies in one piece for each OS thread, which the run time can fill
 * anew before every block. AddressSanitizer puts red zones round plain statics only. */
#undef __shared__
#ifdef SIMT_ASAN
#define __shared__ static
#else
#define __shared__ static __thread
#endif

/* Left to nvcc's eyes. */
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif
#ifndef __grid_constant__
#define __grid_constant__
#endif

#define KVE_DYN_SHARED(T, name) T *name = static_cast<T *>(simt::dynamic_shared())
#define KVE_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                     \
    simt::launch(#kernel, kernel, (grid), (block), (shared_bytes), (stream), ##__VA_ARGS__)

#endif
