/* Rows that stay. Contract: keep.h. */
#include "host/engine/keep.h"

#include "host/base/mem.h"
#include "host/engine/ranked.h"

#include <stdlib.h>

static size_t head_count(const kve_model *m)
{
    return (size_t)m->cfg.shape.L * (size_t)m->cfg.shape.Hkv;
}

/* The lists and their lengths on the device. */
typedef struct lists {
    int32_t *rows, *lengths;
} lists;

static void lists_free(const kve_model *m, lists *l)
{
    m->be->vt->free(m->be, l->rows);
    m->be->vt->free(m->be, l->lengths);
}

static kve_status lists_upload(const kve_model *m, const kve_keep *keep, lists *out)
{
    size_t bytes = head_count(m) * (size_t)keep->n * sizeof *keep->rows;
    if (keep->b < 1 || keep->b > keep->n)
        return kve_fail(KVE_ERR_INTERNAL, "an eviction is to keep %d of %d rows", keep->b, keep->n);
    *out = (lists){0};
    KVE_TRY(kve_uniform_lengths(m, keep->b, keep->n, &out->lengths));
    kve_status st = m->be->vt->alloc(m->be, bytes, &out->rows);
    if (st == KVE_OK)
        st = m->be->vt->write(m->be, out->rows, keep->rows, bytes);
    if (st != KVE_OK)
        lists_free(m, out);
    return st;
}

static kve_status check_lengths(const kve_model *m, const lists *l, int32_t b)
{
    size_t heads = head_count(m);
    int32_t *host = NULL;
    KVE_TRY(kve_alloc(heads, sizeof *host, &host));
    kve_status st = m->be->vt->read(m->be, host, l->lengths, heads * sizeof *host);
    for (size_t h = 0; h < heads && st == KVE_OK; h++)
        if (host[h] != b)
            st = kve_fail(KVE_ERR_INTERNAL, "an eviction kept %d tokens in head row %zu instead of %d", host[h], h, b);
    free(host);
    return st;
}

kve_status kve_keep_gather(const kve_model *m, const kve_kv *from, const kve_keep *keep, const kve_kv *to)
{
    lists l;
    KVE_TRY(lists_upload(m, keep, &l));
    const kve_gather_params p = {.from = *from,
                                 .to = *to,
                                 .order = l.rows,
                                 .counts = l.lengths,
                                 .count = keep->b,
                                 .order_stride = keep->n,
                                 .Hkv = m->cfg.shape.Hkv,
                                 .D = m->cfg.shape.D,
                                 .n_layers = m->cfg.shape.L,
                                 .kv_dtype = m->dtype};
    kve_status st = m->be->vt->gather(m->be, &p);
    if (st == KVE_OK)
        st = check_lengths(m, &l, keep->b);
    lists_free(m, &l);
    return st;
}

kve_status kve_keep_in_place(const kve_model *m, const kve_kv *kv, const kve_keep *keep)
{
    const kve_shape *d = &m->cfg.shape;
    lists l;
    KVE_TRY(lists_upload(m, keep, &l));
    kve_status st = KVE_OK;
    for (int32_t i = 0; i < d->L && st == KVE_OK; i++) {
        size_t head = (size_t)i * (size_t)d->Hkv;
        const kve_compact_params p = {.kv = *kv,
                                      .keep = l.rows + head * (size_t)keep->n,
                                      .keep_len = l.lengths + head,
                                      .keep_stride = keep->n,
                                      .n = keep->n,
                                      .Hkv = d->Hkv,
                                      .D = d->D,
                                      .i_layer = i,
                                      .kv_dtype = m->dtype};
        st = m->be->vt->compact(m->be, &p);
    }
    if (st == KVE_OK)
        st = check_lengths(m, &l, keep->b);
    lists_free(m, &l);
    return st;
}
