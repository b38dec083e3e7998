/* The learned policy's scores. Contract: kernels/ops.h kvp_score; the network's tensors: kernels/kvp.h.
 *
 * An item is one head and a chunk of rows: it packs the head's matrices into panels once, then takes 48 rows at a time
 * through the whole network, so that nothing but the score leaves the nearest caches. Products are matmul's register
 * tile, k ascending; everything else works on a row in fixed lanes: a row is the same in any chunk. With a bf16 cache
 * the inputs of the products are rounded on the way and stay in fp32, where the product of two bf16 is exact.
 * flops: 2 H (2 D + 3 H + P) per row and head; bytes: K and V once, a head's weights once per chunk. */
#include "kernels/cpu/simd.h"
#include "kernels/kvp.h"

enum { ROWS = 48, CHUNK = 480, PANEL = CPU_PANEL };

typedef struct kvp_job {
    const kve_kvp_score_params *p;
    cpu_backend *be;
    kve_kvp_shape s;
    bool round; /* to bf16, what goes into a product */
    int32_t n_chunks;
} kvp_job;

/* One worker's memory. Panels are [ceil(H / 64)][K][64]. */
typedef struct kvp_work {
    const float *blob;         /* the head's tensors */
    float *k, *v, *mix, *deep; /* panels */
    float *raw;                /* [ROWS][D]: keys, then values */
    float *x;                  /* [ROWS][2H + P] */
    float *y;                  /* [ROWS][padded H]: what a product gives */
    float *hidden;             /* [ROWS][H] */
} kvp_work;

static size_t padded_h(kve_kvp_shape s)
{
    return ((size_t)s.H + PANEL - 1) / PANEL * PANEL;
}

static size_t width_x(kve_kvp_shape s)
{
    return 2 * (size_t)s.H + (size_t)s.P;
}

/* Every piece is a multiple of 16 floats, as the panels' alignment asks. */
static size_t carve(kve_kvp_shape s, float *memory, kvp_work *w)
{
    size_t D = (size_t)s.D, H = (size_t)s.H, Hp = padded_h(s), at = 0;
    float **pieces[] = {&w->k, &w->v, &w->mix, &w->deep, &w->raw, &w->x, &w->y, &w->hidden};
    size_t sizes[] = {Hp * D, Hp * D, Hp * width_x(s), Hp * H, ROWS * D, ROWS * width_x(s), ROWS * Hp, ROWS * H};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (memory)
            *pieces[i] = memory + at;
        at += sizes[i];
    }
    return at * sizeof(float);
}

static const float *tensor(const kvp_job *j, const kvp_work *w, kve_kvp_tensor t)
{
    return w->blob + kve_kvp_offset(j->s, t);
}

CPU_INLINE float rounded(float x)
{
    uint32_t bits;
    float y;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    memcpy(&y, &bits, sizeof y);
    return isnan(x) ? x : y;
}

/* [H][K] -> panels, in squares that stay in registers or the nearest cache; columns from H on are zero. */
CPU_INLINE void pack_body(const float *from, size_t H, size_t K, bool round, float *to)
{
    enum { SIDE = KVE_KVP_UNIT };
    for (size_t c0 = 0; c0 < (H + PANEL - 1) / PANEL * PANEL; c0 += SIDE)
        for (size_t k0 = 0; k0 < K; k0 += SIDE) {
            float t[SIDE][SIDE] = {{0}};
            for (size_t c = 0; c < SIDE && c0 < H; c++)
                for (size_t k = 0; k < SIDE; k++) {
                    float x = from[(c0 + c) * K + k0 + k];
                    t[k][c] = round ? rounded(x) : x;
                }
            for (size_t k = 0; k < SIDE; k++)
                memcpy(to + (c0 / PANEL * K + k0 + k) * PANEL + c0 % PANEL, t[k], sizeof t[k]);
        }
}

/* x / (1 + e^-x), with the exponential of a number that is never positive. */
CPU_INLINE float silu(float x)
{
    float e = cpu_exp(-fabsf(x));
    return x * (x < 0 ? e : 1.0f) / (1.0f + e);
}

/* What stands between two products. */
typedef struct layer_norm {
    const float *bias, *gain, *shift; /* bias is added first; NULL: none */
    size_t width;                     /* a multiple of 16 */
    bool silu, round;
} layer_norm;

