/* The total order of a ranking (kernels/ops.h): protected rows first, then a stable LSD radix sort by descending score,
 * so that ties go to the lower position by construction. Twin: kernels/cpu/rank.c.
 *
 * One block of 1,024 threads sorts one row in 4 passes of 8 bits, (key, position) pairs ping-pong between two halves of
 * the scratch (L2 holds them). All four histograms come from one walk over the scores. A tile of 1,024 pairs is ranked
 * by warps: __match_any_sync finds the lanes of equal digit, a count per (warp, digit) gives each warp its offset;
 * warps and lanes are in order of position, hence stable. bytes: the scores once, 4 x 16 bytes an element of L2
 * traffic. */
#include "kernels/cuda/prim.cuh"

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

static __global__ void __launch_bounds__(THREADS) rank_kernel(kve_rank_params p, uint2 *pairs)
{
    __shared__ sorter s;
    const float *score = p.scores + static_cast<size_t>(blockIdx.x) * p.n;
    int32_t *order = p.order + static_cast<size_t>(blockIdx.x) * p.n_out;
    int32_t sink = min(p.sink, p.n), recent = min(p.recent, p.n - sink), m = p.n - sink - recent;
    uint2 *a = pairs + static_cast<size_t>(blockIdx.x) * 2 * p.n, *b = a + p.n;

    /* 1: protected rows */
    for (int32_t i = threadIdx.x; i < min(sink + recent, p.n_out); i += THREADS)
        order[i] = i < sink ? i : p.n - 1 - (i - sink);
    if (sink + recent >= p.n_out)
        return;

    /* 2: keys and histograms */
    for (int i = threadIdx.x; i < PASSES * DIGITS; i += THREADS)
        s.histogram[i / DIGITS][i % DIGITS] = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < m; i += THREADS) {
        uint32_t key = descending_key(score[sink + i]);
        a[i] = make_uint2(key, static_cast<uint32_t>(sink + i));
        for (int pass = 0; pass < PASSES; pass++)
            atomicAdd(&s.histogram[pass][digit_of(key, pass)], 1u);
    }
    __syncthreads();

    /* 3: the passes; an even number, so the result is in a again */
    for (int pass = 0; pass < PASSES; pass++) {
        scan_histogram(s, pass);
        for (int32_t at = 0; at < m; at += THREADS)
            move_tile(s, a, b, pass, at, m);
        __syncthreads();
        uint2 *t = a;
        a = b;
        b = t;
    }

    /* 4: positions in order */
    for (int32_t i = threadIdx.x; i < min(m, p.n_out - sink - recent); i += THREADS)
        order[sink + recent + i] = static_cast<int32_t>(a[i].y);
}

kve_status cuda_rank(kve_backend *be, const kve_rank_params *p)
{
    cuda_backend *c = cuda_of(be);
    if (p->rows == 0 || p->n == 0)
        return KVE_OK;
    KVE_TRY(cuda_scratch(c, static_cast<size_t>(p->rows) * 2 * static_cast<size_t>(p->n) * sizeof(uint2)));
    KVE_LAUNCH(rank_kernel, p->rows, THREADS, 0, c->stream, *p, static_cast<uint2 *>(c->scratch));
    CUDA_LAUNCHED("rank");
    return KVE_OK;
}
