/* Rankings and forks of one sample: the full cache alone (whose queries are the future), then every policy's ranked
 * cache with one fork per budget and choice, all decoded together. */
#include "eval/evaluator_internal.h"
#include "eval/reward.h"

#include "host/base/clock.h"
#include "host/base/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a fork answers: a cell, or one choice of it. */
typedef struct part {
    answer *answer;
    size_t i_script;
    const kve_cell *cell; /* of a fork that evicts while it is decoded, else NULL */
    int32_t n_evictions;
} part;

/* The forks of one batch. */
typedef struct group {
    kve_ranked *ranked; /* [n_ranked] */
    size_t n_ranked;
    kve_fork_slot *slots;
    int32_t **lengths; /* device; NULL where the fork before has the same */
    part *parts;
    int32_t *n_context;
    size_t rolling_bytes; /* caches of forks that evict */
    int32_t X;
} group;

static kve_status group_alloc(const sample_run *r, group *g)
{
    size_t cells = r->n_cells + 1, most = cells * r->n_scripts;
    *g = (group){0};
    KVE_TRY(kve_arena_alloc(r->arena, cells, sizeof *g->ranked, &g->ranked));
    KVE_TRY(kve_arena_alloc(r->arena, most, sizeof(kve_fork_slot), &g->slots));
    KVE_TRY(kve_arena_alloc(r->arena, most, sizeof *g->lengths, &g->lengths));
    KVE_TRY(kve_arena_alloc(r->arena, most, sizeof *g->parts, &g->parts));
    return kve_arena_alloc(r->arena, most, sizeof *g->n_context, &g->n_context);
}

static void drop_forks(const sample_run *r, group *g)
{
    const kve_model *m = r->e->m;
    for (int32_t x = 0; x < g->X; x++) {
        kve_kv_free(m, &g->slots[x].tail);
        m->be->vt->free(m->be, g->lengths[x]);
    }
    g->rolling_bytes = 0;
    g->X = 0;
}

static void group_free(const sample_run *r, group *g)
{
    drop_forks(r, g);
    for (size_t i = 0; i < g->n_ranked; i++)
        kve_ranked_free(r->e->m, &g->ranked[i]);
    g->n_ranked = 0;
}

/* Reads the lengths back: what is recorded as kept is what attention will see. */
static kve_status check_lengths(const sample_run *r, const int32_t *device, const int32_t *expected, answer *a)
{
    const kve_model *m = r->e->m;
    size_t heads = run_heads(r);
    int32_t *host = NULL;
    KVE_TRY(kve_arena_alloc(r->arena, heads, sizeof *host, &host));
    KVE_TRY(m->be->vt->read(m->be, host, device, heads * sizeof *host));
    a->kept_min = a->kept_max = host[0];
    a->kept_rows = 0;
    for (size_t i = 0; i < heads; i++) {
        a->kept_min = host[i] < a->kept_min ? host[i] : a->kept_min;
        a->kept_max = host[i] > a->kept_max ? host[i] : a->kept_max;
        a->kept_rows += host[i];
        if (host[i] != expected[i])
            return kve_fail(KVE_ERR_INTERNAL, "an eviction kept %d tokens in head row %zu instead of %d", host[i], i,
                            expected[i]);
    }
    return KVE_OK;
}

/* lengths: host [L Hkv]. */
static kve_status add_fork(const sample_run *r, group *g, kve_kv prefix, const int32_t *lengths, part p)
{
    const kve_model *m = r->e->m;
    int32_t x = g->X;
    bool shared = x && g->parts[x - 1].answer == p.answer;
    g->slots[x] = (kve_fork_slot){.prefix = prefix};
    g->lengths[x] = NULL;
    g->parts[x] = p;
    g->n_context[x] = r->n;
    if (!shared)
        KVE_TRY(kve_upload_lengths(m, lengths, &g->lengths[x]));
    g->X++;
    g->slots[x].prefix_len = shared ? g->slots[x - 1].prefix_len : g->lengths[x];
    KVE_TRY(kve_kv_alloc(m, tail_rows(r), &g->slots[x].tail));
    return shared ? KVE_OK : check_lengths(r, g->lengths[x], lengths, p.answer);
}

