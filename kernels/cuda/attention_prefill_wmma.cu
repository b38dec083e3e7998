/* attention_prefill for bf16 caches on tensor cores. Contract: kernels/ops.h; where it cannot run (older devices, other
 * head dimensions) attention_prefill.cu does; twin: kernels/cpu/attention_prefill.c. Queries and probabilities are
 * rounded to bf16 for the products; scores, softmax and both accumulations are f32, and the sum that divides is that of
 * the rounded probabilities.
 *
 * A block of 4 warps has 64 RT rows (token, query head of the group), token slowest, of one KV head; a warp has RT
 * tiles of 16. Keys come in blocks of 32 at fixed boundaries, each a step of the online softmax, and a row meets no
 * other row: its bits are the same in any call, in any chunk and with either RT. RT = 2 reads K and V half as often
 * from shared memory; RT = 1 is for calls that would leave processors idle. Late tokens see the most keys: their blocks
 * go first.
 *
 * Shared memory: Q [64 RT][D + 8], K and V [32][D + 8] in bf16, and for each warp scores [16 RT][40] in f32, over which
 * its probabilities are written in bf16. The paddings keep the eight rows of a fragment, and the lanes' vectors, on
 * different banks. D 128: 72 KiB with RT 2, 45 KiB with RT 1. Registers: two blocks to a multiprocessor with RT 2 (255
 * at D 128), three with RT 1 (168); no spills.
 *
 * Barriers, two a block of keys: A, K is complete and nobody reads the last V; B, V is complete and nobody reads the
 * last K. What comes next waits in registers: V is fetched in front of A and stored behind the scores, the next K is
 * fetched behind B and stored behind the output. The scores are the warp's own; its lanes exchange them by __syncwarp.
 *
 * What a lane holds of a fragment is not specified. Each lane asks once, by loading a tile that holds its own indices,
 * and then scales and stores its elements by row and column.
 *
 * Masking happens in the blocks that some row of the tile does not see as a whole. There 0 times NaN or infinity would
 * reach rows that may not see it: such values count as 0 there, and once the output stands they are added for the rows
 * that do see them. Rows that nobody sees are not read; zeros stand for them.
 *
 * q, k and v begin at multiples of 16 bytes. bytes: q and out once, K and V once per block of rows, from L2 mostly;
 * flops: 4 D per (query head, visible key). 4,096 tokens of Qwen2.5-7B (28 layers): 3.4 TFLOP, 4.3 ms at 790 TFLOP/s.
 * These instructions reach about 0.6 of that, and the 36 KiB that move in shared memory for 32 x 32 scores (D 128, RT
 * 2) take 1.4 times as long as their products, so 0.4 is what can be hoped for. Not measured yet. */
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/tensor.cuh"

enum { WARPS = 4, THREADS = WARPS * WARP, KEYS = 32, KEY_TILES = KEYS / TILE, SCORES_LD = KEYS + 8, ALIGN = 32 };

/* The rows of a block: (token, query head of the group), token slowest. */
struct query_rows {
    int32_t G, h, Hq, start, row0, end; /* of the KV head; end: one past the call's last row */

    __device__ int32_t sees(int32_t row) const
    {
        return row < end ? start + row / G + 1 : 0;
    }

    __device__ size_t at(int32_t row) const /* in units of D elements */
    {
        return static_cast<size_t>(row / G) * Hq + h * G + row % G;
    }
};

template <int D, int RT> struct memory_of {
    static constexpr int LD = D + VECTOR, ROWS = WARPS * RT * TILE;
    bf16 q[ROWS][LD], k[KEYS][LD], v[KEYS][LD];
    float scores[WARPS][RT * TILE][SCORES_LD];
    float factor[WARPS][RT * TILE]; /* of a row's output */
    query_rows rows;                /* for the end: the loop needs the registers */
};

/* A thread's share of a block of K or V on its way to shared memory. */
template <int D> struct share {
    static constexpr int PER_ROW = D / VECTOR, ALL = KEYS * PER_ROW, N = (ALL + THREADS - 1) / THREADS;
    uint4 x[N];

    __device__ static int place(int i)
    {
        return i * THREADS + static_cast<int>(threadIdx.x);
    }

    /* `rows`: the block's first row; of its rows, `count` are there. */
    __device__ void load(const uint16_t *rows, int32_t count)
    {
        const uint4 *from = reinterpret_cast<const uint4 *>(rows) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = place(i) / PER_ROW < min(count, static_cast<int32_t>(KEYS)) ? __ldg(from + i * THREADS)
                                                                               : make_uint4(0, 0, 0, 0);
    }

    __device__ bool keep_finite_only()
    {
        bool odd = false;
#pragma unroll
        for (int i = 0; i < N; i++) {
            odd |= keep_finite(x[i].x);
            odd |= keep_finite(x[i].y);
            odd |= keep_finite(x[i].z);
            odd |= keep_finite(x[i].w);
        }
        return odd;
    }

    __device__ void store(bf16 (*to)[D + VECTOR]) const
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (ALL % THREADS == 0 || place(i) < ALL)
                put(to[place(i) / PER_ROW] + place(i) % PER_ROW * VECTOR, x[i]);
    }
};

