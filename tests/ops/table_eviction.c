/* The op table: rank, gather, compact. All three are exact. */
#include "tests/ops/optable.h"

#include <math.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

typedef enum rank_scores {
    SCORES_RANDOM,
    SCORES_TIES,    /* three values */
    SCORES_EQUAL,   /* one value */
    SCORES_ZEROS,   /* -0 and +0: ties */
    SCORES_SPECIAL, /* NaN of both signs, infinities, numbers, denormals: NaN ties with -inf */
    SCORES_NAN,
    SCORES_RISING,
    SCORES_FALLING,
    SCORES_KINDS
} rank_scores;

static const char *const g_scores_names[SCORES_KINDS] = {"random",  "ties", "equal",  "zeros",
                                                         "special", "NaN",  "rising", "falling"};

typedef struct rank_case {
    int32_t rows, n, n_out, sink, recent;
} rank_case;

static float make_score(op_env *e, rank_scores kind, int32_t j)
{
    const float special[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-42f, -1e-42f, 3.4e38f, -3.4e38f, 1, -1};
    switch (kind) {
    case SCORES_TIES:
        return (float)op_below(e, 3) - 1;
    case SCORES_EQUAL:
        return -2.5f;
    case SCORES_ZEROS:
        return op_below(e, 2) ? 0.0f : -0.0f;
    case SCORES_SPECIAL:
        return special[op_below(e, COUNT(special))];
    case SCORES_NAN:
        return op_below(e, 2) ? NAN : -NAN;
    case SCORES_RISING:
        return (float)j;
    case SCORES_FALLING:
        return (float)-j;
    default:
        return (float)(2 * kve_rng_double(&e->rng) - 1);
    }
}

static void rank_row(op_env *e, rank_scores kind, const rank_case *c)
{
    op_begin(e, "rank %s rows=%d n=%d n_out=%d sink=%d recent=%d", g_scores_names[kind], c->rows, c->n, c->n_out,
             c->sink, c->recent);
    size_t n_in = (size_t)c->rows * (size_t)c->n, n_out = (size_t)c->rows * (size_t)c->n_out;
    float *scores = op_host(e, n_in, sizeof *scores);
    int32_t *want = op_host(e, n_out, sizeof *want);
    for (size_t i = 0; i < n_in; i++)
        scores[i] = make_score(e, kind, (int32_t)(i % (size_t)c->n));
    kve_rank_params p = {
        .scores = scores, .rows = c->rows, .n = c->n, .n_out = c->n_out, .sink = c->sink, .recent = c->recent};
    kve_rank_params d = p;
    d.scores = op_in(e, scores, n_in * sizeof *scores);
    d.order = op_out(e, n_out * sizeof *want);
    op_ok(e, e->be->vt->rank(e->be, &d));
    oracle_rank(&p, want);
    op_same_ints(e, "order", op_read(e, d.order, n_out * sizeof *want), want, n_out);
    op_end(e);
}

/* Caches agree bit by bit, except that a NaN may carry any payload. */
static void same_cache(op_env *e, const char *what, const void *got, const void *want, const op_kv *c)
{
    size_t size = kve_dtype_bytes(c->dtype), n = c->bytes / size;
    for (size_t i = 0; i < n; i++) {
        bool both_nan = isnan(oracle_load(got, i, c->dtype)) && isnan(oracle_load(want, i, c->dtype));
        if (!both_nan && memcmp((const char *)got + i * size, (const char *)want + i * size, size) != 0) {
            size_t row = i / (size_t)c->D;
            op_fail(e, "%s: row %zu of layer-head %zu, element %zu, is %.9g, want %.9g", what,
                    row % (size_t)c->host.cap, row / (size_t)c->host.cap, i % (size_t)c->D,
                    oracle_load(got, i, c->dtype), oracle_load(want, i, c->dtype));
            return;
        }
    }
}

static void check_cache(op_env *e, const op_kv *c)
{
    same_cache(e, "k", op_read(e, c->dev.k, c->bytes), c->host.k, c);
    same_cache(e, "v", op_read(e, c->dev.v, c->bytes), c->host.v, c);
}

typedef struct gather_case {
    int32_t Hkv, D, n, count, to_cap, n_layers;
    bool repeat; /* the same few rows again and again */
    bool ragged; /* every head takes a number of rows of its own, into a packed cache */
} gather_case;

