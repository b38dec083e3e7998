/* The body of kvp_score.cu: a group of WC warps takes 16 RT rows of one head through the network of kernels/ops.h. What
 * stands where in shared memory and why the barriers are enough: kvp_score.cu. Knows nothing of grids and launches. */
#ifndef KVE_KERNELS_CUDA_KVP_GROUP_CUH
#define KVE_KERNELS_CUDA_KVP_GROUP_CUH

#include "kernels/cuda/kvp_product.cuh"
#include "kernels/kvp.h"

/* 16-byte pieces of a chunk that a thread carries: as many as registers are left. */
template <class E> constexpr int HELD = IS_BF16<E> ? 6 : 8;

/* Columns of a streamed chunk. */
template <class E> constexpr int DEPTH = IS_BF16<E> ? 32 : 8;

struct kvp_call {
    kve_kvp_score_params p;
    const void *matrices;        /* the call's blobs as E, rounded where the cache is bf16 */
    size_t count;                /* floats of a blob */
    int32_t at[KVE_KVP_TENSORS]; /* offsets in a blob */
    int32_t ldx;                 /* elements from row to row of x */
    int32_t matrix_bytes;        /* shared memory of the matrices or chunks; the groups follow */
    int32_t group_bytes;         /* x, patches, moments */
    int32_t tiles;               /* of one block, 16 RT rows each */
    bool round;                  /* float arithmetic on a bf16 cache */
};

/* One of the four matrices and the LayerNorm behind it. */
struct kvp_layer {
    int32_t weight, bias; /* offsets in a blob; gain and shift follow bias, H floats each */
    int32_t K, in, out;   /* inputs; columns of x that they and the results stand in */
    int32_t resident;     /* offset in shared memory */
};

template <class E> __device__ static inline kvp_layer layer_of(const kvp_call &c, int i, int columns)
{
    const int32_t H = c.p.H, D = c.p.D, mixed = 2 * H + c.p.P, at = columns * (D + VEC<E>);
    switch (i) {
    case 0:
        return {c.at[KVE_KVP_K_WEIGHT], c.at[KVE_KVP_K_BIAS], D, H, 0, 0};
    case 1:
        return {c.at[KVE_KVP_V_WEIGHT], c.at[KVE_KVP_V_BIAS], D, H, H, at};
    case 2:
        return {c.at[KVE_KVP_MIX_WEIGHT], c.at[KVE_KVP_MIX_BIAS], mixed, 0, 0, 2 * at};
    default:
        return {c.at[KVE_KVP_DEEP_WEIGHT], c.at[KVE_KVP_DEEP_BIAS], H, 0, 0, 2 * at + columns * (mixed + VEC<E>)};
    }
}

