/* Scratch, the layer loop, prefill and extend. Letters: host/shape.h. */
#include "host/engine/session.h"

#include "host/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOGIT_ROWS = 64 }; /* rows of logits in flight: 4,096 x 152k floats would be 2.5 GB */

struct kve_session {
    const kve_model *m;
    kve_session_options opt;
    float *cos, *sin;                        /* [max_positions][R/2] */
    float *x, *h;                            /* [chunk][E]: residual stream; normed rows */
    float *qkv, *q, *att;                    /* [chunk][(Hq + 2 Hkv) D], [chunk][Hq D], [chunk][Hq D] */
    float *gate_up, *act;                    /* [chunk][2 F], [chunk][F] */
    float *picked, *logits;                  /* [LOGIT_ROWS][E], [LOGIT_ROWS][V] */
    float *nll;                              /* [LOGIT_ROWS] */
    int32_t *ids, *pos, *slot_of, *index_of; /* device [chunk] */
    int32_t *row_of, *q_len, *tail_len;      /* device [max_forks] */
    int32_t *out_ids;                        /* device [LOGIT_ROWS] */
    kve_fork_slot *ctx_slot;                 /* device [1]: the context as a tail, for rope_append */
    int32_t *host_i;                         /* [4][chunk]: staging of ids, pos, slot_of, index_of */
    int32_t *host_row;                       /* [max_forks] */
    float *host_rows;                        /* [LOGIT_ROWS][E] */
    int32_t T;                               /* rows of the last forward */
    int64_t n_prefills;
};

static kve_status device_alloc(kve_session *s, size_t n, size_t size, void *out_ptr)
{
    return s->m->be->vt->alloc(s->m->be, n * size, out_ptr);
}

static kve_status alloc_scratch(kve_session *s)
{
    const kve_shape *d = &s->m->cfg.shape;
    size_t T = (size_t)s->opt.chunk, X = (size_t)s->opt.max_forks, qd = (size_t)d->Hq * (size_t)d->D;
    size_t qkvd = qd + 2 * (size_t)d->Hkv * (size_t)d->D, E = (size_t)d->E, F = (size_t)d->F, V = (size_t)d->V;
    size_t table = (size_t)s->opt.max_positions * (size_t)d->R / 2;
    struct {
        void *out;
        size_t n;
    } floats[] = {{&s->cos, table},
                  {&s->sin, table},
                  {&s->x, T * E},
                  {&s->h, T * E},
                  {&s->qkv, T * qkvd},
                  {&s->q, T * qd},
                  {&s->att, T * qd},
                  {&s->gate_up, T * 2 * F},
                  {&s->act, T * F},
                  {&s->picked, LOGIT_ROWS * E},
                  {&s->logits, LOGIT_ROWS * V},
                  {&s->nll, LOGIT_ROWS}},
      ints[] = {{&s->ids, T},    {&s->pos, T},   {&s->slot_of, T},  {&s->index_of, T},
                {&s->row_of, X}, {&s->q_len, X}, {&s->tail_len, X}, {&s->out_ids, LOGIT_ROWS}};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        KVE_TRY(device_alloc(s, floats[i].n, sizeof(float), floats[i].out));
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        KVE_TRY(device_alloc(s, ints[i].n, sizeof(int32_t), ints[i].out));
    KVE_TRY(device_alloc(s, 1, sizeof *s->ctx_slot, &s->ctx_slot));
    KVE_TRY(kve_alloc(4 * T, sizeof *s->host_i, &s->host_i));
    KVE_TRY(kve_alloc(X, sizeof *s->host_row, &s->host_row));
    return kve_alloc(LOGIT_ROWS * E, sizeof *s->host_rows, &s->host_rows);
}

static kve_status fill_rope(kve_session *s)
{
    size_t n = (size_t)s->opt.max_positions * (size_t)s->m->cfg.shape.R / 2;
    float *tables = NULL;
    KVE_TRY(kve_alloc(2 * n, sizeof *tables, &tables));
    kve_status st = kve_rope_tables(&s->m->cfg, s->opt.max_positions, s->opt.max_positions, tables, tables + n);
    if (st == KVE_OK)
        st = s->m->be->vt->write(s->m->be, s->cos, tables, n * sizeof *tables);
    if (st == KVE_OK)
        st = s->m->be->vt->write(s->m->be, s->sin, tables + n, n * sizeof *tables);
    free(tables);
    return st;
}

