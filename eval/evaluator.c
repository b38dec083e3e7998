/* The flow of one sample: prompt, session, prefill, full cache, forks, records. Contract: evaluator.h. */
#include "eval/evaluator_internal.h"

#include "host/base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

kve_status kve_evaluator_open(const kve_model *m, const kve_tokenizer *tk, const kve_chat *chat,
                              const kve_eval_options *opt, kve_evaluator **out)
{
    kve_evaluator *e = NULL;
    KVE_TRY(kve_alloc(1, sizeof *e, &e));
    *e = (kve_evaluator){.m = m, .tk = tk, .chat = chat, .opt = *opt};
    *out = e;
    return KVE_OK;
}

void kve_evaluator_close(kve_evaluator *e)
{
    if (!e)
        return;
    kve_session_close(e->session);
    free(e);
}

/* A session is kept for the next sample unless that one is longer, or the model's RoPE depends on the length. */
static kve_status ensure_session(kve_evaluator *e, int32_t positions)
{
    bool by_length = e->m->cfg.rope_scaling == KVE_ROPE_LONGROPE;
    if (e->session && positions <= e->max_positions && !(by_length && positions != e->max_positions))
        return KVE_OK;
    kve_session_close(e->session);
    e->session = NULL;
    kve_session_options opt = {.chunk = e->opt.chunk, .max_forks = e->opt.chunk, .max_positions = positions};
    KVE_TRY(kve_session_open(e->m, &opt, &e->session));
    e->max_positions = positions;
    return KVE_OK;
}

static kve_status prefill(sample_run *r)
{
    kve_evaluator *e = r->e;
    KVE_TRY(kve_context_alloc(e->m, r->n, &r->ctx));
    if (e->opt.all_queries || run_needs(r, KVE_NEED_QUERIES))
        KVE_TRY(kve_context_queries(e->m, &r->ctx));
    r->prefills_before = kve_session_prefills(e->session);
    int64_t start = kve_now_us();
    KVE_TRY(kve_prefill(e->session, r->prompt.context.p, r->n, &r->ctx));
    r->prefill_us = kve_now_us() - start;
    if (r->s->metric == KVE_METRIC_NLL) {
        int32_t last = r->ctx.W - 1; /* the last W tokens were the last chunk */
        KVE_TRY(kve_row_nll(e->session, &last, r->prompt.tail.p, 1, &r->first_nll));
    }
    return KVE_OK;
}

bool run_needs(const sample_run *r, unsigned needs)
{
    for (size_t i = 0; i < r->n_cells; i++)
        if (!cell_keeps_all(r, &r->cells[i]) && (r->cells[i].policy->needs & needs))
            return true;
    return false;
}

/* For policies that turn keys and queries back. */
static kve_status rope_tables(sample_run *r)
{
    kve_scoring s = {0};
    KVE_TRY(kve_scoring_tables(r->e->m, r->n, r->e->max_positions, r->arena, &s));
    r->cos = s.cos;
    r->sin = s.sin;
    return KVE_OK;
}

static kve_status compute(sample_run *r)
{
    bool alone = r->e->opt.reward, any_full = false;
    for (size_t i = 0; i < r->n_cells; i++) {
        any_full = any_full || cell_keeps_all(r, &r->cells[i]);
        alone = alone || (!cell_keeps_all(r, &r->cells[i]) && (r->cells[i].policy->needs & KVE_NEED_FUTURE));
    }
    KVE_TRY(prefill(r));
    if (run_needs(r, KVE_NEED_ROTATION))
        KVE_TRY(rope_tables(r));
    KVE_TRY(run_replay(r));
    if (alone)
        KVE_TRY(run_full_alone(r));
    KVE_TRY(run_forks(r, any_full && !alone));
    return fill_records(r);
}

static kve_status alloc_logliks(sample_run *r)
{
    size_t n = r->s->n_choices;
    for (size_t i = 0; n && i < r->n_cells; i++)
        KVE_TRY(kve_arena_alloc(r->arena, n, sizeof *r->answers[i].loglik, &r->answers[i].loglik));
    return n ? kve_arena_alloc(r->arena, n, sizeof *r->full.loglik, &r->full.loglik) : KVE_OK;
}