template <class E, int RT, int CT, int WC, bool RESIDENT> struct kvp_group {
    static constexpr int ROWS = TILE * RT, COLS = TILE * CT * WC, LANES = WARP * WC;
    static constexpr int CHUNK_LD = DEPTH<E> + VEC<E>, PER_ROW = DEPTH<E> / VEC<E>, CHUNK_VECS = COLS * PER_ROW;
    static constexpr int PATCH = IS_BF16<E> ? TILE * PATCH_LD : 0;

    const kvp_call &c;
    E *matrices;     /* all four, or two chunks */
    E *x;            /* [ROWS][ldx] */
    float *patch;    /* the warp's own */
    float2 *moments; /* [2][WC][ROWS]: LayerNorm's; the last dot product's */
    int32_t head, row0;
    int lane, part; /* in the group; which of its warps */

    __device__ inline kvp_group(const kvp_call &call, unsigned char *memory)
        : c(call), matrices(reinterpret_cast<E *>(memory)), head(static_cast<int32_t>(blockIdx.y)), row0(0)
    {
        int warp = threadIdx.x / WARP, g = warp / WC;
        unsigned char *own = memory + c.matrix_bytes + g * c.group_bytes;
        lane = static_cast<int>(threadIdx.x) - g * LANES;
        part = warp % WC;
        x = reinterpret_cast<E *>(own);
        float *floats = reinterpret_cast<float *>(x + ROWS * c.ldx);
        patch = floats + part * PATCH;
        moments = reinterpret_cast<float2 *>(floats + WC * PATCH);
    }

    static int32_t bytes(int32_t ldx)
    {
        return static_cast<int32_t>(sizeof(E)) * ROWS * ldx + static_cast<int32_t>(sizeof(float)) * WC * PATCH +
               static_cast<int32_t>(sizeof(float2)) * 2 * WC * ROWS;
    }

    __device__ inline const float *vectors(int32_t at) const
    {
        return c.p.weights + static_cast<size_t>(head) * c.count + at;
    }

    __device__ inline const E *matrix(const kvp_layer &l) const
    {
        return static_cast<const E *>(c.matrices) + static_cast<size_t>(head) * c.count + l.weight;
    }

    __device__ inline quad<E> *quads() const
    {
        return reinterpret_cast<quad<E> *>(x);
    }

    __device__ inline int column() const
    {
        return part * CT * TILE;
    }

    /* All four matrices to shared memory, by the whole block. */
    __device__ inline void load_matrices() const
    {
        for (int i = 0; i < 4; i++) {
            const kvp_layer l = layer_of<E>(c, i, COLS);
            const E *from = matrix(l);
            const int per_row = l.K / VEC<E>;
            for (int v = threadIdx.x; v < COLS * per_row; v += blockDim.x) {
                uint4 z = {0, 0, 0, 0};
                if (v / per_row < c.p.H)
                    z = __ldg(reinterpret_cast<const uint4 *>(from) + v);
                reinterpret_cast<uint4 *>(matrices)[l.resident / VEC<E> + v + v / per_row] = z;
            }
        }
    }

    /* Raw rows of the cache to x + H; zeros from row n on. */
    __device__ inline void load_rows(const void *base) const
    {
        const bool widen = !IS_BF16<E> && c.p.kv_dtype == KVE_BF16;
        const int width = widen ? VEC<bf16> : VEC<E>, per_row = c.p.D / width;
        const int row_step = LANES / per_row, v_step = LANES % per_row;
        const size_t first = kv_row(c.p.kv.cap, c.p.Hkv, c.p.D, c.p.i_layer + head / c.p.Hkv, head % c.p.Hkv, row0);
        const uint4 *from = static_cast<const uint4 *>(base) + first / width;
        int r = lane / per_row, v = lane % per_row;
#pragma unroll 4
        for (int i = lane; i < ROWS * per_row; i += LANES) {
            const uint4 z = row0 + r < c.p.n ? __ldg(from + i) : uint4{0, 0, 0, 0};
            if (widen) {
                const uint32_t w[4] = {z.x, z.y, z.z, z.w};
                float f[8];
#pragma unroll
                for (int e = 0; e < 8; e++)
                    f[e] = from_bf16(static_cast<uint16_t>(w[e / 2] >> e % 2 * 16));
                quads()[(r * c.ldx + c.p.H) / 4 + 2 * v] = pack<E>(f, false);
                quads()[(r * c.ldx + c.p.H) / 4 + 2 * v + 1] = pack<E>(f + 4, false);
            } else
                reinterpret_cast<uint4 *>(x)[(r * c.ldx + c.p.H) / VEC<E> + v] = z;
            r += row_step + (v + v_step >= per_row ? 1 : 0);
            v += v_step - (v + v_step >= per_row ? per_row : 0);
        }
    }

    /* Zeros in columns at .. at + width - 1 of x, for an input that is left out. */
    __device__ inline void blank(int at, int width) const
    {
        const float zeros[4] = {0, 0, 0, 0};
        for (int i = lane; i < ROWS * width / 4; i += LANES)
            quads()[(i * 4 / width * c.ldx + at + i * 4 % width) / 4] = pack<E>(zeros, false);
    }

    /* LayerNorm of the position table's rows to x + 2H: two lanes a row, whole warps. */
    __device__ inline void position_feature() const
    {
        const int P = c.p.P, half = P / 2, side = static_cast<int>(threadIdx.x) % 2 * half;
        const float *gain = vectors(c.at[KVE_KVP_POS_GAIN]) + side, *shift = vectors(c.at[KVE_KVP_POS_SHIFT]) + side;
        const size_t table = c.p.n_tables == 1 ? 0 : static_cast<size_t>(head) * c.p.n_positions;
        const float inverse = 1.0f / static_cast<float>(P);
        for (int r = lane / 2; r < ROWS; r += LANES / 2) {
            const float *from = c.p.table + (table + min(row0 + r, c.p.n_positions - 1)) * P + side;
            float mean = 0, squares = 0;
            for (int i = 0; i < half; i += OWN) {
                const octet t = load_octet(from + i, 4);
#pragma unroll
                for (int e = 0; e < OWN; e++)
                    mean += t.x[e];
            }
            mean = (mean + __shfl_xor_sync(0xffffffffu, mean, 1)) * inverse;
            for (int i = 0; i < half; i += OWN) {
                const octet t = load_octet(from + i, 4);
#pragma unroll
                for (int e = 0; e < OWN; e++)
                    squares += (t.x[e] - mean) * (t.x[e] - mean);
            }
            squares += __shfl_xor_sync(0xffffffffu, squares, 1);
            const float scale = rsqrtf(squares * inverse + 1e-5f);
            for (int i = 0; i < half; i += OWN) {
                const octet t = load_octet(from + i, 4), g = load_octet(gain + i, 4), s = load_octet(shift + i, 4);
                float y[OWN];
#pragma unroll
                for (int e = 0; e < OWN; e++)
                    y[e] = (t.x[e] - mean) * scale * g.x[e] + s.x[e];
                quad<E> *to = quads() + (r * c.ldx + 2 * c.p.H + side + i) / 4;
                to[0] = pack<E>(y, c.round);
                to[1] = pack<E>(y + 4, c.round);
            }
        }
    }

    /* A thread's part of the chunk of columns k0 .. in registers, and from there into a buffer. */
    __device__ inline void fetch(uint4 (&held)[HELD<E>], const E *w, int K, int k0) const
    {
        const int k = k0 + static_cast<int>(threadIdx.x) % PER_ROW * VEC<E>, step = blockDim.x / PER_ROW;
        int r = threadIdx.x / PER_ROW;
#pragma unroll
        for (int i = 0; i < HELD<E>; i++, r += step)
            held[i] = r < c.p.H && k < K ? __ldg(reinterpret_cast<const uint4 *>(w + r * K + k)) : uint4{0, 0, 0, 0};
    }

    __device__ inline void stash(const uint4 (&held)[HELD<E>], E *chunk) const
    {
        const int step = blockDim.x / PER_ROW;
        int r = threadIdx.x / PER_ROW;
        chunk += static_cast<int>(threadIdx.x) % PER_ROW * VEC<E>;
#pragma unroll
        for (int i = 0; i < HELD<E>; i++, r += step)
            if (r < COLS)
                reinterpret_cast<uint4 *>(chunk)[r * (CHUNK_LD / VEC<E>)] = held[i];
    }

    __device__ inline void multiply(kvp_product<E, RT, CT> &sum, const kvp_layer &l) const
    {
        const E *a = x + l.in;
        sum.clear();
        if constexpr (RESIDENT) {
            static_assert(WC == 1, "a group without barriers is one warp");
            const int ldw = l.K + VEC<E>;
            __syncwarp();
            sum.add(a, c.ldx, matrices + l.resident, ldw, l.K);
            __syncwarp();
        } else {
            uint4 held[HELD<E>];
            const E *w = matrix(l);
            fetch(held, w, l.K, 0);
            stash(held, matrices);
            __syncthreads();
            for (int k0 = 0, b = 0; k0 < l.K; k0 += DEPTH<E>, b ^= 1) {
                const bool more = k0 + DEPTH<E> < l.K;
                if (more)
                    fetch(held, w, l.K, k0 + DEPTH<E>);
                sum.add(a + k0, c.ldx, matrices + (b * COLS + column()) * CHUNK_LD, CHUNK_LD, min(DEPTH<E>, l.K - k0));
                if (more)
                    stash(held, matrices + (b ^ 1) * COLS * CHUNK_LD);
                __syncthreads();
            }
        }
    }

    __device__ inline bool has_tile(int ct) const
    {
        return column() + ct * TILE < c.p.H;
    }

    /* Columns of the network that warp w of the group holds. */
    __device__ inline float columns_of(int w) const
    {
        return static_cast<float>(min(max(c.p.H - w * CT * TILE, 0), CT * TILE));
    }

    /* A warp's own mean and sum of squares about it, per row. Columns from H on are zeros. */
    __device__ inline float2 own_moments(const float (&v)[CT][OWN]) const
    {
        float mean = 0, squares = 0;
#pragma unroll
        for (int i = 0; i < CT * OWN; i++)
            mean += v[i / OWN][i % OWN];
        mean += __shfl_xor_sync(0xffffffffu, mean, 1);
        mean /= fmaxf(columns_of(part), 1.0f);
#pragma unroll
        for (int ct = 0; ct < CT; ct++)
            if (has_tile(ct)) {
#pragma unroll
                for (int i = 0; i < OWN; i++)
                    squares += (v[ct][i] - mean) * (v[ct][i] - mean);
            }
        squares += __shfl_xor_sync(0xffffffffu, squares, 1);
        return {mean, squares};
    }

    /* Mean and 1 / deviation of the lane's rows over the whole group: the warps' moments, merged in their order. */
    __device__ inline void row_moments(const kvp_values<RT, CT> &y, float2 (&row)[RT]) const
    {
        const float inverse = 1.0f / static_cast<float>(c.p.H);
        float2 *all = moments + lane_row();
#pragma unroll
        for (int r = 0; r < RT; r++) {
            row[r] = own_moments(y.v[r]);
            if (WC > 1 && threadIdx.x % 2 == 0)
                all[part * ROWS + r * TILE] = row[r];
        }
        if constexpr (WC > 1) {
            __syncthreads();
#pragma unroll
            for (int r = 0; r < RT; r++) {
                float mean = 0, squares = 0;
#pragma unroll
                for (int w = 0; w < WC; w++)
                    mean += all[w * ROWS + r * TILE].x * columns_of(w) * inverse;
#pragma unroll
                for (int w = 0; w < WC; w++) {
                    const float2 m = all[w * ROWS + r * TILE];
                    squares += m.y + (m.x - mean) * (m.x - mean) * columns_of(w);
                }
                row[r] = {mean, squares};
            }
        }
#pragma unroll
        for (int r = 0; r < RT; r++)
            row[r].y = rsqrtf(row[r].y * inverse + 1e-5f);
    }

    __device__ inline void layer_norm(kvp_values<RT, CT> &y, const kvp_layer &l, bool hidden) const
    {
        const float *bias = vectors(l.bias) + column() + lane_column(), *gain = bias + c.p.H, *shift = gain + c.p.H;
        float2 row[RT];
#pragma unroll
        for (int ct = 0; ct < CT; ct++)
            if (has_tile(ct)) {
                const octet b = load_octet(bias + ct * TILE, TILE / 2);
#pragma unroll
                for (int i = 0; i < RT * OWN; i++)
                    y.v[i / OWN][ct][i % OWN] += b.x[i % OWN];
            }
        row_moments(y, row);
#pragma unroll
        for (int ct = 0; ct < CT; ct++)
            if (has_tile(ct)) {
                const octet g = load_octet(gain + ct * TILE, TILE / 2), s = load_octet(shift + ct * TILE, TILE / 2);
#pragma unroll
                for (int i = 0; i < RT * OWN; i++) {
                    const float2 m = row[i / OWN];
                    const float z = (y.v[i / OWN][ct][i % OWN] - m.x) * m.y * g.x[i % OWN] + s.x[i % OWN];
                    y.v[i / OWN][ct][i % OWN] = hidden ? silu<E>(z) : z;
                }
            }
    }

    __device__ inline void store(const kvp_values<RT, CT> &y, int at) const
    {
        quad<E> *to = quads() + (lane_row() * c.ldx + at + column() + lane_column()) / 4;
#pragma unroll
        for (int i = 0; i < RT * CT; i++)
            if (has_tile(i % CT)) {
                quad<E> *tile = to + i / CT * TILE * c.ldx / 4 + i % CT * TILE / 4;
                tile[0] = pack<E>(y.v[i / CT][i % CT], c.round);
                tile[2] = pack<E>(y.v[i / CT][i % CT] + 4, c.round);
            }
    }

    /* The last dot product, the warps' parts added in their order. */
    __device__ inline void finish(const kvp_values<RT, CT> &y) const
    {
        const float *w = vectors(c.at[KVE_KVP_OUT_WEIGHT]) + column() + lane_column();
        float2 *parts = moments + WC * ROWS + lane_row();
        float sum[RT] = {};
#pragma unroll
        for (int ct = 0; ct < CT; ct++)
            if (has_tile(ct)) {
                const octet o = load_octet(w + ct * TILE, TILE / 2);
#pragma unroll
                for (int i = 0; i < RT * OWN; i++)
                    sum[i / OWN] += y.v[i / OWN][ct][i % OWN] * o.x[i % OWN];
            }
#pragma unroll
        for (int r = 0; r < RT; r++) {
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
            if (WC > 1 && threadIdx.x % 2 == 0)
                parts[part * ROWS + r * TILE].x = sum[r];
        }
        if constexpr (WC > 1)
            __syncthreads();
        if (part > 0 || threadIdx.x % 2 == 1)
            return;
#pragma unroll
        for (int r = 0; r < RT; r++) {
            const int32_t j = row0 + r * TILE + lane_row();
            for (int i = 1; i < WC; i++)
                sum[r] += parts[i * ROWS + r * TILE].x;
            if (j < c.p.n)
                c.p.out[static_cast<size_t>(head) * c.p.n + j] = sum[r] + __ldg(vectors(c.at[KVE_KVP_OUT_BIAS]));
        }
    }

    /* Rows row0 .. row0 + ROWS - 1 through the network. One body for the four layers keeps the code small. */
    __device__ inline void forward() const
    {
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            const kvp_layer l = layer_of<E>(c, i, COLS);
            const bool hidden = i >= 2;
            kvp_product<E, RT, CT> sum;
            kvp_values<RT, CT> y;
            if (!hidden && !(c.p.inputs & (i == 0 ? KVE_KVP_K : KVE_KVP_V))) {
                blank(l.out, c.p.H);
                continue;
            }
            if (!hidden)
                load_rows(i == 0 ? c.p.kv.k : c.p.kv.v);
            if (i == 2 && c.p.inputs & KVE_KVP_POS)
                position_feature();
            else if (i == 2)
                blank(2 * c.p.H, c.p.P);
            multiply(sum, l);
            sum.take(y, patch);
            layer_norm(y, l, hidden);
            if (i < 3)
                store(y, l.out);
            else
                finish(y);
        }
    }
};

#endif
