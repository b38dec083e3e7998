/* The network, both ways. Contract: grad.h. Forward keeps the four LayerNorms' outputs before gain and shift; backward
 * makes everything else again from them, block by block, in the nearest caches. */
#include "policies/kvp/grad.h"

#include "host/base/mem.h"
#include "kernels/ops.h"
#include "policies/kvp/net.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 96, LANES = KVP_LANES, N_NORMS = 4 };

typedef enum norm_at { AT_K, AT_V, AT_MIX, AT_DEEP } norm_at;

/* The bias of each; gain and shift follow it. */
static const kve_kvp_tensor g_bias[N_NORMS] = {KVE_KVP_K_BIAS, KVE_KVP_V_BIAS, KVE_KVP_MIX_BIAS, KVE_KVP_DEEP_BIAS};

struct kvp_work {
    float *memory;
    float *y[N_NORMS];         /* [max_rows][H]: LayerNorm's output before gain and shift */
    float *scale[N_NORMS];     /* [max_rows] */
    float *raw;                /* [ROWS][D]: keys or values of a block */
    float *x;                  /* [ROWS][2H + P]: input of the first hidden layer */
    float *hidden;             /* [ROWS][H]: output of either hidden layer */
    float *d, *d_x;            /* [ROWS][H], [ROWS][2H + P]: gradients */
    float *k, *v, *mix, *deep; /* the matrices, transposed: panels of 16 outputs, [H / 16][inputs][16] */
};

static size_t width_x(kve_kvp_shape s)
{
    return 2 * (size_t)s.H + (size_t)s.P;
}

kve_status kvp_work_create(kve_kvp_shape s, int32_t max_rows, kvp_work **out)
{
    kvp_work *w = NULL;
    size_t n = (size_t)max_rows, D = (size_t)s.D, H = (size_t)s.H, X = width_x(s), at = 0;
    KVE_TRY(kve_alloc(1, sizeof *w, &w));
    float **pieces[] = {&w->y[0],     &w->y[1],     &w->y[2], &w->y[3], &w->scale[0], &w->scale[1],
                        &w->scale[2], &w->scale[3], &w->raw,  &w->x,    &w->hidden,   &w->d,
                        &w->d_x,      &w->k,        &w->v,    &w->mix,  &w->deep};
    size_t sizes[] = {n * H,    n * H,    n * H,    n * H,    n,     n,     n,     n,    ROWS * D,
                      ROWS * X, ROWS * H, ROWS * H, ROWS * X, H * D, H * D, H * X, H * H};
    const size_t count = sizeof sizes / sizeof *sizes;
    for (size_t i = 0; i < count; i++)
        at += sizes[i] = (sizes[i] + LANES - 1) / LANES * LANES;
    kve_status st = kve_alloc(at, sizeof(float), &w->memory);
    if (st != KVE_OK) {
        free(w);
        return st;
    }
    at = 0;
    for (size_t i = 0; i < count; at += sizes[i++])
        *pieces[i] = w->memory + at;
    *out = w;
    return KVE_OK;
}

void kvp_work_free(kvp_work *w)
{
    if (w)
        free(w->memory);
    free(w);
}

kve_status kvp_position_rows(const kvp_math *math, int32_t n, int32_t P, float *out)
{
    float *scale = NULL;
    KVE_TRY(kve_alloc((size_t)n, sizeof *scale, &scale));
    kve_kvp_positions(n, P, out);
    math->norm(&(kvp_norm){.x = out, .scale = scale, .rows = n, .width = P});
    free(scale);
    return KVE_OK;
}

static const float *tensor(const kvp_head *h, kve_kvp_tensor t)
{
    return h->weights + kve_kvp_offset(h->shape, t);
}

/* [H][K] -> panels */
static void pack(const float *from, size_t H, size_t K, float *to)
{
    for (size_t o = 0; o < H; o++)
        for (size_t i = 0; i < K; i++)
            to[(o / LANES * K + i) * LANES + o % LANES] = from[o * K + i];
}