template <int D, int RT>
__device__ static void load_queries(memory_of<D, RT> &m, const query_rows &rows, const float *q)
{
    constexpr int PER_ROW = D / VECTOR;
    for (int i = threadIdx.x; i < m.ROWS * PER_ROW; i += THREADS) {
        const int32_t row = rows.row0 + i / PER_ROW, d = i % PER_ROW * VECTOR;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (row < rows.end) {
            const float4 *from = reinterpret_cast<const float4 *>(q + rows.at(row) * D + d);
            const float4 a = from[0], b = from[1];
            x = make_uint4(packed(a.x, a.y), packed(a.z, a.w), packed(b.x, b.y), packed(b.z, b.w));
        }
        put(m.q[i / PER_ROW] + d, x);
    }
}

/* Adds what share.keep_finite_only left out: for each row the odd values of the keys from `first` on that it sees. */
template <int D, int RT>
__device__ static void add_odd_values(const query_rows &rows, const uint16_t *v, int32_t first, float *out)
{
    for (int i = threadIdx.x; i < memory_of<D, RT>::ROWS * D; i += THREADS) {
        const int32_t row = rows.row0 + i / D;
        float odd = 0;
        for (int32_t j = first; j < rows.sees(row); j++) {
            const float x = from_bf16(v[static_cast<size_t>(j) * D + i % D]);
            odd += isfinite(x) ? 0.0f : x;
        }
        if (odd != 0) /* NaN is not */
            out[rows.at(row) * D + i % D] += odd;
    }
}

#if TENSOR_CORES
/* A warp and its rows. For the softmax two lanes share a row of each tile: row lane / 2, and of every 8 keys the first
 * or the last 4. */
