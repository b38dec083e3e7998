/* Exact causal attention of a chunk over the context cache: out = softmax(q.k scale) V with an online softmax.
 * Contract: kernels/ops.h; twin of the oracle in tests/ops.
 *
 * Work: one item is one KV head and QUERY_BLOCK consecutive tokens with all G query heads of the group. Per block of 64
 * keys at fixed absolute boundaries the item widens K (transposed) and V once into panels and runs matmul's register
 * tile twice: scores = q Kt, then partial = p V. A row's sums depend on that row and on absolute key positions only, so
 * chunk size, neighbours and threads change nothing. flops: 4 D per (query head, visible key). Keys beyond a row's own
 * position are masked to -inf before the softmax; unwritten rows of the last block are never read (zero panels). */
#include "kernels/cpu/simd.h"

enum { KEYS = CPU_PANEL, QUERY_BLOCK = 48 };

/* One worker's memory. */
typedef struct buffers {
    float *k_panel;   /* [D][KEYS] */
    float *v_panels;  /* [ceil(D/64)][KEYS][64] */
    float *out;       /* [G][QUERY_BLOCK][Dp] */
    float *top, *sum; /* [G][QUERY_BLOCK] */
} buffers;

static size_t padded(int32_t D)
{
    return ((size_t)D + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL;
}

static size_t scratch_bytes(const kve_attention_prefill_params *p)
{
    size_t G = (size_t)(p->Hq / p->Hkv), Dp = padded(p->D);
    return sizeof(float) * ((size_t)p->D * KEYS + Dp * KEYS + G * QUERY_BLOCK * (Dp + 2)) + 64;
}

static buffers carve(char *scratch, const kve_attention_prefill_params *p)
{
    size_t rows = (size_t)(p->Hq / p->Hkv) * QUERY_BLOCK, Dp = padded(p->D);
    buffers b = {.k_panel = (float *)(void *)scratch};
    b.v_panels = b.k_panel + (size_t)p->D * KEYS;
    b.out = b.v_panels + Dp * KEYS;
    b.top = b.out + rows * Dp;
    b.sum = b.top + rows;
    return b;
}

static void load_panels(const kve_attention_prefill_params *p, int32_t h, int32_t key0, int32_t count, buffers *b)
{
    float row[CPU_MAX_D];
    size_t D = (size_t)p->D;
    if (count < KEYS) {
        memset(b->k_panel, 0, D * KEYS * sizeof(float));
        memset(b->v_panels, 0, padded(p->D) * KEYS * sizeof(float));
    }
    for (int32_t j = 0; j < count; j++) {
        size_t at = cpu_kv_row(&p->kv, p->Hkv, p->D, p->i_layer, h, key0 + j);
        cpu_load_row(p->kv.k, at, p->D, p->kv_dtype, row);
        for (size_t d = 0; d < D; d++)
            b->k_panel[d * KEYS + (size_t)j] = row[d];
        cpu_load_row(p->kv.v, at, p->D, p->kv_dtype, row);
        for (size_t d = 0; d < D; d += CPU_PANEL) {
            float *to = b->v_panels + d * KEYS + (size_t)j * CPU_PANEL;
            size_t width = D - d < CPU_PANEL ? D - d : CPU_PANEL;
            memcpy(to, row + d, width * sizeof(float));
        }
    }
}

CPU_INLINE void softmax_rows(float s[CPU_TILE][CPU_PANEL], const int32_t *visible, int32_t rows, float scale,
                             float *top, float *sum, float *shrink)
{
    for (int32_t r = 0; r < rows; r++) {
        for (int32_t j = visible[r]; j < KEYS; j++)
            s[r][j] = -INFINITY;
        shrink[r] = cpu_softmax_block(s[r], KEYS, scale, &top[r], &sum[r]);
    }
}

CPU_INLINE void merge_rows(float *out, size_t Dp, size_t d0, float part[CPU_TILE][CPU_PANEL], const float *shrink,
                           int32_t rows)
{
    for (int32_t r = 0; r < rows; r++) {
        float *to = out + (size_t)r * Dp + d0;
        for (int c = 0; c < CPU_PANEL; c++)
            to[c] = to[c] * shrink[r] + part[r][c];
    }
}

CPU_INSTANCES(softmax_tile,
              (float s[CPU_TILE][CPU_PANEL], const int32_t *visible, int32_t rows, float scale, float *top, float *sum,
               float *shrink),
              softmax_rows(s, visible, rows, scale, top, sum, shrink))
CPU_INSTANCES(merge_tile,
              (float *out, size_t Dp, size_t d0, float part[CPU_TILE][CPU_PANEL], const float *shrink, int32_t rows),
              merge_rows(out, Dp, d0, part, shrink, rows))

typedef struct prefill {
    const kve_attention_prefill_params *p;
    cpu_backend *be;
    cpu_tile_fn tile;
    softmax_tile_fn softmax;
    merge_tile_fn merge;
    int32_t n_blocks;
} prefill;

/* Rows [row0, row0 + rows) of query head g of the group against one key block. */
static void attend_tile(const prefill *a, const buffers *b, int32_t h, int32_t g, int32_t token0, int32_t row0,
                        int32_t rows, int32_t key0)
{
    const kve_attention_prefill_params *p = a->p;
    size_t Dp = padded(p->D), state = (size_t)g * QUERY_BLOCK + (size_t)row0, q_stride = (size_t)p->Hq * (size_t)p->D;
    float s[CPU_TILE][CPU_PANEL] __attribute__((aligned(64))), part[CPU_TILE][CPU_PANEL] __attribute__((aligned(64)));
    float shrink[CPU_TILE];
    int32_t visible[CPU_TILE];
    const float *q = p->q + (size_t)(token0 + row0) * q_stride + (size_t)(h * (p->Hq / p->Hkv) + g) * (size_t)p->D;
    for (int32_t r = 0; r < rows; r++) {
        int32_t seen = p->start + token0 + row0 + r + 1 - key0;
        visible[r] = seen < 0 ? 0 : seen < KEYS ? seen : KEYS;
    }
    if (visible[rows - 1] == 0)
        return;
    a->tile(q, q_stride, b->k_panel, p->D, rows, s);
    a->softmax(s, visible, rows, p->scale, b->top + state, b->sum + state, shrink);
    for (size_t d = 0; d < Dp; d += CPU_PANEL) {
        a->tile(s, CPU_PANEL, b->v_panels + d * KEYS, KEYS, rows, part);
        a->merge(b->out + state * Dp, Dp, d, part, shrink, rows);
    }
}

static void finish(const kve_attention_prefill_params *p, const buffers *b, int32_t h, int32_t token0, int32_t tokens)
{
    int32_t G = p->Hq / p->Hkv;
    size_t Dp = padded(p->D);
    for (int32_t g = 0; g < G; g++)
        for (int32_t t = 0; t < tokens; t++) {
            size_t state = (size_t)g * QUERY_BLOCK + (size_t)t;
            float *to = p->out + ((size_t)(token0 + t) * (size_t)p->Hq + (size_t)(h * G + g)) * (size_t)p->D;
            for (int32_t d = 0; d < p->D; d++)
                to[d] = b->out[state * Dp + (size_t)d] / b->sum[state];
        }
}

static void prefill_item(void *ctx, int64_t item, int32_t worker)
{
    const prefill *a = ctx;
    const kve_attention_prefill_params *p = a->p;
    /* Late blocks see the most keys: start with them, so that no long item is left for the end. */
    int32_t h = (int32_t)(item % p->Hkv), block = a->n_blocks - 1 - (int32_t)(item / p->Hkv),
            token0 = block * QUERY_BLOCK;
    int32_t tokens = p->T - token0 < QUERY_BLOCK ? p->T - token0 : QUERY_BLOCK, G = p->Hq / p->Hkv;
    int32_t n_keys = p->start + token0 + tokens;
    buffers b = carve(cpu_scratch(a->be, worker), p);
    size_t rows = (size_t)G * QUERY_BLOCK;
    memset(b.out, 0, rows * padded(p->D) * sizeof *b.out);
    for (size_t r = 0; r < rows; r++) {
        b.top[r] = -INFINITY;
        b.sum[r] = 0;
    }
    for (int32_t key0 = 0; key0 < n_keys; key0 += KEYS) {
        load_panels(p, h, key0, n_keys - key0 < KEYS ? n_keys - key0 : KEYS, &b);
        for (int32_t g = 0; g < G; g++)
            for (int32_t r = 0; r < tokens; r += CPU_TILE)
                attend_tile(a, &b, h, g, token0, r, tokens - r < CPU_TILE ? tokens - r : CPU_TILE, key0);
    }
    finish(p, &b, h, token0, tokens);
}

kve_status cpu_attention_prefill(kve_backend *base, const kve_attention_prefill_params *p)
{
    cpu_backend *be = cpu_of(base);
    if (p->D > CPU_MAX_D)
        return kve_fail(KVE_ERR_USAGE, "cpu: head dimension %d is beyond %d", p->D, CPU_MAX_D);
    prefill a = {.p = p,
                 .be = be,
                 .tile = cpu_tile(be->isa, KVE_F32),
                 .softmax = softmax_tile_pick(be->isa),
                 .merge = merge_tile_pick(be->isa),
                 .n_blocks = (p->T + QUERY_BLOCK - 1) / QUERY_BLOCK};
    KVE_TRY(cpu_scratch_reserve(be, scratch_bytes(p)));
    cpu_parallel_for(be, (int64_t)a.n_blocks * p->Hkv, prefill_item, &a);
    return KVE_OK;
}
