/* Greedy steps. Contract: step.h. */
#include "host/engine/step.h"

#include "host/base/mem.h"
#include "host/engine/session_internal.h"

#include <stdlib.h>
#include <string.h>

static kve_status stage_rows(kve_steps *w, const int32_t *fork_of, const int32_t *ids)
{
    kve_session *s = w->s;
    kve_backend *be = s->m->be;
    const kve_batch *b = w->batch;
    size_t bytes = (size_t)b->X * sizeof(int32_t);
    int32_t *q_len = w->host;
    memset(q_len, 0, bytes);
    memset(s->host_row, 0, bytes);
    for (int32_t t = 0; t < w->T; t++) {
        int32_t x = fork_of[t];
        q_len[x] = 1;
        s->host_row[x] = t;
        KVE_TRY(session_stage(s, t, ids[t], b->n_context[x] + b->tail_len[x], x, b->tail_len[x]));
    }
    KVE_TRY(be->vt->write(be, s->row_of, s->host_row, bytes));
    KVE_TRY(be->vt->write(be, s->q_len, q_len, bytes));
    KVE_TRY(be->vt->write(be, s->tail_len, b->tail_len, bytes));
    return session_upload(s, w->T);
}

kve_status kve_steps_begin(kve_session *s, kve_batch *b, const int32_t *fork_of, const int32_t *ids, int32_t T,
                           kve_steps *out)
{
    size_t X = (size_t)b->X;
    *out = (kve_steps){.s = s, .batch = b, .T = T};
    if (b->X > s->opt.max_forks)
        return kve_fail(KVE_ERR_USAGE, "%d forks exceed the %d that this session was opened for", b->X,
                        s->opt.max_forks);
    KVE_TRY(kve_alloc(2 * X, sizeof *out->host, &out->host));
    memcpy(out->host + X, fork_of, (size_t)T * sizeof *fork_of);
    kve_status st = stage_rows(out, fork_of, ids);
    if (st != KVE_OK)
        kve_steps_end(out);
    return st;
}

int32_t kve_steps_at_once(const kve_session *s, const kve_capture *capture)
{
    return s->m->be->vt->graph_begin && !capture ? STEP_LOG : 1;
}

static kve_status step(kve_steps *w, const kve_capture *capture)
{
    kve_session *s = w->s;
    const kve_shape *d = &s->m->cfg.shape;
    kve_backend *be = s->m->be;
    size_t row = (size_t)d->Hq * (size_t)d->D;
    session_pass p = {.T = w->T,
                      .batch = w->batch,
                      .q_base = capture ? capture->q + (size_t)capture->at * row : s->q,
                      .q_layer_stride = capture ? (size_t)capture->cap * row : 0};
    KVE_TRY(session_forward(s, &p));
    for (int32_t at = 0; at < w->T; at += LOGIT_ROWS) {
        int32_t count = w->T - at < LOGIT_ROWS ? w->T - at : LOGIT_ROWS;
        kve_argmax_params a = {.logits = s->logits, .ids = s->next + at, .T = count, .V = d->V};
        KVE_TRY(session_matmul(s, s->h + (size_t)at * (size_t)d->E, s->m->head, NULL, s->logits, count, false));
        KVE_TRY(be->vt->argmax(be, &a));
    }
    kve_advance_params next = {.next = s->next,
                               .slot_of = s->slot_of,
                               .ids = s->ids,
                               .pos_of = s->pos,
                               .index_of = s->index_of,
                               .tail_len = s->tail_len,
                               .log = s->log,
                               .n_logged = s->n_logged,
                               .T = w->T,
                               .log_cap = STEP_LOG};
    return be->vt->advance(be, &next);
}

/* The first step of a shape runs by itself, so that every scratch memory has its size; the second is recorded. */
static kve_status step_or_repeat(kve_steps *w, bool first)
{
    kve_backend *be = w->s->m->be;
    if (first || !be->vt->graph_begin)
        return step(w, NULL);
    if (!w->graph) {
        KVE_TRY(be->vt->graph_begin(be));
        kve_status st = step(w, NULL), ended = be->vt->graph_end(be, &w->graph);
        KVE_TRY(st);
        KVE_TRY(ended);
    }
    return be->vt->graph_launch(be, w->graph);
}

kve_status kve_steps_run(kve_steps *w, int32_t n, kve_capture *capture, int32_t *out)
{
    kve_session *s = w->s;
    kve_batch *b = w->batch;
    kve_backend *be = s->m->be;
    const int32_t zero = 0, *fork_of = w->host + b->X;
    for (int32_t t = 0; t < w->T; t++)
        if (n > b->tail_cap[fork_of[t]] - b->tail_len[fork_of[t]])
            return kve_fail(KVE_ERR_USAGE, "fork %d: %d more tokens do not fit its tail (%d of %d used)", fork_of[t], n,
                            b->tail_len[fork_of[t]], b->tail_cap[fork_of[t]]);
    if (capture && (w->T != 1 || n > capture->cap - capture->at))
        return kve_fail(KVE_ERR_USAGE, "%d forks, %d future queries: one fork with room is due (%d of %d used)", w->T,
                        n, capture->at, capture->cap);
    KVE_TRY(be->vt->write(be, s->n_logged, &zero, sizeof zero));
    for (int32_t i = 0; i < n; i++) {
        kve_range_push(be, "step");
        kve_status st = capture ? step(w, capture) : step_or_repeat(w, !w->started);
        kve_range_pop(be);
        KVE_TRY(st);
        w->started = true;
        if (capture)
            capture->at++;
    }
    for (int32_t t = 0; t < w->T; t++)
        b->tail_len[fork_of[t]] += n;
    return be->vt->read(be, out, s->log, (size_t)n * (size_t)w->T * sizeof *out);
}

void kve_steps_end(kve_steps *w)
{
    if (w->graph)
        w->s->m->be->vt->graph_free(w->s->m->be, w->graph);
    free(w->host);
    *w = (kve_steps){0};
}
