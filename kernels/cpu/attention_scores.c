/* The two ops that look at attention itself instead of its output: attention_window (SnapKV, TOVA) and
 * future_importance (the KVP paper's I), and the pooling over heads. Contracts: kernels/ops.h.
 *
 * Two passes, no n-wide buffer: the first finds every query row's softmax maximum and sum over all that it sees, the
 * second walks the keys by blocks of 64, recomputes the scores and sums the probabilities over the queries in order. So
 * an output element is one sum in one order, whatever the threads do. flops: 4 D per (query head, visible key). */
#include "host/base/mem.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/simd.h"

#include <stdlib.h>

enum { KEYS = BLOCK_KEYS, TOKENS = 16 };

typedef struct scores {
    cpu_backend *be;
    const float *q; /* [T][Hq][D] */
    kve_kv ctx, tail;
    float *out;
    float scale;
    int32_t T, n, Hq, Hkv, G, D, i_layer;
    bool window;  /* causal inside the context and the mean over T; otherwise: all of it, a tail, the group's maximum */
    bool maximum; /* over the T tokens instead of the sum */
    kve_dtype kv_dtype;
    float *top, *sum; /* [Hkv][T][G] */
} scores;

/* One worker's memory: rows are (token, query head of the group), token slowest. */
typedef struct buffers {
    float *q;       /* [TOKENS * G][D] */
    float *panel;   /* [D][KEYS] */
    float *staging; /* [KEYS][Dp] */
    float *p;       /* [TOKENS * G up to a tile][KEYS] */
} buffers;

static size_t max_rows(const scores *x)
{
    return ((size_t)x->G * TOKENS + CPU_TILE - 1) / CPU_TILE * CPU_TILE;
}

static buffers carve(const scores *x, int32_t worker)
{
    size_t Dp = block_padded(x->D);
    buffers b = {.panel = cpu_scratch(x->be, worker)};
    b.staging = b.panel + Dp * KEYS;
    b.p = b.staging + Dp * KEYS;
    b.q = b.p + max_rows(x) * KEYS;
    return b;
}

/* Scaled, masked scores of tokens [t0, t0 + n_tok) against the loaded block, of which token t sees visible[t - t0]. */
CPU_INLINE void mask_body(float *s, int32_t rows, int32_t G, const int32_t *visible, float scale)
{
    for (int32_t r = 0; r < rows; r++)
        for (int32_t j = 0; j < KEYS; j++)
            s[(size_t)r * KEYS + (size_t)j] = j < visible[r / G] ? s[(size_t)r * KEYS + (size_t)j] * scale : -INFINITY;
}

CPU_INLINE void statistics_body(float *s, int32_t rows, int32_t G, const int32_t *visible, float *top, float *sum)
{
    for (int32_t r = 0; r < rows; r++)
        if (visible[r / G] > 0)
            cpu_softmax_block(s + (size_t)r * KEYS, KEYS, 1.0f, &top[r], &sum[r]);
}

/* p -> probabilities, then into acc: window: acc [G][KEYS] += p per query head; otherwise acc[0] += max over group, or
 * the largest of all. */
CPU_INLINE void collect_body(float *p, int32_t n_tok, int32_t G, const float *top, const float *sum, bool window,
                             bool maximum, float *acc)
{
    for (int32_t t = 0; t < n_tok; t++) {
        float best[KEYS];
        for (int32_t j = 0; j < KEYS; j++)
            best[j] = 0;
        for (int32_t g = 0; g < G; g++) {
            int32_t r = t * G + g;
            float *row = p + (size_t)r * KEYS, *to = acc + (size_t)g * KEYS;
            for (int32_t j = 0; j < KEYS; j++)
                row[j] = cpu_exp(row[j] - top[r]) / sum[r];
            if (window)
                for (int32_t j = 0; j < KEYS; j++)
                    to[j] += row[j];
            else /* written so that a NaN wins */
                for (int32_t j = 0; j < KEYS; j++)
                    best[j] = row[j] <= best[j] ? best[j] : row[j];
        }
        if (!window)
            for (int32_t j = 0; j < KEYS; j++)
                acc[j] = !maximum ? acc[j] + best[j] : best[j] <= acc[j] ? acc[j] : best[j];
    }
}

CPU_INSTANCES(mask, (float *s, int32_t rows, int32_t G, const int32_t *visible, float scale),
              mask_body(s, rows, G, visible, scale))
