/* Ranges for profilers: NVTX, domain "kveval". Every op has one of its own name whose payload is its size (rows of the
 * call; elements for a ranking); layers, phases and samples come from the host (kernels/backend.h range_push). Without
 * a tool attached a range costs two calls that return at once. */
#ifndef KVE_KERNELS_CUDA_TRACE_CUH
#define KVE_KERNELS_CUDA_TRACE_CUH

#include "kernels/cuda/cuda.h"

void cuda_range_push(kve_backend *be, const char *name);
void cuda_range_pop(kve_backend *be);

/* The range of one op, from construction to destruction. */
struct op_range {
    op_range(const char *op, int64_t size);
    ~op_range();
    op_range(const op_range &) = delete;
    op_range &operator=(const op_range &) = delete;
};

/* What an op's size is: T rows of the call where it has them, n cached rows elsewhere. */
template <class P> auto op_size(const P &p, int) -> decltype(static_cast<int64_t>(p.T))
{
    return p.T;
}
template <class P> auto op_size(const P &p, long) -> decltype(static_cast<int64_t>(p.n))
{
    return p.n;
}
inline int64_t op_size(const kve_rank_params &p, int)
{
    return static_cast<int64_t>(p.rows) * p.n;
}
inline int64_t op_size(const kve_gather_params &p, int)
{
    return p.count;
}

#endif
