/* The op table: kvp_score, the learned policy's network. */
#include "kernels/kvp.h"
#include "tests/ops/optable.h"

#include <math.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

typedef enum kvp_special {
    KVP_PLAIN,
    KVP_NAN_KEY,   /* in one row of the first head: that score alone is NaN */
    KVP_NAN_VALUE, /* in the last row of the last head */
    KVP_FAINT,     /* keys and biases so small that LayerNorm's eps decides */
} kvp_special;

static const char *const g_special_names[] = {"", " NaN key", " NaN value", " faint keys"};

enum { ALL = KVE_KVP_K | KVE_KVP_V | KVE_KVP_POS };

typedef struct kvp_case {
    int32_t n, D, H, P;             /* P 0: 32 */
    int32_t Hkv, n_layers, i_layer; /* Hkv, n_layers 0: 1 */
    int32_t n_positions;            /* 0: n + 3 */
    bool own_tables;                /* one per head */
    unsigned inputs;                /* 0: all, unless no_inputs */
    bool no_inputs;
    kvp_special special;
} kvp_case;

/* Params with host pointers, a cache of a layer more than the call scores, and the sizes of the arrays. */
typedef struct kvp_data {
    kve_kvp_score_params p;
    op_kv kv;
    size_t n_weights, n_table, n_out;
} kvp_data;

/* What a tensor's numbers, uniform on [-1, 1), are multiplied by and added to: a trained network's sizes. */
static void scale_of(kve_kvp_shape s, kve_kvp_tensor t, bool faint, float *factor, float *addend)
{
    *factor = 1;
    *addend = 0;
    if (kve_kvp_rows(s, t) > 1)
        *factor = (float)sqrt(3.0 / kve_kvp_cols(s, t));
    else if (t == KVE_KVP_K_BIAS && faint)
        *factor = 1e-3f;
    else if (t == KVE_KVP_K_GAIN || t == KVE_KVP_V_GAIN || t == KVE_KVP_POS_GAIN || t == KVE_KVP_MIX_GAIN ||
             t == KVE_KVP_DEEP_GAIN) {
        *factor = 0.5f;
        *addend = 1;
    }
}

/* The zeros at the end of a blob are NaN here: nothing may come of them. */
static float *random_weights(op_env *e, kve_kvp_shape s, size_t heads, bool faint)
{
    size_t count = kve_kvp_count(s), end = kve_kvp_offset(s, KVE_KVP_TENSORS);
    float *all = op_random(e, heads * count, 1);
    for (float *w = all; w < all + heads * count; w += count) {
        for (int t = 0; t < KVE_KVP_TENSORS; t++) {
            float factor, addend;
            scale_of(s, (kve_kvp_tensor)t, faint, &factor, &addend);
            for (size_t i = kve_kvp_offset(s, (kve_kvp_tensor)t); i < kve_kvp_offset(s, (kve_kvp_tensor)(t + 1)); i++)
                w[i] = w[i] * factor + addend;
        }
        for (size_t i = end; i < count; i++)
            w[i] = NAN;
    }
    return all;
}

static kvp_data make_data(op_env *e, kve_dtype t, const kvp_case *c)
{
    kvp_data x = {.p = {.n = c->n,
                        .Hkv = c->Hkv,
                        .D = c->D,
                        .H = c->H,
                        .P = c->P,
                        .i_layer = c->i_layer,
                        .n_layers = c->n_layers,
                        .n_positions = c->n_positions,
                        .inputs = c->inputs,
                        .kv_dtype = t}};
    kve_kvp_shape s = {x.p.D, x.p.H, x.p.P};
    int32_t heads = x.p.Hkv * x.p.n_layers;
    x.p.n_tables = c->own_tables ? heads : 1;
    x.n_weights = (size_t)heads * kve_kvp_count(s);
    x.n_table = (size_t)x.p.n_tables * (size_t)x.p.n_positions * (size_t)x.p.P;
    x.n_out = (size_t)heads * (size_t)c->n;
    x.p.weights = random_weights(e, s, (size_t)heads, c->special == KVP_FAINT);
    x.p.table = op_random(e, x.n_table, 1);
    x.kv = op_kv_make(e, c->i_layer + x.p.n_layers + 1, x.p.Hkv, c->n + 5, c->D, t);
    for (int32_t head = 0; head < heads; head++)
        op_kv_fill(e, &x.kv, c->i_layer + head / x.p.Hkv, head % x.p.Hkv, 0, c->n, c->special == KVP_FAINT ? 2e-3 : 2);
    if (c->special == KVP_NAN_KEY)
        oracle_store(x.kv.host.k, oracle_kv_at(&x.kv.host, x.p.Hkv, c->D, c->i_layer, 0, c->n / 2) + 3, t, NAN);
    if (c->special == KVP_NAN_VALUE) {
        int32_t i_layer = c->i_layer + x.p.n_layers - 1;
        oracle_store(x.kv.host.v, oracle_kv_at(&x.kv.host, x.p.Hkv, c->D, i_layer, x.p.Hkv - 1, c->n - 1), t, NAN);
    }
    x.p.kv = x.kv.host;
    return x;
}