CPU_INLINE void norm_body(const layer_norm *ln, float *y, size_t y_stride, int32_t rows, float *out, size_t out_stride)
{
    const size_t width = ln->width;
    for (int32_t r = 0; r < rows; r++, y += y_stride, out += out_stride) {
        float lane[CPU_LANES] = {0};
        for (size_t i = 0; i < width && ln->bias; i++)
            y[i] += ln->bias[i];
        for (size_t i = 0; i < width; i += CPU_LANES)
            for (size_t l = 0; l < CPU_LANES; l++)
                lane[l] += y[i + l];
        const float mean = cpu_sum_lanes(lane) / (float)width;
        memset(lane, 0, sizeof lane);
        for (size_t i = 0; i < width; i += CPU_LANES)
            for (size_t l = 0; l < CPU_LANES; l++)
                lane[l] += (y[i + l] - mean) * (y[i + l] - mean);
        const float scale = 1.0f / sqrtf(cpu_sum_lanes(lane) / (float)width + 1e-5f);
        for (size_t i = 0; i < width; i++)
            out[i] = (y[i] - mean) * scale * ln->gain[i] + ln->shift[i];
        for (size_t i = 0; i < width && ln->silu; i++)
            out[i] = silu(out[i]);
        for (size_t i = 0; i < width && ln->round; i++)
            out[i] = rounded(out[i]);
    }
}

CPU_INLINE void dots_body(const float *x, size_t H, int32_t rows, const float *w, float bias, float *out)
{
    for (int32_t r = 0; r < rows; r++)
        out[r] = cpu_dot(x + (size_t)r * H, w, (int32_t)H) + bias;
}

CPU_INSTANCES(pack, (const float *from, size_t H, size_t K, bool round, float *to), pack_body(from, H, K, round, to))
CPU_INSTANCES(norm, (const layer_norm *ln, float *y, size_t y_stride, int32_t rows, float *out, size_t out_stride),
              norm_body(ln, y, y_stride, rows, out, out_stride))
CPU_INSTANCES(dots, (const float *x, size_t H, int32_t rows, const float *w, float bias, float *out),
              dots_body(x, H, rows, w, bias, out))

/* w->y = x [rows][K] times a packed matrix. */
static void product(const kvp_job *j, const kvp_work *w, const float *x, size_t K, const float *panels, int32_t rows)
{
    cpu_tile_fn tile = cpu_tile(j->be->isa, KVE_F32);
    size_t Hp = padded_h(j->s);
    float acc[CPU_TILE][PANEL];
    for (size_t c0 = 0; c0 < Hp; c0 += PANEL)
        for (int32_t r = 0; r < rows; r += CPU_TILE) {
            int32_t count = rows - r < CPU_TILE ? rows - r : CPU_TILE;
            tile(x + (size_t)r * K, K, panels + c0 * K, (int32_t)K, count, acc);
            for (int32_t i = 0; i < count; i++)
                memcpy(w->y + (size_t)(r + i) * Hp + c0, acc[i], sizeof acc[i]);
        }
}

/* The LayerNorm whose bias, gain and shift follow one another from tensor `bias` on. */
static void normalise(const kvp_job *j, const kvp_work *w, kve_kvp_tensor bias, bool is_hidden, bool round,
                      int32_t rows, float *out, size_t out_stride)
{
    layer_norm ln = {.bias = tensor(j, w, bias),
                     .gain = tensor(j, w, bias + 1),
                     .shift = tensor(j, w, bias + 2),
                     .width = (size_t)j->s.H,
                     .silu = is_hidden,
                     .round = round};
    norm_pick(j->be->isa)(&ln, w->y, padded_h(j->s), rows, out, out_stride);
}

/* Zeros in place of an input that is left out. */
static void blank(const kvp_job *j, float *out, size_t width, int32_t rows)
{
    for (int32_t r = 0; r < rows; r++)
        memset(out + (size_t)r * width_x(j->s), 0, width * sizeof *out);
}

/* Key or value feature of rows row0 .. row0 + rows - 1 of the cache at element `first`. */
static void cache_feature(const kvp_job *j, const kvp_work *w, bool values, size_t first, int32_t row0, int32_t rows)
{
    const kve_kvp_score_params *p = j->p;
    float *out = values ? w->x + j->s.H : w->x;
    if (!(p->inputs & (values ? KVE_KVP_V : KVE_KVP_K))) {
        blank(j, out, (size_t)j->s.H, rows);
        return;
    }
    for (int32_t r = 0; r < rows; r++)
        cpu_load_row(values ? p->kv.v : p->kv.k, first + (size_t)(row0 + r) * (size_t)p->D, p->D, p->kv_dtype,
                     w->raw + (size_t)r * (size_t)p->D);
    product(j, w, w->raw, (size_t)p->D, values ? w->v : w->k, rows);
    normalise(j, w, values ? KVE_KVP_V_BIAS : KVE_KVP_K_BIAS, false, j->round, rows, out, width_x(j->s));
}