static kve_status check_options(const kve_model *m, const kve_session_options *o)
{
    if (o->chunk < 1 || o->max_forks < 1 || o->max_forks > o->chunk || o->max_positions < 1)
        return kve_fail(KVE_ERR_USAGE,
                        "session: chunk %d, forks %d, positions %d; each must be at least 1 and forks <= chunk",
                        o->chunk, o->max_forks, o->max_positions);
    if (o->max_positions > m->cfg.max_context)
        return kve_fail(KVE_ERR_USAGE,
                        "%s: prompt and answer take %d tokens, but its context is %d; shorten the prompt or the answer",
                        m->cfg.name, o->max_positions, m->cfg.max_context);
    if (m->cfg.sliding_window > 0 && o->max_positions > m->cfg.sliding_window)
        return kve_fail(KVE_ERR_USAGE,
                        "%s: prompt and answer take %d tokens, beyond its sliding window of %d, where eviction has "
                        "another meaning; shorten them",
                        m->cfg.name, o->max_positions, m->cfg.sliding_window);
    return KVE_OK;
}

kve_status kve_session_open(const kve_model *m, const kve_session_options *opt, kve_session **out)
{
    kve_session *s = NULL;
    KVE_TRY(check_options(m, opt));
    KVE_TRY(kve_alloc(1, sizeof *s, &s));
    s->m = m;
    s->opt = *opt;
    kve_status st = alloc_scratch(s);
    if (st == KVE_OK)
        st = fill_rope(s);
    if (st != KVE_OK)
        kve_session_close(s);
    else
        *out = s;
    return st;
}

void kve_session_close(kve_session *s)
{
    if (!s)
        return;
    void *device[] = {s->cos,     s->sin,      s->x,      s->h,      s->qkv,      s->q,       s->att,
                      s->gate_up, s->act,      s->picked, s->logits, s->nll,      s->ids,     s->pos,
                      s->slot_of, s->index_of, s->row_of, s->q_len,  s->tail_len, s->out_ids, s->ctx_slot};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        s->m->be->vt->free(s->m->be, device[i]);
    free(s->host_i);
    free(s->host_row);
    free(s->host_rows);
    free(s);
}

/* One forward over T rows that are staged already. Exactly one of ctx (prefill from row `start`) and batch is set. */
typedef struct pass {
    int32_t T, start;
    const kve_context *ctx;
    const kve_batch *batch;
    float *q_base;         /* where layer 0's queries go; [.][Hq][D] */
    size_t q_layer_stride; /* floats from one layer's queries to the next; 0 = the same scratch */
} pass;

static kve_status attend(kve_session *s, const pass *p, int32_t i_layer, const float *q)
{
    const kve_shape *d = &s->m->cfg.shape;
    float scale = 1.0f / sqrtf((float)d->D);
    kve_backend *be = s->m->be;
    if (p->ctx) {
        kve_attention_prefill_params a = {.q = q,
                                          .kv = p->ctx->kv,
                                          .out = s->att,
                                          .scale = scale,
                                          .T = p->T,
                                          .start = p->start,
                                          .Hq = d->Hq,
                                          .Hkv = d->Hkv,
                                          .D = d->D,
                                          .i_layer = i_layer,
                                          .kv_dtype = s->m->dtype};
        return be->vt->attention_prefill(be, &a);
    }
    kve_attention_fork_params a = {.q = q,
                                   .slots = p->batch->slots,
                                   .row_of = s->row_of,
                                   .q_len = s->q_len,
                                   .tail_len = s->tail_len,
                                   .out = s->att,
                                   .scale = scale,
                                   .T = p->T,
                                   .X = p->batch->X,
                                   .Hq = d->Hq,
                                   .Hkv = d->Hkv,
                                   .D = d->D,
                                   .i_layer = i_layer,
                                   .kv_dtype = s->m->dtype};
    return be->vt->attention_fork(be, &a);
}

static kve_status matmul(kve_session *s, const float *x, const kve_weight *w, const float *bias, float *y, int32_t T,
                         bool accumulate)
{
    kve_matmul_params p = {.x = x, .w = w, .bias = bias, .y = y, .T = T, .accumulate = accumulate};
    return s->m->be->vt->matmul(s->m->be, &p);
}