static void pack_all(const kvp_head *h, kvp_work *w)
{
    size_t H = (size_t)h->shape.H, D = (size_t)h->shape.D;
    if (h->inputs & KVE_KVP_K)
        pack(tensor(h, KVE_KVP_K_WEIGHT), H, D, w->k);
    if (h->inputs & KVE_KVP_V)
        pack(tensor(h, KVE_KVP_V_WEIGHT), H, D, w->v);
    pack(tensor(h, KVE_KVP_MIX_WEIGHT), H, width_x(h->shape), w->mix);
    pack(tensor(h, KVE_KVP_DEEP_WEIGHT), H, H, w->deep);
}

/* LayerNorm `at` of rows row .. row + count - 1: x [count][K] times packed weights, then the norm, kept for later. */
static void linear_norm(const kvp_head *h, kvp_work *w, norm_at at, const float *x, size_t K, const float *panels,
                        int32_t row, int32_t count)
{
    size_t H = (size_t)h->shape.H;
    float *y = w->y[at] + (size_t)row * H;
    h->math->gemm(&(kvp_gemm){.a = x,
                              .b = panels,
                              .c = y,
                              .a_row = K,
                              .a_step = 1,
                              .b_panel = K * LANES,
                              .b_step = LANES,
                              .c_row = H,
                              .m = count,
                              .n = h->shape.H,
                              .k = (int32_t)K});
    h->math->norm(&(kvp_norm){
        .x = y, .bias = tensor(h, g_bias[at]), .scale = w->scale[at] + row, .rows = count, .width = h->shape.H});
}

/* Gain and shift (and SiLU) of the kept rows into out. */
static void gained(const kvp_head *h, const kvp_work *w, norm_at at, int32_t row, int32_t count, float *out,
                   size_t out_row)
{
    size_t H = (size_t)h->shape.H;
    h->math->affine(&(kvp_affine){.y = w->y[at] + (size_t)row * H,
                                  .gain = tensor(h, g_bias[at] + 1),
                                  .shift = tensor(h, g_bias[at] + 2),
                                  .out = out,
                                  .y_row = H,
                                  .out_row = out_row,
                                  .rows = count,
                                  .width = h->shape.H,
                                  .silu = at >= AT_MIX});
}

static void blank(float *out, size_t out_row, size_t width, int32_t count)
{
    for (int32_t r = 0; r < count; r++)
        memset(out + (size_t)r * out_row, 0, width * sizeof *out);
}

/* w->x of a block from the kept norms; zeros where an input is left out. */
static void make_x(const kvp_head *h, kvp_work *w, const kvp_rows *rows, int32_t row, int32_t count)
{
    size_t H = (size_t)h->shape.H, P = (size_t)h->shape.P, X = width_x(h->shape);
    for (norm_at at = AT_K; at <= AT_V; at++) {
        float *out = w->x + (size_t)at * H;
        if (h->inputs & (at == AT_K ? KVE_KVP_K : KVE_KVP_V))
            gained(h, w, at, row, count, out, X);
        else
            blank(out, X, H, count);
    }
    if (!(h->inputs & KVE_KVP_POS)) {
        blank(w->x + 2 * H, X, P, count);
        return;
    }
    h->math->affine(&(kvp_affine){.y = rows->positions + (size_t)row * P,
                                  .gain = tensor(h, KVE_KVP_POS_GAIN),
                                  .shift = tensor(h, KVE_KVP_POS_SHIFT),
                                  .out = w->x + 2 * H,
                                  .y_row = P,
                                  .out_row = X,
                                  .rows = count,
                                  .width = h->shape.P});
}

