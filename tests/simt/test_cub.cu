/* CUB's block and warp primitives in kernels that run on the host: sums, scans, sorts, loads through shared memory. */
#include "tests/simt/test.h"

#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>

#include <algorithm>
#include <numeric>

enum { THREADS = 128, EACH = 4, TOTAL = THREADS * EACH };

template <class T, cub::BlockReduceAlgorithm algorithm> static __global__ void reduce_kernel(const T *in, T *out)
{
    using reduce = cub::BlockReduce<T, THREADS, algorithm>;
    __shared__ typename reduce::TempStorage memory;
    T sum = reduce(memory).Sum(in[blockIdx.x * THREADS + threadIdx.x]);
    __syncthreads();
    T most = reduce(memory).Reduce(in[blockIdx.x * THREADS + threadIdx.x], [](T a, T b) { return a > b ? a : b; });
    if (threadIdx.x == 0) {
        out[2 * blockIdx.x] = sum;
        out[2 * blockIdx.x + 1] = most;
    }
}

template <class T, cub::BlockReduceAlgorithm algorithm> static void test_reduce()
{
    std::vector<T> in(2 * THREADS);
    for (T &v : in)
        v = static_cast<T>(test_random(1000));
    device_array<T> from(in), to(4);
    KVE_LAUNCH((reduce_kernel<T, algorithm>), 2, THREADS, 0, nullptr, from.p, to.p);
    std::vector<T> got = to.values();
    for (int b = 0; b < 2; b++) {
        auto begin = in.begin() + b * THREADS;
        CHECK(got[static_cast<size_t>(2 * b)] == std::accumulate(begin, begin + THREADS, T{0}));
        CHECK(got[static_cast<size_t>(2 * b + 1)] == *std::max_element(begin, begin + THREADS));
    }
}

template <cub::BlockScanAlgorithm algorithm> static __global__ void scan_kernel(const int *in, int *out, int *total)
{
    using scan = cub::BlockScan<int, THREADS, algorithm>;
    __shared__ typename scan::TempStorage memory;
    int v = in[threadIdx.x], sum;
    scan(memory).ExclusiveSum(v, v, sum);
    out[threadIdx.x] = v;
    if (threadIdx.x == 0)
        *total = sum;
}

template <cub::BlockScanAlgorithm algorithm> static void test_scan()
{
    std::vector<int> in(THREADS), want(THREADS);
    for (int &v : in)
        v = test_random(100);
    std::exclusive_scan(in.begin(), in.end(), want.begin(), 0);
    device_array<int> from(in), to(size_t{THREADS}), total(1);
    KVE_LAUNCH(scan_kernel<algorithm>, 1, THREADS, 0, nullptr, from.p, to.p, total.p);
    CHECK(to.values() == want && total.values()[0] == want.back() + in.back());
}

static __global__ void sort_kernel(float *keys, int *values)
{
    using load = cub::BlockLoad<float, THREADS, EACH, cub::BLOCK_LOAD_TRANSPOSE>;
    using store = cub::BlockStore<float, THREADS, EACH, cub::BLOCK_STORE_TRANSPOSE>;
    using sort = cub::BlockRadixSort<float, THREADS, EACH, int>;
    __shared__ union {
        typename load::TempStorage loading;
        typename store::TempStorage storing;
        typename sort::TempStorage sorting;
    } memory;
    float key[EACH];
    int value[EACH];
    load(memory.loading).Load(keys, key);
    for (int i = 0; i < EACH; i++)
        value[i] = values[threadIdx.x * EACH + static_cast<unsigned>(i)];
    __syncthreads();
    sort(memory.sorting).SortDescending(key, value);
    __syncthreads();
    store(memory.storing).Store(keys, key);
    for (int i = 0; i < EACH; i++)
        values[threadIdx.x * EACH + static_cast<unsigned>(i)] = value[i];
}

static void test_sort()
{
    std::vector<float> keys(TOTAL);
    std::vector<int> order(TOTAL);
    for (float &k : keys)
        k = static_cast<float>(test_random(200) - 100);
    std::iota(order.begin(), order.end(), 0);
    device_array<float> dk(keys);
    device_array<int> dv(order);
    KVE_LAUNCH(sort_kernel, 1, THREADS, 0, nullptr, dk.p, dv.p);
    auto key_of = [&](int i) { return keys[static_cast<size_t>(i)]; };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key_of(a) > key_of(b); });
    CHECK(dv.values() == order);
    std::sort(keys.rbegin(), keys.rend());
    CHECK(dk.values() == keys);
}

static __global__ void warp_kernel(const float *in, float *sums, int *ranks)
{
    using reduce = cub::WarpReduce<float>;
    using scan = cub::WarpScan<int, 16>;
    __shared__ typename reduce::TempStorage memory[THREADS / 32];
    __shared__ typename scan::TempStorage scan_memory[THREADS / 16];
    float sum = reduce(memory[threadIdx.x / 32]).Sum(in[threadIdx.x]);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = sum;
    int v = 1;
    scan(scan_memory[threadIdx.x / 16]).InclusiveSum(v, v);
    ranks[threadIdx.x] = v;
}

static void test_warps()
{
    std::vector<float> in(THREADS), want(THREADS / 32);
    std::vector<int> ranks(THREADS);
    for (size_t i = 0; i < THREADS; i++) {
        in[i] = static_cast<float>(test_random(64));
        want[i / 32] += in[i];
        ranks[i] = static_cast<int>(i % 16) + 1;
    }
    device_array<float> from(in), to(THREADS / 32);
    device_array<int> places(size_t{THREADS});
    KVE_LAUNCH(warp_kernel, 1, THREADS, 0, nullptr, from.p, to.p, places.p);
    CHECK(to.values() == want && places.values() == ranks);
}

void run_tests()
{
    test_reduce<int, cub::BLOCK_REDUCE_WARP_REDUCTIONS>();
    test_reduce<float, cub::BLOCK_REDUCE_WARP_REDUCTIONS>();
    test_reduce<double, cub::BLOCK_REDUCE_RAKING>();
    test_scan<cub::BLOCK_SCAN_WARP_SCANS>();
    test_scan<cub::BLOCK_SCAN_RAKING>();
    test_sort();
    test_warps();
}
