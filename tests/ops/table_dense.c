/* The op table: embed, rmsnorm, glu, nll, argmax, advance; recording. */
#include "tests/ops/optable.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static void embed_row(op_env *e, kve_dtype t, int32_t T, int32_t V, int32_t E)
{
    op_begin(e, "embed %s T=%d V=%d E=%d", op_dtype_name(t), T, V, E);
    size_t n = (size_t)T * (size_t)E;
    float *rows = op_random(e, (size_t)V * (size_t)E, 2);
    int32_t *ids = op_host(e, (size_t)T, sizeof *ids);
    for (int32_t i = 0; i < T; i++)
        ids[i] = i == 0 ? V - 1 : i == 1 ? 0 : op_below(e, V);
    rows[0] = NAN;
    kve_embed_params p = {.ids = ids, .T = T, .E = E}, d = p;
    double *want = op_host(e, n, sizeof *want);
    kve_weight *w = op_weight(e, t, V, E, rows);
    d.ids = op_in(e, ids, (size_t)T * sizeof *ids);
    d.table = w;
    d.out = op_out(e, n * sizeof(float));
    op_ok(e, e->be->vt->embed(e->be, &d));
    oracle_embed(&p, rows, t, want);
    op_compare(e, "out", op_read(e, d.out, n * sizeof(float)), want, n, (op_tol){0, 0});
    op_weight_free(e, w);
    op_end(e);
}

typedef struct rmsnorm_case {
    int32_t T, E;
    double amplitude;
    float eps;
    bool in_place;
    int32_t special; /* plants a NaN in row 0 and an infinity in row 1 */
} rmsnorm_case;

static void rmsnorm_row(op_env *e, const rmsnorm_case *c)
{
    op_begin(e, "rmsnorm T=%d E=%d amplitude=%g eps=%g%s%s", c->T, c->E, c->amplitude, (double)c->eps,
             c->in_place ? " in place" : "", c->special ? " NaN, inf" : "");
    size_t n = (size_t)c->T * (size_t)c->E;
    float *x = op_random(e, n, c->amplitude), *gain = op_random(e, (size_t)c->E, 2);
    if (c->special) {
        x[c->E / 2] = NAN;
        x[c->E + c->E - 1] = INFINITY;
    }
    kve_rmsnorm_params p = {.x = x, .gain = gain, .eps = c->eps, .T = c->T, .E = c->E}, d = p;
    double *want = op_host(e, n, sizeof *want);
    d.gain = op_in(e, gain, (size_t)c->E * sizeof *gain);
    d.out = c->in_place ? op_inout(e, x, n * sizeof *x) : op_out(e, n * sizeof *x);
    d.x = c->in_place ? d.out : op_in(e, x, n * sizeof *x);
    op_ok(e, e->be->vt->rmsnorm(e->be, &d));
    oracle_rmsnorm(&p, want);
    op_compare(e, "out", op_read(e, d.out, n * sizeof(float)), want, n, (op_tol){1e-12, 2e-6});
    op_end(e);
}

static void glu_row(op_env *e, kve_activation act, int32_t T, int32_t F, double amplitude)
{
    op_begin(e, "glu %s T=%d F=%d amplitude=%g", act == KVE_SILU ? "silu" : "gelu_tanh", T, F, amplitude);
    size_t n = (size_t)T * (size_t)F;
    float *gate_up = op_random(e, 2 * n, amplitude);
    for (size_t i = 0; i < n; i++) /* up stays small, so that the tolerance speaks about the activation */
        gate_up[(i / (size_t)F * 2 + 1) * (size_t)F + i % (size_t)F] = (float)(2 * kve_rng_double(&e->rng) - 1);
    if (T > 1) { /* row 1: a NaN gate, a zero gate, an infinite gate, a NaN up */
        float *row = gate_up + 2 * (size_t)F;
        row[0] = NAN;
        row[F > 1 ? 1 : 0] = F > 1 ? 0.0f : NAN;
        if (F > 3) {
            row[2] = INFINITY;
            row[F + 3] = NAN;
        }
    }
    kve_glu_params p = {.gate_up = gate_up, .act = act, .T = T, .F = F}, d = p;
    double *want = op_host(e, n, sizeof *want);
    d.gate_up = op_in(e, gate_up, 2 * n * sizeof(float));
    d.out = op_out(e, n * sizeof(float));
    op_ok(e, e->be->vt->glu(e->be, &d));
    oracle_glu(&p, want);
    op_compare(e, "out", op_read(e, d.out, n * sizeof(float)), want, n, (op_tol){1e-6, 2e-6});
    op_end(e);
}

typedef enum logits_kind {
    LOGITS_PLAIN,
    LOGITS_HIGH,        /* around 1000: exp overflows unless the maximum goes first */
    LOGITS_MASKED,      /* three of four are -inf, the target not */
    LOGITS_DEAD_TARGET, /* the target is -inf */
    LOGITS_ALL_DEAD,    /* all are -inf */
    LOGITS_NAN_LAST,    /* one NaN, in the last column */
    LOGITS_NAN_FIRST,   /* one NaN, in the first column */
    LOGITS_ALL_NAN,
    LOGITS_INF,        /* +inf in the last column, the target elsewhere */
    LOGITS_INF_TARGET, /* +inf at the target */
    LOGITS_TIES,       /* small integers */
    LOGITS_EQUAL,      /* all zero, of both signs */
    LOGITS_KINDS
} logits_kind;