static const float *raw_rows(const kvp_head *h, kvp_work *w, const unsigned char *from, int32_t row, int32_t count)
{
    size_t bytes = (size_t)h->shape.D * sizeof(float);
    memcpy(w->raw, from + (size_t)row * bytes, (size_t)count * bytes);
    return w->raw;
}

void kvp_forward(const kvp_head *h, const kvp_rows *rows, kvp_work *w, float *scores)
{
    size_t D = (size_t)h->shape.D, H = (size_t)h->shape.H;
    pack_all(h, w);
    for (int32_t row = 0; row < rows->m; row += ROWS) {
        int32_t count = rows->m - row < ROWS ? rows->m - row : ROWS;
        if (h->inputs & KVE_KVP_K)
            linear_norm(h, w, AT_K, raw_rows(h, w, rows->keys, row, count), D, w->k, row, count);
        if (h->inputs & KVE_KVP_V)
            linear_norm(h, w, AT_V, raw_rows(h, w, rows->values, row, count), D, w->v, row, count);
        make_x(h, w, rows, row, count);
        linear_norm(h, w, AT_MIX, w->x, width_x(h->shape), w->mix, row, count);
        gained(h, w, AT_MIX, row, count, w->hidden, H);
        linear_norm(h, w, AT_DEEP, w->hidden, H, w->deep, row, count);
        gained(h, w, AT_DEEP, row, count, w->hidden, H);
        h->math->dots(w->hidden, count, h->shape.H, tensor(h, KVE_KVP_OUT_WEIGHT), *tensor(h, KVE_KVP_OUT_BIAS),
                      scores + row);
    }
}

/* --- Backward */

typedef struct back {
    const kvp_head *h;
    kvp_work *w;
    float *grad;
    int32_t row, count; /* the block */
} back;

static float *gradient(const back *b, kve_kvp_tensor t)
{
    return b->grad + kve_kvp_offset(b->h->shape, t);
}

/* d, rows d_row apart: in the gradient of what LayerNorm `at` led to, out that of what its bias was added to. */
static void norm_back(const back *b, norm_at at, float *d, size_t d_row)
{
    size_t H = (size_t)b->h->shape.H;
    b->h->math->norm_back(&(kvp_norm_back){.y = b->w->y[at] + (size_t)b->row * H,
                                           .scale = b->w->scale[at] + b->row,
                                           .gain = tensor(b->h, g_bias[at] + 1),
                                           .shift = tensor(b->h, g_bias[at] + 2),
                                           .d = d,
                                           .d_bias = gradient(b, g_bias[at]),
                                           .d_gain = gradient(b, g_bias[at] + 1),
                                           .d_shift = gradient(b, g_bias[at] + 2),
                                           .y_row = H,
                                           .d_row = d_row,
                                           .rows = b->count,
                                           .width = b->h->shape.H,
                                           .silu = at >= AT_MIX});
}

/* The matrix [H][K]: its gradient += d^T x. */
static void weight_back(const back *b, kve_kvp_tensor t, const float *d, size_t d_row, const float *x, size_t K)
{
    b->h->math->gemm(&(kvp_gemm){.a = d,
                                 .b = x,
                                 .c = gradient(b, t),
                                 .a_row = 1,
                                 .a_step = d_row,
                                 .b_panel = LANES,
                                 .b_step = K,
                                 .c_row = K,
                                 .m = b->h->shape.H,
                                 .n = (int32_t)K,
                                 .k = b->count,
                                 .add = true});
}

/* d_x [count][K] = d W. */
static void input_back(const back *b, kve_kvp_tensor t, const float *d, size_t K, float *d_x)
{
    size_t H = (size_t)b->h->shape.H;
    b->h->math->gemm(&(kvp_gemm){.a = d,
                                 .b = tensor(b->h, t),
                                 .c = d_x,
                                 .a_row = H,
                                 .a_step = 1,
                                 .b_panel = LANES,
                                 .b_step = K,
                                 .c_row = K,
                                 .m = b->count,
                                 .n = (int32_t)K,
                                 .k = (int32_t)H});
}

