/* Scores and rankings. Contract: scoring.h. */
#include "eval/scoring.h"

#include "host/base/clock.h"
#include "host/base/mem.h"
#include "host/base/rng.h"

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

static kve_status score_layers(const kve_scoring *s, const kve_policy *p, float *scores, float *scratch)
{
    const kve_shape *d = &s->m->cfg.shape;
    const kve_context *ctx = s->ctx;
    size_t per_layer = (size_t)d->Hkv * (size_t)ctx->n, q_layer = (size_t)ctx->W * (size_t)d->Hq * (size_t)d->D;
    for (int32_t i = 0; i < d->L; i++) {
        kve_policy_view view = {.be = s->m->be,
                                .shape = d,
                                .kv = ctx->kv,
                                .q_window = ctx->q_window + (size_t)i * q_layer,
                                .future = s->importance ? s->importance + (size_t)i * per_layer : NULL,
                                .scratch = scratch,
                                .scale = 1.0f / sqrtf((float)d->D),
                                .n = ctx->n,
                                .W = ctx->W,
                                .i_layer = i,
                                .kv_dtype = s->m->dtype,
                                .sample_name = s->sample_name,
                                .seed = s->seed,
                                .sample = kve_hash_text(s->sample_name, strlen(s->sample_name))};
        KVE_TRY(kve_policy_score(p, &view, scores + (size_t)i * per_layer));
    }
    return s->m->be->vt->sync(s->m->be);
}

/* *scores: device [L][Hkv][n], the caller's to free. */
static kve_status score(const kve_scoring *s, const kve_policy *p, float **scores)
{
    kve_backend *be = s->m->be;
    float *scratch = NULL;
    if ((p->needs & KVE_NEED_FUTURE) && !s->importance)
        return kve_fail(KVE_ERR_USAGE,
                        "policy '%s' looks at the answer before it exists: it is an upper bound for "
                        "evaluations, not a policy that can be used",
                        p->name);
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

kve_status kve_score_context(const kve_scoring *s, const kve_policy *p, float *host_scores)
{
    kve_backend *be = s->m->be;
    float *scores = NULL;
    kve_status st = score(s, p, &scores);
    if (st == KVE_OK)
        st = be->vt->read(be, host_scores, scores, head_rows(s->m) * (size_t)s->ctx->n * sizeof(float));
    be->vt->free(be, scores);
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
    size_t rows = head_rows(m), count = rows * (size_t)r->n;
    int32_t *own = NULL, *order = host_order;
    if (!order) {
        KVE_TRY(kve_alloc(count, sizeof *own, &own));
        order = own;
    }
    kve_status st = m->be->vt->read(m->be, order, r->order, count * sizeof *order);
    if (st == KVE_OK)
        st = check_order(order, rows, r->n, policy);
    free(own);
    return st;
}

kve_status kve_rank_context(const kve_scoring *s, const kve_policy *p, int32_t b_max, int32_t *host_order,
                            kve_ranked *out, int64_t *score_us)
{
    float *scores = NULL;
    int64_t start = kve_now_us();
    kve_status st = score(s, p, &scores);
    *score_us = kve_now_us() - start;
    if (st == KVE_OK)
        st = kve_ranked_make(s->m, s->ctx, scores, b_max, s->sink, kve_protected_recent(p, s->recent), out);
    s->m->be->vt->free(s->m->be, scores);
    if (st != KVE_OK)
        return st;
    st = read_order(s->m, out, p->name, host_order);
    if (st != KVE_OK)
        kve_ranked_free(s->m, out);
    return st;
}