/* A fork with a cache of its own, which is all tail: it begins with the first ranks of `order`, host [L][Hkv][n]. */
static kve_status add_rolling_fork(const sample_run *r, group *g, const int32_t *order, part p)
{
    const kve_model *m = r->e->m;
    int32_t x = g->X, kept = rolling_kept(r, p.cell);
    g->slots[x] = (kve_fork_slot){0};
    g->lengths[x] = NULL;
    g->parts[x] = p;
    g->n_context[x] = r->n - kept;
    KVE_TRY(kve_uniform_lengths(m, 0, 0, &g->lengths[x]));
    g->X++;
    g->slots[x].prefix_len = g->lengths[x];
    KVE_TRY(kve_kv_alloc(m, rolling_rows(r, p.cell), &g->slots[x].tail));
    KVE_TRY(rolling_fill(r, p.cell, order, g->slots[x].tail));
    p.answer->kept_min = p.answer->kept_max = kept;
    p.answer->kept_rows = (int64_t)run_heads(r) * kept;
    return KVE_OK;
}

/* A fork's own cache is full and another token is to come. */
typedef struct rolling {
    const sample_run *r;
    group *g;
} rolling;

static kve_status make_room(void *ctx, kve_batch *b, int32_t x)
{
    const rolling *w = ctx;
    part *p = &w->g->parts[x];
    if (!p->cell)
        return kve_fail(KVE_ERR_INTERNAL, "fork %d evicts nothing, and its tail of %d rows is full", x, b->tail_cap[x]);
    int32_t budget = (int32_t)p->cell->budget;
    KVE_TRY(rolling_evict(w->r, p->cell, w->g->slots[x].tail, b->tail_len[x], p->n_evictions));
    b->n_context[x] += b->tail_len[x] - budget;
    b->tail_len[x] = budget;
    p->n_evictions++;
    if (p->answer->n_evictions < p->n_evictions)
        p->answer->n_evictions = p->n_evictions;
    return KVE_OK;
}

static void set_rolling(rolling *w, kve_batch *b)
{
    b->make_room = make_room;
    b->room_ctx = w;
    for (int32_t x = 0; x < b->X; x++)
        if (w->g->parts[x].cell)
            b->tail_len[x] = rolling_kept(w->r, w->g->parts[x].cell);
}

static kve_status full_lengths(const sample_run *r, int32_t **out)
{
    KVE_TRY(kve_arena_alloc(r->arena, run_heads(r), sizeof **out, out));
    for (size_t h = 0; h < run_heads(r); h++)
        (*out)[h] = r->n;
    return KVE_OK;
}

/* The log-likelihood of what the fork is scored on: all of a window's tail, or the choice's tokens. */
static kve_status take_nll(const sample_run *r, const part *p, const float *nll)
{
    bool choices = r->s->n_choices > 0;
    int32_t n_tail = (int32_t)r->prompt.tail.len, n = r->scripts[p->i_script].n;
    double sum = choices ? 0 : (double)r->first_nll;
    for (int32_t i = choices ? n_tail - 1 : 0; i < n - 1; i++)
        sum += (double)nll[i];
    if (!isfinite(sum))
        return kve_fail(KVE_ERR_INTERNAL,
                        "the log-likelihood of the tokens after the cut is %g; are the weights damaged?", sum);
    if (choices) {
        p->answer->loglik[p->i_script] = -sum;
    } else {
        p->answer->nll_sum = sum;
        p->answer->n_scored = n;
    }
    return KVE_OK;
}

