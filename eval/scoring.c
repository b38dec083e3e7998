/* Scores and rankings. Contract: scoring.h. */
#include "eval/scoring.h"

#include "host/base/clock.h"
#include "host/base/mem.h"
#include "host/base/rng.h"
#include "host/engine/keep.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int32_t kve_protected_recent(const kve_policy *p, int32_t recent)
{
    return p->own_recent > recent ? p->own_recent : recent;
}

static size_t head_rows(const kve_model *m)
{
    return (size_t)m->cfg.shape.L * (size_t)m->cfg.shape.Hkv;
}

static kve_policy_view layer_view(const kve_scoring *s, int32_t i, float *scratch)
{
    const kve_shape *d = &s->m->cfg.shape;
    const kve_context *ctx = s->ctx;
    size_t layer = (size_t)i, per_layer = (size_t)d->Hkv * (size_t)ctx->n, row = (size_t)d->Hq * (size_t)d->D;
    return (kve_policy_view){.be = s->m->be,
                             .shape = d,
                             .kv = ctx->kv,
                             .q_window = ctx->q_window ? ctx->q_window + layer * (size_t)ctx->W * row : NULL,
                             .q = ctx->q ? ctx->q + layer * (size_t)ctx->kv.cap * row : NULL,
                             .future = s->importance ? s->importance + layer * per_layer : NULL,
                             .replay = s->replay ? s->replay + layer * per_layer : NULL,
                             .cos = s->cos,
                             .sin = s->sin,
                             .output = s->m->layers ? s->m->layers[i].o : NULL,
                             .scratch = scratch,
                             .scale = 1.0f / sqrtf((float)d->D),
                             .n = ctx->n,
                             .W = ctx->W,
                             .n_question = s->n_question,
                             .budget = s->budget,
                             .i_layer = i,
                             .kv_dtype = s->m->dtype,
                             .sample_name = s->sample_name,
                             .seed = s->seed,
                             .sample = kve_hash_text(s->sample_name, strlen(s->sample_name))};
}

static kve_status score_layers(const kve_scoring *s, const kve_policy *p, float *scores, float *scratch)
{
    size_t per_layer = (size_t)s->m->cfg.shape.Hkv * (size_t)s->ctx->n;
    for (int32_t i = 0; i < s->m->cfg.shape.L; i++) {
        kve_policy_view view = layer_view(s, i, scratch);
        KVE_TRY(kve_policy_score(p, &view, scores + (size_t)i * per_layer));
    }
    return s->m->be->vt->sync(s->m->be);
}

static kve_status lacks(const kve_policy *p, const char *what)
{
    return kve_fail(KVE_ERR_USAGE, "policy '%s' needs %s", p->name, what);
}

static kve_status check_needs(const kve_scoring *s, const kve_policy *p)
{
    if ((p->needs & KVE_NEED_FUTURE) && !s->importance)
        return lacks(p, "the answer before it exists: it is an upper bound for evaluations, not one that can be used");
    if ((p->needs & KVE_NEED_WINDOW) && s->ctx->W == 0)
        return lacks(p, "the queries of the last tokens, which are not here (a trace: kveval trace --queries)");
    if ((p->needs & KVE_NEED_QUERIES) && !s->ctx->q)
        return lacks(p, "the queries of all tokens, which are not here (a trace: kveval trace --queries)");
    if ((p->needs & KVE_NEED_ROTATION) && !s->cos)
        return lacks(p, "RoPE's tables, which are not here (a trace: kveval trace --queries)");
    if ((p->needs & KVE_NEED_OUTPUT) && !s->m->layers)
        return lacks(p, "the model's output projection, which a trace does not hold; kveval eval has it");
    if ((p->needs & KVE_NEED_REPLAY) && !s->replay)
        return lacks(
            p, "a second pass over the context: kveval eval makes it, where the model's context has room behind it");
    if ((p->needs & KVE_NEED_QUESTION) && s->n_question == 0)
        return lacks(p, "a question in the prefill, and this sample has none there (--question in; a trace does not "
                        "say where it is)");
    if (p->by_budget && s->budget < 1)
        return lacks(p, "the budget, on which its ranking depends; give --budget");
    return KVE_OK;
}

