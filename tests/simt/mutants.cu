/* Kernels with one seeded mistake each, to prove that the checks of this folder catch it. `mutants NAME` runs the
 * mistake, `mutants NAME right` the same kernel without it; `mutants list` prints the names. mutants.py runs them all
 * and knows what must catch what. Host code that is wrong is in mutants_host.cu. */
#include "tests/simt/mutants.h"

#include <mma.h>

enum { N = 64, LANES = 32 };

/* --- Barriers */

/* Each warp's sum goes through shared memory; `wrong` forgets the barrier in between. */
template <bool wrong> static __global__ void reduce_kernel(const float *x, float *out)
{
    __shared__ float part[N / LANES];
    float sum = x[threadIdx.x];
    for (int d = LANES / 2; d > 0; d /= 2)
        sum += __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x % LANES == 0)
        part[threadIdx.x / LANES] = sum;
    if (!wrong)
        __syncthreads();
    if (threadIdx.x == 0)
        out[0] = part[0] + part[1];
}

/* Tiles in one buffer: without the second barrier a fast thread overwrites what a slow one reads. */
template <bool wrong> static __global__ void tiles_kernel(const float *x, float *out)
{
    __shared__ float tile[N];
    float sum = 0;
    for (int round = 0; round < 3; round++) {
        tile[threadIdx.x] = x[threadIdx.x] + static_cast<float>(round);
        __syncthreads();
        sum += tile[(threadIdx.x + 33) % N];
        if (!wrong)
            __syncthreads();
    }
    out[threadIdx.x] = sum;
}

template <bool wrong> static __global__ void divergent_kernel(float *out)
{
    if (!wrong) {
        __syncthreads();
    } else if (threadIdx.x < 40) {
        __syncthreads();
    } else {
        out[threadIdx.x] = 1;
        __syncthreads();
    }
    out[threadIdx.x] = 2;
}

/* A thread that leaves a loop early never comes to the barrier in it. */
template <bool wrong> static __global__ void early_exit_kernel(float *out)
{
    for (unsigned i = 0; i < 3; i++) {
        if (wrong && i == 1 && threadIdx.x == 5)
            break;
        __syncthreads();
    }
    out[threadIdx.x] = __shfl_sync(~0u, 1.0f, 5);
}

/* --- Warps */

template <bool wrong> static __global__ void warp_kernel(float *out)
{
    __shared__ float slots[LANES];
    slots[threadIdx.x] = static_cast<float>(threadIdx.x);
    if (!wrong)
        __syncwarp();
    out[threadIdx.x] = slots[LANES - 1 - threadIdx.x];
}

/* The reads of one step against the writes of the next. */
template <bool wrong> static __global__ void warp_reuse_kernel(float *out)
{
    __shared__ float slots[LANES];
    slots[threadIdx.x] = 1;
    __syncwarp();
    float next = slots[threadIdx.x ^ 1];
    if (!wrong)
        __syncwarp();
    slots[threadIdx.x] = 2;
    out[threadIdx.x] = next;
}

/* A vote that names all lanes, where only some come. */
template <bool wrong> static __global__ void partial_vote_kernel(float *out, int n)
{
    bool take = false;
    for (int i = static_cast<int>(threadIdx.x); wrong ? i < n : i < (n + LANES - 1) / LANES * LANES; i += LANES)
        take = __ballot_sync(~0u, i < n) != 0;
    out[threadIdx.x] = take;
}

template <bool wrong> static __global__ void outside_shuffle_kernel(float *out)
{
    if (threadIdx.x < 16)
        out[threadIdx.x] = __shfl_sync(0xffffu, static_cast<float>(threadIdx.x), wrong ? 20 : 3);
}

/* --- Blocks */

template <bool wrong> static __global__ void sum_kernel(float *out)
{
    if (threadIdx.x != 0)
        return;
    if (wrong)
        out[0] += 1;
    else
        atomicAdd(out, 1.0f);
}

/* The last block to finish adds up what all have left: the fence makes it visible. */
template <bool wrong> static __global__ void last_block_kernel(float *parts, unsigned *finished, float *out)
{
    if (threadIdx.x != 0)
        return;
    parts[blockIdx.x] = 1;
    if (!wrong)
        __threadfence();
    if (atomicAdd(finished, 1u) != gridDim.x - 1)
        return;
    float sum = 0;
    for (unsigned i = 0; i < gridDim.x; i++)
        sum += parts[i];
    out[0] = sum;
}