/* The same params with device pointers; what the inputs leave out is NULL. */
static kve_kvp_score_params to_device(op_env *e, kvp_data *x)
{
    kve_kvp_score_params d = x->p;
    op_kv_in(e, &x->kv);
    d.kv.k = d.inputs & KVE_KVP_K ? x->kv.dev.k : NULL;
    d.kv.v = d.inputs & KVE_KVP_V ? x->kv.dev.v : NULL;
    d.weights = op_in(e, x->p.weights, x->n_weights * sizeof(float));
    d.table = op_in(e, d.inputs & KVE_KVP_POS ? x->p.table : NULL, x->n_table * sizeof(float));
    d.out = op_out(e, x->n_out * sizeof(float));
    return d;
}

/* Fills in what a case leaves at 0. */
static kvp_case named(op_env *e, const char *what, kve_dtype t, kvp_case c)
{
    c.P = c.P ? c.P : 32;
    c.Hkv = c.Hkv ? c.Hkv : 1;
    c.n_layers = c.n_layers ? c.n_layers : 1;
    c.n_positions = c.n_positions ? c.n_positions : c.n + 3;
    c.inputs = c.inputs || c.no_inputs ? c.inputs : ALL;
    op_begin(e, "kvp_score%s %s n=%d D=%d H=%d P=%d Hkv=%d layers %d to %d, positions=%d%s inputs=%u%s", what,
             op_dtype_name(t), c.n, c.D, c.H, c.P, c.Hkv, c.i_layer, c.i_layer + c.n_layers - 1, c.n_positions,
             c.own_tables ? " own tables" : "", c.inputs, g_special_names[c.special]);
    return c;
}

/* bf16: an activation next to the middle of two bf16 numbers may be rounded to either, which moves the score by some
 * 1e-3 and happens to few rows; a rounding that is left out moves all of them, by 4e-3 and more on average. */
static void check_spread(op_env *e, const float *got, const double *want, size_t n)
{
    const double most = 2.5e-3;
    double sum = 0;
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (!isnan(want[i])) {
            sum += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
            count++;
        }
    if (count >= 16 && sqrt(sum / (double)count) > most)
        op_fail(e, "the mean error of %zu scores is %.3g, at most %.3g is allowed", count, sqrt(sum / (double)count),
                most);
}

static void kvp_row(op_env *e, kve_dtype t, const kvp_case *c)
{
    const kvp_case full = named(e, "", t, *c);
    kvp_data x = make_data(e, t, &full);
    kve_kvp_score_params d = to_device(e, &x);
    double *want = op_host(e, x.n_out, sizeof *want);
    op_ok(e, e->be->vt->kvp_score(e->be, &d));
    oracle_kvp_score(&x.p, want);
    const float *got = op_read(e, d.out, x.n_out * sizeof(float));
    op_compare(e, "out", got, want, x.n_out, t == KVE_F32 ? (op_tol){2e-5, 1e-5} : (op_tol){2e-2, 1e-2});
    if (t == KVE_BF16)
        check_spread(e, got, want, x.n_out);
    op_end(e);
}

/* One call for everything, then a call per layer for the first rows alone: the same bits. */
static void alike_row(op_env *e, kve_dtype t, const kvp_case *c, int32_t n_first)
{
    const kvp_case full = named(e, " rows alone", t, *c);
    kvp_data x = make_data(e, t, &full);
    kve_kvp_score_params d = to_device(e, &x), part = d;
    kve_kvp_shape s = {d.D, d.H, d.P};
    op_ok(e, e->be->vt->kvp_score(e->be, &d));
    const float *whole = op_read(e, d.out, x.n_out * sizeof(float));
    for (int32_t i = 0; i < d.n_layers; i++) {
        size_t heads = (size_t)d.Hkv, at = (size_t)i * heads, own = c->own_tables ? at : 0;
        part.i_layer = d.i_layer + i;
        part.n_layers = 1;
        part.n = n_first;
        part.weights = d.weights + at * kve_kvp_count(s);
        part.table = d.table + own * (size_t)d.n_positions * (size_t)d.P;
        part.n_tables = c->own_tables ? d.Hkv : 1;
        part.out = op_out(e, heads * (size_t)n_first * sizeof(float));
        op_ok(e, e->be->vt->kvp_score(e->be, &part));
        const float *got = op_read(e, part.out, heads * (size_t)n_first * sizeof(float));
        for (size_t h = 0; h < heads; h++)
            op_same_bytes(e, "scores of the first rows", got + h * (size_t)n_first, whole + (at + h) * (size_t)d.n,
                          (size_t)n_first * sizeof(float));
    }
    op_end(e);
}