static kve_status norm(kve_session *s, const float *gain, int32_t T)
{
    kve_rmsnorm_params p = {
        .x = s->x, .gain = gain, .out = s->h, .eps = s->m->cfg.norm_eps, .T = T, .E = s->m->cfg.shape.E};
    return s->m->be->vt->rmsnorm(s->m->be, &p);
}

static kve_status run_layer(kve_session *s, const pass *p, int32_t i_layer)
{
    const kve_shape *d = &s->m->cfg.shape;
    const kve_layer *w = &s->m->layers[i_layer];
    kve_backend *be = s->m->be;
    float *q = p->q_base + (size_t)i_layer * p->q_layer_stride;
    kve_rope_append_params rope = {.qkv = s->qkv,
                                   .q_norm = w->q_norm,
                                   .k_norm = w->k_norm,
                                   .cos = s->cos,
                                   .sin = s->sin,
                                   .pos_of = s->pos,
                                   .slot_of = s->slot_of,
                                   .index_of = s->index_of,
                                   .slots = p->ctx ? s->ctx_slot : p->batch->slots,
                                   .q = q,
                                   .norm_eps = s->m->cfg.norm_eps,
                                   .T = p->T,
                                   .Hq = d->Hq,
                                   .Hkv = d->Hkv,
                                   .D = d->D,
                                   .R = d->R,
                                   .i_layer = i_layer,
                                   .kv_dtype = s->m->dtype};
    kve_glu_params glu = {.gate_up = s->gate_up, .out = s->act, .act = KVE_SILU, .T = p->T, .F = d->F};
    KVE_TRY(norm(s, w->attn_norm, p->T));
    KVE_TRY(matmul(s, s->h, w->qkv, w->qkv_bias, s->qkv, p->T, false));
    KVE_TRY(be->vt->rope_append(be, &rope));
    KVE_TRY(attend(s, p, i_layer, q));
    KVE_TRY(matmul(s, s->att, w->o, NULL, s->x, p->T, true));
    KVE_TRY(norm(s, w->ffn_norm, p->T));
    KVE_TRY(matmul(s, s->h, w->gate_up, NULL, s->gate_up, p->T, false));
    KVE_TRY(be->vt->glu(be, &glu));
    return matmul(s, s->act, w->down, NULL, s->x, p->T, true);
}

/* Stages the host arrays, runs all layers, leaves the final-normed rows in s->h. */
static kve_status forward(kve_session *s, const pass *p)
{
    kve_backend *be = s->m->be;
    size_t chunk = (size_t)s->opt.chunk, bytes = (size_t)p->T * sizeof(int32_t);
    int32_t *device[] = {s->ids, s->pos, s->slot_of, s->index_of};
    for (size_t i = 0; i < 4; i++)
        KVE_TRY(be->vt->write(be, device[i], s->host_i + i * chunk, bytes));
    kve_embed_params e = {.ids = s->ids, .table = s->m->embed, .out = s->x, .T = p->T, .E = s->m->cfg.shape.E};
    KVE_TRY(be->vt->embed(be, &e));
    for (int32_t i = 0; i < s->m->cfg.shape.L; i++)
        KVE_TRY(run_layer(s, p, i));
    s->T = p->T;
    return norm(s, s->m->final_norm, p->T);
}

static kve_status stage(kve_session *s, int32_t row, int32_t id, int32_t pos, int32_t slot, int32_t index)
{
    size_t chunk = (size_t)s->opt.chunk, r = (size_t)row;
    if (id < 0 || id >= s->m->cfg.shape.V)
        return kve_fail(
            KVE_ERR_USAGE,
            "token id %d at position %d is outside the vocabulary of %d; was the text made by another tokenizer?", id,
            pos, s->m->cfg.shape.V);
    if (pos >= s->opt.max_positions)
        return kve_fail(KVE_ERR_USAGE, "position %d is beyond the %d that this session was opened for", pos,
                        s->opt.max_positions);
    s->host_i[r] = id;
    s->host_i[chunk + r] = pos;
    s->host_i[2 * chunk + r] = slot;
    s->host_i[3 * chunk + r] = index;
    return KVE_OK;
}