/* --- Memory */

template <bool wrong> static __global__ void bounds_kernel(float *out, int n)
{
    for (int i = static_cast<int>(threadIdx.x); wrong ? i <= n : i < n; i += static_cast<int>(blockDim.x))
        out[i] = 1;
}

template <bool wrong> static __global__ void read_bounds_kernel(const float *x, float *out)
{
    out[threadIdx.x] = x[threadIdx.x] + (wrong ? 0 * x[threadIdx.x + 1] : 0);
}

/* As 16-byte words; one word too many. */
template <bool wrong> static __global__ void vector_bounds_kernel(const float4 *x, float4 *out, int n)
{
    for (int i = static_cast<int>(threadIdx.x); wrong ? i <= n : i < n; i += static_cast<int>(blockDim.x))
        out[i] = x[i];
}

template <bool wrong> static __global__ void shared_bounds_kernel(float *out)
{
    __shared__ float slots[N];
    slots[threadIdx.x + (wrong ? 1 : 0)] = 1;
    __syncthreads();
    out[threadIdx.x] = slots[threadIdx.x == 0 ? 1 : threadIdx.x];
}

template <bool wrong> static __global__ void dynamic_bounds_kernel(float *out)
{
    KVE_DYN_SHARED(float, slots);
    slots[threadIdx.x + (wrong ? 1 : 0)] = 1;
    __syncthreads();
    out[threadIdx.x] = slots[threadIdx.x == 0 ? 1 : threadIdx.x];
}

template <bool wrong> static __global__ void uninitialised_kernel(float *out)
{
    __shared__ unsigned count;
    if (!wrong && threadIdx.x == 0)
        count = 0;
    __syncthreads();
    atomicAdd(&count, 1u);
    __syncthreads();
    out[threadIdx.x] = static_cast<float>(count);
}

template <bool wrong> static __global__ void unset_global_kernel(const float *never_set, float *out)
{
    out[threadIdx.x] = wrong ? never_set[threadIdx.x] : 1;
}

template <bool wrong> static __global__ void misaligned_kernel(const float *x, float *out)
{
    const float4 *v = reinterpret_cast<const float4 *>(x + (wrong ? 1 : 0));
    float4 w = v[threadIdx.x];
    out[threadIdx.x] = w.x + w.y + w.z + w.w;
}

template <bool wrong> static __global__ void misaligned_member_kernel(const float *x, float *out)
{
    const float4 *v = reinterpret_cast<const float4 *>(x + (wrong ? 1 : 0));
    out[threadIdx.x] = v[threadIdx.x].x;
}

template <bool wrong> static __global__ void misaligned_ldg_kernel(const float *x, float *out)
{
    float4 w = __ldg(reinterpret_cast<const float4 *>(x + (wrong ? 1 : 0)) + threadIdx.x);
    out[threadIdx.x] = w.x + w.y + w.z + w.w;
}

/* --- Fragments: working on x[i] by place assumes one mapping of elements to lanes. */

template <bool wrong> static __global__ void mapping_kernel(float *out)
{
    using namespace nvcuda;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> f;
    wmma::fill_fragment(f, 0.0f);
    for (int i = 0; i < f.num_elements; i++)
        f.x[i] += wrong ? static_cast<float>((threadIdx.x % 4) * 2 + static_cast<unsigned>(i) % 2 +
                                             static_cast<unsigned>(i) / 4 * 8)
                        : 1.0f;
    __shared__ __align__(32) float matrix[256];
    wmma::store_matrix_sync(matrix, f, 16, wmma::mem_row_major);
    __syncwarp();
    for (unsigned i = threadIdx.x; i < 251; i += LANES)
        out[i] = matrix[i];
}

/* --- Runs: each prepares memory, launches, and says whether the answer is right. */

struct arrays {
    std::vector<float> ramp = std::vector<float>(N * 4 - 1);
    device_array<float> x, out, unset;
    arrays() : x(fill()), out(std::vector<float>(N * 4 - 5)), unset(size_t{N})
    {
    }
    const std::vector<float> &fill()
    {
        for (size_t i = 0; i < ramp.size(); i++)
            ramp[i] = static_cast<float>(i);
        return ramp;
    }
    bool all(float want, size_t n) const
    {
        std::vector<float> got = out.values();
        return std::all_of(got.begin(), got.begin() + static_cast<long>(n), [want](float v) { return v == want; });
    }
};