static void gather_row(op_env *e, kve_dtype t, const gather_case *c)
{
    op_begin(e, "gather %s layers=%d Hkv=%d D=%d n=%d count=%d to_cap=%d%s%s", op_dtype_name(t), c->n_layers, c->Hkv,
             c->D, c->n, c->count, c->to_cap, c->repeat ? " repeat" : "", c->ragged ? " ragged" : "");
    int32_t stride = c->count + 3, heads = c->n_layers * c->Hkv, first = 3 - c->n_layers;
    int32_t *counts = op_host(e, (size_t)(3 * c->Hkv), sizeof *counts), *caps = op_host(e, (size_t)(3 * c->Hkv), 4);
    for (int32_t i = 0; i < 3 * c->Hkv; i++) {
        counts[i] = i % 3 == 0 ? c->count : i % 3 == 1 ? 0 : op_below(e, c->count + 1);
        caps[i] = counts[i] + i % 2;
    }
    op_kv from = op_kv_make(e, 3, c->Hkv, c->n, c->D, t);
    op_kv to = c->ragged ? op_kv_ragged(e, 3, c->Hkv, caps, c->D, t) : op_kv_make(e, 3, c->Hkv, c->to_cap, c->D, t);
    int32_t *order = op_host(e, (size_t)(heads * stride), sizeof *order), *all = op_host(e, (size_t)c->n, 4);
    for (int32_t i = 0; i < c->n; i++)
        all[i] = i;
    for (int32_t h = 0; h < heads; h++) {
        op_kv_fill(e, &from, first + h / c->Hkv, h % c->Hkv, 0, c->n, 2);
        op_kv_fill(e, &to, first + h / c->Hkv, h % c->Hkv, 0, c->ragged ? caps[first * c->Hkv + h] : c->to_cap,
                   2); /* old rows, to see which are written */
        kve_rng_shuffle(&e->rng, all, (size_t)c->n);
        for (int32_t r = 0; r < stride; r++) /* beyond count: numbers that must not be followed */
            order[h * stride + r] = r >= c->count ? 1 << 30 : c->repeat ? all[r % 2] : all[r];
    }
    if (c->n > 1) /* a row of NaN moves like any other */
        memset((char *)from.host.k + oracle_kv_at(&from.host, c->Hkv, c->D, 2, 0, all[0]) * kve_dtype_bytes(t), 0xff,
               (size_t)c->D * kve_dtype_bytes(t));
    op_kv_in(e, &from);
    op_kv_inout(e, &to);
    kve_gather_params p = {.from = from.host,
                           .to = to.host,
                           .order = order,
                           .counts = c->ragged ? counts + first * c->Hkv : NULL,
                           .count = c->count,
                           .order_stride = stride,
                           .Hkv = c->Hkv,
                           .D = c->D,
                           .i_layer = first,
                           .n_layers = c->n_layers,
                           .kv_dtype = t};
    kve_gather_params d = p;
    d.from = from.dev;
    d.to = to.dev;
    d.order = op_in(e, order, (size_t)(heads * stride) * sizeof *order);
    if (c->ragged)
        d.counts = op_in(e, p.counts, (size_t)heads * sizeof *counts);
    op_ok(e, e->be->vt->gather(e->be, &d));
    oracle_gather(&p);
    check_cache(e, &to);
    op_end(e);
}

typedef enum keep_pattern {
    KEEP_RANDOM,
    KEEP_ALL,
    KEEP_NONE,
    KEEP_LAST,
    KEEP_FIRST,
    KEEP_RAGGED,
    KEEP_PATTERNS
} keep_pattern;

static const char *const g_keep_names[KEEP_PATTERNS] = {"random", "all", "none", "last rows", "first rows", "ragged"};

static bool keeps(op_env *e, keep_pattern pattern, int32_t h, int32_t j, int32_t n)
{
    switch (pattern) {
    case KEEP_ALL:
        return true;
    case KEEP_NONE:
        return false;
    case KEEP_LAST:
        return j >= n - n / 3 - 1;
    case KEEP_FIRST:
        return j < n / 3 + 1;
    case KEEP_RAGGED: /* head 0 keeps nothing, head 1 all, head 2 one row, ... */
        return h % 3 == 1 || (h % 3 == 2 && j == n / 2);
    default:
        return op_below(e, 2) == 0;
    }
}

static void compact_row(op_env *e, kve_dtype t, keep_pattern pattern, int32_t Hkv, int32_t D, int32_t n)
{
    op_begin(e, "compact %s %s Hkv=%d D=%d n=%d", op_dtype_name(t), g_keep_names[pattern], Hkv, D, n);
    int32_t stride = n + 2;
    op_kv kv = op_kv_make(e, 3, Hkv, n + 6, D, t);
    int32_t *keep = op_host(e, (size_t)(Hkv * stride), sizeof *keep), *keep_len = op_host(e, (size_t)Hkv, 4);
    for (int32_t h = 0; h < Hkv; h++) {
        /* Rows beyond n hold numbers, to see that the NaN filling stops at n. */
        op_kv_fill(e, &kv, 1, h, 0, n + 6, 2);
        for (int32_t j = 0; j < n; j++)
            if (keeps(e, pattern, h, j, n))
                keep[h * stride + keep_len[h]++] = j;
        for (int32_t r = keep_len[h]; r < stride; r++)
            keep[h * stride + r] = 1 << 30;
    }
    op_kv_inout(e, &kv);
    kve_compact_params p = {.kv = kv.host,
                            .keep = keep,
                            .keep_len = keep_len,
                            .keep_stride = stride,
                            .n = n,
                            .Hkv = Hkv,
                            .D = D,
                            .i_layer = 1,
                            .kv_dtype = t};
    kve_compact_params d = p;
    d.kv = kv.dev;
    d.keep = op_in(e, keep, (size_t)(Hkv * stride) * sizeof *keep);
    d.keep_len = op_in(e, keep_len, (size_t)Hkv * sizeof *keep_len);
    op_ok(e, e->be->vt->compact(e->be, &d));
    oracle_compact(&p);
    check_cache(e, &kv);
    op_end(e);
}

