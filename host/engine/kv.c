/* Allocation of the caches. */
#include "host/engine/kv.h"

#include "host/base/mem.h"

#include <stdlib.h>

static size_t window_bytes(const kve_shape *s)
{
    return (size_t)s->L * KVE_WINDOW * (size_t)s->Hq * (size_t)s->D * sizeof(float);
}

size_t kve_kv_bytes(const kve_model *m, int64_t rows_all_heads)
{
    return 2 * (size_t)rows_all_heads * (size_t)m->cfg.shape.D * kve_dtype_bytes(m->dtype);
}

size_t kve_context_bytes(const kve_shape *s, kve_dtype dtype, int32_t cap)
{
    size_t rows = 2 * (size_t)s->L * (size_t)s->Hkv * (size_t)cap;
    return rows * (size_t)s->D * kve_dtype_bytes(dtype) + window_bytes(s);
}

static kve_status alloc_rows(const kve_model *m, int64_t rows_all_heads, int32_t cap, kve_kv *out)
{
    size_t bytes = kve_kv_bytes(m, rows_all_heads) / 2;
    *out = (kve_kv){.cap = cap};
    KVE_TRY(m->be->vt->alloc(m->be, bytes, &out->k));
    kve_status st = m->be->vt->alloc(m->be, bytes, &out->v);
    if (st != KVE_OK)
        kve_kv_free(m, out);
    return st;
}

kve_status kve_kv_alloc(const kve_model *m, int32_t cap, kve_kv *out)
{
    return alloc_rows(m, (int64_t)m->cfg.shape.L * m->cfg.shape.Hkv * cap, cap, out);
}

kve_status kve_kv_alloc_rows(const kve_model *m, const int32_t *rows, kve_kv *out, int64_t **first)
{
    size_t heads = (size_t)m->cfg.shape.L * (size_t)m->cfg.shape.Hkv;
    int64_t *host = NULL, total = 0;
    int32_t longest = 0, shortest = rows[0];
    *first = NULL;
    KVE_TRY(kve_alloc(heads, sizeof *host, &host));
    for (size_t h = 0; h < heads; h++) {
        host[h] = total;
        total += rows[h];
        longest = rows[h] > longest ? rows[h] : longest;
        shortest = rows[h] < shortest ? rows[h] : shortest;
    }
    kve_status st = alloc_rows(m, total, longest, out);
    if (st == KVE_OK && shortest < longest) {
        st = m->be->vt->alloc(m->be, heads * sizeof *host, first);
        if (st == KVE_OK)
            st = m->be->vt->write(m->be, *first, host, heads * sizeof *host);
        out->first = *first;
    }
    free(host);
    if (st == KVE_OK)
        return KVE_OK;
    m->be->vt->free(m->be, *first);
    *first = NULL;
    kve_kv_free(m, out);
    return st;
}

void kve_kv_free(const kve_model *m, kve_kv *kv)
{
    m->be->vt->free(m->be, kv->k);
    m->be->vt->free(m->be, kv->v);
    *kv = (kve_kv){0};
}

kve_status kve_context_alloc(const kve_model *m, int32_t cap, kve_context *out)
{
    *out = (kve_context){0};
    KVE_TRY(kve_kv_alloc(m, cap, &out->kv));
    kve_status st = m->be->vt->alloc(m->be, window_bytes(&m->cfg.shape), &out->q_window);
    if (st != KVE_OK)
        kve_context_free(m, out);
    return st;
}

void kve_context_free(const kve_model *m, kve_context *c)
{
    kve_kv_free(m, &c->kv);
    m->be->vt->free(m->be, c->q_window);
    m->be->vt->free(m->be, c->q);
    *c = (kve_context){0};
}

size_t kve_context_queries_bytes(const kve_shape *s, int32_t cap)
{
    return (size_t)s->L * (size_t)cap * (size_t)s->Hq * (size_t)s->D * sizeof(float);
}

kve_status kve_context_queries(const kve_model *m, kve_context *c)
{
    return m->be->vt->alloc(m->be, kve_context_queries_bytes(&m->cfg.shape, c->kv.cap), &c->q);
}
