/* The layer loop; prefill and extend. Letters: host/shape.h. */
#include "host/engine/session_internal.h"

#include "host/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static kve_status attend(kve_session *s, const session_pass *p, int32_t i_layer, const float *q)
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
                                   .max_prefix = p->batch->max_prefix,
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

kve_status session_matmul(kve_session *s, const float *x, const kve_weight *w, const float *bias, float *y, int32_t T,
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

static kve_status run_layer(kve_session *s, const session_pass *p, int32_t i_layer)
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
    KVE_TRY(session_matmul(s, s->h, w->qkv, w->qkv_bias, s->qkv, p->T, false));
    KVE_TRY(be->vt->rope_append(be, &rope));
    KVE_TRY(attend(s, p, i_layer, q));
    KVE_TRY(session_matmul(s, s->att, w->o, NULL, s->x, p->T, true));
    KVE_TRY(norm(s, w->ffn_norm, p->T));
    KVE_TRY(session_matmul(s, s->h, w->gate_up, NULL, s->gate_up, p->T, false));
    KVE_TRY(be->vt->glu(be, &glu));
    return session_matmul(s, s->act, w->down, NULL, s->x, p->T, true);
}

kve_status session_upload(kve_session *s, int32_t T)
{
    size_t chunk = (size_t)s->opt.chunk, bytes = (size_t)T * sizeof(int32_t);
    int32_t *device[] = {s->ids, s->pos, s->slot_of, s->index_of};
    for (size_t i = 0; i < 4; i++)
        KVE_TRY(s->m->be->vt->write(s->m->be, device[i], s->host_i + i * chunk, bytes));
    return KVE_OK;
}

kve_status session_forward(kve_session *s, const session_pass *p)
{
    kve_embed_params e = {.ids = s->ids, .table = s->m->embed, .out = s->x, .T = p->T, .E = s->m->cfg.shape.E};
    KVE_TRY(s->m->be->vt->embed(s->m->be, &e));
    for (int32_t i = 0; i < s->m->cfg.shape.L; i++) {
        char name[24];
        snprintf(name, sizeof name, "layer %d", i);
        kve_range_push(s->m->be, name);
        kve_status st = run_layer(s, p, i);
        kve_range_pop(s->m->be);
        KVE_TRY(st);
    }
    s->T = p->T;
    return norm(s, s->m->final_norm, p->T);
}

kve_status session_stage(kve_session *s, int32_t row, int32_t id, int32_t pos, int32_t slot, int32_t index)
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

/* Where the queries of a chunk go. Those of all tokens, if the context wants them; the window is copied out later. */
static void place_queries(const kve_session *s, const kve_context *ctx, bool last, session_pass *p)
{
    size_t row = (size_t)s->m->cfg.shape.Hq * (size_t)s->m->cfg.shape.D;
    if (ctx->q) {
        p->q_base = ctx->q + (size_t)p->start * row;
        p->q_layer_stride = (size_t)ctx->kv.cap * row;
    } else {
        p->q_base = last ? ctx->q_window : s->q;
        p->q_layer_stride = last ? (size_t)ctx->W * row : 0;
    }
}

static kve_status copy_window(const kve_session *s, int32_t n, const kve_context *ctx)
{
    size_t row = (size_t)s->m->cfg.shape.Hq * (size_t)s->m->cfg.shape.D, W = (size_t)ctx->W;
    for (size_t i = 0; i < (size_t)s->m->cfg.shape.L; i++)
        KVE_TRY(s->m->be->vt->copy(s->m->be, ctx->q_window + i * W * row,
                                   ctx->q + (i * (size_t)ctx->kv.cap + (size_t)n - W) * row, W * row * sizeof(float)));
    return KVE_OK;
}

static kve_status prefill(kve_session *s, const int32_t *ids, int32_t n, kve_context *ctx)
{
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
            KVE_TRY(session_stage(s, t, ids[start + t], start + t, 0, start + t));
        session_pass p = {.T = T, .start = start, .ctx = ctx};
        place_queries(s, ctx, last, &p);
        KVE_TRY(session_upload(s, T));
        KVE_TRY(session_forward(s, &p));
        start += T;
    }
    ctx->n = n;
    s->n_prefills++;
    if (ctx->q)
        KVE_TRY(copy_window(s, n, ctx));
    return be->vt->sync(be);
}

kve_status kve_prefill(kve_session *s, const int32_t *ids, int32_t n, kve_context *ctx)
{
    kve_range_push(s->m->be, "prefill");
    kve_status st = prefill(s, ids, n, ctx);
    kve_range_pop(s->m->be);
    return st;
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
        b.max_prefix = host_slots[x].prefix.cap > b.max_prefix ? host_slots[x].prefix.cap : b.max_prefix;
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

kve_status kve_batch_room(kve_batch *b, int32_t x, int32_t *most, bool *made)
{
    if (!b->make_room)
        return KVE_OK;
    if (b->tail_len[x] == b->tail_cap[x]) {
        KVE_TRY(b->make_room(b->room_ctx, b, x));
        *made = true;
    }
    int32_t room = b->tail_cap[x] - b->tail_len[x];
    if (room < 1)
        return kve_fail(KVE_ERR_INTERNAL, "fork %d: its tail of %d rows is still full after an eviction", x,
                        b->tail_cap[x]);
    *most = room < *most ? room : *most;
    return KVE_OK;
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
            KVE_TRY(session_stage(s, T, ids[T], b->n_context[x] + index, x, index));
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
    session_pass p = {.T = T,
                      .batch = b,
                      .q_base = capture ? capture->q + (size_t)capture->at * row : s->q,
                      .q_layer_stride = capture ? (size_t)capture->cap * row : 0};
    KVE_TRY(session_upload(s, T));
    KVE_TRY(session_forward(s, &p));
    for (int32_t x = 0; x < b->X; x++)
        b->tail_len[x] += q_len[x];
    return KVE_OK;
}