static kve_status run_teacher(const sample_run *r, kve_batch *b, kve_capture *capture, const part *parts)
{
    size_t X = (size_t)b->X, rows = (size_t)tail_rows(r);
    kve_tail *tails = NULL;
    float *nll = NULL;
    KVE_TRY(kve_alloc(X, sizeof *tails, &tails));
    kve_status st = kve_alloc(X * rows, sizeof *nll, &nll);
    for (size_t x = 0; x < X && st == KVE_OK; x++) {
        const script *s = &r->scripts[parts[x].i_script];
        tails[x] = (kve_tail){s->ids, s->n, nll + x * rows};
    }
    if (st == KVE_OK)
        st = kve_score_tails(r->e->session, b, tails, r->e->opt.chunk, capture);
    for (size_t x = 0; x < X && st == KVE_OK; x++)
        st = take_nll(r, &parts[x], tails[x].nll);
    free(nll);
    free(tails);
    return st;
}

static kve_status run_greedy(const sample_run *r, kve_batch *b, kve_capture *capture, const part *parts)
{
    int32_t max_new = (int32_t)r->s->max_new_tokens, *ids = NULL, *n_out = NULL;
    KVE_TRY(kve_arena_alloc(r->arena, (size_t)b->X * (size_t)max_new, sizeof *ids, &ids));
    KVE_TRY(kve_arena_alloc(r->arena, (size_t)b->X, sizeof *n_out, &n_out));
    KVE_TRY(kve_decode_greedy(r->e->session, r->e->m, b, r->prompt.tail.p, (int32_t)r->prompt.tail.len, max_new,
                              r->e->opt.chunk, capture, ids, n_out));
    for (int32_t x = 0; x < b->X; x++) {
        parts[x].answer->ids = ids + (size_t)x * (size_t)max_new;
        parts[x].answer->n = n_out[x];
    }
    return KVE_OK;
}

static kve_status decode_group(const sample_run *r, group *g, kve_capture *capture)
{
    const kve_model *m = r->e->m;
    kve_batch b = {0};
    rolling w = {r, g};
    int64_t start = kve_now_us();
    KVE_TRY(kve_batch_alloc(m, g->slots, g->n_context, g->X, &b));
    if (r->e->opt.evict_every)
        set_rolling(&w, &b);
    kve_range_push(m->be, "decode");
    kve_status st = r->teacher ? run_teacher(r, &b, capture, g->parts) : run_greedy(r, &b, capture, g->parts);
    if (st == KVE_OK)
        st = m->be->vt->sync(m->be);
    kve_range_pop(m->be);
    int64_t us = kve_now_us() - start;
    for (int32_t x = 0; x < g->X; x++) {
        answer *a = g->parts[x].answer;
        if (x && g->parts[x - 1].answer == a)
            continue;
        a->decode_us += us;
        a->n_forks = g->X > a->n_forks ? g->X : a->n_forks;
    }
    kve_batch_free(m, &b);
    return st;
}

/* One fork per script. A batch that is full is decoded first; its ranked caches stay. */
static kve_status add_cell(sample_run *r, group *g, kve_kv prefix, const int32_t *lengths, answer *a)
{
    for (size_t c = 0; c < r->n_scripts; c++) {
        if (g->X == r->e->opt.chunk) {
            KVE_TRY(decode_group(r, g, NULL));
            drop_forks(r, g);
        }
        KVE_TRY(add_fork(r, g, prefix, lengths, (part){.answer = a, .i_script = c}));
    }
    return KVE_OK;
}

/* Likewise, with caches of their own: also what memory cannot hold at once is decoded in turns. */
static kve_status add_rolling_cell(sample_run *r, group *g, const int32_t *order, const kve_cell *cell, answer *a)
{
    size_t bytes = kve_kv_bytes(r->e->m, rolling_rows(r, cell) * (int64_t)run_heads(r));
    for (size_t c = 0; c < r->n_scripts; c++) {
        if (g->X == r->e->opt.chunk || (g->X && g->rolling_bytes + bytes > r->e->opt.fork_bytes)) {
            KVE_TRY(decode_group(r, g, NULL));
            drop_forks(r, g);
        }
        KVE_TRY(add_rolling_fork(r, g, order, (part){.answer = a, .i_script = c, .cell = cell}));
        g->rolling_bytes += bytes;
    }
    return KVE_OK;
}

