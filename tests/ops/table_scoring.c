/* The op table: attention_window, pool_group, future_importance. */
#include "tests/ops/optable.h"

#include <math.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

typedef enum special { PLAIN, NAN_Q, NAN_K, LARGE } special;

static const char *const g_special_names[] = {"", " NaN in q", " NaN in k", " large scores"};

/* n context rows; `rows` queries (the window's W or the future's f). */
typedef struct score_case {
    int32_t n, rows, Hq, Hkv, D;
    special special;
} score_case;

static double amplitude(const score_case *c)
{
    return c->special == LARGE ? 30 : 2;
}

static op_tol tolerance(const score_case *c)
{
    /* A score of size s carries an error of about s 1e-7 into its exponential; what is far below the largest
     * probability is compared absolutely. */
    return c->special == LARGE ? (op_tol){1e-4, 1e-3} : (op_tol){1e-8, 2e-5};
}

static void window_row(op_env *e, kve_dtype t, const score_case *c)
{
    op_begin(e, "attention_window %s n=%d W=%d Hq=%d Hkv=%d D=%d%s", op_dtype_name(t), c->n, c->rows, c->Hq, c->Hkv,
             c->D, g_special_names[c->special]);
    size_t n_q = (size_t)c->rows * (size_t)c->Hq * (size_t)c->D, n_out = (size_t)c->Hq * (size_t)c->n;
    float *q = op_random(e, n_q, amplitude(c));
    op_kv kv = op_kv_make(e, 2, c->Hkv, c->n + 9, c->D, t);
    for (int32_t h = 0; h < c->Hkv; h++)
        op_kv_fill(e, &kv, 1, h, 0, c->n, amplitude(c));
    if (c->special == NAN_Q) /* the last window query of the last head, which sees every key: that head alone is NaN */
        q[n_q - (size_t)c->D] = NAN;
    if (c->special == NAN_K) /* the last key: only the last query sees it, but the mean has it everywhere */
        oracle_store(kv.host.k, oracle_kv_at(&kv.host, c->Hkv, c->D, 1, 0, c->n - 1), t, NAN);
    op_kv_in(e, &kv);
    kve_attention_window_params p = {.q = q,
                                     .kv = kv.host,
                                     .scale = (float)(1 / sqrt((double)c->D)),
                                     .n = c->n,
                                     .W = c->rows,
                                     .Hq = c->Hq,
                                     .Hkv = c->Hkv,
                                     .D = c->D,
                                     .i_layer = 1,
                                     .kv_dtype = t};
    kve_attention_window_params d = p;
    double *want = op_host(e, n_out, sizeof *want);
    d.q = op_in(e, q, n_q * sizeof *q);
    d.kv = kv.dev;
    d.out = op_out(e, n_out * sizeof *q);
    op_ok(e, e->be->vt->attention_window(e->be, &d));
    oracle_attention_window(&p, want);
    op_compare(e, "out", op_read(e, d.out, n_out * sizeof *q), want, n_out, tolerance(c));
    op_end(e);
}

static void future_row(op_env *e, kve_dtype t, const score_case *c, bool maximum)
{
    op_begin(e, "future_importance %s%s n=%d f=%d Hq=%d Hkv=%d D=%d%s", op_dtype_name(t), maximum ? " maximum" : "",
             c->n, c->rows, c->Hq, c->Hkv, c->D, g_special_names[c->special]);
    size_t n_q = (size_t)c->rows * (size_t)c->Hq * (size_t)c->D, n_out = (size_t)c->Hkv * (size_t)c->n;
    float *q = op_random(e, n_q, amplitude(c));
    op_kv ctx = op_kv_make(e, 2, c->Hkv, c->n + 4, c->D, t), tail = op_kv_make(e, 2, c->Hkv, c->rows + 7, c->D, t);
    for (int32_t h = 0; h < c->Hkv; h++) {
        op_kv_fill(e, &ctx, 1, h, 0, c->n, amplitude(c));
        op_kv_fill(e, &tail, 1, h, 0, c->rows, amplitude(c));
    }
    op_kv_in(e, &ctx);
    op_kv_in(e, &tail);
    kve_future_importance_params p = {.q = q,
                                      .ctx = ctx.host,
                                      .tail = tail.host,
                                      .scale = (float)(1 / sqrt((double)c->D)),
                                      .n = c->n,
                                      .f = c->rows,
                                      .Hq = c->Hq,
                                      .Hkv = c->Hkv,
                                      .D = c->D,
                                      .i_layer = 1,
                                      .kv_dtype = t,
                                      .maximum = maximum};
    kve_future_importance_params d = p;
    double *want = op_host(e, n_out, sizeof *want);
    d.q = op_in(e, q, n_q * sizeof *q);
    d.ctx = ctx.dev;
    d.tail = tail.dev;
    d.out = op_out(e, n_out * sizeof *q);
    op_ok(e, e->be->vt->future_importance(e->be, &d));
    oracle_future_importance(&p, want);
    op_compare(e, "out", op_read(e, d.out, n_out * sizeof *q), want, n_out, tolerance(c));
    op_end(e);
}

typedef struct pool_case {
    int32_t n, n_valid, Hq, Hkv, width;
    bool all_heads, nan;
} pool_case;

