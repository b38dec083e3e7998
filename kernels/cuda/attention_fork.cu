/* Attention of the rows of forks, each over its own prefix and tail, in f32. Contract: kernels/ops.h; twin:
 * kernels/cpu/attention_fork.c. Two launches: blocks over slices of the keys, then a merge.
 *
 * The prefix is cut into parts of 512 keys at fixed boundaries; part i belongs to slice i % 32, and the whole tail is a
 * slice of its own. A block takes one row of the call, one KV head, up to 8 query heads of its group and one slice, and
 * leaves (maximum, sum, unnormalised output) in scratch; the merge adds up a row's slices in order. Which keys meet in
 * which order follows from the fork's lengths alone: neither T nor the other forks nor max_prefix, which only says how
 * many slices are worth launching, change a bit. (A prefix longer than max_prefix gives NaN.) Lengths are read on the
 * device; blocks without keys return. Scratch is bounded: a call with more rows than fit goes in several pairs of
 * launches, which T and max_prefix determine, so a recorded graph has them all.
 *
 * Inside a block a group of LANES lanes (8, 16 or 32: so many that 8 dimensions each cover D) takes a key, a warp NB
 * keys a group at a time: 16-byte loads of K and V, 8 products for each query head, then a transposing reduction after
 * which lane l has the score of head l % 8. A group has its own online softmax and keeps its output in registers, 8
 * heads by 8 dimensions a lane. At the end the groups of the block are merged, in order, through shared memory. Where
 * D % 8 != 0, VECTORS is off and rows are loaded element by element.
 *
 * Shared memory: q, probabilities, 32 KiB for the groups' outputs; 37 to 41 KiB. Registers: at most 168, so that three
 * blocks live on a multiprocessor; no spills. Barriers: two to find the fork, one behind q, one between writing and
 * merging the groups' outputs. A warp's probabilities are its own: __syncwarp before they are read and before they are
 * overwritten.
 *
 * A prefix that forks share is read once for each of them, from L2 as a rule: with 7 heads on a KV head the 3,584 flops
 * per key of 512 bytes take the processors about as long as L2 takes to send it, so one pass for several forks would
 * gain little before the products move to tensor cores.
 *
 * q, k and v begin at multiples of 16 bytes. bytes: K and V of each fork once; flops: 4 D per (query head, key). 48
 * forks of Qwen2.5-7B over 1,024 keys: 2.8 GB and 20 GFLOP a step: 0.65 ms at 4.3 TB/s, 0.3 ms at 67 TFLOP/s. Not
 * measured yet. */
#include "kernels/cuda/prim.cuh"

enum { WARPS = 4, THREADS = WARPS * WARP, HEADS = 8, DIMS = 8, PART = 512, SLICES = 32 };
constexpr size_t SCRATCH_BYTES = size_t{16} << 20; /* stays in L2 */

struct fork_call {
    kve_attention_fork_params p;
    int32_t row0;     /* of the call */
    int32_t n_slices; /* of the prefix, as launched; slice n_slices is the tail */
    float2 *sums;     /* [rows][Hq][n_slices + 1]: maximum in units of log 2, sum */
    float *out;       /* [rows][Hq][n_slices + 1][D] */

    /* Of row blockIdx.x and query head hq. */
    __device__ size_t at(int32_t hq, int32_t slice) const
    {
        return (static_cast<size_t>(blockIdx.x) * p.Hq + hq) * (n_slices + 1) + slice;
    }
};

/* The fork that owns row t, or -1; the forks' rows may stand in any order, so the whole block looks. */
__device__ static int32_t fork_of(const kve_attention_fork_params &p, int32_t t)
{
    __shared__ int32_t owner;
    if (threadIdx.x == 0)
        owner = -1;
    __syncthreads();
    for (int32_t x = threadIdx.x; x < p.X; x += THREADS)
        if (t >= p.row_of[x] && t < p.row_of[x] + p.q_len[x])
            owner = x;
    __syncthreads();
    return owner;
}

__device__ static inline int32_t prefix_of(const kve_attention_fork_params &p, int32_t x, int32_t h)
{
    return p.slots[x].prefix_len[static_cast<size_t>(p.i_layer) * p.Hkv + h];
}