/* *scores: device [L][Hkv][n], the caller's to free. */
static kve_status score(const kve_scoring *s, const kve_policy *p, float **scores)
{
    kve_backend *be = s->m->be;
    float *scratch = NULL;
    KVE_TRY(check_needs(s, p));
    KVE_TRY(be->vt->alloc(be, (size_t)s->m->cfg.shape.Hq * (size_t)s->ctx->n * sizeof(float), &scratch));
    kve_status st = be->vt->alloc(be, head_rows(s->m) * (size_t)s->ctx->n * sizeof(float), scores);
    if (st == KVE_OK) {
        char name[64];
        snprintf(name, sizeof name, "score %s", p->name);
        kve_range_push(be, name);
        st = score_layers(s, p, *scores, scratch);
        kve_range_pop(be);
    }
    be->vt->free(be, scratch);
    return st;
}

/* Every row of a ranking names every token once: what an eviction keeps is then exactly its first b. */
static kve_status check_order(const int32_t *order, size_t rows, int32_t n, const char *policy)
{
    unsigned char *seen = NULL;
    kve_status st = kve_alloc((size_t)n, 1, &seen);
    for (size_t r = 0; r < rows && st == KVE_OK; r++) {
        memset(seen, 0, (size_t)n);
        for (int32_t i = 0; i < n && st == KVE_OK; i++) {
            int32_t j = order[r * (size_t)n + (size_t)i];
            if (j < 0 || j >= n || seen[j])
                st = kve_fail(KVE_ERR_INTERNAL, "policy '%s': head row %zu ranks token %d twice or out of range (n %d)",
                              policy, r, j, n);
            else
                seen[j] = 1;
        }
    }
    free(seen);
    return st;
}

static kve_status read_order(const kve_model *m, const kve_ranked *r, const char *policy, int32_t *host_order)
{
    size_t rows = head_rows(m);
    KVE_TRY(m->be->vt->read(m->be, host_order, r->order, rows * (size_t)r->n * sizeof *host_order));
    return check_order(host_order, rows, r->n, policy);
}

static kve_status check_lengths(const kve_model *m, const kve_policy *p, const int32_t *lengths, int32_t n, int32_t b)
{
    int64_t total = 0, heads = (int64_t)head_rows(m);
    for (int64_t h = 0; h < heads; h++) {
        if (lengths[h] < 0 || lengths[h] > n)
            return kve_fail(KVE_ERR_INTERNAL, "policy '%s': head row %lld is to keep %d of %d tokens", p->name,
                            (long long)h, lengths[h], n);
        total += lengths[h];
    }
    if (total != heads * b)
        return kve_fail(KVE_ERR_INTERNAL, "policy '%s' keeps %lld rows at a budget of %d for each of %lld heads",
                        p->name, (long long)total, b, (long long)heads);
    return KVE_OK;
}

/* Lengths of every budget; *most [L Hkv]: the longest of each head. */
static kve_status share_out(const kve_scoring *s, const kve_policy *p, const kve_ranking *r, const float *scores,
                            const int32_t *order, int32_t *most)
{
    size_t heads = head_rows(s->m);
    int32_t n = s->ctx->n, recent = kve_protected_recent(p, s->recent);
    memset(most, 0, heads * sizeof *most);
    for (size_t i = 0; i < r->n_budgets; i++) {
        int32_t b = r->budgets[i] < n ? r->budgets[i] : n, *lengths = r->lengths + i * heads;
        kve_allocation a = {.shape = &s->m->cfg.shape, .scores = scores, .order = order, .n = n, .budget = b};
        a.protected = recent < n - s->sink ? s->sink + recent : n;
        if (b < 1)
            return kve_fail(KVE_ERR_USAGE, "a budget of %d keeps nothing; it must be at least 1 token", b);
        for (size_t h = 0; h < heads; h++)
            lengths[h] = b;
        if (p->allocate && b < n)
            KVE_TRY(p->allocate(p, &a, lengths));
        KVE_TRY(check_lengths(s->m, p, lengths, n, b));
        for (size_t h = 0; h < heads; h++)
            most[h] = lengths[h] > most[h] ? lengths[h] : most[h];
    }
    return KVE_OK;
}