kve_status kve_prefill(kve_session *s, const int32_t *ids, int32_t n, kve_context *ctx)
{
    const kve_shape *d = &s->m->cfg.shape;
    kve_backend *be = s->m->be;
    if (n < 1 || n > ctx->kv.cap)
        return kve_fail(KVE_ERR_USAGE, "a prefill of %d tokens does not fit a context of %d rows; it needs at least 1",
                        n, ctx->kv.cap);
    kve_fork_slot slot = {.tail = ctx->kv};
    KVE_TRY(be->vt->write(be, s->ctx_slot, &slot, sizeof slot));
    int32_t W = n < KVE_WINDOW ? n : KVE_WINDOW;
    if (W > s->opt.chunk)
        W = s->opt.chunk;
    ctx->n = 0;
    ctx->W = W;
    for (int32_t start = 0; start < n;) {
        bool last = start == n - W;
        int32_t room = last ? W : n - W - start, T = room < s->opt.chunk ? room : s->opt.chunk;
        for (int32_t t = 0; t < T; t++)
            KVE_TRY(stage(s, t, ids[start + t], start + t, 0, start + t));
        pass p = {.T = T,
                  .start = start,
                  .ctx = ctx,
                  .q_base = last ? ctx->q_window : s->q,
                  .q_layer_stride = last ? (size_t)W * (size_t)d->Hq * (size_t)d->D : 0};
        KVE_TRY(forward(s, &p));
        start += T;
    }
    ctx->n = n;
    s->n_prefills++;
    return be->vt->sync(be);
}

int64_t kve_session_prefills(const kve_session *s)
{
    return s->n_prefills;
}

kve_status kve_batch_alloc(const kve_model *m, const kve_fork_slot *host_slots, const int32_t *n_context, int32_t X,
                           kve_batch *out)
{
    kve_batch b = {.X = X};
    int32_t *ints = NULL;
    KVE_TRY(kve_alloc((size_t)X * 3, sizeof *ints, &ints));
    b.tail_len = ints;
    b.n_context = ints + X;
    b.tail_cap = ints + 2 * X;
    for (int32_t x = 0; x < X; x++) {
        b.n_context[x] = n_context[x];
        b.tail_cap[x] = host_slots[x].tail.cap;
    }
    kve_status st = m->be->vt->alloc(m->be, (size_t)X * sizeof *b.slots, &b.slots);
    if (st == KVE_OK)
        st = m->be->vt->write(m->be, b.slots, host_slots, (size_t)X * sizeof *b.slots);
    if (st != KVE_OK)
        kve_batch_free(m, &b);
    else
        *out = b;
    return st;
}

void kve_batch_free(const kve_model *m, kve_batch *b)
{
    m->be->vt->free(m->be, b->slots);
    free(b->tail_len);
    *b = (kve_batch){0};
}

static kve_status stage_forks(kve_session *s, const kve_batch *b, const int32_t *ids, const int32_t *q_len,
                              int32_t *out_T)
{
    int32_t T = 0;
    for (int32_t x = 0; x < b->X; x++) {
        s->host_row[x] = T;
        if (q_len[x] > s->opt.chunk - T || q_len[x] > b->tail_cap[x] - b->tail_len[x])
            return kve_fail(KVE_ERR_USAGE,
                            "fork %d: %d more tokens fit neither %d free rows nor its tail (%d of %d used)", x,
                            q_len[x], s->opt.chunk - T, b->tail_len[x], b->tail_cap[x]);
        for (int32_t i = 0; i < q_len[x]; i++, T++) {
            int32_t index = b->tail_len[x] + i;
            KVE_TRY(stage(s, T, ids[T], b->n_context[x] + index, x, index));
        }
    }
    *out_T = T;
    return KVE_OK;
}

