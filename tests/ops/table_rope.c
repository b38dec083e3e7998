/* The op table: rope_append. */
#include "tests/ops/optable.h"

#include <math.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

enum { N_POSITIONS = 300, MAX_SLOTS = 3 };

typedef struct rope_case {
    int32_t T, Hq, Hkv, D, R, n_slots;
    bool norms; /* q_norm and k_norm */
    bool q_norm_only;
    bool special; /* NaN in row 0's keys, inf in its values */
} rope_case;

/* The slots' tails on host and device, and which of their rows the call writes. */
typedef struct rope_slots {
    op_kv tails[MAX_SLOTS];
    kve_fork_slot host[MAX_SLOTS], dev[MAX_SLOTS];
    int32_t n;
} rope_slots;

static rope_slots make_slots(op_env *e, const rope_case *c, kve_dtype t, int32_t L)
{
    rope_slots s = {.n = c->n_slots};
    for (int32_t i = 0; i < s.n; i++) {
        s.tails[i] = op_kv_make(e, L, c->Hkv, c->T + 2 + i, c->D, t);
        op_kv_inout(e, &s.tails[i]);
        s.host[i].tail = s.tails[i].host;
        s.dev[i].tail = s.tails[i].dev; /* prefix stays NULL: it must not be used */
    }
    return s;
}

/* Row t goes to slot t % n, from the last tail row downwards, so the order of arrival is not the order of the rows. */
static void place_rows(op_env *e, const rope_case *c, int32_t *pos_of, int32_t *slot_of, int32_t *index_of)
{
    for (int32_t t = 0; t < c->T; t++) {
        pos_of[t] = t == 0 ? N_POSITIONS - 1 : t == 1 ? 0 : op_below(e, N_POSITIONS);
        slot_of[t] = t % c->n_slots;
        index_of[t] = c->T - t;
    }
}

static void check_tails(op_env *e, const kve_rope_append_params *p, rope_slots *s, const double *k, const double *v)
{
    size_t D = (size_t)p->D;
    /* A bf16 key is the exact value rounded once: half a unit in the last of eight places, and the fp32 arithmetic
     * before it. Values are only rounded. */
    op_tol tol = {p->q_norm || p->k_norm ? 2e-6 : 1e-6, 2e-6};
    if (p->kv_dtype == KVE_BF16)
        tol.rel += 1.0 / 256;
    double *rounded = op_host(e, D, sizeof *rounded);
    for (int32_t i = 0; i < s->n; i++) {
        void *got_k = op_read(e, s->tails[i].dev.k, s->tails[i].bytes);
        void *got_v = op_read(e, s->tails[i].dev.v, s->tails[i].bytes);
        for (int32_t t = 0; t < p->T; t++)
            for (int32_t h = 0; h < p->Hkv && p->slot_of[t] == i; h++) {
                size_t at = oracle_kv_at(&s->host[i].tail, p->Hkv, p->D, p->i_layer, h, p->index_of[t]);
                size_t row = ((size_t)t * (size_t)p->Hkv + (size_t)h) * D, size = kve_dtype_bytes(p->kv_dtype);
                op_compare_stored(e, "key", got_k, at, p->kv_dtype, k + row, D, tol);
                for (size_t d = 0; d < D; d++)
                    rounded[d] = p->kv_dtype == KVE_BF16 ? (double)oracle_bf16((float)v[row + d]) : v[row + d];
                op_compare_stored(e, "value", got_v, at, p->kv_dtype, rounded, D, (op_tol){0, 0});
                memcpy((char *)s->host[i].tail.k + at * size, (char *)got_k + at * size, D * size);
                memcpy((char *)s->host[i].tail.v + at * size, (char *)got_v + at * size, D * size);
            }
        op_same_bytes(e, "keys that the call does not touch", got_k, s->host[i].tail.k, s->tails[i].bytes);
        op_same_bytes(e, "values that the call does not touch", got_v, s->host[i].tail.v, s->tails[i].bytes);
    }
}