/* Output layer: its own gradients, and d = d_scores x its weights. */
static void out_back(const back *b, const float *d_scores)
{
    size_t H = (size_t)b->h->shape.H;
    const float *weight = tensor(b->h, KVE_KVP_OUT_WEIGHT);
    float *d_weight = gradient(b, KVE_KVP_OUT_WEIGHT), *d_bias = gradient(b, KVE_KVP_OUT_BIAS);
    gained(b->h, b->w, AT_DEEP, b->row, b->count, b->w->hidden, H);
    for (int32_t r = 0; r < b->count; r++) {
        const float d_score = d_scores[b->row + r], *hidden = b->w->hidden + (size_t)r * H;
        float *d = b->w->d + (size_t)r * H;
        *d_bias += d_score;
        for (size_t i = 0; i < H; i++) {
            d_weight[i] += d_score * hidden[i];
            d[i] = d_score * weight[i];
        }
    }
}

static void position_back(const back *b, const kvp_rows *rows)
{
    size_t P = (size_t)b->h->shape.P, X = width_x(b->h->shape);
    b->h->math->norm_back(&(kvp_norm_back){.y = rows->positions + (size_t)b->row * P,
                                           .gain = tensor(b->h, KVE_KVP_POS_GAIN),
                                           .shift = tensor(b->h, KVE_KVP_POS_SHIFT),
                                           .d = b->w->d_x + 2 * (size_t)b->h->shape.H,
                                           .d_gain = gradient(b, KVE_KVP_POS_GAIN),
                                           .d_shift = gradient(b, KVE_KVP_POS_SHIFT),
                                           .y_row = P,
                                           .d_row = X,
                                           .rows = b->count,
                                           .width = b->h->shape.P});
}

static void block_back(const back *b, const kvp_rows *rows, const float *d_scores)
{
    const kvp_head *h = b->h;
    kvp_work *w = b->w;
    size_t D = (size_t)h->shape.D, H = (size_t)h->shape.H, X = width_x(h->shape);
    out_back(b, d_scores);
    norm_back(b, AT_DEEP, w->d, H);
    gained(h, w, AT_MIX, b->row, b->count, w->hidden, H);
    weight_back(b, KVE_KVP_DEEP_WEIGHT, w->d, H, w->hidden, H);
    input_back(b, KVE_KVP_DEEP_WEIGHT, w->d, H, w->hidden);
    norm_back(b, AT_MIX, w->hidden, H);
    make_x(h, w, rows, b->row, b->count);
    weight_back(b, KVE_KVP_MIX_WEIGHT, w->hidden, H, w->x, X);
    input_back(b, KVE_KVP_MIX_WEIGHT, w->hidden, X, w->d_x);
    if (h->inputs & KVE_KVP_K) {
        norm_back(b, AT_K, w->d_x, X);
        weight_back(b, KVE_KVP_K_WEIGHT, w->d_x, X, raw_rows(h, w, rows->keys, b->row, b->count), D);
    }
    if (h->inputs & KVE_KVP_V) {
        norm_back(b, AT_V, w->d_x + H, X);
        weight_back(b, KVE_KVP_V_WEIGHT, w->d_x + H, X, raw_rows(h, w, rows->values, b->row, b->count), D);
    }
    if (h->inputs & KVE_KVP_POS)
        position_back(b, rows);
}

void kvp_backward(const kvp_head *h, const kvp_rows *rows, kvp_work *w, const float *d_scores, float *grad)
{
    back b = {.h = h, .w = w, .grad = grad};
    memset(grad, 0, kve_kvp_count(h->shape) * sizeof *grad);
    for (b.row = 0; b.row < rows->m; b.row += ROWS) {
        b.count = rows->m - b.row < ROWS ? rows->m - b.row : ROWS;
        block_back(&b, rows, d_scores);
    }
}
