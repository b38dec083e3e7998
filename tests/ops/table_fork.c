/* The op table: attention_fork. */
#include "tests/ops/optable.h"

#include <math.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

enum { LAYERS = 3, LAYER = 1, MAX_FORKS = 70, PATTERN = 4 };

typedef enum fork_special {
    FORK_PLAIN,
    FORK_NAN_TAIL,   /* NaN in the last tail value of each fork: only its last row sees it */
    FORK_NAN_PREFIX, /* NaN in the last prefix value of fork 0's heads: forks that keep fewer rows stay finite */
    FORK_NAN_Q,      /* NaN in the first row of fork 0 */
    FORK_INF,        /* scores of -inf for the whole prefix */
    FORK_LARGE,      /* scores of hundreds */
} fork_special;

static const char *const g_special_names[] = {"",          " NaN in last tail v",    " NaN in last prefix v",
                                              " NaN in q", " prefix scores at -inf", " large scores"};

typedef struct fork_case {
    int32_t X, Hq, Hkv, D;
    int32_t n_prefix;                      /* longest prefix; each fork and head keeps a number of its own up to it */
    int32_t q_len[PATTERN], tail[PATTERN]; /* fork x takes element x % PATTERN */
    bool shared;                           /* one prefix for all forks */
    bool packed;                           /* each prefix is ragged: as long as what its fork keeps */
    bool backwards;                        /* fork 0 owns the last rows, with one unowned row between the forks */
    fork_special special;
} fork_case;

typedef struct forks {
    int32_t row_of[MAX_FORKS], q_len[MAX_FORKS], tail_len[MAX_FORKS], T;
    int32_t *prefix_len[MAX_FORKS];
    op_kv prefix[MAX_FORKS], tail[MAX_FORKS];
    kve_fork_slot host[MAX_FORKS], dev[MAX_FORKS];
} forks;

static void place_rows(const fork_case *c, forks *f)
{
    f->T = 0;
    for (int32_t i = 0; i < c->X; i++) {
        int32_t x = c->backwards ? c->X - 1 - i : i;
        f->q_len[x] = c->q_len[x % PATTERN];
        f->tail_len[x] = c->tail[x % PATTERN];
        f->row_of[x] = f->T;
        f->T += f->q_len[x] + (c->backwards ? 1 : 0);
    }
}

/* Kept rows of fork x and head h: all, none, and numbers between. Other layers claim the longest prefix. */
static void choose_lengths(op_env *e, const fork_case *c, forks *f)
{
    for (int32_t x = 0; x < c->X; x++) {
        f->prefix_len[x] = op_host(e, (size_t)(LAYERS * c->Hkv), sizeof(int32_t));
        for (int32_t i = 0; i < LAYERS * c->Hkv; i++)
            f->prefix_len[x][i] = c->n_prefix;
        for (int32_t h = 0; h < c->Hkv && c->n_prefix; h++) {
            int32_t kind = (x + h) % 3;
            f->prefix_len[x][LAYER * c->Hkv + h] = kind == 0   ? c->n_prefix
                                                   : kind == 1 ? op_below(e, c->n_prefix)
                                                               : x % 2 * op_below(e, c->n_prefix);
        }
    }
}

static void fill_slots(op_env *e, const fork_case *c, kve_dtype t, forks *f)
{
    double amplitude = c->special == FORK_LARGE ? 30 : 2;
    for (int32_t x = 0; x < c->X; x++) {
        int32_t rows = f->tail_len[x] + f->q_len[x];
        if (c->packed)
            f->prefix[x] = op_kv_ragged(e, LAYERS, c->Hkv, f->prefix_len[x], c->D, t);
        else if (x == 0 || !c->shared)
            f->prefix[x] = op_kv_make(e, LAYERS, c->Hkv, c->n_prefix ? c->n_prefix + 3 : 0, c->D, t);
        f->tail[x] = op_kv_make(e, LAYERS, c->Hkv, rows + x % 3, c->D, t);
        for (int32_t h = 0; h < c->Hkv; h++) {
            int32_t kept = f->prefix_len[x][LAYER * c->Hkv + h];
            op_kv_fill(e, &f->tail[x], LAYER, h, 0, rows, amplitude);
            if (x == 0 || !c->shared)
                op_kv_fill(e, &f->prefix[x], LAYER, h, 0, c->shared ? c->n_prefix : kept, amplitude);
        }
    }
}

