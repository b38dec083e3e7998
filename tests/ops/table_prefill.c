/* The op table: attention_prefill. */
#include "tests/ops/optable.h"

#include <math.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define LN_2 0.69314718f

typedef enum prefill_special {
    PREFILL_PLAIN,
    PREFILL_NAN_Q,      /* one NaN in the middle token's first head: that row alone is NaN */
    PREFILL_NAN_LAST_V, /* NaN in the last value: only the last token sees it */
    PREFILL_NAN_LAST_K, /* likewise in the last key */
    PREFILL_ODD_V,      /* NaN, inf and -inf in value 35: tokens from there on see them */
    PREFILL_INF_K,      /* scores of +inf and -inf for key 1 */
    PREFILL_DEAD_BLOCK, /* the first 70 scores are -inf: tokens from 70 on must do without them */
    PREFILL_LARGE,      /* scores of hundreds: exp overflows unless the maximum goes first; q is rounded to bf16 here,
                           since what an op does to it would move such scores by whole units */
    PREFILL_EXACT,      /* whole scores and the scale ln 2: probabilities are powers of two, which bf16 holds */
} prefill_special;

static const char *const g_special_names[] = {"",
                                              " NaN in q",
                                              " NaN in last v",
                                              " NaN in last k",
                                              " odd values",
                                              " inf in k",
                                              " first block at -inf",
                                              " large scores",
                                              " exact"};

typedef struct prefill_case {
    int32_t start, T, Hq, Hkv, D;
    prefill_special special;
    float scale; /* 0 = 1 / sqrt(D) */
} prefill_case;

/* -1, 0 or 1 for every element of q and of the rows of k. */
static void plant_whole(op_env *e, const prefill_case *c, op_kv *kv, float *q)
{
    size_t n_q = (size_t)c->T * (size_t)c->Hq * (size_t)c->D, n_k = (size_t)(c->start + c->T) * (size_t)c->D;
    for (size_t i = 0; i < n_q; i++)
        q[i] = (float)(op_below(e, 3) - 1);
    for (int32_t h = 0; h < c->Hkv; h++)
        for (size_t i = 0; i < n_k; i++)
            oracle_store(kv->host.k, oracle_kv_at(&kv->host, c->Hkv, c->D, 1, h, 0) + i, kv->dtype,
                         (float)(op_below(e, 3) - 1));
}

static void plant(const prefill_case *c, op_kv *kv, float *q)
{
    int32_t n = c->start + c->T;
    for (int32_t h = 0; h < c->Hkv; h++) {
        size_t last = oracle_kv_at(&kv->host, c->Hkv, c->D, 1, h, n - 1);
        if (c->special == PREFILL_NAN_LAST_V)
            oracle_store(kv->host.v, last + 1, kv->dtype, NAN);
        if (c->special == PREFILL_NAN_LAST_K)
            oracle_store(kv->host.k, last + 1, kv->dtype, NAN);
        size_t odd = oracle_kv_at(&kv->host, c->Hkv, c->D, 1, h, 35);
        const float values[] = {NAN, INFINITY, -INFINITY};
        for (size_t i = 0; c->special == PREFILL_ODD_V && i < COUNT(values); i++)
            oracle_store(kv->host.v, odd + 5 * i, kv->dtype, values[i]);
        if (c->special == PREFILL_INF_K)
            oracle_store(kv->host.k, oracle_kv_at(&kv->host, c->Hkv, c->D, 1, h, 1), kv->dtype, INFINITY);
        for (int32_t j = 0; c->special == PREFILL_DEAD_BLOCK && j < 70 && j < n; j++)
            oracle_store(kv->host.k, oracle_kv_at(&kv->host, c->Hkv, c->D, 1, h, j), kv->dtype, -INFINITY);
    }
    if (c->special == PREFILL_NAN_Q)
        q[(size_t)(c->T / 2) * (size_t)c->Hq * (size_t)c->D] = NAN;
    size_t n_rows = (size_t)c->T * (size_t)c->Hq;
    for (size_t r = 0; c->special == PREFILL_DEAD_BLOCK && r < n_rows; r++)
        q[r * (size_t)c->D] = 0.5f;
    for (size_t i = 0; c->special == PREFILL_LARGE && i < n_rows * (size_t)c->D; i++) {
        uint16_t rounded;
        oracle_store(&rounded, 0, KVE_BF16, q[i]);
        q[i] = (float)oracle_load(&rounded, 0, KVE_BF16);
    }
}

/* With a bf16 cache queries and probabilities may be rounded to bf16, by 2^-9 at the most. On these rows the former
 * moves a score (64 to 128 products, elements up to 2) by some 1e-3 and now and then 5e-3, and either moves a key's
 * share of values up to 1 by as much: 3.4e-3 is the most that was seen. What such a tolerance hides, the exact rows
 * show. */
static op_tol tolerance(kve_dtype t, prefill_special special)
{
    if (special == PREFILL_EXACT || t == KVE_F32) /* a score of size s brings an error of s 1e-7 to its exponential */
        return (op_tol){special == PREFILL_LARGE ? 1e-3 : 4e-6, 1e-5};
    return (op_tol){5e-3, 1e-5};
}

