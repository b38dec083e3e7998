/* The total order of a ranking (kernels/ops.h): protected rows first, then a stable LSD radix sort by descending score,
 * so that ties go to the lower position by construction. Twin: kernels/cpu/rank.c. One block of 1,024 threads a row.
 *
 * Up to 8,192 scores: cub::BlockRadixSort, keys and positions in registers, nothing but the scores and the order in
 * device memory. Beyond: 4 passes of 8 bits, (key, position) pairs ping-pong between two halves of the scratch (L2
 * holds them). All four histograms come from one walk over the scores. A tile of 1,024 pairs is ranked by warps:
 * __match_any_sync finds the lanes of equal digit, a count per (warp, digit) gives each warp its offset; warps and
 * lanes are in order of position, hence stable. bytes: the scores once, the order once; beyond 8,192 also 4 x 16 bytes
 * an element of L2 traffic. */
#include "kernels/cuda/prim.cuh"

#include <cub/block/block_radix_sort.cuh>

enum { THREADS = 1024, WARPS = THREADS / WARP, BITS = 8, DIGITS = 1 << BITS, PASSES = 4 };

struct sorter {
    uint32_t histogram[PASSES][DIGITS];
    uint32_t offset[DIGITS];
    uint32_t count[WARPS][DIGITS]; /* of the current tile; then each warp's first place */
};

__device__ static int digit_of(uint32_t key, int pass)
{
    return static_cast<int>(key >> (pass * BITS)) & (DIGITS - 1);
}

/* offset[d] = number of keys with a digit below d: one warp, eight digits a lane. */
__device__ static void scan_histogram(sorter &s, int pass)
{
    constexpr int EACH = DIGITS / WARP;
    if (threadIdx.x < WARP) {
        uint32_t own[EACH], sum = 0;
        for (int i = 0; i < EACH; i++) {
            own[i] = sum;
            sum += s.histogram[pass][threadIdx.x * EACH + i];
        }
        uint32_t before = sum;
        for (int d = 1; d < WARP; d *= 2) {
            uint32_t other = __shfl_up_sync(0xffffffffu, before, d);
            before += threadIdx.x >= static_cast<unsigned>(d) ? other : 0;
        }
        for (int i = 0; i < EACH; i++)
            s.offset[threadIdx.x * EACH + i] = before - sum + own[i];
    }
    __syncthreads();
}

/* Moves up to 1,024 pairs to their places and advances the offsets. */
__device__ static void move_tile(sorter &s, const uint2 *from, uint2 *to, int pass, int32_t at, int32_t m)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int32_t i = at + static_cast<int32_t>(threadIdx.x);
    uint2 pair = i < m ? from[i] : make_uint2(0, 0);
    int digit = i < m ? digit_of(pair.x, pass) : DIGITS;
    for (int d = lane; d < DIGITS; d += WARP)
        s.count[warp][d] = 0;
    __syncwarp();
    unsigned same = __match_any_sync(0xffffffffu, digit);
    int rank = __popc(same & ((1u << lane) - 1u));
    if (rank == 0 && digit < DIGITS)
        s.count[warp][digit] = __popc(same);
    __syncthreads();
    if (threadIdx.x < DIGITS) { /* each digit's places, warp by warp */
        uint32_t next = s.offset[threadIdx.x];
        for (int w = 0; w < WARPS; w++) {
            uint32_t n = s.count[w][threadIdx.x];
            s.count[w][threadIdx.x] = next;
            next += n;
        }
        s.offset[threadIdx.x] = next;
    }
    __syncthreads();
    if (digit < DIGITS)
        to[s.count[warp][digit] + rank] = pair;
    __syncwarp(); /* a warp clears its own counts in the next tile only after all its lanes have read them */
}

/* What both kernels start with. */
struct row_job {
    const float *score; /* the first row that is not protected */
    int32_t *order;
    int32_t sink, recent, m, n_free; /* rows to sort; places for them */
};