static void refused_row(op_env *e, const char *what, kve_kvp_score_params p)
{
    op_begin(e, "kvp_score refuses %s", what);
    kve_status st = e->be->vt->kvp_score(e->be, &p);
    if (st != KVE_ERR_USAGE)
        op_fail(e, "status %d, want %d", (int)st, (int)KVE_ERR_USAGE);
    op_end(e);
}

static void refused_rows(op_env *e)
{
    kve_kvp_score_params p = {.Hkv = 2, .D = 64, .H = 64, .P = 32, .n_layers = 2, .n_tables = 1, .n_positions = 4};
    kve_kvp_score_params bad = p;
    bad.D = 72;
    refused_row(e, "D = 72", bad);
    bad = p;
    bad.H = 272;
    refused_row(e, "H = 272", bad);
    bad = p;
    bad.P = 0;
    refused_row(e, "P = 0", bad);
    p.inputs = KVE_KVP_POS;
    bad = p;
    bad.n_tables = 2;
    refused_row(e, "a table per KV head where there are two layers", bad);
    bad = p;
    bad.n_positions = 0;
    refused_row(e, "an empty table", bad);
}

void op_table_kvp(op_env *e)
{
    static const kvp_case cases[] = {
        {.n = 0, .D = 64, .H = 64},
        {.n = 1, .D = 64, .H = 16, .P = 16},
        {.n = 33, .D = 64, .H = 64},
        {.n = 257, .D = 128, .H = 64},
        {.n = 90, .D = 80, .H = 16, .Hkv = 2, .n_layers = 3, .i_layer = 2, .own_tables = true},
        {.n = 31, .D = 96, .H = 64, .Hkv = 3, .n_layers = 2, .n_positions = 10, .own_tables = true},
        {.n = 65, .D = 64, .H = 48, .P = 64, .Hkv = 2, .i_layer = 1, .n_positions = 1},
        {.n = 19, .D = 256, .H = 64, .P = 48},
        {.n = 65, .D = 256, .H = 64, .P = 16, .Hkv = 4, .n_layers = 8}, /* so many heads that blocks take several passes
                                                                         */
        {.n = 17, .D = 128, .H = 256},
        {.n = 101, .D = 80, .H = 144, .n_positions = 30},
        {.n = 5, .D = 256, .H = 256, .P = 64, .i_layer = 1},
        {.n = 40, .D = 64, .H = 64, .inputs = KVE_KVP_POS},
        {.n = 40, .D = 64, .H = 64, .inputs = KVE_KVP_K},
        {.n = 40, .D = 64, .H = 64, .inputs = KVE_KVP_K | KVE_KVP_V},
        {.n = 20, .D = 96, .H = 80, .inputs = KVE_KVP_V | KVE_KVP_POS},
        {.n = 3, .D = 64, .H = 64, .no_inputs = true},
        {.n = 70, .D = 64, .H = 64, .Hkv = 2, .special = KVP_NAN_KEY},
        {.n = 37, .D = 64, .H = 80, .special = KVP_NAN_KEY},
        {.n = 33, .D = 80, .H = 64, .Hkv = 2, .n_layers = 2, .special = KVP_NAN_VALUE},
        {.n = 40, .D = 64, .H = 64, .special = KVP_FAINT},
    };
    static const kvp_case many = {.n = 600, .D = 64, .H = 16, .P = 16};
    static const kvp_case layers = {
        .n = 70, .D = 80, .H = 64, .Hkv = 2, .n_layers = 3, .i_layer = 1, .n_positions = 50};
    static const kvp_case wide = {.n = 37, .D = 64, .H = 144, .n_layers = 2, .own_tables = true};
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < COUNT(cases); i++)
            kvp_row(e, (kve_dtype)t, &cases[i]);
        alike_row(e, (kve_dtype)t, &many, 500);
        alike_row(e, (kve_dtype)t, &layers, 33);
        alike_row(e, (kve_dtype)t, &wide, 1);
    }
    refused_rows(e);
}
