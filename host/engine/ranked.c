/* Ranking and compaction out of place. */
#include "host/engine/ranked.h"

#include "host/base/clock.h"
#include "host/base/mem.h"

#include <stdlib.h>

static size_t head_count(const kve_model *m)
{
    return (size_t)m->cfg.shape.L * (size_t)m->cfg.shape.Hkv;
}

static kve_status rank_all(const kve_model *m, const float *scores, int32_t sink, int32_t recent, kve_ranked *r)
{
    kve_rank_params p = {.scores = scores,
                         .order = r->order,
                         .rows = (int32_t)head_count(m),
                         .n = r->n,
                         .n_out = r->n,
                         .sink = sink,
                         .recent = recent};
    KVE_TRY(m->be->vt->rank(m->be, &p));
    return m->be->vt->sync(m->be);
}

kve_status kve_ranked_order(const kve_model *m, const kve_context *ctx, const float *scores, int32_t sink,
                            int32_t recent, kve_ranked *out)
{
    *out = (kve_ranked){.n = ctx->n};
    KVE_TRY(m->be->vt->alloc(m->be, head_count(m) * (size_t)out->n * sizeof *out->order, &out->order));
    int64_t start = kve_now_us();
    kve_range_push(m->be, "ranking");
    kve_status st = rank_all(m, scores, sink, recent, out);
    kve_range_pop(m->be);
    out->rank_us = kve_now_us() - start;
    return st;
}

static kve_status gather_all(const kve_model *m, const kve_context *ctx, const int32_t *counts, kve_ranked *r)
{
    kve_gather_params p = {.from = ctx->kv,
                           .to = r->kv,
                           .order = r->order,
                           .counts = counts,
                           .count = r->kv.cap,
                           .order_stride = r->n,
                           .Hkv = m->cfg.shape.Hkv,
                           .D = m->cfg.shape.D,
                           .n_layers = m->cfg.shape.L,
                           .kv_dtype = m->dtype};
    KVE_TRY(m->be->vt->gather(m->be, &p));
    return m->be->vt->sync(m->be);
}

kve_status kve_ranked_gather(const kve_model *m, const kve_context *ctx, const int32_t *rows, kve_ranked *r)
{
    int32_t *counts = NULL;
    int64_t start = kve_now_us();
    KVE_TRY(kve_kv_alloc_rows(m, rows, &r->kv, &r->first));
    kve_status st = r->first ? kve_upload_lengths(m, rows, &counts) : KVE_OK;
    if (st == KVE_OK) {
        kve_range_push(m->be, "compaction");
        st = gather_all(m, ctx, counts, r);
        kve_range_pop(m->be);
    }
    m->be->vt->free(m->be, counts);
    r->compact_us = kve_now_us() - start;
    return st;
}

void kve_ranked_free(const kve_model *m, kve_ranked *r)
{
    kve_kv_free(m, &r->kv);
    m->be->vt->free(m->be, r->first);
    m->be->vt->free(m->be, r->order);
    *r = (kve_ranked){0};
}

kve_status kve_upload_lengths(const kve_model *m, const int32_t *host, int32_t **out)
{
    size_t bytes = head_count(m) * sizeof *host;
    int32_t *device = NULL;
    kve_status st = m->be->vt->alloc(m->be, bytes, &device);
    if (st == KVE_OK)
        st = m->be->vt->write(m->be, device, host, bytes);
    if (st == KVE_OK)
        *out = device;
    else
        m->be->vt->free(m->be, device);
    return st;
}

kve_status kve_uniform_lengths(const kve_model *m, int32_t b, int32_t n, int32_t **out)
{
    int32_t *host = NULL;
    KVE_TRY(kve_alloc(head_count(m), sizeof *host, &host));
    for (size_t i = 0; i < head_count(m); i++)
        host[i] = b < n ? b : n;
    kve_status st = kve_upload_lengths(m, host, out);
    free(host);
    return st;
}
