/* Rankings and forks of one sample: the full cache alone (whose queries are the future), then every policy's ranked
 * cache with one fork per budget and choice, all decoded together. */
#include "eval/evaluator_internal.h"
#include "eval/reward.h"

#include "host/base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a fork answers: a cell, or one choice of it. */
typedef struct part {
    answer *answer;
    size_t i_script;
} part;

/* The forks of one batch. */
typedef struct group {
    kve_ranked *ranked; /* [n_ranked] */
    size_t n_ranked;
    kve_fork_slot *slots;
    int32_t **lengths; /* device; NULL where the fork before has the same */
    part *parts;
    int32_t *n_context;
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
static kve_status check_lengths(const sample_run *r, const int32_t *device, int32_t expected, answer *a)
{
    const kve_model *m = r->e->m;
    size_t heads = run_heads(r);
    int32_t *host = NULL;
    KVE_TRY(kve_arena_alloc(r->arena, heads, sizeof *host, &host));
    KVE_TRY(m->be->vt->read(m->be, host, device, heads * sizeof *host));
    a->kept_min = a->kept_max = host[0];
    for (size_t i = 1; i < heads; i++) {
        a->kept_min = host[i] < a->kept_min ? host[i] : a->kept_min;
        a->kept_max = host[i] > a->kept_max ? host[i] : a->kept_max;
    }
    if (a->kept_min != expected || a->kept_max != expected)
        return kve_fail(KVE_ERR_INTERNAL, "an eviction kept %d to %d tokens per layer and head instead of %d",
                        a->kept_min, a->kept_max, expected);
    return KVE_OK;
}

static kve_status add_fork(const sample_run *r, group *g, kve_kv prefix, int32_t kept, part p)
{
    const kve_model *m = r->e->m;
    int32_t x = g->X;
    bool shared = x && g->parts[x - 1].answer == p.answer;
    g->slots[x] = (kve_fork_slot){.prefix = prefix};
    g->lengths[x] = NULL;
    g->parts[x] = p;
    g->n_context[x] = r->n;
    if (!shared)
        KVE_TRY(kve_uniform_lengths(m, kept, r->n, &g->lengths[x]));
    g->X++;
    g->slots[x].prefix_len = shared ? g->slots[x - 1].prefix_len : g->lengths[x];
    KVE_TRY(kve_kv_alloc(m, tail_rows(r), &g->slots[x].tail));
    return shared ? KVE_OK : check_lengths(r, g->lengths[x], kept, p.answer);
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
    int64_t start = kve_now_us();
    KVE_TRY(kve_batch_alloc(m, g->slots, g->n_context, g->X, &b));
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
static kve_status add_cell(sample_run *r, group *g, kve_kv prefix, int32_t kept, answer *a)
{
    for (size_t c = 0; c < r->n_scripts; c++) {
        if (g->X == r->e->opt.chunk) {
            KVE_TRY(decode_group(r, g, NULL));
            drop_forks(r, g);
        }
        KVE_TRY(add_fork(r, g, prefix, kept, (part){a, c}));
    }
    return KVE_OK;
}

static kve_status find_importance(sample_run *r, const kve_capture *capture, kve_kv tail)
{
    const kve_model *m = r->e->m;
    const kve_shape *d = &m->cfg.shape;
    size_t per_layer = (size_t)d->Hkv * (size_t)r->n, count = (size_t)d->L * per_layer;
    KVE_TRY(m->be->vt->alloc(m->be, count * sizeof(float), &r->importance));
    r->n_future = capture->at;
    for (int32_t i = 0; i < d->L; i++) {
        kve_future_importance_params p = {.q = capture->q +
                                               (size_t)i * (size_t)capture->cap * (size_t)d->Hq * (size_t)d->D,
                                          .ctx = r->ctx.kv,
                                          .tail = tail,
                                          .out = r->importance + (size_t)i * per_layer,
                                          .scale = 1.0f / sqrtf((float)d->D),
                                          .n = r->n,
                                          .f = r->n_future,
                                          .Hq = d->Hq,
                                          .Hkv = d->Hkv,
                                          .D = d->D,
                                          .i_layer = i,
                                          .kv_dtype = m->dtype};
        KVE_TRY(m->be->vt->future_importance(m->be, &p));
    }
    KVE_TRY(kve_arena_alloc(r->arena, count, sizeof *r->host_importance, &r->host_importance));
    KVE_TRY(m->be->vt->read(m->be, r->host_importance, r->importance, count * sizeof(float)));
    for (size_t i = 0; i < count; i++)
        if (!isfinite(r->host_importance[i]))
            return kve_fail(KVE_ERR_INTERNAL, "the future attention of token %zu in head row %zu is not a number",
                            i % (size_t)r->n, i / (size_t)r->n);
    return KVE_OK;
}

/* R(sigma*): the best order is the plain descending sort of I, without protected tokens (KVP paper). */
static kve_status find_oracle_sums(sample_run *r)
{
    const kve_model *m = r->e->m;
    size_t heads = run_heads(r), count = heads * (size_t)r->n;
    int32_t *device = NULL, *order = NULL;
    KVE_TRY(kve_arena_alloc(r->arena, heads, sizeof *r->oracle_sums, &r->oracle_sums));
    KVE_TRY(kve_arena_alloc(r->arena, count, sizeof *order, &order));
    KVE_TRY(m->be->vt->alloc(m->be, count * sizeof *device, &device));
    kve_rank_params p = {.scores = r->importance, .order = device, .rows = (int32_t)heads, .n = r->n, .n_out = r->n};
    kve_status st = m->be->vt->rank(m->be, &p);
    if (st == KVE_OK)
        st = m->be->vt->read(m->be, order, device, count * sizeof *order);
    m->be->vt->free(m->be, device);
    if (st == KVE_OK)
        kve_reward_all(r->host_importance, order, heads, r->n, NULL, 0, NULL, r->oracle_sums);
    return st;
}

/* The other choices of the full cache, whose queries nobody asks for. */
static kve_status score_other_choices(sample_run *r, group *g)
{
    drop_forks(r, g);
    for (size_t c = 0; c < r->n_scripts; c++)
        if (c != r->s->gold)
            KVE_TRY(add_fork(r, g, r->ctx.kv, r->n, (part){&r->full, c}));
    return g->X ? decode_group(r, g, NULL) : KVE_OK;
}

kve_status run_full_alone(sample_run *r)
{
    const kve_model *m = r->e->m;
    const kve_shape *d = &m->cfg.shape;
    kve_capture capture = {.cap = tail_rows(r)};
    group g;
    KVE_TRY(group_alloc(r, &g));
    size_t floats = (size_t)d->L * (size_t)capture.cap * (size_t)d->Hq * (size_t)d->D;
    KVE_TRY(m->be->vt->alloc(m->be, floats * sizeof(float), &capture.q));
    kve_status st = add_fork(r, &g, r->ctx.kv, r->n, (part){&r->full, r->s->n_choices ? r->s->gold : 0});
    if (st == KVE_OK)
        st = decode_group(r, &g, &capture);
    if (st == KVE_OK)
        st = find_importance(r, &capture, g.slots[0].tail);
    if (st == KVE_OK)
        st = find_oracle_sums(r);
    if (st == KVE_OK && r->s->n_choices)
        st = score_other_choices(r, &g);
    r->has_full = st == KVE_OK;
    group_free(r, &g);
    m->be->vt->free(m->be, capture.q);
    return st;
}

/* Lost attention at the budget of every cell of the policy, cells in order. */
static kve_status measure_reward(const sample_run *r, const int32_t *order, const int32_t *budgets, size_t n_budgets,
                                 ranking *out)
{
    size_t heads = run_heads(r);
    KVE_TRY(kve_arena_alloc(r->arena, n_budgets * heads, sizeof *out->lost, &out->lost));
    KVE_TRY(kve_arena_alloc(r->arena, heads, sizeof *out->sums, &out->sums));
    kve_reward_all(r->host_importance, order, heads, r->n, budgets, n_budgets, out->lost, out->sums);
    return KVE_OK;
}

/* Ranks by the policy of cells[first] and adds a fork for each of its evicting cells. */
static kve_status add_policy(sample_run *r, group *g, size_t first)
{
    const kve_policy *policy = r->cells[first].policy;
    kve_scoring scoring = {.m = r->e->m,
                           .ctx = &r->ctx,
                           .sample_name = r->name,
                           .importance = r->importance,
                           .seed = r->e->opt.seed,
                           .sink = r->e->opt.sink,
                           .recent = r->e->opt.recent};
    kve_ranked *ranked = &g->ranked[g->n_ranked];
    ranking *out = NULL;
    int32_t *order = NULL, *budgets = NULL, b_max = 0;
    size_t n_budgets = 0;
    KVE_TRY(kve_arena_alloc(r->arena, r->n_cells, sizeof *budgets, &budgets));
    KVE_TRY(kve_arena_alloc(r->arena, 1, sizeof *out, &out));
    for (size_t i = first; i < r->n_cells; i++)
        if (r->cells[i].policy == policy && !cell_keeps_all(r, &r->cells[i])) {
            budgets[n_budgets++] = (int32_t)r->cells[i].budget;
            b_max = (int32_t)r->cells[i].budget > b_max ? (int32_t)r->cells[i].budget : b_max;
            r->rankings[i] = out;
        }
    if (r->e->opt.reward)
        KVE_TRY(kve_alloc(run_heads(r) * (size_t)r->n, sizeof *order, &order));
    kve_status st = kve_rank_context(&scoring, policy, b_max, order, ranked, &out->score_us);
    if (st == KVE_OK) {
        g->n_ranked++;
        out->rank_us = ranked->rank_us;
        out->compact_us = ranked->compact_us;
    }
    if (st == KVE_OK && order)
        st = measure_reward(r, order, budgets, n_budgets, out);
    free(order);
    for (size_t i = first; i < r->n_cells && st == KVE_OK; i++)
        if (r->rankings[i] == out)
            st = add_cell(r, g, ranked->kv, (int32_t)r->cells[i].budget, &r->answers[i]);
    return st;
}

/* What the policy of cells[first] would take: ranked cache and tails. */
static size_t policy_bytes(const sample_run *r, size_t first)
{
    int64_t rows = 0, b_max = 0, heads = (int64_t)run_heads(r);
    for (size_t i = first; i < r->n_cells; i++)
        if (r->cells[i].policy == r->cells[first].policy && !cell_keeps_all(r, &r->cells[i])) {
            rows += tail_rows(r) * (int64_t)r->n_scripts;
            b_max = r->cells[i].budget > b_max ? r->cells[i].budget : b_max;
        }
    return kve_kv_bytes(r->e->m, (rows + b_max) * heads);
}

kve_status run_forks(sample_run *r, bool with_full)
{
    group g;
    kve_status st = group_alloc(r, &g);
    if (st == KVE_OK && with_full) {
        st = add_cell(r, &g, r->ctx.kv, r->n, &r->full);
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