template <int D, int RT> struct warp_tile {
    static constexpr int LD = memory_of<D, RT>::LD;
    memory_of<D, RT> &m;
    const int warp, lane;
    elements mine;
    sums_fragment out[RT][D / TILE];
    int32_t sees[RT];
    float top[RT], sum[RT]; /* top in units of log 2; sum over this lane's keys */

    __device__ warp_tile(memory_of<D, RT> &memory, const query_rows &rows)
        : m(memory), warp(threadIdx.x / WARP), lane(threadIdx.x % WARP)
    {
        mine.ask(m.scores[warp][0], SCORES_LD);
#pragma unroll
        for (int rt = 0; rt < RT; rt++) {
            sees[rt] = rows.sees(rows.row0 + (warp * RT + rt) * TILE + lane / 2);
            top[rt] = -CUDART_INF_F;
            sum[rt] = 0;
#pragma unroll
            for (int ct = 0; ct < D / TILE; ct++)
                wmma::fill_fragment(out[rt][ct], 0.0f);
        }
    }

    /* scores = q K^T for the block of keys in shared memory. */
    __device__ void score()
    {
        sums_fragment s[RT][KEY_TILES];
#pragma unroll
        for (int i = 0; i < RT * KEY_TILES; i++)
            wmma::fill_fragment(s[i / KEY_TILES][i % KEY_TILES], 0.0f);
        for_each<D / TILE>([&](auto dt) {
            rows_fragment a[RT];
            for_each<RT>([&](auto rt) { load_fragment<rt * TILE * LD + dt * TILE>(a[rt], m.q[warp * RT * TILE], LD); });
            for_each<KEY_TILES>([&](auto kt) {
                columns_fragment b;
                load_fragment<kt * TILE * LD + dt * TILE>(b, m.k[0], LD);
                for (int rt = 0; rt < RT; rt++)
                    wmma::mma_sync(s[rt][kt], a[rt], b, s[rt][kt]);
            });
        });
#pragma unroll
        for (int i = 0; i < RT * KEY_TILES; i++)
            wmma::store_matrix_sync(&m.scores[warp][i / KEY_TILES * TILE][i % KEY_TILES * TILE],
                                    s[i / KEY_TILES][i % KEY_TILES], SCORES_LD, wmma::mem_row_major);
        __syncwarp();
    }

    /* Probabilities of tile rt take the place of its scores, in rows of SCORES_LD bf16. */
    __device__ bf16 *probabilities(int rt) const
    {
        return reinterpret_cast<bf16 *>(m.scores[warp][rt * TILE]);
    }

    /* Returns by what the row's output shrinks. NaN among the scores drops out of the maximum, but not out of the
     * exponential. */
    __device__ float softmax(int rt, int32_t key0, bool masked, float scale)
    {
        constexpr int N = KEYS / 2;
        float x[N], most = top[rt];
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const float4 four =
                *reinterpret_cast<const float4 *>(m.scores[warp][rt * TILE + lane / 2] + 2 * i + lane % 2 * 4);
            x[i] = four.x * scale;
            x[i + 1] = four.y * scale;
            x[i + 2] = four.z * scale;
            x[i + 3] = four.w * scale;
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (masked && key0 + i / 4 * 8 + lane % 2 * 4 + i % 4 >= sees[rt])
                x[i] = -CUDART_INF_F;
            most = fmaxf(most, x[i]);
        }
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        __syncwarp(); /* the other lanes have read their scores, too */
        const float base = most == -CUDART_INF_F ? 0.0f : most, shrink = exp2f(top[rt] - base);
        float total = 0;
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const uint2 p = make_uint2(packed(exp2f(x[i] - base), exp2f(x[i + 1] - base)),
                                       packed(exp2f(x[i + 2] - base), exp2f(x[i + 3] - base)));
            total += (low(p.x) + high(p.x)) + (low(p.y) + high(p.y));
            *reinterpret_cast<uint2 *>(probabilities(rt) + lane / 2 * SCORES_LD + 2 * i + lane % 2 * 4) = p;
        }
        top[rt] = most;
        sum[rt] = sum[rt] * shrink + total;
        return shrink;
    }

    __device__ void softmax_all(int32_t key0, bool masked, float scale)
    {
        bool moved = false;
#pragma unroll
        for (int rt = 0; rt < RT; rt++) {
            const float shrink = softmax(rt, key0, masked, scale);
            moved |= shrink != 1.0f;
            if (lane % 2 == 0)
                m.factor[warp][rt * TILE + lane / 2] = shrink;
        }
        __syncwarp();
        if (!__any_sync(0xffffffffu, moved)) /* times 1 */
            return;
        scale_output();
    }

    __device__ void scale_output()
    {
        const elements e = mine.again();
#pragma unroll
        for (int i = 0; i < RT * HELD_SUMS; i++) {
            const float by = m.factor[warp][i / HELD_SUMS * TILE + e.row(i % HELD_SUMS)];
#pragma unroll
            for (int ct = 0; ct < D / TILE; ct++)
                out[i / HELD_SUMS][ct].x[i % HELD_SUMS] *= by;
        }
    }

    /* out += probabilities V */
    __device__ void add_values()
    {
        rows_fragment p[RT][KEY_TILES];
        for_each<RT * KEY_TILES>([&](auto i) {
            constexpr int rt = i / KEY_TILES, kt = i % KEY_TILES;
            load_fragment<2 * rt * TILE * SCORES_LD + kt * TILE>(p[rt][kt], probabilities(0), SCORES_LD);
        });
        for_each<D / TILE>([&](auto ct) {
            for_each<KEY_TILES>([&](auto kt) {
                values_fragment b;
                load_fragment<kt * TILE * LD + ct * TILE>(b, m.v[0], LD);
                for (int rt = 0; rt < RT; rt++)
                    wmma::mma_sync(out[rt][ct], p[rt][kt], b, out[rt][ct]);
            });
        });
    }

    __device__ void store(const query_rows &rows, float *to)
    {
#pragma unroll
        for (int rt = 0; rt < RT; rt++) {
            const float whole = sum[rt] + __shfl_xor_sync(0xffffffffu, sum[rt], 1);
            if (lane % 2 == 0)
                m.factor[warp][rt * TILE + lane / 2] = 1.0f / whole;
        }
        __syncwarp();
        scale_output();
#pragma unroll
        for (int i = 0; i < RT * HELD_SUMS; i++) {
            const int32_t row = rows.row0 + (warp * RT + i / HELD_SUMS) * TILE + mine.row(i % HELD_SUMS);
            if (row >= rows.end)
                continue;
            float *at = to + rows.at(row) * D + mine.column(i % HELD_SUMS);
#pragma unroll
            for (int ct = 0; ct < D / TILE; ct++)
                at[ct * TILE] = out[i / HELD_SUMS][ct].x[i % HELD_SUMS];
        }
    }
};

