/* The session's scratch and RoPE tables. Letters: host/shape.h. */
#include "host/engine/session_internal.h"

#include "host/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* The session's device memory: what is allocated, and what a plan counts. */
typedef struct scratch_item {
    void *out; /* the pointer to set */
    size_t n, size;
} scratch_item;

enum { MAX_SCRATCH = 24 };

static size_t list_scratch(const kve_shape *d, const kve_session_options *o, kve_session *s, scratch_item *items)
{
    size_t T = (size_t)o->chunk, X = (size_t)o->max_forks, qd = (size_t)d->Hq * (size_t)d->D, f = sizeof(float);
    size_t qkvd = qd + 2 * (size_t)d->Hkv * (size_t)d->D, E = (size_t)d->E, F = (size_t)d->F, V = (size_t)d->V;
    size_t table = (size_t)o->max_positions * (size_t)d->R / 2, i32 = sizeof(int32_t), n = 0;
    const scratch_item list[] = {{&s->cos, table, f},
                                 {&s->sin, table, f},
                                 {&s->x, T * E, f},
                                 {&s->h, T * E, f},
                                 {&s->qkv, T * qkvd, f},
                                 {&s->q, T * qd, f},
                                 {&s->att, T * qd, f},
                                 {&s->gate_up, T * 2 * F, f},
                                 {&s->act, T * F, f},
                                 {&s->picked, LOGIT_ROWS * E, f},
                                 {&s->logits, LOGIT_ROWS * V, f},
                                 {&s->nll, LOGIT_ROWS, f},
                                 {&s->ids, T, i32},
                                 {&s->pos, T, i32},
                                 {&s->slot_of, T, i32},
                                 {&s->index_of, T, i32},
                                 {&s->row_of, X, i32},
                                 {&s->q_len, X, i32},
                                 {&s->tail_len, X, i32},
                                 {&s->out_ids, LOGIT_ROWS, i32},
                                 {&s->next, X, i32},
                                 {&s->log, STEP_LOG * X, i32},
                                 {&s->n_logged, 1, i32},
                                 {&s->ctx_slot, 1, sizeof *s->ctx_slot}};
    for (; n < sizeof list / sizeof *list; n++)
        items[n] = list[n];
    return n;
}

size_t kve_session_bytes(const kve_shape *d, const kve_session_options *opt)
{
    kve_session none;
    scratch_item items[MAX_SCRATCH];
    size_t bytes = 0;
    for (size_t i = list_scratch(d, opt, &none, items); i-- > 0;)
        bytes += items[i].n * items[i].size;
    return bytes;
}

static kve_status alloc_scratch(kve_session *s)
{
    kve_backend *be = s->m->be;
    scratch_item items[MAX_SCRATCH];
    size_t n = list_scratch(&s->m->cfg.shape, &s->opt, s, items);
    for (size_t i = 0; i < n; i++)
        KVE_TRY(be->vt->alloc(be, items[i].n * items[i].size, items[i].out));
    KVE_TRY(kve_alloc(4 * (size_t)s->opt.chunk, sizeof *s->host_i, &s->host_i));
    KVE_TRY(kve_alloc((size_t)s->opt.max_forks, sizeof *s->host_row, &s->host_row));
    return kve_alloc(LOGIT_ROWS * (size_t)s->m->cfg.shape.E, sizeof *s->host_rows, &s->host_rows);
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
    scratch_item items[MAX_SCRATCH];
    for (size_t i = list_scratch(&s->m->cfg.shape, &s->opt, s, items); i-- > 0;) {
        void *p;
        memcpy(&p, items[i].out, sizeof p);
        s->m->be->vt->free(s->m->be, p);
    }
    free(s->host_i);
    free(s->host_row);
    free(s->host_rows);
    free(s);
}

int64_t kve_session_prefills(const kve_session *s)
{
    return s->n_prefills;
}