#define RUN(name, launch, answer)                                                                                      \
    template <bool wrong> static bool run_##name()                                                                     \
    {                                                                                                                  \
        arrays a;                                                                                                      \
        launch;                                                                                                        \
        return (answer);                                                                                               \
    }

#define ONE(kernel, threads, ...) KVE_LAUNCH(kernel<wrong>, 1, threads, 0, nullptr, __VA_ARGS__)

RUN(barrier, ONE(reduce_kernel, N, a.x.p, a.out.p), a.all(N *(N - 1) / 2, 1))
RUN(barrier_reuse, ONE(tiles_kernel, N, a.x.p, a.out.p), a.out.values()[1] == 3 * 34 + 3)
RUN(divergent_barrier, ONE(divergent_kernel, N, a.out.p), a.all(2, N))
RUN(early_exit, ONE(early_exit_kernel, N, a.out.p), a.all(1, N))
RUN(syncwarp, ONE(warp_kernel, LANES, a.out.p), a.out.values()[0] == LANES - 1)
RUN(syncwarp_reuse, ONE(warp_reuse_kernel, LANES, a.out.p), a.all(1, LANES))
RUN(partial_vote, ONE(partial_vote_kernel, LANES, a.out.p, 40), a.all(1, LANES))
RUN(outside_shuffle, ONE(outside_shuffle_kernel, LANES, a.out.p), a.all(3, 16))
RUN(block_sum, KVE_LAUNCH(sum_kernel<wrong>, 4, LANES, 0, nullptr, a.out.p), a.all(4, 1))
RUN(fence, device_array<unsigned> n(std::vector<unsigned>{0});
    KVE_LAUNCH(last_block_kernel<wrong>, 4, LANES, 0, nullptr, a.unset.p, n.p, a.out.p), a.all(4, 1))
RUN(bounds, ONE(bounds_kernel, N, a.out.p, N * 4 - 5), a.all(1, N * 4 - 5))
RUN(read_bounds, ONE(read_bounds_kernel, N, a.x.p + a.x.n - N, a.out.p), a.out.values()[0] == N * 3 - 1)
RUN(vector_bounds,
    ONE(vector_bounds_kernel, N, reinterpret_cast<float4 *>(a.x.p), reinterpret_cast<float4 *>(a.out.p), N - 2),
    a.out.values()[5] == 5)
RUN(shared_bounds, ONE(shared_bounds_kernel, N, a.out.p), a.all(1, N))
RUN(dynamic_bounds, KVE_LAUNCH(dynamic_bounds_kernel<wrong>, 1, N, N * sizeof(float), nullptr, a.out.p), a.all(1, N))
RUN(uninitialised, ONE(uninitialised_kernel, N, a.out.p), a.all(N, N))
RUN(unset_global, ONE(unset_global_kernel, N, a.unset.p, a.out.p), a.all(1, N))
RUN(misaligned, ONE(misaligned_kernel, N - 1, a.x.p, a.out.p), a.out.values()[1] == (wrong ? 26 : 22))
RUN(misaligned_member, ONE(misaligned_member_kernel, N - 1, a.x.p, a.out.p), a.out.values()[1] == (wrong ? 5 : 4))
RUN(misaligned_ldg, ONE(misaligned_ldg_kernel, N - 1, a.x.p, a.out.p), a.out.values()[1] == (wrong ? 26 : 22))
RUN(fragment_mapping, ONE(mapping_kernel, LANES, a.out.p), wrong ? a.out.values()[1] == 1 : a.all(1, 251))

#define ENTRY(name)                                                                                                    \
    {                                                                                                                  \
#name, run_##name < true>, run_##name < false>                                                                 \
    }
const std::vector<mutant> &kernel_mutants()
{
    static const std::vector<mutant> all = {
        ENTRY(barrier),
        ENTRY(barrier_reuse),
        ENTRY(divergent_barrier),
        ENTRY(early_exit),
        ENTRY(syncwarp),
        ENTRY(syncwarp_reuse),
        ENTRY(partial_vote),
        ENTRY(outside_shuffle),
        ENTRY(block_sum),
        ENTRY(fence),
        ENTRY(bounds),
        ENTRY(read_bounds),
        ENTRY(vector_bounds),
        ENTRY(shared_bounds),
        ENTRY(dynamic_bounds),
        ENTRY(uninitialised),
        ENTRY(unset_global),
        ENTRY(misaligned),
        ENTRY(misaligned_member),
        ENTRY(misaligned_ldg),
        ENTRY(fragment_mapping),
    };
    return all;
}
