/* Subjects of the invariance test whose rows are plain rows: matmul, rmsnorm, glu, nll, rope_append. */
#include "tests/ops/invariance.h"

#include <math.h>
#include <string.h>

enum { T = 131, E = 577, F = 129, V = 1027, N = 130, HQ = 6, HKV = 2, D = 80, R = 32, POSITIONS = 64 };

typedef struct batch {
    float *x, *second; /* the rows, and what they share: gain, weight, cosines and sines */
    float *bias, *y0;
    int32_t *ints; /* targets or positions */
} batch;

float *pick_rows(op_env *e, const float *from, size_t width, const int32_t *rows, int32_t count)
{
    float *to = op_host(e, (size_t)count * width, sizeof *to);
    for (size_t i = 0; i < (size_t)count; i++)
        memcpy(to + i * width, from + (size_t)rows[i] * width, width * sizeof *to);
    return to;
}

static float *upload_rows(op_env *e, const float *from, size_t width, const int32_t *rows, int32_t count)
{
    return op_in(e, pick_rows(e, from, width, rows, count), (size_t)count * width * sizeof *from);
}

static int32_t *upload_ints(op_env *e, const int32_t *from, const int32_t *rows, int32_t count)
{
    int32_t *to = op_host(e, (size_t)count, sizeof *to);
    for (int32_t i = 0; i < count; i++)
        to[i] = from[rows[i]];
    return op_in(e, to, (size_t)count * sizeof *to);
}

static void *prepare(op_env *data, const subject *s)
{
    batch *b = op_host(data, 1, sizeof *b);
    (void)s;
    b->x = op_random(data, (size_t)T * V, 3); /* as wide as the widest subject */
    b->second = op_random(data, (size_t)N * E, 1);
    b->bias = op_random(data, N, 1);
    b->y0 = op_random(data, (size_t)T * N, 5);
    b->ints = op_host(data, T, sizeof *b->ints);
    for (int32_t t = 0; t < T; t++)
        b->ints[t] = op_below(data, POSITIONS);
    return b;
}

static float *run_rmsnorm(op_env *e, const subject *s, const void *data, const int32_t *rows, int32_t count)
{
    const batch *b = data;
    size_t bytes = (size_t)count * s->width * sizeof(float);
    kve_rmsnorm_params p = {.x = upload_rows(e, b->x, E, rows, count),
                            .gain = op_in(e, b->second, E * sizeof(float)),
                            .out = op_out(e, bytes),
                            .eps = 1e-6f,
                            .T = count,
                            .E = E};
    op_ok(e, e->be->vt->rmsnorm(e->be, &p));
    return op_read(e, p.out, bytes);
}

static float *run_glu(op_env *e, const subject *s, const void *data, const int32_t *rows, int32_t count)
{
    const batch *b = data;
    size_t bytes = (size_t)count * s->width * sizeof(float);
    kve_glu_params p = {.gate_up = upload_rows(e, b->x, 2 * (size_t)F, rows, count),
                        .out = op_out(e, bytes),
                        .act = (kve_activation)s->variant,
                        .T = count,
                        .F = F};
    op_ok(e, e->be->vt->glu(e->be, &p));
    return op_read(e, p.out, bytes);
}

static float *run_nll(op_env *e, const subject *s, const void *data, const int32_t *rows, int32_t count)
{
    const batch *b = data;
    size_t bytes = (size_t)count * s->width * sizeof(float);
    kve_nll_params p = {.logits = upload_rows(e, b->x, V, rows, count),
                        .target = upload_ints(e, b->ints, rows, count),
                        .nll = op_out(e, bytes),
                        .T = count,
                        .V = V};
    op_ok(e, e->be->vt->nll(e->be, &p));
    return op_read(e, p.nll, bytes);
}

/* variant 1: bias and accumulate. */
static float *run_matmul(op_env *e, const subject *s, const void *data, const int32_t *rows, int32_t count)
{
    const batch *b = data;
    size_t bytes = (size_t)count * s->width * sizeof(float);
    kve_weight *w = op_weight(e, s->dtype, N, E, b->second);
    kve_matmul_params p = {.x = upload_rows(e, b->x, E, rows, count),
                           .w = w,
                           .bias = s->variant ? op_in(e, b->bias, N * sizeof(float)) : NULL,
                           .y = s->variant ? op_inout(e, pick_rows(e, b->y0, N, rows, count), bytes) : op_out(e, bytes),
                           .T = count,
                           .accumulate = s->variant != 0};
    op_ok(e, e->be->vt->matmul(e->be, &p));
    op_weight_free(e, w);
    return op_read(e, p.y, bytes);
}