static void position_feature(const kvp_job *j, const kvp_work *w, int32_t head, int32_t row0, int32_t rows)
{
    const kve_kvp_score_params *p = j->p;
    size_t P = (size_t)p->P;
    float *out = w->x + 2 * (size_t)p->H;
    if (!(p->inputs & KVE_KVP_POS)) {
        blank(j, out, P, rows);
        return;
    }
    const float *table = p->table + (p->n_tables == 1 ? 0 : (size_t)head * (size_t)p->n_positions * P);
    layer_norm ln = {.gain = tensor(j, w, KVE_KVP_POS_GAIN),
                     .shift = tensor(j, w, KVE_KVP_POS_SHIFT),
                     .width = P,
                     .round = j->round};
    for (int32_t r = 0; r < rows; r++) {
        int32_t at = row0 + r < p->n_positions ? row0 + r : p->n_positions - 1;
        memcpy(w->y + (size_t)r * P, table + (size_t)at * P, P * sizeof(float));
    }
    norm_pick(j->be->isa)(&ln, w->y, P, rows, out, width_x(j->s));
}

static void kvp_item(void *ctx, int64_t item, int32_t worker)
{
    const kvp_job *j = ctx;
    const kve_kvp_score_params *p = j->p;
    size_t H = (size_t)p->H, D = (size_t)p->D;
    int32_t head = (int32_t)(item / j->n_chunks), row = (int32_t)(item % j->n_chunks) * CHUNK;
    int32_t end = row + CHUNK < p->n ? row + CHUNK : p->n;
    size_t first = cpu_kv_row(&p->kv, p->Hkv, p->D, p->i_layer + head / p->Hkv, head % p->Hkv, 0);
    kvp_work w = {.blob = p->weights + (size_t)head * kve_kvp_count(j->s)};
    pack_fn pack = pack_pick(j->be->isa);
    carve(j->s, cpu_scratch(j->be, worker), &w);
    if (p->inputs & KVE_KVP_K)
        pack(tensor(j, &w, KVE_KVP_K_WEIGHT), H, D, j->round, w.k);
    if (p->inputs & KVE_KVP_V)
        pack(tensor(j, &w, KVE_KVP_V_WEIGHT), H, D, j->round, w.v);
    pack(tensor(j, &w, KVE_KVP_MIX_WEIGHT), H, width_x(j->s), j->round, w.mix);
    pack(tensor(j, &w, KVE_KVP_DEEP_WEIGHT), H, H, j->round, w.deep);
    for (; row < end; row += ROWS) {
        int32_t rows = end - row < ROWS ? end - row : ROWS;
        cache_feature(j, &w, false, first, row, rows);
        cache_feature(j, &w, true, first, row, rows);
        position_feature(j, &w, head, row, rows);
        product(j, &w, w.x, width_x(j->s), w.mix, rows);
        normalise(j, &w, KVE_KVP_MIX_BIAS, true, j->round, rows, w.hidden, H);
        product(j, &w, w.hidden, H, w.deep, rows);
        normalise(j, &w, KVE_KVP_DEEP_BIAS, true, false, rows, w.hidden, H);
        dots_pick(j->be->isa)(w.hidden, H, rows, tensor(j, &w, KVE_KVP_OUT_WEIGHT), *tensor(j, &w, KVE_KVP_OUT_BIAS),
                              p->out + (size_t)head * (size_t)p->n + (size_t)row);
    }
}

kve_status cpu_kvp_score(kve_backend *be, const kve_kvp_score_params *p)
{
    int32_t heads = p->n_layers * p->Hkv;
    kvp_job j = {.p = p,
                 .be = cpu_of(be),
                 .s = {.D = p->D, .H = p->H, .P = p->P},
                 .round = p->kv_dtype == KVE_BF16,
                 .n_chunks = (p->n + CHUNK - 1) / CHUNK};
    if (!kve_kvp_is_legal(j.s))
        return kve_fail(KVE_ERR_USAGE,
                        "cpu: kvp_score with D = %d, H = %d, P = %d; all are multiples of 16, D up to %d, H up to %d, "
                        "P up to %d",
                        p->D, p->H, p->P, KVE_KVP_MAX_D, KVE_KVP_MAX_H, KVE_KVP_MAX_P);
    if ((p->inputs & KVE_KVP_POS) && ((p->n_tables != 1 && p->n_tables != heads) || p->n_positions < 1))
        return kve_fail(KVE_ERR_USAGE,
                        "cpu: kvp_score with %d position tables of %d rows for %d heads; give 1 table or one "
                        "per head, of at least one row",
                        p->n_tables, p->n_positions, heads);
    kvp_work unused;
    KVE_TRY(cpu_scratch_reserve(j.be, carve(j.s, NULL, &unused)));
    cpu_parallel_for(j.be, (int64_t)heads * j.n_chunks, kvp_item, &j);
    return KVE_OK;
}