CPU_INSTANCES(statistics, (float *s, int32_t rows, int32_t G, const int32_t *visible, float *top, float *sum),
              statistics_body(s, rows, G, visible, top, sum))
CPU_INSTANCES(collect,
              (float *p, int32_t n_tok, int32_t G, const float *top, const float *sum, bool window, bool maximum,
               float *acc),
              collect_body(p, n_tok, G, top, sum, window, maximum, acc))

static void load_queries(const scores *x, int32_t h, int32_t t0, int32_t n_tok, const buffers *b)
{
    size_t D = (size_t)x->D;
    for (int32_t t = 0; t < n_tok; t++)
        memcpy(b->q + (size_t)t * (size_t)x->G * D, x->q + ((size_t)(t0 + t) * (size_t)x->Hq + (size_t)(h * x->G)) * D,
               (size_t)x->G * D * sizeof(float));
}

/* False where no token sees anything of the block. */
static bool score_block(const scores *x, const buffers *b, int32_t n_tok, const int32_t *visible)
{
    int32_t rows = n_tok * x->G, any = 0;
    for (int32_t t = 0; t < n_tok; t++)
        any |= visible[t];
    if (!any)
        return false;
    cpu_tile_fn tile = cpu_tile(x->be->isa, KVE_F32);
    for (int32_t r = 0; r < rows; r += CPU_TILE)
        tile(b->q + (size_t)r * (size_t)x->D, (size_t)x->D, b->panel, x->D, rows - r < CPU_TILE ? rows - r : CPU_TILE,
             (float(*)[CPU_PANEL])(void *)(b->p + (size_t)r * KEYS));
    mask_pick(x->be->isa)(b->p, rows, x->G, visible, x->scale);
    return true;
}

static int32_t clamp_block(int32_t seen, int32_t key0)
{
    return seen <= key0 ? 0 : seen - key0 < KEYS ? seen - key0 : KEYS;
}

static int32_t sees_ctx(const scores *x, int32_t t)
{
    return x->window ? x->n - x->T + t + 1 : x->n;
}

static void statistics_item(void *ctx, int64_t item, int32_t worker)
{
    const scores *x = ctx;
    int32_t h = (int32_t)(item % x->Hkv), t0 = (int32_t)(item / x->Hkv) * TOKENS;
    int32_t n_tok = x->T - t0 < TOKENS ? x->T - t0 : TOKENS, visible[TOKENS];
    size_t at = ((size_t)h * (size_t)x->T + (size_t)t0) * (size_t)x->G;
    buffers b = carve(x, worker);
    load_queries(x, h, t0, n_tok, &b);
    for (int32_t r = 0; r < n_tok * x->G; r++) {
        x->top[at + (size_t)r] = -INFINITY;
        x->sum[at + (size_t)r] = 0;
    }
    for (int part = 0; part < (x->window ? 1 : 2); part++) {
        int32_t last = t0 + n_tok - 1, n_keys = part ? last + 1 : sees_ctx(x, last);
        block_rows keys = block_rows_of(part ? &x->tail : &x->ctx, false, x->Hkv, x->D, x->i_layer, h, x->kv_dtype);
        for (int32_t key0 = 0; key0 < n_keys; key0 += KEYS) {
            block_load_keys(x->be->isa, &keys, key0, n_keys - key0 < KEYS ? n_keys - key0 : KEYS, b.staging, b.panel);
            for (int32_t t = 0; t < n_tok; t++)
                visible[t] = clamp_block(part ? t0 + t + 1 : sees_ctx(x, t0 + t), key0);
            if (score_block(x, &b, n_tok, visible))
                statistics_pick(x->be->isa)(b.p, n_tok * x->G, x->G, visible, x->top + at, x->sum + at);
        }
    }
}

