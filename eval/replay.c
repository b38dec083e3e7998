/* KVzip's second pass (arXiv 2505.23416): the model is asked to repeat the context and is fed the context itself; what
 * any of these tokens attends to is what a cache needs to bring its text back. The context is repeated in parts of
 * 2,048 tokens, or what the model's context still has room for; a part gives the scores of its own tokens. Unlike the
 * reference, which lets a part's tokens look at the sinks and at that part alone, the softmax runs over the whole
 * cache: up to 2,048 tokens the two are the same but for the template's opening, which counts as context here. */
#include "eval/evaluator_internal.h"

#include "host/base/clock.h"

enum { PART = 2048 };

static int32_t part_end(const sample_run *r, int32_t from)
{
    return r->n - from < r->replay_part ? r->n : from + r->replay_part;
}

static kve_status part_ids(const sample_run *r, int32_t from, kve_ids *ids)
{
    return kve_prompt_replay(r->e->tk, r->e->chat, &r->prompt.context, (size_t)from, (size_t)part_end(r, from), ids);
}

/* Tokens of a part: what the model's context has room for behind the cache and the instruction, 2,048 at the most; 0
 * where there is no room. */
static kve_status part_len(const sample_run *r, int32_t *len)
{
    const kve_config *c = &r->e->m->cfg;
    int32_t limit = c->sliding_window > 0 && c->sliding_window < c->max_context ? c->sliding_window : c->max_context;
    size_t n = (size_t)r->n;
    kve_ids first = {0}, later = {0};
    kve_status st = kve_prompt_replay(r->e->tk, r->e->chat, &r->prompt.context, 0, 0, &first);
    if (st == KVE_OK)
        st = kve_prompt_replay(r->e->tk, r->e->chat, &r->prompt.context, n, n, &later);
    int32_t room = limit - r->n - (int32_t)(first.len > later.len ? first.len : later.len);
    *len = room < 0 ? 0 : room < PART ? room : PART;
    *len = *len < r->n ? *len : r->n;
    kve_ids_free(&first);
    kve_ids_free(&later);
    return st;
}

kve_status replay_rows(sample_run *r, int32_t *rows)
{
    *rows = 0;
    if (!run_needs(r, KVE_NEED_REPLAY))
        return KVE_OK;
    KVE_TRY(part_len(r, &r->replay_part));
    for (int32_t from = 0; from < r->n && r->replay_part; from += r->replay_part) {
        kve_ids ids = {0};
        kve_status st = part_ids(r, from, &ids);
        *rows = (int32_t)ids.len > *rows ? (int32_t)ids.len : *rows;
        kve_ids_free(&ids);
        KVE_TRY(st);
    }
    return KVE_OK;
}

/* Feeds ids to a fork of the full context; its queries go to `capture`. */
static kve_status feed(const sample_run *r, kve_batch *b, const kve_ids *ids, kve_capture *capture)
{
    int32_t n = (int32_t)ids->len, chunk = r->e->opt.chunk;
    for (; capture->at < n;) {
        int32_t len = n - capture->at < chunk ? n - capture->at : chunk;
        KVE_TRY(kve_extend(r->e->session, b, ids->p + capture->at, &len, capture));
        capture->at += len;
    }
    return KVE_OK;
}

/* The part's own columns of every head, from `found` [Hkv][n] of one layer. */
static kve_status keep_part(const sample_run *r, const float *found, int32_t i_layer, int32_t from)
{
    int32_t len = part_end(r, from) - from, Hkv = r->e->m->cfg.shape.Hkv;
    for (int32_t h = 0; h < Hkv; h++) {
        size_t at = (size_t)h * (size_t)r->n + (size_t)from;
        float *to = r->replay + (size_t)i_layer * (size_t)Hkv * (size_t)r->n + at;
        KVE_TRY(r->e->m->be->vt->copy(r->e->m->be, to, found + at, (size_t)len * sizeof *to));
    }
    return KVE_OK;
}

static kve_status score_part(const sample_run *r, const kve_capture *capture, kve_kv tail, int32_t from, float *found)
{
    for (int32_t i = 0; i < r->e->m->cfg.shape.L; i++) {
        KVE_TRY(attention_of(r, capture, tail, i, true, found));
        KVE_TRY(keep_part(r, found, i, from));
    }
    return KVE_OK;
}

/* Everything that one part needs and gives back. */
typedef struct pass {
    kve_fork_slot slot;
    kve_batch batch;
    kve_capture capture;
    int32_t *lengths;
    float *found;
} pass;

static kve_status pass_open(const sample_run *r, int32_t rows, pass *p)
{
    const kve_model *m = r->e->m;
    const kve_shape *d = &m->cfg.shape;
    size_t floats = (size_t)d->L * (size_t)rows * (size_t)d->Hq * (size_t)d->D;
    int32_t n = r->n;
    p->capture.cap = rows;
    p->slot.prefix = r->ctx.kv;
    KVE_TRY(kve_uniform_lengths(m, n, n, &p->lengths));
    p->slot.prefix_len = p->lengths;
    KVE_TRY(kve_kv_alloc(m, rows, &p->slot.tail));
    KVE_TRY(kve_batch_alloc(m, &p->slot, &n, 1, &p->batch));
    KVE_TRY(m->be->vt->alloc(m->be, floats * sizeof(float), &p->capture.q));
    return m->be->vt->alloc(m->be, (size_t)d->Hkv * (size_t)n * sizeof(float), &p->found);
}

static void pass_close(const sample_run *r, pass *p)
{
    const kve_model *m = r->e->m;
    m->be->vt->free(m->be, p->found);
    m->be->vt->free(m->be, p->capture.q);
    kve_batch_free(m, &p->batch);
    kve_kv_free(m, &p->slot.tail);
    m->be->vt->free(m->be, p->lengths);
}

static kve_status run_part(const sample_run *r, int32_t from)
{
    kve_ids ids = {0};
    pass p = {0};
    kve_status st = part_ids(r, from, &ids);
    if (st == KVE_OK)
        st = pass_open(r, (int32_t)ids.len, &p);
    if (st == KVE_OK)
        st = feed(r, &p.batch, &ids, &p.capture);
    if (st == KVE_OK)
        st = score_part(r, &p.capture, p.slot.tail, from, p.found);
    pass_close(r, &p);
    kve_ids_free(&ids);
    return st;
}

kve_status run_replay(sample_run *r)
{
    const kve_model *m = r->e->m;
    if (!r->replay_part) /* nobody asks, or there is no room: the policy will be refused */
        return KVE_OK;
    KVE_TRY(m->be->vt->alloc(m->be, run_heads(r) * (size_t)r->n * sizeof(float), &r->replay));
    kve_range_push(m->be, "replay");
    int64_t start = kve_now_us();
    kve_status st = KVE_OK;
    for (int32_t from = 0; from < r->n && st == KVE_OK; from += r->replay_part)
        st = run_part(r, from);
    r->replay_us = kve_now_us() - start;
    kve_range_pop(m->be);
    return st;
}