/* exp2(x - top), and 0 where both are -inf. A NaN x stays NaN. */
__device__ static inline float share_of(float x, float top)
{
    return exp2f(x - (top == -CUDART_INF_F ? 0.0f : top));
}

/* Eight elements of a cached row. E: uint16_t (bf16) or float. */
template <class E> struct octet {
    uint32_t words[2 * sizeof(E)];

    /* n of them are there, zeros stand for the rest. VECTORS: all or none are, at a multiple of 16 bytes. */
    template <bool VECTORS> __device__ void load(const E *from, int32_t n)
    {
        if (VECTORS) {
#pragma unroll
            for (int w = 0; w < static_cast<int>(sizeof(E)) / 2; w++) {
                const uint4 x = n > 0 ? __ldg(reinterpret_cast<const uint4 *>(from) + w) : make_uint4(0, 0, 0, 0);
                words[4 * w] = x.x;
                words[4 * w + 1] = x.y;
                words[4 * w + 2] = x.z;
                words[4 * w + 3] = x.w;
            }
        } else {
#pragma unroll
            for (int w = 0; w < 2 * static_cast<int>(sizeof(E)); w++)
                words[w] = word(from, w, n);
        }
    }

    __device__ static uint32_t word(const uint16_t *from, int w, int32_t n)
    {
        const uint32_t low = 2 * w < n ? from[2 * w] : 0, high = 2 * w + 1 < n ? from[2 * w + 1] : 0;
        return low | high << 16;
    }

    __device__ static uint32_t word(const float *from, int w, int32_t n)
    {
        return w < n ? __float_as_uint(from[w]) : 0;
    }

    __device__ void unpack(float (&x)[DIMS]) const
    {
#pragma unroll
        for (int i = 0; i < DIMS; i++)
            x[i] = __uint_as_float(sizeof(E) == 4 ? words[i] : i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
    }
};

/* x[r] summed over a group of LANES lanes, for all 8 r at once: lane l gets the sum for r = l % 8. */
template <int LANES> __device__ static inline float transposing_sum(float (&x)[HEADS], int l)
{
#pragma unroll
    for (int half = HEADS / 2; half > 0; half /= 2) {
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float lower = x[i], upper = x[i + half];
            x[i] = (l & half ? upper : lower) + __shfl_xor_sync(0xffffffffu, l & half ? lower : upper, half);
        }
    }
#pragma unroll
    for (int d = HEADS; d < LANES; d *= 2)
        x[0] += __shfl_xor_sync(0xffffffffu, x[0], d);
    return x[0];
}

/* The keys of one slice: rows first, .. + PART, first + step, ... below n. */
template <class E> struct slice_keys {
    const E *k, *v; /* of row 0 */
    int32_t n, first, step;
};

template <int LANES> struct memory_of {
    static constexpr int D = LANES * DIMS, GROUPS = WARPS * WARP / LANES;
    float q[HEADS][D]; /* times the scale; zeros beyond the real D */
    float out[GROUPS][HEADS][D];
    float top[GROUPS][HEADS], sum[GROUPS][HEADS];
};