static void pool_row(op_env *e, const pool_case *c)
{
    op_begin(e, "pool_group n=%d n_valid=%d Hq=%d Hkv=%d width=%d%s%s", c->n, c->n_valid, c->Hq, c->Hkv, c->width,
             c->all_heads ? " all heads" : "", c->nan ? " NaN" : "");
    size_t n_in = (size_t)c->Hq * (size_t)c->n, n_out = (size_t)c->Hkv * (size_t)c->n;
    float *in = op_random(e, n_in, 1);
    for (int32_t hq = 0; hq < c->Hq; hq++)
        for (int32_t j = c->n_valid; j < c->n; j++) /* cut off before the pooling: must not be read */
            in[(size_t)hq * (size_t)c->n + (size_t)j] = NAN;
    if (c->nan)
        in[c->n_valid / 2] = NAN;
    kve_pool_group_params p = {.in = in,
                               .n = c->n,
                               .n_valid = c->n_valid,
                               .Hq = c->Hq,
                               .Hkv = c->Hkv,
                               .width = c->width,
                               .all_heads = c->all_heads};
    kve_pool_group_params d = p;
    double *want = op_host(e, n_out, sizeof *want);
    d.in = op_in(e, in, n_in * sizeof *in);
    d.out = op_out(e, n_out * sizeof *in);
    op_ok(e, e->be->vt->pool_group(e->be, &d));
    oracle_pool_group(&p, want);
    op_compare(e, "out", op_read(e, d.out, n_out * sizeof *in), want, n_out, (op_tol){3e-7, 2e-6});
    op_end(e);
}

void op_table_scoring(op_env *e)
{
    static const score_case scores[] = {
        {.n = 1, .rows = 1, .Hq = 1, .Hkv = 1, .D = 64},
        {.n = 3, .rows = 3, .Hq = 2, .Hkv = 1, .D = 64}, /* the window is the whole context */
        {.n = 63, .rows = 1, .Hq = 3, .Hkv = 1, .D = 80},
        {.n = 64, .rows = 64, .Hq = 4, .Hkv = 1, .D = 64},
        {.n = 65, .rows = 64, .Hq = 5, .Hkv = 1, .D = 96},
        {.n = 127, .rows = 7, .Hq = 6, .Hkv = 1, .D = 128},
        {.n = 129, .rows = 33, .Hq = 7, .Hkv = 1, .D = 33},
        {.n = 257, .rows = 5, .Hq = 8, .Hkv = 1, .D = 64},
        {.n = 300, .rows = 2, .Hq = 9, .Hkv = 3, .D = 64},
        {.n = 130, .rows = 70, .Hq = 4, .Hkv = 2, .D = 16},
        {.n = 1100, .rows = 3, .Hq = 2, .Hkv = 1, .D = 64},
        {.n = 20, .rows = 9, .Hq = 2, .Hkv = 1, .D = 256},
        {.n = 100, .rows = 9, .Hq = 3, .Hkv = 1, .D = 64, .special = LARGE},
    };
    static const score_case window_only[] = {
        {.n = 70, .rows = 5, .Hq = 4, .Hkv = 2, .D = 64, .special = NAN_Q},
        {.n = 70, .rows = 5, .Hq = 4, .Hkv = 2, .D = 64, .special = NAN_K},
    };
    static const score_case future_only[] = {
        {.n = 0, .rows = 3, .Hq = 2, .Hkv = 1, .D = 64},
        {.n = 65, .rows = 0, .Hq = 2, .Hkv = 1, .D = 64}, /* no future: nothing is important */
        {.n = 1, .rows = 129, .Hq = 2, .Hkv = 2, .D = 64},
        {.n = 33, .rows = 300, .Hq = 3, .Hkv = 1, .D = 16},
    };
    static const pool_case pools[] = {
        {.n = 0, .n_valid = 0, .Hq = 2, .Hkv = 1, .width = 5},
        {.n = 1, .n_valid = 1, .Hq = 1, .Hkv = 1, .width = 1},
        {.n = 1, .n_valid = 1, .Hq = 2, .Hkv = 1, .width = 5},
        {.n = 3, .n_valid = 3, .Hq = 3, .Hkv = 1, .width = 7},
        {.n = 64, .n_valid = 0, .Hq = 4, .Hkv = 2, .width = 5}, /* the window is the whole context */
        {.n = 65, .n_valid = 1, .Hq = 4, .Hkv = 2, .width = 5},
        {.n = 129, .n_valid = 65, .Hq = 7, .Hkv = 1, .width = 5},
        {.n = 127, .n_valid = 127, .Hq = 9, .Hkv = 3, .width = 3},
        {.n = 300, .n_valid = 236, .Hq = 8, .Hkv = 2, .width = 5},
        {.n = 63, .n_valid = 63, .Hq = 9, .Hkv = 3, .width = 1, .all_heads = true},
        {.n = 66, .n_valid = 64, .Hq = 14, .Hkv = 2, .width = 5, .all_heads = true},
        {.n = 40, .n_valid = 30, .Hq = 6, .Hkv = 2, .width = 5, .nan = true},
        {.n = 40, .n_valid = 30, .Hq = 6, .Hkv = 2, .width = 1, .all_heads = true, .nan = true},
    };
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < COUNT(scores); i++) {
            window_row(e, (kve_dtype)t, &scores[i]);
            future_row(e, (kve_dtype)t, &scores[i], i % 2 == 1);
        }
        for (size_t i = 0; i < COUNT(window_only); i++)
            window_row(e, (kve_dtype)t, &window_only[i]);
        for (size_t i = 0; i < COUNT(future_only); i++) {
            future_row(e, (kve_dtype)t, &future_only[i], false);
            future_row(e, (kve_dtype)t, &future_only[i], true);
        }
    }
    for (size_t i = 0; i < COUNT(pools); i++)
        pool_row(e, &pools[i]);
}