static void prefill_row(op_env *e, kve_dtype t, const prefill_case *c)
{
    op_begin(e, "attention_prefill %s start=%d T=%d Hq=%d Hkv=%d D=%d%s%s", op_dtype_name(t), c->start, c->T, c->Hq,
             c->Hkv, c->D, c->scale != 0 ? " own scale" : "", g_special_names[c->special]);
    size_t n_q = (size_t)c->T * (size_t)c->Hq * (size_t)c->D;
    float *q = op_random(e, n_q, c->special == PREFILL_LARGE ? 30 : 2);
    op_kv kv = op_kv_make(e, 2, c->Hkv, c->start + c->T + 5, c->D, t);
    for (int32_t h = 0; h < c->Hkv; h++)
        op_kv_fill(e, &kv, 1, h, 0, c->start + c->T, c->special == PREFILL_LARGE ? 30 : 2);
    plant(c, &kv, q);
    if (c->special == PREFILL_EXACT)
        plant_whole(e, c, &kv, q);
    op_kv_in(e, &kv);
    kve_attention_prefill_params p = {.q = q,
                                      .kv = kv.host,
                                      .scale = c->scale != 0 ? c->scale : (float)(1 / sqrt((double)c->D)),
                                      .T = c->T,
                                      .start = c->start,
                                      .Hq = c->Hq,
                                      .Hkv = c->Hkv,
                                      .D = c->D,
                                      .i_layer = 1,
                                      .kv_dtype = t};
    kve_attention_prefill_params d = p;
    double *want = op_host(e, n_q, sizeof *want);
    d.q = op_in(e, q, n_q * sizeof *q);
    d.kv = kv.dev;
    d.out = op_out(e, n_q * sizeof *q);
    op_ok(e, e->be->vt->attention_prefill(e->be, &d));
    oracle_attention_prefill(&p, want);
    op_compare(e, "out", op_read(e, d.out, n_q * sizeof *q), want, n_q, tolerance(t, c->special));
    op_end(e);
}

void op_table_prefill(op_env *e)
{
    static const prefill_case cases[] = {
        {.start = 0, .T = 0, .Hq = 2, .Hkv = 1, .D = 64},
        {.start = 5, .T = 0, .Hq = 2, .Hkv = 1, .D = 64},
        {.start = 0, .T = 1, .Hq = 1, .Hkv = 1, .D = 64},
        {.start = 0, .T = 3, .Hq = 2, .Hkv = 1, .D = 16},
        {.start = 0, .T = 63, .Hq = 3, .Hkv = 1, .D = 64},
        {.start = 0, .T = 64, .Hq = 4, .Hkv = 1, .D = 80},
        {.start = 0, .T = 65, .Hq = 5, .Hkv = 1, .D = 96},
        {.start = 0, .T = 127, .Hq = 6, .Hkv = 2, .D = 40},
        {.start = 0, .T = 129, .Hq = 7, .Hkv = 1, .D = 64},
        {.start = 63, .T = 2, .Hq = 8, .Hkv = 1, .D = 128},
        {.start = 64, .T = 1, .Hq = 6, .Hkv = 1, .D = 128},
        {.start = 1, .T = 130, .Hq = 2, .Hkv = 2, .D = 80},
        {.start = 129, .T = 49, .Hq = 9, .Hkv = 3, .D = 64},
        {.start = 193, .T = 7, .Hq = 14, .Hkv = 2, .D = 128},
        {.start = 400, .T = 1, .Hq = 8, .Hkv = 2, .D = 96},
        {.start = 30, .T = 5, .Hq = 2, .Hkv = 1, .D = 256},
        {.start = 60, .T = 9, .Hq = 2, .Hkv = 1, .D = 33},
        {.start = 60, .T = 9, .Hq = 2, .Hkv = 1, .D = 64, .scale = 0.3f},
        {.start = 10, .T = 60, .Hq = 4, .Hkv = 2, .D = 64, .special = PREFILL_NAN_Q},
        {.start = 10, .T = 60, .Hq = 4, .Hkv = 2, .D = 64, .special = PREFILL_NAN_LAST_V},
        {.start = 10, .T = 60, .Hq = 4, .Hkv = 2, .D = 64, .special = PREFILL_NAN_LAST_K},
        {.start = 10, .T = 60, .Hq = 4, .Hkv = 2, .D = 64, .special = PREFILL_ODD_V},
        {.start = 0, .T = 9, .Hq = 4, .Hkv = 2, .D = 64, .special = PREFILL_INF_K},
        {.start = 60, .T = 80, .Hq = 2, .Hkv = 1, .D = 64, .special = PREFILL_DEAD_BLOCK},
        {.start = 100, .T = 33, .Hq = 3, .Hkv = 1, .D = 64, .special = PREFILL_LARGE},
        {.start = 0, .T = 70, .Hq = 3, .Hkv = 1, .D = 64, .scale = LN_2, .special = PREFILL_EXACT},
        {.start = 41, .T = 150, .Hq = 7, .Hkv = 1, .D = 80, .scale = LN_2, .special = PREFILL_EXACT},
        {.start = 0, .T = 33, .Hq = 8, .Hkv = 8, .D = 96, .scale = LN_2, .special = PREFILL_EXACT},
        {.start = 95, .T = 140, .Hq = 8, .Hkv = 1, .D = 128, .scale = LN_2, .special = PREFILL_EXACT},
    };
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < COUNT(cases); i++)
            prefill_row(e, (kve_dtype)t, &cases[i]);
}