/* The other choices of the full cache, whose queries nobody asks for. */
static kve_status score_other_choices(sample_run *r, group *g, const int32_t *all)
{
    drop_forks(r, g);
    for (size_t c = 0; c < r->n_scripts; c++)
        if (c != r->s->gold)
            KVE_TRY(add_fork(r, g, r->ctx.kv, all, (part){.answer = &r->full, .i_script = c}));
    return g->X ? decode_group(r, g, NULL) : KVE_OK;
}

kve_status run_full_alone(sample_run *r)
{
    const kve_model *m = r->e->m;
    const kve_shape *d = &m->cfg.shape;
    kve_capture capture = {.cap = tail_rows(r)};
    int32_t *all = NULL;
    group g;
    KVE_TRY(full_lengths(r, &all));
    KVE_TRY(group_alloc(r, &g));
    size_t floats = (size_t)d->L * (size_t)capture.cap * (size_t)d->Hq * (size_t)d->D;
    KVE_TRY(m->be->vt->alloc(m->be, floats * sizeof(float), &capture.q));
    const part gold = {.answer = &r->full, .i_script = r->s->n_choices ? r->s->gold : 0};
    kve_status st = add_fork(r, &g, r->ctx.kv, all, gold);
    if (st == KVE_OK)
        st = decode_group(r, &g, &capture);
    if (st == KVE_OK)
        st = measure_future(r, &capture, g.slots[0].tail);
    if (st == KVE_OK && r->s->n_choices)
        st = score_other_choices(r, &g, all);
    r->has_full = st == KVE_OK;
    group_free(r, &g);
    m->be->vt->free(m->be, capture.q);
    return st;
}

/* Lost attention at every budget of the ranking. */
static kve_status measure_reward(const sample_run *r, const kve_ranking *made, bool by_budget, ranking *out)
{
    size_t heads = run_heads(r);
    double *sums = NULL;
    KVE_TRY(kve_arena_alloc(r->arena, made->n_budgets * heads, sizeof *out->lost, &out->lost));
    KVE_TRY(kve_arena_alloc(r->arena, heads, sizeof *sums, &sums));
    kve_reward_all(r->host_importance, made->order, heads, r->n, made->lengths, made->n_budgets, out->lost, sums);
    out->sums = by_budget ? NULL : sums;
    return KVE_OK;
}

/* The cells that one ranking serves: those of the policy of cells[first], or that one alone where every budget has a
 * ranking of its own. Their budgets [n_cells]. */
static size_t claim_cells(sample_run *r, size_t first, ranking *out, int32_t *budgets)
{
    const kve_policy *policy = r->cells[first].policy;
    size_t n = 0;
    for (size_t i = first; i < r->n_cells && !(policy->by_budget && i > first); i++)
        if (r->cells[i].policy == policy && !cell_keeps_all(r, &r->cells[i])) {
            budgets[n++] = (int32_t)r->cells[i].budget;
            r->rankings[i] = out;
        }
    return n;
}

/* The sample lacks what the policy needs to see. */
static kve_status refuse(const sample_run *r, ranking *out)
{
    char *why = NULL;
    kve_warn("sample %s: %s", r->name, kve_diag());
    KVE_TRY(kve_arena_strndup(r->arena, kve_diag(), strlen(kve_diag()), &why));
    out->refused = why;
    return KVE_OK;
}

