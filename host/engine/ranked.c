/* Ranking and compaction out of place. */
#include "host/engine/ranked.h"

#include "host/base/clock.h"

#include <stdlib.h>

static kve_status rank_all(const kve_model *m, const float *scores, int32_t sink, int32_t recent, kve_ranked *r)
{
    const kve_shape *s = &m->cfg.shape;
    kve_rank_params p = {.scores = scores,
                         .order = r->order,
                         .rows = s->L * s->Hkv,
                         .n = r->n,
                         .n_out = r->n,
                         .sink = sink,
                         .recent = recent};
    KVE_TRY(m->be->vt->rank(m->be, &p));
    return m->be->vt->sync(m->be);
}

static kve_status gather_all(const kve_model *m, const kve_context *ctx, kve_ranked *r)
{
    const kve_shape *s = &m->cfg.shape;
    kve_gather_params p = {.from = ctx->kv,
                           .to = r->kv,
                           .order = r->order,
                           .count = r->b_max,
                           .order_stride = r->n,
                           .Hkv = s->Hkv,
                           .D = s->D,
                           .n_layers = s->L,
                           .kv_dtype = m->dtype};
    KVE_TRY(m->be->vt->gather(m->be, &p));
    return m->be->vt->sync(m->be);
}

kve_status kve_ranked_make(const kve_model *m, const kve_context *ctx, const float *scores, int32_t b_max, int32_t sink,
                           int32_t recent, kve_ranked *out)
{
    const kve_shape *s = &m->cfg.shape;
    kve_ranked r = {.n = ctx->n, .b_max = b_max < ctx->n ? b_max : ctx->n};
    kve_status st = KVE_OK;
    if (b_max < 1)
        return kve_fail(KVE_ERR_USAGE, "a budget of %d keeps nothing; it must be at least 1 token", b_max);
    KVE_TRY(m->be->vt->alloc(m->be, (size_t)s->L * (size_t)s->Hkv * (size_t)r.n * sizeof *r.order, &r.order));
    KVE_TRY_GOTO(st, kve_kv_alloc(m, r.b_max, &r.kv), fail);
    int64_t t0 = kve_now_us();
    kve_range_push(m->be, "ranking");
    st = rank_all(m, scores, sink, recent, &r);
    kve_range_pop(m->be);
    if (st != KVE_OK)
        goto fail;
    int64_t t1 = kve_now_us();
    kve_range_push(m->be, "compaction");
    st = gather_all(m, ctx, &r);
    kve_range_pop(m->be);
    if (st != KVE_OK)
        goto fail;
    r.rank_us = t1 - t0;
    r.compact_us = kve_now_us() - t1;
    *out = r;
    return KVE_OK;
fail:
    kve_ranked_free(m, &r);
    return st;
}

void kve_ranked_free(const kve_model *m, kve_ranked *r)
{
    kve_kv_free(m, &r->kv);
    m->be->vt->free(m->be, r->order);
    *r = (kve_ranked){0};
}

kve_status kve_uniform_lengths(const kve_model *m, int32_t b, int32_t n, int32_t **out)
{
    size_t count = (size_t)m->cfg.shape.L * (size_t)m->cfg.shape.Hkv;
    int32_t *host = NULL, *device = NULL;
    KVE_TRY(kve_alloc(count, sizeof *host, &host));
    for (size_t i = 0; i < count; i++)
        host[i] = b < n ? b : n;
    kve_status st = m->be->vt->alloc(m->be, count * sizeof *device, &device);
    if (st == KVE_OK)
        st = m->be->vt->write(m->be, device, host, count * sizeof *device);
    if (st == KVE_OK)
        *out = device;
    else
        m->be->vt->free(m->be, device);
    free(host);
    return st;
}