/* A lane and what it keeps for its group. */
template <class E, int LANES, bool VECTORS> struct group_lane {
    static constexpr int NB = VECTORS && sizeof(E) == 2 ? 4 : 2, BY = WARP / LANES,
                         STEP = NB * BY; /* keys of a warp's step */
    using memory = memory_of<LANES>;
    const int l, mine, group, n_heads;
    float top, sum; /* of head l % 8 */
    float out[HEADS][DIMS];

    __device__ explicit group_lane(int n_heads)
        : l(threadIdx.x % LANES), mine(threadIdx.x % WARP / LANES), group(threadIdx.x / LANES), n_heads(n_heads),
          top(-INFINITY), sum(0)
    {
#pragma unroll
        for (int i = 0; i < HEADS * DIMS; i++)
            out[i / DIMS][i % DIMS] = 0;
    }

    /* Keys key0 .. key0 + STEP - 1, of which those below `end` are there. weights: this warp's [NB + 1][BY][HEADS]. */
    __device__ void step(const memory &m, float *weights, const slice_keys<E> &keys, int32_t key0, int32_t end,
                         int32_t D)
    {
        octet<E> k[NB], v[NB];
        float score[NB];
        load(k, v, keys, key0, end, D);
#pragma unroll
        for (int b = 0; b < NB; b += 2)
            scores(m, k + b, score + b);
#pragma unroll
        for (int b = 0; b < NB; b++)
            if (key0 + b * BY + mine >= end)
                score[b] = -CUDART_INF_F;
        const bool shrinks = softmax(weights, score);
        __syncwarp();
        add_values(weights, v, shrinks);
        __syncwarp();
    }

    __device__ void load(octet<E> (&k)[NB], octet<E> (&v)[NB], const slice_keys<E> &keys, int32_t key0, int32_t end,
                         int32_t D)
    {
        const size_t at = static_cast<size_t>(key0 + mine) * D + l * DIMS;
#pragma unroll
        for (int b = 0; b < NB; b++) {
            const int32_t there = key0 + b * BY + mine < end ? D - l * DIMS : 0;
            k[b].template load<VECTORS>(keys.k + at + b * BY * D, there);
            v[b].template load<VECTORS>(keys.v + at + b * BY * D, there);
        }
    }

    /* Of two keys: more at once would need too many registers. */
    __device__ void scores(const memory &m, const octet<E> *k, float *score)
    {
        float x[2][DIMS], dot[2][HEADS];
        k[0].unpack(x[0]);
        k[1].unpack(x[1]);
#pragma unroll
        for (int r = 0; r < HEADS; r++) {
            dot[0][r] = dot[1][r] = 0;
            if (r >= n_heads) /* the same for the whole block */
                continue;
            const float4 *q = reinterpret_cast<const float4 *>(m.q[r] + l * DIMS), low = q[0], high = q[1];
#pragma unroll
            for (int b = 0; b < 2; b++) {
                const float a = low.x * x[b][0] + low.y * x[b][1] + low.z * x[b][2] + low.w * x[b][3];
                dot[b][r] = a + high.x * x[b][4] + high.y * x[b][5] + high.z * x[b][6] + high.w * x[b][7];
            }
        }
        score[0] = transposing_sum<LANES>(dot[0], l);
        score[1] = transposing_sum<LANES>(dot[1], l);
    }

    /* NaN among the scores drops out of the maximum, but not out of the exponential. Returns whether an output of the
     * warp shrinks. */
    __device__ bool softmax(float *weights, const float (&score)[NB])
    {
        float most = top, total = 0;
#pragma unroll
        for (int b = 0; b < NB; b++)
            most = fmaxf(most, score[b]);
        const float shrink = share_of(top, most);
#pragma unroll
        for (int b = 0; b < NB; b++) {
            const float p = share_of(score[b], most);
            total += p;
            if (l < HEADS)
                weights[(b * BY + mine) * HEADS + l] = p;
        }
        if (l < HEADS)
            weights[(NB * BY + mine) * HEADS + l] = shrink;
        sum = sum * shrink + total;
        top = most;
        return __any_sync(0xffffffffu, shrink != 1.0f);
    }

    /* A weight of each head, which this lane's group left. */
    struct weights_of {
        float x[HEADS];

        __device__ weights_of(const float *weights, int row, int mine)
        {
            const float4 *at = reinterpret_cast<const float4 *>(weights + (row * BY + mine) * HEADS);
            const float4 a = at[0], b = at[1];
            x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
            x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
        }
    };

    __device__ void add_values(const float *weights, const octet<E> (&v)[NB], bool shrinks)
    {
        if (shrinks) {
            const weights_of by(weights, NB, mine);
#pragma unroll
            for (int i = 0; i < HEADS * DIMS; i++)
                out[i / DIMS][i % DIMS] *= by.x[i / DIMS];
        }
#pragma unroll
        for (int b = 0; b < NB; b++) {
            const weights_of p(weights, b, mine);
            float x[DIMS];
            v[b].unpack(x);
#pragma unroll
            for (int r = 0; r < HEADS; r++)
                if (r < n_heads) {
#pragma unroll
                    for (int i = 0; i < DIMS; i++)
                        out[r][i] += p.x[r] * x[i];
                }
        }
    }

    __device__ void leave(memory &m) const
    {
#pragma unroll
        for (int r = 0; r < HEADS; r++) {
            if (r >= n_heads)
                continue;
            float4 *to = reinterpret_cast<float4 *>(m.out[group][r] + l * DIMS);
            to[0] = make_float4(out[r][0], out[r][1], out[r][2], out[r][3]);
            to[1] = make_float4(out[r][4], out[r][5], out[r][6], out[r][7]);
        }
        if (l < HEADS) {
            m.top[group][l] = top;
            m.sum[group][l] = sum;
        }
    }
};