static const char *const g_logits_names[LOGITS_KINDS] = {"plain",    "high",       "masked",    "dead target",
                                                         "all -inf", "NaN last",   "NaN first", "all NaN",
                                                         "inf",      "inf target", "ties",      "equal"};

static float *make_logits(op_env *e, logits_kind kind, int32_t T, int32_t V, const int32_t *target)
{
    float *x = op_random(e, (size_t)T * (size_t)V, 8);
    for (int32_t t = 0; t < T; t++) {
        float *row = x + (size_t)t * (size_t)V;
        for (int32_t i = 0; i < V; i++) {
            if (kind == LOGITS_HIGH)
                row[i] += 1000;
            if (kind == LOGITS_ALL_NAN)
                row[i] = NAN;
            if (kind == LOGITS_TIES)
                row[i] = (float)op_below(e, 3);
            if (kind == LOGITS_EQUAL)
                row[i] = i % 2 ? 0.0f : -0.0f;
            if (kind == LOGITS_ALL_DEAD || (kind == LOGITS_MASKED && i % 4 && i != target[t]))
                row[i] = -INFINITY;
        }
        if (kind == LOGITS_DEAD_TARGET)
            row[target[t]] = -INFINITY;
        if (kind == LOGITS_INF_TARGET)
            row[target[t]] = INFINITY;
        if (kind == LOGITS_NAN_LAST || kind == LOGITS_INF)
            row[V - 1] = kind == LOGITS_INF ? INFINITY : NAN;
        if (kind == LOGITS_NAN_FIRST)
            row[0] = NAN;
    }
    return x;
}

static void logits_row(op_env *e, logits_kind kind, int32_t T, int32_t V)
{
    op_begin(e, "nll and argmax T=%d V=%d %s", T, V, g_logits_names[kind]);
    size_t n = (size_t)T * (size_t)V, ints = (size_t)T * sizeof(int32_t);
    int32_t *target = op_host(e, (size_t)T, sizeof *target), *ids = op_host(e, (size_t)T, sizeof *ids);
    for (int32_t t = 0; t < T; t++)
        target[t] = t == 0 && kind != LOGITS_INF ? V - 1 : V > 1 ? op_below(e, V - 1) : 0;
    float *x = make_logits(e, kind, T, V, target);
    double *want = op_host(e, (size_t)T, sizeof *want);
    kve_nll_params p = {.logits = x, .target = target, .T = T, .V = V}, d = p;
    d.logits = op_in(e, x, n * sizeof(float));
    d.target = op_in(e, target, ints);
    d.nll = op_out(e, (size_t)T * sizeof(float));
    op_ok(e, e->be->vt->nll(e->be, &d));
    oracle_nll(&p, want);
    op_compare(e, "nll", op_read(e, d.nll, (size_t)T * sizeof(float)), want, (size_t)T, (op_tol){2e-6, 2e-6});
    kve_argmax_params a = {.logits = x, .ids = ids, .T = T, .V = V}, da = a;
    da.logits = d.logits;
    da.ids = op_out(e, ints);
    op_ok(e, e->be->vt->argmax(e->be, &da));
    oracle_argmax(&a, ids);
    op_same_ints(e, "argmax", op_read(e, da.ids, ints), ids, (size_t)T);
    op_end(e);
}

enum { LOG_CAP = 5 };

