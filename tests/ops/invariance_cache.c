/* Subjects of the invariance test that read the cache: attention_prefill and attention_fork. */
#include "tests/ops/invariance.h"

#include <math.h>
#include <string.h>

enum { HQ = 6, HKV = 2, D = 80, PREFILL_START = 37, PREFILL_T = 150, FORKS = 6, PREFIX = 140, FORK_T = 96 };

static const int32_t g_q_len[FORKS] = {1, 0, 70, 5, 1, 19}, g_tail_len[FORKS] = {0, 9, 60, 2, 63, 0};

typedef struct batch {
    float *q;
    op_kv prefix[FORKS], tail[FORKS]; /* prefill uses prefix[0] alone */
    int32_t *prefix_len[FORKS];
    int32_t fork_of[FORK_T], nth[FORK_T]; /* row t is the nth row of its fork */
} batch;

static void *prepare_prefill(op_env *data, const subject *s)
{
    batch *b = op_host(data, 1, sizeof *b);
    b->q = op_random(data, (size_t)PREFILL_T * HQ * D, 2);
    b->prefix[0] = op_kv_make(data, 1, HKV, PREFILL_START + PREFILL_T, D, s->dtype);
    for (int32_t h = 0; h < HKV; h++)
        op_kv_fill(data, &b->prefix[0], 0, h, 0, PREFILL_START + PREFILL_T, 2);
    return b;
}

/* The first `n` rows of every head of `from`; the rest, and six rows more, are NaN, as a chunk finds them. */
static op_kv first_rows(op_env *e, const op_kv *from, int32_t n)
{
    op_kv to = op_kv_make(e, 1, HKV, n + 6, D, from->dtype);
    size_t size = kve_dtype_bytes(from->dtype);
    for (int32_t h = 0; h < HKV; h++) {
        size_t src = oracle_kv_at(&from->host, HKV, D, 0, h, 0) * size;
        size_t dst = oracle_kv_at(&to.host, HKV, D, 0, h, 0) * size;
        memcpy((char *)to.host.k + dst, (const char *)from->host.k + src, (size_t)n * D * size);
        memcpy((char *)to.host.v + dst, (const char *)from->host.v + src, (size_t)n * D * size);
    }
    op_kv_in(e, &to);
    return to;
}

static float *run_prefill(op_env *e, const subject *s, const void *data, const int32_t *rows, int32_t count)
{
    const batch *b = data;
    size_t bytes = (size_t)count * HQ * D * sizeof(float);
    op_kv kv = first_rows(e, &b->prefix[0], PREFILL_START + rows[0] + count);
    kve_attention_prefill_params p = {.q = op_in(e, pick_rows(e, b->q, HQ * D, rows, count), bytes),
                                      .kv = kv.dev,
                                      .out = op_out(e, bytes),
                                      .scale = (float)(1 / sqrt(D)),
                                      .T = count,
                                      .start = PREFILL_START + rows[0],
                                      .Hq = HQ,
                                      .Hkv = HKV,
                                      .D = D,
                                      .kv_dtype = s->dtype};
    op_ok(e, e->be->vt->attention_prefill(e->be, &p));
    return op_read(e, p.out, bytes);
}

/* variant 1: all forks share the prefix of fork 0. */
static void *prepare_fork(op_env *data, const subject *s)
{
    batch *b = op_host(data, 1, sizeof *b);
    int32_t t = 0;
    b->q = op_random(data, (size_t)FORK_T * HQ * D, 2);
    for (int32_t x = 0; x < FORKS; x++) {
        b->prefix[x] = op_kv_make(data, 1, HKV, PREFIX, D, s->dtype);
        b->tail[x] = op_kv_make(data, 1, HKV, g_tail_len[x] + g_q_len[x], D, s->dtype);
        b->prefix_len[x] = op_host(data, HKV, sizeof(int32_t));
        for (int32_t h = 0; h < HKV; h++) {
            b->prefix_len[x][h] = (x + h) % 3 ? op_below(data, PREFIX) : x ? PREFIX : 0;
            op_kv_fill(data, &b->prefix[x], 0, h, 0, PREFIX, 2);
            op_kv_fill(data, &b->tail[x], 0, h, 0, g_tail_len[x] + g_q_len[x], 2);
        }
        for (int32_t i = 0; i < g_q_len[x]; i++, t++) {
            b->fork_of[t] = x;
            b->nth[t] = i;
        }
    }
    return b;
}

/* Rows that follow one another in the batch become one fork of the call; any other selection gives forks of one row,
 * several of which may be the same fork at different steps. */
static float *run_fork(op_env *e, const subject *s, const void *data, const int32_t *rows, int32_t count)
{
    const batch *b = data;
    size_t bytes = (size_t)count * HQ * D * sizeof(float);
    kve_fork_slot dev[FORKS], *slots = op_host(e, (size_t)count, sizeof *slots);
    int32_t *row_of = op_host(e, (size_t)count, 4), *q_len = op_host(e, (size_t)count, 4);
    int32_t *tail_len = op_host(e, (size_t)count, 4), X = 0;
    for (int32_t x = 0; x < FORKS; x++) {
        op_kv prefix = b->prefix[x], tail = b->tail[x];
        if (x == 0 || !s->variant)
            op_kv_in(e, &prefix);
        op_kv_in(e, &tail);
        dev[x] = (kve_fork_slot){prefix.dev, op_in(e, b->prefix_len[x], HKV * sizeof(int32_t)), tail.dev};
        if (s->variant)
            dev[x].prefix = dev[0].prefix;
    }
    for (int32_t i = 0; i < count; i++) {
        int32_t x = b->fork_of[rows[i]];
        if (i > 0 && rows[i] == rows[i - 1] + 1 && x == b->fork_of[rows[i - 1]]) {
            q_len[X - 1]++;
            continue;
        }
        slots[X] = dev[x];
        row_of[X] = i;
        q_len[X] = 1;
        tail_len[X++] = g_tail_len[x] + b->nth[rows[i]];
    }
    kve_attention_fork_params p = {.q = op_in(e, pick_rows(e, b->q, HQ * D, rows, count), bytes),
                                   .slots = op_in(e, slots, (size_t)X * sizeof *slots),
                                   .row_of = op_in(e, row_of, (size_t)X * sizeof *row_of),
                                   .q_len = op_in(e, q_len, (size_t)X * sizeof *q_len),
                                   .tail_len = op_in(e, tail_len, (size_t)X * sizeof *tail_len),
                                   .out = op_out(e, bytes),
                                   .scale = (float)(1 / sqrt(D)),
                                   .T = count,
                                   .X = X,
                                   .Hq = HQ,
                                   .Hkv = HKV,
                                   .D = D,
                                   .kv_dtype = s->dtype};
    op_ok(e, e->be->vt->attention_fork(e->be, &p));
    return op_read(e, p.out, bytes);
}

#define PREFILL .prepare = prepare_prefill, .run = run_prefill, .T = PREFILL_T, .width = HQ * D, .contiguous = true
#define FORK .prepare = prepare_fork, .run = run_fork, .T = FORK_T, .width = HQ * D
const subject g_cache_subjects[] = {
    {.name = "attention_prefill f32", PREFILL, .dtype = KVE_F32},
    {.name = "attention_prefill bf16", PREFILL, .dtype = KVE_BF16},
    {.name = "attention_fork f32", FORK, .dtype = KVE_F32},
    {.name = "attention_fork bf16 shared prefix", FORK, .dtype = KVE_BF16, .variant = 1},
};
const size_t g_n_cache_subjects = sizeof g_cache_subjects / sizeof *g_cache_subjects;