/* The block's groups, merged in order, into scratch. */
template <int LANES>
__device__ static void merge_groups(const memory_of<LANES> &m, const fork_call &c, int32_t hq0, int n_heads)
{
    constexpr int GROUPS = memory_of<LANES>::GROUPS;
    for (int32_t i = threadIdx.x; i < n_heads * c.p.D; i += THREADS) {
        const int32_t r = i / c.p.D, d = i % c.p.D;
        const size_t at = c.at(hq0 + r, blockIdx.z);
        float top = -CUDART_INF_F, sum = 0, out = 0;
        for (int g = 0; g < GROUPS; g++)
            top = fmaxf(top, m.top[g][r]);
        for (int g = 0; g < GROUPS; g++) {
            const float by = share_of(m.top[g][r], top);
            sum += m.sum[g][r] * by;
            out += m.out[g][r][d] * by;
        }
        c.out[at * c.p.D + d] = out;
        if (d == 0)
            c.sums[at] = make_float2(top, sum);
    }
}

template <class E, int LANES> __device__ static slice_keys<E> keys_of(const fork_call &c, int32_t x, int32_t h)
{
    const kve_fork_slot &slot = c.p.slots[x];
    const int32_t slice = blockIdx.z;
    const bool tail = slice == c.n_slices;
    const kve_kv kv = tail ? slot.tail : slot.prefix;
    const size_t at = kv_ragged_row(kv, c.p.Hkv, c.p.D, c.p.i_layer, h, 0);
    const int32_t t = c.row0 + static_cast<int32_t>(blockIdx.x);
    return {static_cast<const E *>(kv.k) + at, static_cast<const E *>(kv.v) + at,
            tail ? c.p.tail_len[x] + (t - c.p.row_of[x]) + 1 : prefix_of(c.p, x, h), tail ? 0 : slice * PART,
            tail ? PART : SLICES * PART};
}

template <class E, int LANES, bool VECTORS>
static __global__ void __launch_bounds__(THREADS, 3) fork_kernel(const __grid_constant__ fork_call c)
{
    using lane_type = group_lane<E, LANES, VECTORS>;
    __shared__ memory_of<LANES> m;
    __shared__ float4 weights[WARPS][(lane_type::NB + 1) * lane_type::BY * HEADS / 4];
    const kve_attention_fork_params &p = c.p;
    const int32_t G = p.Hq / p.Hkv, t = c.row0 + static_cast<int32_t>(blockIdx.x), h = blockIdx.y % p.Hkv;
    const int32_t g0 = blockIdx.y / p.Hkv * HEADS, n_heads = min(static_cast<int32_t>(HEADS), G - g0), hq0 = h * G + g0;
    const int32_t x = fork_of(p, t), warp = threadIdx.x / WARP;
    if (x < 0) /* a row of the call that no fork owns */
        return;
    const slice_keys<E> keys = keys_of<E, LANES>(c, x, h);
    if (keys.first >= keys.n)
        return;
    for (int32_t i = threadIdx.x; i < HEADS * m.D; i += THREADS) {
        const int32_t r = i / m.D, d = i % m.D;
        const size_t at = (static_cast<size_t>(t) * p.Hq + hq0 + r) * p.D + d;
        m.q[r][d] = r < n_heads && d < p.D ? p.q[at] * (p.scale * 1.44269504f) : 0.0f; /* log2 e */
    }
    __syncthreads();
    lane_type lane(n_heads);
    for (int32_t part = keys.first; part < keys.n; part += keys.step) {
        const int32_t end = min(part + PART, keys.n);
        for (int32_t key0 = part + warp * lane.STEP; key0 < end; key0 += WARPS * lane.STEP)
            lane.step(m, &weights[warp][0].x, keys, key0, end, p.D);
    }
    lane.leave(m);
    __syncthreads();
    merge_groups(m, c, hq0, n_heads);
}