static void rope_row(op_env *e, kve_dtype t, const rope_case *c)
{
    op_begin(e, "rope_append %s T=%d Hq=%d Hkv=%d D=%d R=%d slots=%d%s%s", op_dtype_name(t), c->T, c->Hq, c->Hkv, c->D,
             c->R, c->n_slots,
             c->norms         ? " norms"
             : c->q_norm_only ? " q_norm"
                              : "",
             c->special ? " NaN, inf" : "");
    size_t T = (size_t)c->T, D = (size_t)c->D, half = (size_t)c->R / 2, Hq = (size_t)c->Hq, Hkv = (size_t)c->Hkv;
    int32_t *pos_of = op_host(e, T, 4), *slot_of = op_host(e, T, 4), *index_of = op_host(e, T, 4);
    float *cosines = op_random(e, N_POSITIONS * half, 1), *sines = op_random(e, N_POSITIONS * half, 1);
    float *qkv = op_random(e, T * (Hq + 2 * Hkv) * D, 3);
    for (size_t i = 0; i < N_POSITIONS * half; i++) { /* a scaling factor of 1.2 is applied, as longrope would */
        double angle = 4 * (double)cosines[i];
        cosines[i] = (float)(1.2 * cos(angle));
        sines[i] = (float)(1.2 * sin(angle));
    }
    if (c->special) {
        qkv[Hq * D] = NAN;
        qkv[(Hq + Hkv) * D + 1] = -INFINITY;
    }
    place_rows(e, c, pos_of, slot_of, index_of);
    rope_slots s = make_slots(e, c, t, 2);
    kve_rope_append_params p = {.qkv = qkv,
                                .q_norm = c->norms || c->q_norm_only ? op_random(e, D, 2) : NULL,
                                .k_norm = c->norms ? op_random(e, D, 2) : NULL,
                                .cos = cosines,
                                .sin = sines,
                                .pos_of = pos_of,
                                .slot_of = slot_of,
                                .index_of = index_of,
                                .slots = s.host,
                                .norm_eps = 1e-6f,
                                .T = c->T,
                                .Hq = c->Hq,
                                .Hkv = c->Hkv,
                                .D = c->D,
                                .R = c->R,
                                .i_layer = 1,
                                .kv_dtype = t};
    kve_rope_append_params d = p;
    d.qkv = op_in(e, qkv, T * (Hq + 2 * Hkv) * D * sizeof(float));
    d.q_norm = op_in(e, p.q_norm, D * sizeof(float));
    d.k_norm = op_in(e, p.k_norm, D * sizeof(float));
    d.cos = op_in(e, cosines, N_POSITIONS * half * sizeof(float));
    d.sin = op_in(e, sines, N_POSITIONS * half * sizeof(float));
    d.pos_of = op_in(e, pos_of, T * sizeof *pos_of);
    d.slot_of = op_in(e, slot_of, T * sizeof *slot_of);
    d.index_of = op_in(e, index_of, T * sizeof *index_of);
    d.slots = op_in(e, s.dev, (size_t)s.n * sizeof *s.dev);
    d.q = op_out(e, T * Hq * D * sizeof(float));
    op_ok(e, e->be->vt->rope_append(e->be, &d));
    double *q = op_host(e, T * Hq * D, sizeof *q), *k = op_host(e, T * Hkv * D, sizeof *k);
    double *v = op_host(e, T * Hkv * D, sizeof *v);
    oracle_rope_append(&p, q, k, v);
    op_compare(e, "q", op_read(e, d.q, T * Hq * D * sizeof(float)), q, T * Hq * D, (op_tol){2e-6, 2e-6});
    check_tails(e, &p, &s, k, v);
    op_end(e);
}

void op_table_rope(op_env *e)
{
    static const rope_case cases[] = {
        {.T = 0, .Hq = 2, .Hkv = 1, .D = 64, .R = 64, .n_slots = 1},
        {.T = 1, .Hq = 1, .Hkv = 1, .D = 64, .R = 64, .n_slots = 1},
        {.T = 65, .Hq = 9, .Hkv = 3, .D = 64, .R = 64, .n_slots = 1},
        {.T = 3, .Hq = 7, .Hkv = 1, .D = 80, .R = 32, .n_slots = 2}, /* phi-2's partial rotary */
        {.T = 7, .Hq = 6, .Hkv = 2, .D = 96, .R = 72, .n_slots = 3}, /* half = 36 */
        {.T = 5, .Hq = 4, .Hkv = 2, .D = 128, .R = 2, .n_slots = 2}, /* one pair */
        {.T = 5, .Hq = 4, .Hkv = 2, .D = 128, .R = 0, .n_slots = 2}, /* no rotation at all */
        {.T = 9, .Hq = 16, .Hkv = 2, .D = 128, .R = 128, .n_slots = 3, .norms = true},
        {.T = 4, .Hq = 3, .Hkv = 3, .D = 80, .R = 40, .n_slots = 1, .norms = true},
        {.T = 4, .Hq = 4, .Hkv = 2, .D = 64, .R = 64, .n_slots = 2, .q_norm_only = true},
        {.T = 3, .Hq = 2, .Hkv = 2, .D = 256, .R = 64, .n_slots = 1, .norms = true},
        {.T = 4, .Hq = 4, .Hkv = 2, .D = 64, .R = 64, .n_slots = 2, .special = true},
        {.T = 4, .Hq = 4, .Hkv = 2, .D = 96, .R = 48, .n_slots = 2, .special = true, .norms = true},
    };
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < COUNT(cases); i++)
            rope_row(e, (kve_dtype)t, &cases[i]);
}
