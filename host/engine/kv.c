/* Allocation of the caches. */
#include "host/engine/kv.h"

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

kve_status kve_kv_alloc(const kve_model *m, int32_t cap, kve_kv *out)
{
    const kve_shape *s = &m->cfg.shape;
    size_t bytes = kve_kv_bytes(m, (int64_t)s->L * s->Hkv * cap) / 2;
    *out = (kve_kv){.cap = cap};
    KVE_TRY(m->be->vt->alloc(m->be, bytes, &out->k));
    kve_status st = m->be->vt->alloc(m->be, bytes, &out->v);
    if (st != KVE_OK)
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
    *c = (kve_context){0};
}