/* The texts that forks are fed and scored on. */
static kve_status make_scripts(sample_run *r)
{
    const kve_ids *tail = &r->prompt.tail;
    r->n_scripts = r->s->n_choices ? r->s->n_choices : 1;
    if (!r->teacher)
        return KVE_OK;
    KVE_TRY(kve_arena_alloc(r->arena, r->n_scripts, sizeof *r->scripts, &r->scripts));
    for (size_t c = 0; c < r->n_scripts; c++) {
        const kve_ids *choice = r->s->n_choices ? &r->prompt.choices[c] : NULL;
        size_t n = tail->len + (choice ? choice->len : 0);
        int32_t *ids = NULL;
        KVE_TRY(kve_arena_alloc(r->arena, n, sizeof *ids, &ids));
        memcpy(ids, tail->p, tail->len * sizeof *ids);
        if (choice)
            memcpy(ids + tail->len, choice->p, choice->len * sizeof *ids);
        r->scripts[c] = (script){ids, (int32_t)n};
    }
    return KVE_OK;
}

static kve_status open_session(sample_run *r)
{
    int32_t tail = tail_rows(r), replay;
    KVE_TRY(replay_rows(r, &replay));
    kve_status st = ensure_session(r->e, r->n + (tail > replay ? tail : replay));
    return st != KVE_OK && r->s->source ? kve_fail_context(st, "%s", r->s->source) : st;
}

static kve_status prepare(sample_run *r)
{
    kve_str name = {0};
    KVE_TRY(kve_str_printf(&name, "%s/%s", r->s->task, r->s->id));
    kve_status st = kve_arena_strndup(r->arena, name.p, name.len, &r->name);
    kve_str_free(&name);
    if (st == KVE_OK)
        st = kve_arena_alloc(r->arena, r->n_cells, sizeof *r->answers, &r->answers);
    if (st == KVE_OK)
        st = kve_arena_alloc(r->arena, r->n_cells, sizeof(ranking *), &r->rankings);
    if (st == KVE_OK)
        st = kve_prompt_make(r->e->tk, r->e->chat, r->s, r->e->opt.question_in, &r->prompt);
    if (st != KVE_OK)
        return st;
    r->n = (int32_t)r->prompt.context.len;
    r->teacher = r->s->metric == KVE_METRIC_NLL || r->s->n_choices;
    KVE_TRY(make_scripts(r));
    KVE_TRY(alloc_logliks(r));
    return open_session(r);
}

kve_status kve_evaluator_prompt(const kve_evaluator *e, const kve_sample *s, char sha256[KVE_SHA256_HEX])
{
    kve_prompt p;
    KVE_TRY(kve_prompt_make(e->tk, e->chat, s, e->opt.question_in, &p));
    memcpy(sha256, p.sha256, KVE_SHA256_HEX);
    kve_prompt_free(&p);
    return KVE_OK;
}

static void run_close(sample_run *r)
{
    r->e->m->be->vt->free(r->e->m->be, r->importance);
    r->e->m->be->vt->free(r->e->m->be, r->replay);
    kve_context_free(r->e->m, &r->ctx);
    kve_prompt_free(&r->prompt);
}

kve_status kve_evaluate(kve_evaluator *e, const kve_sample *s, const kve_cell *cells, size_t n_cells, kve_arena *arena,
                        kve_record *records)
{
    sample_run r = {.e = e, .s = s, .arena = arena, .cells = cells, .n_cells = n_cells, .records = records};
    kve_status st = prepare(&r);
    if (st == KVE_OK) {
        kve_range_push(e->m->be, r.name);
        st = compute(&r);
        kve_range_pop(e->m->be);
    }
    run_close(&r);
    return st;
}

kve_status kve_observe(kve_evaluator *e, const kve_sample *s, kve_observer observer, void *ctx)
{
    kve_arena arena = {0};
    sample_run r = {.e = e, .s = s, .arena = &arena};
    kve_status st = prepare(&r);
    if (st == KVE_OK)
        st = prefill(&r);
    if (st == KVE_OK)
        st = rope_tables(&r);
    if (st == KVE_OK)
        st = run_full_alone(&r);
    if (st == KVE_OK) {
        kve_observation seen = {.m = e->m,
                                .name = r.name,
                                .prompt_sha256 = r.prompt.sha256,
                                .tokens = r.prompt.context.p,
                                .ctx = &r.ctx,
                                .importance = r.host_importance,
                                .cos = r.cos,
                                .sin = r.sin,
                                .n_future = r.n_future};
        st = observer(ctx, &seen);
    }
    run_close(&r);
    kve_arena_free(&arena);
    return st;
}