/* A row's output is its queries, then its keys and values as the cache holds them. Row i of the call becomes tail row
 * count - 1 - i of one slot. */
static float *run_rope(op_env *e, const subject *s, const void *data, const int32_t *rows, int32_t count)
{
    const batch *b = data;
    enum { QKV = (HQ + 2 * HKV) * D, HALF = R / 2 };
    size_t n_q = (size_t)count * HQ * D;
    int32_t *slot_of = op_host(e, (size_t)count, 4), *index_of = op_host(e, (size_t)count, 4);
    float *out = op_host(e, (size_t)count * s->width, sizeof *out);
    op_kv tail = op_kv_make(e, 1, HKV, count + 1, D, s->dtype);
    op_kv_inout(e, &tail);
    kve_fork_slot slot = {.tail = tail.dev};
    for (int32_t i = 0; i < count; i++)
        index_of[i] = count - 1 - i;
    kve_rope_append_params p = {.qkv = upload_rows(e, b->x, QKV, rows, count),
                                .q_norm = s->variant ? op_in(e, b->bias, D * sizeof(float)) : NULL,
                                .k_norm = s->variant ? op_in(e, b->bias + 10, D * sizeof(float)) : NULL,
                                .cos = op_in(e, b->second, POSITIONS * HALF * sizeof(float)),
                                .sin = op_in(e, b->second + POSITIONS * HALF, POSITIONS * HALF * sizeof(float)),
                                .pos_of = upload_ints(e, b->ints, rows, count),
                                .slot_of = op_in(e, slot_of, (size_t)count * sizeof *slot_of),
                                .index_of = op_in(e, index_of, (size_t)count * sizeof *index_of),
                                .slots = op_in(e, &slot, sizeof slot),
                                .q = op_out(e, n_q * sizeof(float)),
                                .norm_eps = 1e-6f,
                                .T = count,
                                .Hq = HQ,
                                .Hkv = HKV,
                                .D = D,
                                .R = R,
                                .kv_dtype = s->dtype};
    op_ok(e, e->be->vt->rope_append(e->be, &p));
    const float *q = op_read(e, p.q, n_q * sizeof *q);
    const void *k = op_read(e, tail.dev.k, tail.bytes), *v = op_read(e, tail.dev.v, tail.bytes);
    for (int32_t i = 0; i < count; i++) {
        float *to = out + (size_t)i * s->width;
        memcpy(to, q + (size_t)i * HQ * D, HQ * D * sizeof *to);
        for (int32_t h = 0; h < HKV; h++)
            for (size_t d = 0; d < D; d++) {
                size_t at = oracle_kv_at(&tail.host, HKV, D, 0, h, index_of[i]) + d, column = (size_t)h * D + d;
                to[HQ * D + column] = (float)oracle_load(k, at, s->dtype);
                to[(HQ + HKV) * D + column] = (float)oracle_load(v, at, s->dtype);
            }
    }
    return out;
}

#define ROWS .prepare = prepare, .T = T
#define ROPE ROWS, .run = run_rope, .width = (HQ + 2 * HKV) * D
const subject g_row_subjects[] = {
    {.name = "rmsnorm", ROWS, .run = run_rmsnorm, .width = E},
    {.name = "glu silu", ROWS, .run = run_glu, .width = F, .variant = KVE_SILU},
    {.name = "glu gelu_tanh", ROWS, .run = run_glu, .width = F, .variant = KVE_GELU_TANH},
    {.name = "nll", ROWS, .run = run_nll, .width = 1},
    {.name = "matmul f32", ROWS, .run = run_matmul, .width = N, .dtype = KVE_F32},
    {.name = "matmul bf16", ROWS, .run = run_matmul, .width = N, .dtype = KVE_BF16},
    {.name = "matmul f32 bias accumulate", ROWS, .run = run_matmul, .width = N, .dtype = KVE_F32, .variant = 1},
    {.name = "matmul bf16 bias accumulate", ROWS, .run = run_matmul, .width = N, .dtype = KVE_BF16, .variant = 1},
    {.name = "rope_append f32", ROPE, .dtype = KVE_F32},
    {.name = "rope_append bf16 norms", ROPE, .dtype = KVE_BF16, .variant = 1},
};
const size_t g_n_row_subjects = sizeof g_row_subjects / sizeof *g_row_subjects;