/* From scores on the device to the gathered cache. order: host [L][Hkv][n]. */
static kve_status rank_and_gather(const kve_scoring *s, const kve_policy *p, kve_ranking *r, const float *scores,
                                  int32_t *order)
{
    const kve_model *m = s->m;
    size_t heads = head_rows(m), count = heads * (size_t)s->ctx->n;
    float *own = NULL, *host_scores = r->scores;
    int32_t *most = NULL;
    KVE_TRY(kve_ranked_order(m, s->ctx, scores, s->sink, kve_protected_recent(p, s->recent), &r->ranked));
    KVE_TRY(read_order(m, &r->ranked, p->name, order));
    KVE_TRY(kve_alloc(heads, sizeof *most, &most));
    kve_status st = KVE_OK;
    if (p->allocate && !host_scores) {
        st = kve_alloc(count, sizeof *own, &own);
        host_scores = own;
    }
    if (st == KVE_OK && host_scores)
        st = m->be->vt->read(m->be, host_scores, scores, count * sizeof *host_scores);
    if (st == KVE_OK)
        st = share_out(s, p, r, host_scores, order, most);
    if (st == KVE_OK)
        st = kve_ranked_gather(m, s->ctx, most, &r->ranked);
    free(own);
    free(most);
    return st;
}

kve_status kve_rank_context(const kve_scoring *s, const kve_policy *p, kve_ranking *r)
{
    float *scores = NULL;
    int32_t *own = NULL;
    int64_t start = kve_now_us();
    r->ranked = (kve_ranked){0};
    kve_status st = score(s, p, &scores);
    r->score_us = kve_now_us() - start;
    if (st == KVE_OK && !r->order)
        st = kve_alloc(head_rows(s->m) * (size_t)s->ctx->n, sizeof *own, &own);
    if (st == KVE_OK)
        st = rank_and_gather(s, p, r, scores, r->order ? r->order : own);
    s->m->be->vt->free(s->m->be, scores);
    free(own);
    if (st != KVE_OK)
        kve_ranked_free(s->m, &r->ranked);
    return st;
}

static int ascending(const void *a, const void *b)
{
    return (*(const int32_t *)a > *(const int32_t *)b) - (*(const int32_t *)a < *(const int32_t *)b);
}

void kve_ranks_by_position(int32_t *order, size_t heads, int32_t n, int32_t b)
{
    for (size_t h = 0; h < heads; h++)
        qsort(order + h * (size_t)n, (size_t)b, sizeof *order, ascending);
}

/* order: host [L][Hkv][n], to work in. */
static kve_status evict(const kve_scoring *s, const kve_policy *p, int32_t budget, int32_t *order)
{
    const kve_model *m = s->m;
    float *scores = NULL;
    kve_ranked ranked = {0};
    kve_status st = score(s, p, &scores);
    if (st == KVE_OK)
        st = kve_ranked_order(m, s->ctx, scores, s->sink, kve_protected_recent(p, s->recent), &ranked);
    if (st == KVE_OK)
        st = read_order(m, &ranked, p->name, order);
    if (st == KVE_OK) {
        kve_ranks_by_position(order, head_rows(m), s->ctx->n, budget);
        st = kve_keep_in_place(m, &s->ctx->kv, &(kve_keep){.rows = order, .n = s->ctx->n, .b = budget});
    }
    kve_ranked_free(m, &ranked);
    m->be->vt->free(m->be, scores);
    return st;
}

kve_status kve_evict(const kve_scoring *s, const kve_policy *p, int32_t budget)
{
    int32_t *order = NULL;
    KVE_TRY(kve_alloc(head_rows(s->m) * (size_t)s->ctx->n, sizeof *order, &order));
    kve_range_push(s->m->be, "eviction");
    kve_status st = evict(s, p, budget, order);
    kve_range_pop(s->m->be);
    free(order);
    return st;
}

kve_status kve_scoring_tables(const kve_model *m, int32_t n, int32_t total_len, kve_arena *arena, kve_scoring *s)
{
    int32_t positions = n + KVE_FUTURE_POSITIONS;
    size_t count = (size_t)positions * (size_t)m->cfg.shape.R / 2;
    float *cos = NULL, *sin = NULL;
    KVE_TRY(kve_arena_alloc(arena, count, sizeof *cos, &cos));
    KVE_TRY(kve_arena_alloc(arena, count, sizeof *sin, &sin));
    s->cos = cos;
    s->sin = sin;
    return kve_rope_tables(&m->cfg, positions, total_len, cos, sin);
}