__device__ static row_job begin_row(const kve_rank_params &p)
{
    int32_t sink = min(p.sink, p.n), recent = min(p.recent, p.n - sink), m = p.n - sink - recent;
    int32_t *order = p.order + static_cast<size_t>(blockIdx.x) * p.n_out;
    for (int32_t i = threadIdx.x; i < min(sink + recent, p.n_out); i += THREADS)
        order[i] = i < sink ? i : p.n - 1 - (i - sink);
    return {p.scores + static_cast<size_t>(blockIdx.x) * p.n + sink,
            order + sink + recent,
            sink,
            recent,
            m,
            min(m, p.n_out - sink - recent)};
}

/* EACH scores a thread, neighbours in one thread, as CUB wants them for a stable sort. */
template <int EACH> static __global__ void __launch_bounds__(THREADS) small_kernel(kve_rank_params p)
{
    using sort = cub::BlockRadixSort<uint32_t, THREADS, EACH, int32_t>;
    __shared__ typename sort::TempStorage storage;
    row_job job = begin_row(p);
    uint32_t key[EACH];
    int32_t position[EACH];
    if (job.n_free <= 0)
        return;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int32_t at = static_cast<int32_t>(threadIdx.x) * EACH + i;
        key[i] = at < job.m ? descending_key(job.score[at]) : 0xffffffffu; /* behind every score, NaN included */
        position[i] = job.sink + at;
    }
    sort(storage).SortBlockedToStriped(key, position);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int32_t rank = i * THREADS + static_cast<int32_t>(threadIdx.x);
        if (rank < job.n_free)
            job.order[rank] = position[i];
    }
}

static __global__ void __launch_bounds__(THREADS) large_kernel(kve_rank_params p, uint2 *pairs)
{
    __shared__ sorter s;
    row_job job = begin_row(p);
    int32_t m = job.m;
    uint2 *a = pairs + static_cast<size_t>(blockIdx.x) * 2 * p.n, *b = a + p.n;
    if (job.n_free <= 0)
        return;

    /* 1: keys and histograms */
    for (int i = threadIdx.x; i < PASSES * DIGITS; i += THREADS)
        s.histogram[i / DIGITS][i % DIGITS] = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < m; i += THREADS) {
        uint32_t key = descending_key(job.score[i]);
        a[i] = make_uint2(key, static_cast<uint32_t>(job.sink + i));
        for (int pass = 0; pass < PASSES; pass++)
            atomicAdd(&s.histogram[pass][digit_of(key, pass)], 1u);
    }
    __syncthreads();

    /* 2: the passes; an even number, so the result is in a again */
    for (int pass = 0; pass < PASSES; pass++) {
        scan_histogram(s, pass);
        for (int32_t at = 0; at < m; at += THREADS)
            move_tile(s, a, b, pass, at, m);
        __syncthreads();
        uint2 *t = a;
        a = b;
        b = t;
    }

    /* 3: positions in order */
    for (int32_t i = threadIdx.x; i < job.n_free; i += THREADS)
        job.order[i] = static_cast<int32_t>(a[i].y);
}

template <int EACH> static kve_status rank_small(cuda_backend *c, const kve_rank_params *p)
{
    KVE_LAUNCH(small_kernel<EACH>, p->rows, THREADS, 0, c->stream, *p);
    CUDA_LAUNCHED("rank");
    return KVE_OK;
}

kve_status cuda_rank(kve_backend *be, const kve_rank_params *p)
{
    cuda_backend *c = cuda_of(be);
    if (p->rows == 0 || p->n == 0)
        return KVE_OK;
    if (p->n <= 1 * THREADS)
        return rank_small<1>(c, p);
    if (p->n <= 2 * THREADS)
        return rank_small<2>(c, p);
    if (p->n <= 4 * THREADS)
        return rank_small<4>(c, p);
    if (p->n <= 8 * THREADS)
        return rank_small<8>(c, p);
    KVE_TRY(cuda_scratch(c, static_cast<size_t>(p->rows) * 2 * static_cast<size_t>(p->n) * sizeof(uint2)));
    KVE_LAUNCH(large_kernel, p->rows, THREADS, 0, c->stream, *p, static_cast<uint2 *>(c->scratch));
    CUDA_LAUNCHED("rank");
    return KVE_OK;
}