template <int D, int RT> __device__ static void prefill_tile(memory_of<D, RT> &m, const kve_attention_prefill_params &p)
{
    const int32_t G = p.Hq / p.Hkv, h = blockIdx.y, row0 = (gridDim.x - 1 - blockIdx.x) * m.ROWS;
    const query_rows rows = {G, h, p.Hq, p.start, row0, p.T * G};
    if (threadIdx.x == 0)
        m.rows = rows;
    const int32_t least = rows.sees(row0), most = rows.sees(min(row0 + m.ROWS, rows.end) - 1);
    const size_t at = kv_row(p.kv.cap, p.Hkv, D, p.i_layer, h, 0);
    const uint16_t *k = static_cast<const uint16_t *>(p.kv.k) + at, *v = static_cast<const uint16_t *>(p.kv.v) + at;
    const float scale = p.scale * 1.44269504f; /* log2 e */
    bool odd = false;
    share<D> next;
    warp_tile<D, RT> tile(m, rows);
    next.load(k, most);
    load_queries(m, rows, p.q);
    next.store(m.k);
    next.load(v, most);
    __syncthreads(); /* A */
    for (int32_t key0 = 0; key0 < most; key0 += KEYS) {
        const int32_t then = key0 + KEYS;
        const bool masked = then > least, more = then < most;
        tile.score();
        if (masked)
            odd |= next.keep_finite_only();
        next.store(m.v);
        __syncthreads(); /* B */
        if (more)
            next.load(k + static_cast<size_t>(then) * D, most - then);
        tile.softmax_all(key0, masked, scale);
        tile.add_values();
        if (more) {
            next.store(m.k);
            next.load(v + static_cast<size_t>(then) * D, most - then); /* in front of A, or nvcc moves it to its use */
        }
        __syncthreads(); /* A */
    }
    tile.store(m.rows, p.out);
    if (__syncthreads_or(odd)) /* the output stands */
        add_odd_values<D, RT>(m.rows, v, least / KEYS * KEYS, p.out);
}
#endif

template <int D, int RT>
static __global__ void __launch_bounds__(THREADS, RT == 1 ? 3 : 2)
    prefill_wmma_kernel(const __grid_constant__ kve_attention_prefill_params p)
{
#if TENSOR_CORES
    KVE_DYN_SHARED(unsigned char, raw);
    unsigned char *memory = raw + (ALIGN - reinterpret_cast<uintptr_t>(raw) % ALIGN) % ALIGN;
    prefill_tile(*reinterpret_cast<memory_of<D, RT> *>(memory), p);
#endif
}

template <int D, int RT> static kve_status launch_tiles(cuda_backend *c, const kve_attention_prefill_params *p)
{
    const int shared = static_cast<int>(sizeof(memory_of<D, RT>)) + ALIGN, rows = memory_of<D, RT>::ROWS;
    const int32_t n_tiles = (p->T * (p->Hq / p->Hkv) + rows - 1) / rows;
    CUDA_TRY(cudaFuncSetAttribute(prefill_wmma_kernel<D, RT>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    KVE_LAUNCH((prefill_wmma_kernel<D, RT>), dim3(n_tiles, p->Hkv), THREADS, shared, c->stream, *p);
    CUDA_LAUNCHED("attention_prefill on tensor cores");
    return KVE_OK;
}

/* RT = 2 where that still gives every processor two blocks. */
template <int D> static kve_status launch_d(cuda_backend *c, const kve_attention_prefill_params *p, bool *taken)
{
    /* What the kernel was compiled for decides, not the device: PTX for older ones has no tensor cores. Where nvcc did
     * not compile it (tests/simt) the version is 0. */
    cudaFuncAttributes attributes;
    CUDA_TRY(cudaFuncGetAttributes(&attributes, prefill_wmma_kernel<D, 1>));
    *taken = attributes.ptxVersion == 0 || attributes.ptxVersion >= 80;
    if (!*taken)
        return KVE_OK;
    const int32_t rows = memory_of<D, 2>::ROWS, blocks = (p->T * (p->Hq / p->Hkv) + rows - 1) / rows * p->Hkv;
    return blocks >= 2 * c->n_processors ? launch_tiles<D, 2>(c, p) : launch_tiles<D, 1>(c, p);
}

kve_status attend_prefill_wmma(cuda_backend *c, const kve_attention_prefill_params *p, bool *taken)
{
    *taken = false;
    if (p->kv_dtype != KVE_BF16)
        return KVE_OK;
    switch (p->D) {
    case 16:
        return launch_d<16>(c, p, taken);
    case 32:
        return launch_d<32>(c, p, taken);
    case 64:
        return launch_d<64>(c, p, taken);
    case 80:
        return launch_d<80>(c, p, taken);
    case 96:
        return launch_d<96>(c, p, taken);
    case 128:
        return launch_d<128>(c, p, taken);
    default:
        return KVE_OK;
    }
}