static void plant(const fork_case *c, forks *f, float *q)
{
    for (int32_t x = 0; x < c->X; x++)
        for (int32_t h = 0; h < c->Hkv; h++) {
            int32_t kept = f->prefix_len[x][LAYER * c->Hkv + h], rows = f->tail_len[x] + f->q_len[x];
            kve_kv *prefix = &f->prefix[c->shared ? 0 : x].host, *tail = &f->tail[x].host;
            if (c->special == FORK_NAN_TAIL && rows > 0)
                oracle_store(tail->v, oracle_kv_at(tail, c->Hkv, c->D, LAYER, h, rows - 1), f->tail[x].dtype, NAN);
            if (c->special == FORK_NAN_PREFIX && x == 0 && kept > 0)
                oracle_store(prefix->v, oracle_kv_at(prefix, c->Hkv, c->D, LAYER, h, kept - 1), f->tail[x].dtype, NAN);
            for (int32_t j = 0; c->special == FORK_INF && j < kept; j++)
                oracle_store(prefix->k, oracle_kv_at(prefix, c->Hkv, c->D, LAYER, h, j), f->tail[x].dtype, -INFINITY);
        }
    size_t row = (size_t)c->Hq * (size_t)c->D;
    if (c->special == FORK_NAN_Q)
        q[(size_t)f->row_of[0] * row] = NAN;
    for (size_t r = 0; c->special == FORK_INF && r < (size_t)f->T * (size_t)c->Hq; r++)
        q[r * (size_t)c->D] = 0.5f;
}

static void upload_slots(op_env *e, const fork_case *c, forks *f)
{
    for (int32_t x = 0; x < c->X; x++) {
        if (x == 0 || !c->shared)
            op_kv_in(e, &f->prefix[x]);
        else
            f->prefix[x] = f->prefix[0];
        op_kv_in(e, &f->tail[x]);
        f->host[x] = (kve_fork_slot){f->prefix[x].host, f->prefix_len[x], f->tail[x].host};
        const int32_t *lengths = op_in(e, f->prefix_len[x], (size_t)(LAYERS * c->Hkv) * sizeof(int32_t));
        f->dev[x] = (kve_fork_slot){f->prefix[x].dev, lengths, f->tail[x].dev};
    }
}

static void fork_row(op_env *e, kve_dtype t, const fork_case *c)
{
    op_begin(e, "attention_fork %s X=%d prefix=%d Hq=%d Hkv=%d D=%d q_len=%d,%d,%d,%d%s%s%s", op_dtype_name(t), c->X,
             c->n_prefix, c->Hq, c->Hkv, c->D, c->q_len[0], c->q_len[1], c->q_len[2], c->q_len[3],
             c->shared   ? " shared"
             : c->packed ? " packed"
                         : "",
             c->backwards ? " backwards" : "", g_special_names[c->special]);
    forks *f = op_host(e, 1, sizeof *f);
    place_rows(c, f);
    choose_lengths(e, c, f);
    fill_slots(e, c, t, f);
    size_t n_q = (size_t)f->T * (size_t)c->Hq * (size_t)c->D, ints = (size_t)c->X * sizeof(int32_t);
    float *q = op_random(e, n_q, c->special == FORK_LARGE ? 30 : 2);
    plant(c, f, q);
    upload_slots(e, c, f);
    kve_attention_fork_params p = {.q = q,
                                   .slots = f->host,
                                   .row_of = f->row_of,
                                   .q_len = f->q_len,
                                   .tail_len = f->tail_len,
                                   .scale = (float)(1 / sqrt((double)c->D)),
                                   .T = f->T,
                                   .X = c->X,
                                   .Hq = c->Hq,
                                   .Hkv = c->Hkv,
                                   .D = c->D,
                                   .i_layer = LAYER,
                                   .kv_dtype = t};
    kve_attention_fork_params d = p;
    double *want = op_host(e, n_q, sizeof *want);
    for (size_t i = 0; i < n_q; i++) /* rows that no fork owns stay as they were: NaN */
        want[i] = (double)NAN;
    d.q = op_in(e, q, n_q * sizeof *q);
    d.slots = op_in(e, f->dev, (size_t)c->X * sizeof *f->dev);
    d.row_of = op_in(e, f->row_of, ints);
    d.q_len = op_in(e, f->q_len, ints);
    d.tail_len = op_in(e, f->tail_len, ints);
    d.out = op_out(e, n_q * sizeof *q);
    op_ok(e, e->be->vt->attention_fork(e->be, &d));
    oracle_attention_fork(&p, want);
    op_tol tol = {c->special == FORK_LARGE ? 1e-3 : 4e-6, 1e-5};
    const float *got = op_read(e, d.out, n_q * sizeof *q);
    op_compare(e, "out", got, want, n_q, tol);
    d.max_prefix = c->n_prefix;
    d.out = op_out(e, n_q * sizeof *q);
    op_ok(e, e->be->vt->attention_fork(e->be, &d));
    op_same_bytes(e, "out with max_prefix", op_read(e, d.out, n_q * sizeof *q), got, n_q * sizeof *q);
    op_end(e);
}

