/* The op table: matmul. */
#include "tests/ops/optable.h"

#include <math.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

typedef enum matmul_special {
    MATMUL_PLAIN,
    MATMUL_NAN_X,     /* NaN in the middle row of x: that row alone is NaN */
    MATMUL_NAN_W,     /* NaN in the last row of w: that column alone is NaN */
    MATMUL_INF_X,     /* +inf in x */
    MATMUL_AFTER_NAN, /* after a call whose x is all NaN: what a backend keeps between calls must not leak */
    MATMUL_BF16_TIES, /* x and w halfway between two bf16 numbers */
} matmul_special;

typedef struct matmul_case {
    int32_t T, N, K;
    bool bias, accumulate;
    matmul_special special;
} matmul_case;

static const char *const g_special_names[] = {"", " NaN in x", " NaN in w", " inf in x", " after NaN", " bf16 ties"};

/* Numbers with nine significant bits, the last one set: bf16 must round them to even. */
static void make_ties(op_env *e, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(257 + 2 * op_below(e, 127)) / 256.0f * (op_below(e, 2) ? 1.0f : -1.0f);
}

/* A call of one column more, which is as wide in pairs of bf16 where K is odd. */
static void run_nan(op_env *e, kve_dtype t, const matmul_case *c)
{
    size_t K = (size_t)c->K + 1, n_x = (size_t)c->T * K, y_bytes = (size_t)c->T * sizeof(float);
    float *x = op_host(e, n_x, sizeof *x);
    for (size_t i = 0; i < n_x; i++)
        x[i] = NAN;
    kve_weight *w = op_weight(e, t, 1, c->K + 1, op_random(e, K, 1));
    kve_matmul_params p = {.x = op_in(e, x, n_x * sizeof *x), .w = w, .y = op_out(e, y_bytes), .T = c->T};
    op_ok(e, e->be->vt->matmul(e->be, &p));
    op_weight_free(e, w);
}

static void matmul_row(op_env *e, kve_dtype t, const matmul_case *c)
{
    op_begin(e, "matmul %s T=%d N=%d K=%d%s%s%s", op_dtype_name(t), c->T, c->N, c->K, c->bias ? " bias" : "",
             c->accumulate ? " accumulate" : "", g_special_names[c->special]);
    size_t n_x = (size_t)c->T * (size_t)c->K, n_w = (size_t)c->N * (size_t)c->K, n_y = (size_t)c->T * (size_t)c->N;
    float *x = op_random(e, n_x, 1), *rows = op_random(e, n_w, 1);
    float *bias = c->bias ? op_random(e, (size_t)c->N, 1) : NULL, *y0 = op_random(e, n_y, 4);
    if (c->special == MATMUL_NAN_X)
        x[(size_t)(c->T / 2) * (size_t)c->K + (size_t)(c->K - 1)] = NAN;
    if (c->special == MATMUL_NAN_W)
        rows[n_w - (size_t)c->K] = NAN;
    if (c->special == MATMUL_INF_X)
        x[n_x - 1] = INFINITY;
    if (c->special == MATMUL_BF16_TIES) {
        make_ties(e, x, n_x);
        make_ties(e, rows, n_w);
    }
    kve_matmul_params p = {.x = x, .bias = bias, .T = c->T, .accumulate = c->accumulate}, d = p;
    double *want = op_host(e, n_y, sizeof *want);
    kve_weight *w = op_weight(e, t, c->N, c->K, rows);
    if (c->special == MATMUL_AFTER_NAN)
        run_nan(e, t, c);
    d.x = op_in(e, x, n_x * sizeof *x);
    d.w = w;
    d.bias = op_in(e, bias, (size_t)c->N * sizeof *bias);
    /* Without `accumulate` what y held must not matter, not even as 0 * NaN. */
    d.y = c->accumulate ? op_inout(e, y0, n_y * sizeof *y0) : op_out(e, n_y * sizeof *y0);
    op_ok(e, e->be->vt->matmul(e->be, &d));
    oracle_matmul(&p, rows, t, c->N, c->K, y0, want);
    /* One fp32 sum of K products below 1: K roundings of partial sums that walk up to about sqrt(K) / 3, each half a
     * unit in the last of 24 places, so the error walks like K 2^-25 / 3; the bound is five of that. */
    op_tol tol = {1e-6 + 5e-8 * (double)c->K, 1e-6};
    op_compare(e, "y", op_read(e, d.y, n_y * sizeof(float)), want, n_y, tol);
    op_weight_free(e, w);
    op_end(e);
}

void op_table_matmul(op_env *e)
{
    static const matmul_case cases[] = {
        {.T = 0, .N = 64, .K = 64},
        {.T = 1, .N = 1, .K = 1},
        {.T = 1, .N = 1, .K = 1, .bias = true, .accumulate = true},
        {.T = 1, .N = 64, .K = 64},
        {.T = 1, .N = 129, .K = 577, .bias = true},
        {.T = 2, .N = 63, .K = 3},
        {.T = 3, .N = 65, .K = 127, .bias = true, .accumulate = true},
        {.T = 5, .N = 127, .K = 129, .accumulate = true},
        {.T = 6, .N = 64, .K = 2},
        {.T = 7, .N = 3, .K = 65, .bias = true},
        {.T = 13, .N = 128, .K = 63},
        {.T = 63, .N = 65, .K = 64, .accumulate = true},
        {.T = 64, .N = 129, .K = 96, .bias = true},
        {.T = 65, .N = 64, .K = 1},
        {.T = 127, .N = 67, .K = 80, .bias = true, .accumulate = true},
        {.T = 129, .N = 192, .K = 65},
        {.T = 257, .N = 130, .K = 127, .bias = true},
        {.T = 4, .N = 960, .K = 576},
        {.T = 2, .N = 65, .K = 4099},
        {.T = 1, .N = 3, .K = 16384},
        {.T = 5, .N = 129, .K = 65, .special = MATMUL_NAN_X},
        {.T = 70, .N = 66, .K = 64, .special = MATMUL_NAN_X, .accumulate = true},
        {.T = 5, .N = 129, .K = 65, .special = MATMUL_NAN_W},
        {.T = 1, .N = 65, .K = 64, .special = MATMUL_NAN_W, .bias = true},
        {.T = 5, .N = 129, .K = 65, .special = MATMUL_INF_X},
        {.T = 5, .N = 65, .K = 33, .special = MATMUL_BF16_TIES},
        {.T = 9, .N = 65, .K = 63, .special = MATMUL_AFTER_NAN},
    };
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < COUNT(cases); i++)
            matmul_row(e, (kve_dtype)t, &cases[i]);
}