/* `times` greedy steps' ends; with `graph` recorded once and repeated. */
static void advance_row(op_env *e, int32_t T, int32_t X, int32_t times, bool graph)
{
    op_begin(e, "advance T=%d X=%d times=%d%s", T, X, times, graph ? " recorded" : "");
    size_t n = (size_t)T, bytes = n * sizeof(int32_t), x_bytes = (size_t)X * sizeof(int32_t);
    int32_t *rows[5], n_logged = 1, *tail_len = op_host(e, (size_t)X, sizeof *tail_len);
    int32_t *log = op_host(e, LOG_CAP * n + 1, sizeof *log), *slots = op_host(e, (size_t)X, sizeof *slots);
    for (int i = 0; i < 5; i++)
        rows[i] = op_host(e, n + 1, sizeof **rows);
    for (int32_t x = 0; x < X; x++) {
        int32_t other = op_below(e, x + 1); /* a random order of the slots */
        slots[x] = slots[other];
        slots[other] = x;
        tail_len[x] = op_below(e, 9);
    }
    for (int32_t t = 0; t < T; t++) {
        rows[0][t] = t % 3 == 1 ? -1 : op_below(e, 50000);
        rows[1][t] = slots[t];
        for (int i = 2; i < 5; i++)
            rows[i][t] = op_below(e, 4096);
    }
    memset(log, 0xff, LOG_CAP * bytes);
    kve_advance_params p = {rows[0], rows[1], rows[2], rows[3], rows[4], tail_len, log, &n_logged, T, LOG_CAP}, d = p;
    d.next = op_in(e, rows[0], bytes);
    d.slot_of = op_in(e, rows[1], bytes);
    d.ids = op_inout(e, rows[2], bytes);
    d.pos_of = op_inout(e, rows[3], bytes);
    d.index_of = op_inout(e, rows[4], bytes);
    d.tail_len = op_inout(e, tail_len, x_bytes);
    d.log = op_inout(e, log, LOG_CAP * bytes);
    d.n_logged = op_inout(e, &n_logged, sizeof n_logged);
    kve_graph *g = NULL;
    if (graph) {
        op_ok(e, e->be->vt->graph_begin(e->be));
        op_ok(e, e->be->vt->advance(e->be, &d));
        op_ok(e, e->be->vt->graph_end(e->be, &g));
    }
    for (int32_t i = 0; i < times; i++) {
        op_ok(e, graph ? e->be->vt->graph_launch(e->be, g) : e->be->vt->advance(e->be, &d));
        oracle_advance(&p);
    }
    op_same_ints(e, "ids", op_read(e, d.ids, bytes), rows[2], n);
    op_same_ints(e, "pos_of", op_read(e, d.pos_of, bytes), rows[3], n);
    op_same_ints(e, "index_of", op_read(e, d.index_of, bytes), rows[4], n);
    op_same_ints(e, "tail_len", op_read(e, d.tail_len, x_bytes), tail_len, (size_t)X);
    op_same_ints(e, "log", op_read(e, d.log, LOG_CAP * bytes), log, LOG_CAP * n);
    op_same_ints(e, "n_logged", op_read(e, d.n_logged, sizeof n_logged), &n_logged, 1);
    if (graph)
        e->be->vt->graph_free(e->be, g);
    op_end(e);
}

void op_table_dense(op_env *e)
{
    static const int32_t odd[] = {1, 3, 63, 64, 65, 127, 129};
    static const rmsnorm_case norms[] = {
        {.T = 0, .E = 64, .amplitude = 1, .eps = 1e-6f},
        {.T = 1, .E = 1, .amplitude = 1, .eps = 1e-5f},
        {.T = 3, .E = 576, .amplitude = 1, .eps = 1e-5f, .in_place = true},
        {.T = 65, .E = 129, .amplitude = 1, .eps = 1e-6f},
        {.T = 129, .E = 65, .amplitude = 1, .eps = 1e-6f, .in_place = true},
        {.T = 2, .E = 4099, .amplitude = 300, .eps = 1e-6f},
        {.T = 2, .E = 63, .amplitude = 1e-6, .eps = 1e-6f}, /* eps is all there is */
        {.T = 2, .E = 63, .amplitude = 0, .eps = 1e-6f},    /* zeros */
        {.T = 2, .E = 64, .amplitude = 1e-4, .eps = 0},
        {.T = 4, .E = 127, .amplitude = 1, .eps = 1e-6f, .special = 1},
    };
    for (int t = 0; t < 2; t++) {
        embed_row(e, (kve_dtype)t, 0, 5, 8);
        embed_row(e, (kve_dtype)t, 1, 1, 1);
        embed_row(e, (kve_dtype)t, 67, 129, 63);
        embed_row(e, (kve_dtype)t, 3, 65, 127);
    }
    for (size_t i = 0; i < COUNT(norms); i++)
        rmsnorm_row(e, &norms[i]);
    for (size_t i = 0; i < COUNT(odd); i++)
        rmsnorm_row(e, &(rmsnorm_case){.T = 2, .E = odd[i], .amplitude = 2, .eps = 1e-6f});
    for (int act = 0; act < 2; act++) {
        glu_row(e, (kve_activation)act, 0, 8, 1);
        for (size_t i = 0; i < COUNT(odd); i++)
            glu_row(e, (kve_activation)act, (int32_t)i, odd[i], 4);
        glu_row(e, (kve_activation)act, 3, 1536, 12);
        glu_row(e, (kve_activation)act, 3, 65, 200); /* e^200 overflows fp32 */
    }
    logits_row(e, LOGITS_PLAIN, 0, 7);
    logits_row(e, LOGITS_PLAIN, 1, 1);
    logits_row(e, LOGITS_PLAIN, 2, 49152);
    for (int kind = 0; kind < LOGITS_KINDS; kind++) {
        logits_row(e, (logits_kind)kind, 3, 2);
        logits_row(e, (logits_kind)kind, 5, 129);
        logits_row(e, (logits_kind)kind, 1, 1027);
    }
    static const int32_t rows[][3] = {{0, 4, 1}, {1, 1, 1}, {1, 3, 4}, {7, 9, 3}, {300, 311, 2}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        advance_row(e, rows[i][0], rows[i][1], rows[i][2], false);
        if (e->be->vt->graph_begin && rows[i][0] > 0)
            advance_row(e, rows[i][0], rows[i][1], rows[i][2], true);
    }
}