/* Ranks by the policy of cells[first] and adds a fork for each of its evicting cells. */
static kve_status add_policy(sample_run *r, group *g, size_t first)
{
    const kve_policy *policy = r->cells[first].policy;
    const kve_scoring scoring = {.m = r->e->m,
                                 .ctx = &r->ctx,
                                 .sample_name = r->name,
                                 .importance = r->importance,
                                 .replay = r->replay,
                                 .cos = r->cos,
                                 .sin = r->sin,
                                 .n_question = (int32_t)r->prompt.n_question,
                                 .budget = (int32_t)r->cells[first].budget,
                                 .seed = r->e->opt.seed,
                                 .sink = r->e->opt.sink,
                                 .recent = r->e->opt.recent};
    size_t heads = run_heads(r);
    ranking *out = NULL;
    int32_t *budgets = NULL;
    kve_ranking made = {0};
    KVE_TRY(kve_arena_alloc(r->arena, r->n_cells, sizeof *budgets, &budgets));
    KVE_TRY(kve_arena_alloc(r->arena, 1, sizeof *out, &out));
    made.budgets = budgets;
    made.n_budgets = claim_cells(r, first, out, budgets);
    KVE_TRY(kve_arena_alloc(r->arena, made.n_budgets * heads, sizeof *made.lengths, &made.lengths));
    if (r->e->opt.reward || r->e->opt.evict_every)
        KVE_TRY(kve_alloc(heads * (size_t)r->n, sizeof *made.order, &made.order));
    kve_status st = kve_rank_context(&scoring, policy, &made);
    if (st == KVE_ERR_USAGE) {
        free(made.order);
        return refuse(r, out);
    }
    if (st == KVE_OK) {
        g->ranked[g->n_ranked++] = made.ranked;
        out->score_us = made.score_us + (policy->needs & KVE_NEED_REPLAY ? r->replay_us : 0);
        out->rank_us = made.ranked.rank_us;
        out->compact_us = made.ranked.compact_us;
    }
    if (st == KVE_OK && r->e->opt.reward)
        st = measure_reward(r, &made, policy->by_budget, out);
    const int32_t *lengths = made.lengths;
    for (size_t i = first; i < r->n_cells && st == KVE_OK; i++) {
        if (r->rankings[i] != out)
            continue;
        st = r->e->opt.evict_every ? add_rolling_cell(r, g, made.order, &r->cells[i], &r->answers[i])
                                   : add_cell(r, g, made.ranked.kv, lengths, &r->answers[i]);
        lengths += heads;
    }
    free(made.order);
    if (st == KVE_OK && r->e->opt.evict_every) /* every fork has rows of its own */
        kve_ranked_free(r->e->m, &g->ranked[--g->n_ranked]);
    return st;
}

/* What the ranking of cells[first] would take: ranked cache and tails. A budget that heads share unevenly may need up
 * to the whole context. Forks that evict count one by one. */
static size_t policy_bytes(const sample_run *r, size_t first)
{
    const kve_policy *policy = r->cells[first].policy;
    int64_t rows = 0, b_max = 0, b_sum = 0, heads = (int64_t)run_heads(r);
    if (r->e->opt.evict_every)
        return 0;
    for (size_t i = first; i < r->n_cells && !(policy->by_budget && i > first); i++)
        if (r->cells[i].policy == policy && !cell_keeps_all(r, &r->cells[i])) {
            rows += tail_rows(r) * (int64_t)r->n_scripts;
            b_max = r->cells[i].budget > b_max ? r->cells[i].budget : b_max;
            b_sum += r->cells[i].budget;
        }
    if (policy->allocate) /* no head's longest share is above the sum of its shares */
        b_max = b_sum < r->n ? b_sum : r->n;
    return kve_kv_bytes(r->e->m, (rows + b_max) * heads);
}

kve_status run_forks(sample_run *r, bool with_full)
{
    int32_t *all = NULL;
    group g;
    kve_status st = group_alloc(r, &g);
    if (st == KVE_OK && with_full) {
        st = full_lengths(r, &all);
        if (st == KVE_OK)
            st = add_cell(r, &g, r->ctx.kv, all, &r->full);
        r->has_full = st == KVE_OK;
    }
    size_t bytes = 0;
    for (size_t i = 0; i < r->n_cells && st == KVE_OK; i++) {
        if (cell_keeps_all(r, &r->cells[i]) || r->rankings[i])
            continue;
        size_t more = policy_bytes(r, i);
        if (g.X > 0 && bytes + more > r->e->opt.fork_bytes) {
            st = decode_group(r, &g, NULL);
            group_free(r, &g);
            bytes = 0;
        }
        bytes += more;
        if (st == KVE_OK)
            st = add_policy(r, &g, i);
    }
    if (st == KVE_OK && g.X > 0)
        st = decode_group(r, &g, NULL);
    group_free(r, &g);
    return st;
}