static void collect_item(void *ctx, int64_t item, int32_t worker)
{
    const scores *x = ctx;
    int32_t h = (int32_t)(item % x->Hkv), key0 = (int32_t)(item / x->Hkv) * KEYS, visible[TOKENS];
    int32_t count = x->n - key0 < KEYS ? x->n - key0 : KEYS, n_out = x->window ? x->G : 1;
    buffers b = carve(x, worker);
    block_rows keys = block_rows_of(&x->ctx, false, x->Hkv, x->D, x->i_layer, h, x->kv_dtype);
    float acc[64][KEYS]; /* G <= 64 is checked on entry */
    memset(acc, 0, (size_t)n_out * sizeof acc[0]);
    block_load_keys(x->be->isa, &keys, key0, count, b.staging, b.panel);
    for (int32_t t0 = 0; t0 < x->T; t0 += TOKENS) {
        int32_t n_tok = x->T - t0 < TOKENS ? x->T - t0 : TOKENS;
        size_t at = ((size_t)h * (size_t)x->T + (size_t)t0) * (size_t)x->G;
        for (int32_t t = 0; t < n_tok; t++)
            visible[t] = clamp_block(sees_ctx(x, t0 + t), key0);
        load_queries(x, h, t0, n_tok, &b);
        if (score_block(x, &b, n_tok, visible))
            collect_pick(x->be->isa)(b.p, n_tok, x->G, x->top + at, x->sum + at, x->window, x->maximum, acc[0]);
    }
    for (int32_t o = 0; o < n_out; o++)
        for (int32_t j = 0; j < count; j++)
            x->out[(size_t)(h * n_out + o) * (size_t)x->n + (size_t)(key0 + j)] =
                x->window ? acc[o][j] / (float)x->T : acc[o][j];
}

static kve_status run(scores *x)
{
    x->G = x->Hq / x->Hkv;
    if (x->D > CPU_MAX_D || x->G > 64)
        return kve_fail(KVE_ERR_USAGE, "cpu: head dimension %d or group size %d is beyond %d or 64", x->D, x->G,
                        CPU_MAX_D);
    size_t rows = (size_t)x->T * (size_t)x->Hq, Dp = block_padded(x->D);
    KVE_TRY(cpu_scratch_reserve(x->be, sizeof(float) * (2 * Dp * KEYS + max_rows(x) * (KEYS + (size_t)x->D))));
    KVE_TRY(kve_alloc(2 * rows, sizeof *x->top, &x->top));
    x->sum = x->top + rows;
    int64_t n_token_blocks = (x->T + TOKENS - 1) / TOKENS, n_key_blocks = (x->n + KEYS - 1) / KEYS;
    cpu_parallel_for(x->be, n_token_blocks * x->Hkv, statistics_item, x);
    cpu_parallel_for(x->be, n_key_blocks * x->Hkv, collect_item, x);
    free(x->top);
    return KVE_OK;
}

kve_status cpu_attention_window(kve_backend *be, const kve_attention_window_params *p)
{
    scores x = {.be = cpu_of(be),
                .q = p->q,
                .ctx = p->kv,
                .out = p->out,
                .scale = p->scale,
                .T = p->W,
                .n = p->n,
                .Hq = p->Hq,
                .Hkv = p->Hkv,
                .D = p->D,
                .i_layer = p->i_layer,
                .window = true,
                .kv_dtype = p->kv_dtype};
    return run(&x);
}

kve_status cpu_future_importance(kve_backend *be, const kve_future_importance_params *p)
{
    scores x = {.be = cpu_of(be),
                .q = p->q,
                .ctx = p->ctx,
                .tail = p->tail,
                .out = p->out,
                .scale = p->scale,
                .T = p->f,
                .n = p->n,
                .Hq = p->Hq,
                .Hkv = p->Hkv,
                .D = p->D,
                .i_layer = p->i_layer,
                .maximum = p->maximum,
                .kv_dtype = p->kv_dtype};
    return run(&x);
}

static float pooled(const float *in, int32_t n, int32_t width, int32_t j)
{
    float sum = 0;
    for (int32_t i = j - width / 2; i <= j + width / 2; i++)
        if (i >= 0 && i < n)
            sum += in[i];
    return sum / (float)width;
}

static void pool_item(void *ctx, int64_t item, int32_t worker)
{
    const kve_pool_group_params *p = ctx;
    (void)worker;
    int32_t h = (int32_t)item, G = p->all_heads ? p->Hq : p->Hq / p->Hkv, first = p->all_heads ? 0 : h * G;
    float *out = p->out + (size_t)h * (size_t)p->n;
    for (int32_t j = 0; j < p->n; j++) {
        float sum = 0;
        for (int32_t g = 0; g < G && j < p->n_valid; g++)
            sum += pooled(p->in + (size_t)(first + g) * (size_t)p->n, p->n_valid, p->width, j);
        out[j] = j < p->n_valid ? sum / (float)G : INFINITY;
    }
}

kve_status cpu_pool_group(kve_backend *be, const kve_pool_group_params *p)
{
    cpu_parallel_for(cpu_of(be), p->Hkv, pool_item, (void *)(uintptr_t)p);
    return KVE_OK;
}
