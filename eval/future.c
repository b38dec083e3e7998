/* The future of a sample: what the answer from the full cache attends to, and what the best order of eviction would
 * lose of it. */
#include "eval/evaluator_internal.h"
#include "eval/reward.h"

#include <math.h>

kve_status attention_of(const sample_run *r, const kve_capture *capture, kve_kv tail, int32_t i_layer, bool maximum,
                        float *out)
{
    const kve_shape *d = &r->e->m->cfg.shape;
    const kve_future_importance_params p = {.q = capture->q +
                                                 (size_t)i_layer * (size_t)capture->cap * (size_t)d->Hq * (size_t)d->D,
                                            .ctx = r->ctx.kv,
                                            .tail = tail,
                                            .out = out,
                                            .scale = 1.0f / sqrtf((float)d->D),
                                            .n = r->n,
                                            .f = capture->at,
                                            .Hq = d->Hq,
                                            .Hkv = d->Hkv,
                                            .D = d->D,
                                            .i_layer = i_layer,
                                            .kv_dtype = r->e->m->dtype,
                                            .maximum = maximum};
    return r->e->m->be->vt->future_importance(r->e->m->be, &p);
}

static kve_status find_importance(sample_run *r, const kve_capture *capture, kve_kv tail)
{
    const kve_model *m = r->e->m;
    size_t per_layer = (size_t)m->cfg.shape.Hkv * (size_t)r->n, count = (size_t)m->cfg.shape.L * per_layer;
    KVE_TRY(m->be->vt->alloc(m->be, count * sizeof(float), &r->importance));
    r->n_future = capture->at;
    for (int32_t i = 0; i < m->cfg.shape.L; i++)
        KVE_TRY(attention_of(r, capture, tail, i, false, r->importance + (size_t)i * per_layer));
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

kve_status measure_future(sample_run *r, const kve_capture *capture, kve_kv tail)
{
    KVE_TRY(find_importance(r, capture, tail));
    return find_oracle_sums(r);
}