void op_table_fork(op_env *e)
{
#define ONE .q_len = { 1, 1, 1, 1 }
#define RAGGED .q_len = {1, 0, 3, 2}, .tail = {0, 5, 2, 61}
    static const fork_case cases[] = {
        {.X = 0, .Hq = 2, .Hkv = 1, .D = 64},
        {.X = 2, .Hq = 2, .Hkv = 1, .D = 64, .n_prefix = 4, .q_len = {0}, .tail = {3, 3}}, /* all rest: T = 0 */
        {.X = 1, .Hq = 1, .Hkv = 1, .D = 64, .n_prefix = 0, ONE},
        {.X = 1, .Hq = 3, .Hkv = 1, .D = 64, .n_prefix = 1, ONE},
        {.X = 5, .Hq = 4, .Hkv = 2, .D = 64, .n_prefix = 0, RAGGED},
        {.X = 3, .Hq = 9, .Hkv = 3, .D = 64, .n_prefix = 63, ONE, .tail = {1, 2, 3, 4}},
        {.X = 6, .Hq = 8, .Hkv = 2, .D = 80, .n_prefix = 64, RAGGED},
        {.X = 7, .Hq = 7, .Hkv = 1, .D = 96, .n_prefix = 65, RAGGED, .backwards = true},
        {.X = 4, .Hq = 10, .Hkv = 2, .D = 128, .n_prefix = 129, RAGGED, .backwards = true},
        {.X = 6, .Hq = 8, .Hkv = 1, .D = 128, .n_prefix = 200, RAGGED, .shared = true},
        {.X = 7, .Hq = 6, .Hkv = 1, .D = 64, .n_prefix = 127, RAGGED, .shared = true, .backwards = true},
        {.X = 3, .Hq = 2, .Hkv = 2, .D = 256, .n_prefix = 40, RAGGED},
        {.X = 6, .Hq = 9, .Hkv = 3, .D = 64, .n_prefix = 200, RAGGED, .packed = true},
        {.X = 3, .Hq = 4, .Hkv = 4, .D = 33, .n_prefix = 1300, RAGGED, .packed = true, .backwards = true},
        {.X = 3, .Hq = 2, .Hkv = 1, .D = 33, .n_prefix = 70, RAGGED},
        {.X = 70, .Hq = 2, .Hkv = 1, .D = 16, .n_prefix = 66, ONE, .tail = {0, 1, 0, 2}, .shared = true},
        {.X = 2, .Hq = 6, .Hkv = 2, .D = 64, .n_prefix = 65, .q_len = {67, 130}, .tail = {3, 0}},
        {.X = 1, .Hq = 2, .Hkv = 1, .D = 64, .n_prefix = 30, .q_len = {5}, .tail = {125}},
        {.X = 3, .Hq = 4, .Hkv = 2, .D = 64, .n_prefix = 1300, ONE, .tail = {0, 3, 700, 1}},
        {.X = 1, .Hq = 1, .Hkv = 1, .D = 16, .n_prefix = 16900, ONE}, /* more keys than a launch has room for at once */
        {.X = 1, .Hq = 16, .Hkv = 1, .D = 128, .n_prefix = 3, .q_len = {70}, .tail = {2}}, /* likewise rows */
        {.X = 6, .Hq = 4, .Hkv = 2, .D = 64, .n_prefix = 70, RAGGED, .special = FORK_NAN_TAIL},
        {.X = 6, .Hq = 4, .Hkv = 2, .D = 64, .n_prefix = 70, RAGGED, .special = FORK_NAN_PREFIX},
        {.X = 6, .Hq = 4, .Hkv = 2, .D = 64, .n_prefix = 70, RAGGED, .shared = true, .special = FORK_NAN_PREFIX},
        {.X = 6, .Hq = 4, .Hkv = 2, .D = 64, .n_prefix = 70, RAGGED, .special = FORK_NAN_Q},
        {.X = 6, .Hq = 4, .Hkv = 2, .D = 64, .n_prefix = 70, RAGGED, .special = FORK_INF},
        {.X = 4, .Hq = 3, .Hkv = 1, .D = 64, .n_prefix = 129, RAGGED, .special = FORK_LARGE},
    };
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < COUNT(cases); i++)
            fork_row(e, (kve_dtype)t, &cases[i]);
}