/* One block per row and KV head: its query heads' slices, in order. */
static __global__ void __launch_bounds__(THREADS) merge_kernel(const __grid_constant__ fork_call c)
{
    const kve_attention_fork_params &p = c.p;
    const int32_t G = p.Hq / p.Hkv, t = c.row0 + static_cast<int32_t>(blockIdx.x), h = blockIdx.y, x = fork_of(p, t);
    if (x < 0)
        return;
    const int32_t n_parts = (prefix_of(p, x, h) + PART - 1) / PART, n_slices = min(n_parts, c.n_slices);
    const bool missing = n_slices < min(n_parts, static_cast<int32_t>(SLICES)); /* max_prefix was too small */
    for (int32_t i = threadIdx.x; i < G * p.D; i += THREADS) {
        const int32_t hq = h * G + i / p.D, d = i % p.D;
        float top = c.sums[c.at(hq, c.n_slices)].x, sum = 0, out = 0;
        for (int32_t s = 0; s < n_slices; s++)
            top = fmaxf(top, c.sums[c.at(hq, s)].x);
        for (int32_t s = 0; s <= n_slices; s++) {
            const size_t at = c.at(hq, s < n_slices ? s : c.n_slices);
            const float by = share_of(c.sums[at].x, top);
            sum += c.sums[at].y * by;
            out += c.out[at * p.D + d] * by;
        }
        p.out[(static_cast<size_t>(t) * p.Hq + hq) * p.D + d] = missing ? CUDART_NAN_F : out / sum;
    }
}

template <class E, int LANES, bool VECTORS> static kve_status launch(cuda_backend *c, fork_call call)
{
    const kve_attention_fork_params &p = call.p;
    const int32_t n_groups = (p.Hq / p.Hkv + HEADS - 1) / HEADS;
    const size_t of_row = static_cast<size_t>(p.Hq) * (call.n_slices + 1),
                 row_bytes = of_row * (p.D + 2) * sizeof(float);
    const size_t fit = SCRATCH_BYTES / row_bytes + 1;
    const int32_t rows = fit < static_cast<size_t>(p.T) ? static_cast<int32_t>(fit) : p.T;
    KVE_TRY(cuda_scratch(c, rows * row_bytes));
    call.sums = static_cast<float2 *>(c->scratch);
    call.out = reinterpret_cast<float *>(call.sums + rows * of_row);
    for (; call.row0 < p.T; call.row0 += rows) {
        const int32_t n = rows < p.T - call.row0 ? rows : p.T - call.row0;
        KVE_LAUNCH((fork_kernel<E, LANES, VECTORS>), dim3(n, p.Hkv * n_groups, call.n_slices + 1), THREADS, 0,
                   c->stream, call);
        CUDA_LAUNCHED("attention_fork");
        KVE_LAUNCH(merge_kernel, dim3(n, p.Hkv), THREADS, 0, c->stream, call);
        CUDA_LAUNCHED("attention_fork: merge");
    }
    return KVE_OK;
}

template <class E, bool VECTORS> static kve_status launch_for(cuda_backend *c, const fork_call &call)
{
    if (call.p.D <= 8 * DIMS)
        return launch<E, 8, VECTORS>(c, call);
    if (call.p.D <= 16 * DIMS)
        return launch<E, 16, VECTORS>(c, call);
    return launch<E, 32, VECTORS>(c, call);
}

kve_status cuda_attention_fork(kve_backend *be, const kve_attention_fork_params *p)
{
    cuda_backend *c = cuda_of(be);
    if (p->D > CUDA_MAX_D)
        return kve_fail(KVE_ERR_USAGE, "cuda: head dimension %d is beyond %d", p->D, static_cast<int>(CUDA_MAX_D));
    if (p->T == 0 || p->X == 0)
        return KVE_OK;
    fork_call call = {};
    call.p = *p;
    call.n_slices = SLICES;
    if (p->max_prefix > 0 && p->max_prefix < SLICES * PART)
        call.n_slices = (p->max_prefix + PART - 1) / PART;
    if (p->D % DIMS == 0)
        return p->kv_dtype == KVE_BF16 ? launch_for<uint16_t, true>(c, call) : launch_for<float, true>(c, call);
    return p->kv_dtype == KVE_BF16 ? launch_for<uint16_t, false>(c, call) : launch_for<float, false>(c, call);
}