void op_table_eviction(op_env *e)
{
    static const rank_case ranks[] = {
        {.rows = 2, .n = 0, .n_out = 0},
        {.rows = 0, .n = 5, .n_out = 5},
        {.rows = 2, .n = 5, .n_out = 0},
        {.rows = 1, .n = 1, .n_out = 1, .sink = 4, .recent = 16},
        {.rows = 3, .n = 3, .n_out = 3},
        {.rows = 2, .n = 63, .n_out = 63, .sink = 4, .recent = 16},
        {.rows = 2, .n = 64, .n_out = 17, .sink = 4, .recent = 16}, /* the budget ends inside the recent rows */
        {.rows = 2, .n = 65, .n_out = 3, .sink = 4, .recent = 16},  /* and inside the sinks */
        {.rows = 3, .n = 127, .n_out = 100, .recent = 64},
        {.rows = 3, .n = 129, .n_out = 129, .sink = 4},
        {.rows = 2, .n = 20, .n_out = 20, .sink = 12, .recent = 12}, /* sinks win where both would stand */
        {.rows = 2, .n = 20, .n_out = 13, .sink = 12, .recent = 30},
        {.rows = 2, .n = 20, .n_out = 20, .sink = 30, .recent = 5},
        {.rows = 2, .n = 20, .n_out = 20, .sink = 0, .recent = 20},
        {.rows = 4, .n = 1025, .n_out = 300, .sink = 4, .recent = 16},
    };
    static const rank_case long_ranks[] = {
        {.rows = 1, .n = 3001, .n_out = 3001, .sink = 4, .recent = 16},
        {.rows = 1, .n = 8192, .n_out = 700, .sink = 4, .recent = 16},
        {.rows = 2, .n = 8193, .n_out = 8193, .sink = 4, .recent = 16},
    };
    static const gather_case gathers[] = {
        {.n_layers = 1, .Hkv = 2, .D = 64, .n = 5, .count = 0, .to_cap = 4},
        {.n_layers = 1, .Hkv = 1, .D = 64, .n = 1, .count = 1, .to_cap = 1},
        {.n_layers = 3, .Hkv = 3, .D = 80, .n = 65, .count = 63, .to_cap = 70},
        {.n_layers = 1, .Hkv = 2, .D = 96, .n = 129, .count = 129, .to_cap = 129},
        {.n_layers = 1, .Hkv = 4, .D = 128, .n = 200, .count = 7, .to_cap = 9},
        {.n_layers = 2, .Hkv = 2, .D = 33, .n = 40, .count = 21, .to_cap = 24},
        {.n_layers = 1, .Hkv = 2, .D = 64, .n = 10, .count = 30, .to_cap = 31, .repeat = true},
        {.n_layers = 3, .Hkv = 3, .D = 64, .n = 1100, .count = 1050, .ragged = true},
        {.n_layers = 2, .Hkv = 2, .D = 33, .n = 40, .count = 21, .ragged = true},
    };
    for (int kind = 0; kind < SCORES_KINDS; kind++)
        for (size_t i = 0; i < COUNT(ranks); i++)
            rank_row(e, (rank_scores)kind, &ranks[i]);
    for (size_t i = 0; i < COUNT(long_ranks); i++) {
        rank_row(e, SCORES_RANDOM, &long_ranks[i]);
        rank_row(e, SCORES_TIES, &long_ranks[i]);
    }
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < COUNT(gathers); i++)
            gather_row(e, (kve_dtype)t, &gathers[i]);
        compact_row(e, (kve_dtype)t, KEEP_ALL, 2, 64, 0);
        for (int pattern = 0; pattern < KEEP_PATTERNS; pattern++) {
            compact_row(e, (kve_dtype)t, (keep_pattern)pattern, 1, 64, 1);
            compact_row(e, (kve_dtype)t, (keep_pattern)pattern, 3, 80, 65);
            compact_row(e, (kve_dtype)t, (keep_pattern)pattern, 4, 128, 129);
            compact_row(e, (kve_dtype)t, (keep_pattern)pattern, 2, 33, 300);
        }
    }
}