kve_status kve_extend(kve_session *s, kve_batch *b, const int32_t *ids, const int32_t *q_len,
                      const kve_capture *capture)
{
    const kve_shape *d = &s->m->cfg.shape;
    kve_backend *be = s->m->be;
    size_t bytes = (size_t)b->X * sizeof(int32_t), row = (size_t)d->Hq * (size_t)d->D;
    int32_t T = 0;
    if (b->X > s->opt.max_forks)
        return kve_fail(KVE_ERR_USAGE, "%d forks exceed the %d that this session was opened for", b->X,
                        s->opt.max_forks);
    KVE_TRY(stage_forks(s, b, ids, q_len, &T));
    if (capture && T > capture->cap - capture->at)
        return kve_fail(KVE_ERR_USAGE, "%d future queries do not fit the capture (%d of %d used)", T, capture->at,
                        capture->cap);
    KVE_TRY(be->vt->write(be, s->row_of, s->host_row, bytes));
    KVE_TRY(be->vt->write(be, s->q_len, q_len, bytes));
    KVE_TRY(be->vt->write(be, s->tail_len, b->tail_len, bytes));
    pass p = {.T = T,
              .batch = b,
              .q_base = capture ? capture->q + (size_t)capture->at * row : s->q,
              .q_layer_stride = capture ? (size_t)capture->cap * row : 0};
    KVE_TRY(forward(s, &p));
    for (int32_t x = 0; x < b->X; x++)
        b->tail_len[x] += q_len[x];
    return KVE_OK;
}

/* Logits of rows[0 .. n_rows), n_rows <= LOGIT_ROWS, into s->logits. Contiguous rows are used where they lie. */
static kve_status head_rows(kve_session *s, const int32_t *rows, int32_t n_rows)
{
    kve_backend *be = s->m->be;
    size_t E = (size_t)s->m->cfg.shape.E;
    bool contiguous = true;
    for (int32_t i = 0; i < n_rows; i++) {
        if (rows[i] < 0 || rows[i] >= s->T)
            return kve_fail(KVE_ERR_USAGE, "row %d is outside the %d rows of the last forward", rows[i], s->T);
        contiguous = contiguous && rows[i] == rows[0] + i;
    }
    if (contiguous)
        return matmul(s, s->h + (size_t)rows[0] * E, s->m->head, NULL, s->logits, n_rows, false);
    for (int32_t i = 0; i < n_rows; i++)
        KVE_TRY(be->vt->read(be, s->host_rows + (size_t)i * E, s->h + (size_t)rows[i] * E, E * sizeof(float)));
    KVE_TRY(be->vt->write(be, s->picked, s->host_rows, (size_t)n_rows * E * sizeof(float)));
    return matmul(s, s->picked, s->m->head, NULL, s->logits, n_rows, false);
}

static int32_t slice(int32_t n_rows, int32_t at)
{
    return n_rows - at < LOGIT_ROWS ? n_rows - at : LOGIT_ROWS;
}

kve_status kve_next_tokens(kve_session *s, const int32_t *rows, int32_t n_rows, int32_t *next)
{
    kve_backend *be = s->m->be;
    for (int32_t at = 0; at < n_rows; at += LOGIT_ROWS) {
        int32_t count = slice(n_rows, at);
        KVE_TRY(head_rows(s, rows + at, count));
        kve_argmax_params p = {.logits = s->logits, .ids = s->out_ids, .T = count, .V = s->m->cfg.shape.V};
        KVE_TRY(be->vt->argmax(be, &p));
        KVE_TRY(be->vt->read(be, next + at, s->out_ids, (size_t)count * sizeof *next));
    }
    return KVE_OK;
}

kve_status kve_row_nll(kve_session *s, const int32_t *rows, const int32_t *target, int32_t n_rows, float *nll)
{
    kve_backend *be = s->m->be;
    for (int32_t at = 0; at < n_rows; at += LOGIT_ROWS) {
        int32_t count = slice(n_rows, at);
        KVE_TRY(head_rows(s, rows + at, count));
        KVE_TRY(be->vt->write(be, s->out_ids, target + at, (size_t)count * sizeof *target));
        kve_nll_params p = {
            .logits = s->logits, .target = s->out_ids, .nll = s->nll, .T = count, .V = s->m->cfg.shape.V};
        KVE_TRY(be->vt->nll(be, &p));
        KVE_TRY(be->vt->read(be, nll + at, s->nll, (size_t)count * sizeof *nll));
    }
    return KVE_OK;
}

kve_status kve_row_logits(kve_session *s, const int32_t *rows, int32_t n_rows, float *logits)
{
    size_t V = (size_t)s->m->cfg.shape.V;
    for (int32_t at = 0; at < n_rows; at += LOGIT_ROWS) {
        int32_t count = slice(n_rows, at);
        KVE_TRY(head_rows(s, rows + at, count));
        KVE_TRY(s->m->be->vt->read(s->m->be, logits + (size_t)at * V, s->logits, (size_t)count * V * sizeof(float)));
    }
    return KVE_OK;
}
