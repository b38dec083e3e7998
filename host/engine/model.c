/* Loads a checkpoint's tensors into a backend, a few rows at a time. */
#include "host/engine/model.h"

#include "host/base/mem.h"

#include <stdio.h>
#include <stdlib.h>

enum { FILL_ROWS = 256, NAME_BYTES = 64 };

static kve_status load_vector(kve_model *m, const kve_checkpoint *ck, const char *name, int32_t at, int32_t len,
                              float *device)
{
    float *host = NULL;
    KVE_TRY(kve_alloc((size_t)len, sizeof *host, &host));
    kve_status st = kve_checkpoint_read(ck, name, 0, 1, host);
    if (st == KVE_OK)
        st = m->be->vt->write(m->be, device + at, host, (size_t)len * sizeof *host);
    free(host);
    return st;
}

static kve_status new_vector(kve_model *m, const kve_checkpoint *ck, const char *name, int32_t len, float **out)
{
    KVE_TRY(m->be->vt->alloc(m->be, (size_t)len * sizeof **out, out));
    return load_vector(m, ck, name, 0, len, *out);
}

static kve_status fill_rows(kve_model *m, const kve_checkpoint *ck, const char *name, int32_t at, int32_t rows,
                            int32_t cols, kve_weight *w)
{
    float *host = NULL;
    KVE_TRY(kve_alloc((size_t)FILL_ROWS * (size_t)cols, sizeof *host, &host));
    kve_status st = KVE_OK;
    for (int32_t r = 0; r < rows && st == KVE_OK; r += FILL_ROWS) {
        int32_t count = rows - r < FILL_ROWS ? rows - r : FILL_ROWS;
        st = kve_checkpoint_read(ck, name, r, count, host);
        if (st == KVE_OK)
            st = m->be->vt->weight_fill(m->be, w, at + r, count, host);
    }
    free(host);
    return st;
}

typedef struct part {
    const char *name; /* without the layer's number */
    int32_t rows;
} part;

/* One weight from one or several tensors stacked by rows. i_layer < 0: the names carry no number. */
static kve_status new_weight(kve_model *m, const kve_checkpoint *ck, int32_t i_layer, const part *parts, int n_parts,
                             int32_t cols, kve_weight **out)
{
    int32_t rows = 0, at = 0;
    for (int i = 0; i < n_parts; i++)
        rows += parts[i].rows;
    KVE_TRY(m->be->vt->weight_create(m->be, m->dtype, rows, cols, out));
    for (int i = 0; i < n_parts; i++) {
        char name[NAME_BYTES];
        if (i_layer < 0)
            snprintf(name, sizeof name, "%s", parts[i].name);
        else
            snprintf(name, sizeof name, "%d.%s", i_layer, parts[i].name);
        KVE_TRY(fill_rows(m, ck, name, at, parts[i].rows, cols, *out));
        at += parts[i].rows;
    }
    return m->be->vt->weight_seal(m->be, *out);
}

static kve_status load_qkv_bias(kve_model *m, const kve_checkpoint *ck, int32_t i_layer, kve_layer *layer)
{
    const kve_shape *s = &m->cfg.shape;
    int32_t q = s->Hq * s->D, kv = s->Hkv * s->D;
    char name[NAME_BYTES];
    KVE_TRY(m->be->vt->alloc(m->be, (size_t)(q + 2 * kv) * sizeof(float), &layer->qkv_bias));
    snprintf(name, sizeof name, "%d.q_bias", i_layer);
    KVE_TRY(load_vector(m, ck, name, 0, q, layer->qkv_bias));
    snprintf(name, sizeof name, "%d.k_bias", i_layer);
    KVE_TRY(load_vector(m, ck, name, q, kv, layer->qkv_bias));
    snprintf(name, sizeof name, "%d.v_bias", i_layer);
    return load_vector(m, ck, name, q + kv, kv, layer->qkv_bias);
}

static kve_status load_layer(kve_model *m, const kve_checkpoint *ck, int32_t i_layer)
{
    const kve_shape *s = &m->cfg.shape;
    kve_layer *layer = &m->layers[i_layer];
    const part qkv[] = {{"q", s->Hq * s->D}, {"k", s->Hkv * s->D}, {"v", s->Hkv * s->D}};
    const part o[] = {{"o", s->E}}, gate_up[] = {{"gate", s->F}, {"up", s->F}}, down[] = {{"down", s->E}};
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%d.attn_norm", i_layer);
    KVE_TRY(new_vector(m, ck, name, s->E, &layer->attn_norm));
    snprintf(name, sizeof name, "%d.ffn_norm", i_layer);
    KVE_TRY(new_vector(m, ck, name, s->E, &layer->ffn_norm));
    KVE_TRY(new_weight(m, ck, i_layer, qkv, 3, s->E, &layer->qkv));
    KVE_TRY(new_weight(m, ck, i_layer, o, 1, s->Hq * s->D, &layer->o));
    KVE_TRY(new_weight(m, ck, i_layer, gate_up, 2, s->E, &layer->gate_up));
    KVE_TRY(new_weight(m, ck, i_layer, down, 1, s->F, &layer->down));
    if (m->cfg.qkv_bias)
        KVE_TRY(load_qkv_bias(m, ck, i_layer, layer));
    if (m->cfg.qk_norm) {
        snprintf(name, sizeof name, "%d.q_norm", i_layer);
        KVE_TRY(new_vector(m, ck, name, s->D, &layer->q_norm));
        snprintf(name, sizeof name, "%d.k_norm", i_layer);
        KVE_TRY(new_vector(m, ck, name, s->D, &layer->k_norm));
    }
    return KVE_OK;
}

static kve_status load_all(kve_model *m, const kve_checkpoint *ck)
{
    const kve_shape *s = &m->cfg.shape;
    const part embed[] = {{"embed", s->V}}, head[] = {{"head", s->V}};
    KVE_TRY(kve_alloc((size_t)s->L, sizeof *m->layers, &m->layers));
    KVE_TRY(new_weight(m, ck, -1, embed, 1, s->E, &m->embed));
    if (m->cfg.tied_head)
        m->head = m->embed;
    else
        KVE_TRY(new_weight(m, ck, -1, head, 1, s->E, &m->head));
    KVE_TRY(new_vector(m, ck, "final_norm", s->E, &m->final_norm));
    for (int32_t i = 0; i < s->L; i++)
        KVE_TRY(load_layer(m, ck, i));
    return KVE_OK;
}

kve_status kve_model_load(kve_backend *be, const kve_checkpoint *ck, kve_dtype dtype, kve_model **out)
{
    kve_model *m = NULL;
    KVE_TRY(kve_alloc(1, sizeof *m, &m));
    m->be = be;
    m->cfg = *kve_checkpoint_config(ck);
    m->dtype = dtype;
    kve_status st = load_all(m, ck);
    if (st != KVE_OK)
        kve_model_free(m);
    else
        *out = m;
    return st;
}

void kve_model_free(kve_model *m)
{
    if (!m)
        return;
    const kve_backend_vt *vt = m->be->vt;
    for (int32_t i = 0; m->layers && i < m->cfg.shape.L; i++) {
        kve_layer *layer = &m->layers[i];
        float *vectors[] = {layer->attn_norm, layer->ffn_norm, layer->qkv_bias, layer->q_norm, layer->k_norm};
        kve_weight *weights[] = {layer->qkv, layer->o, layer->gate_up, layer->down};
        for (size_t v = 0; v < sizeof vectors / sizeof *vectors; v++)
            vt->free(m->be, vectors[v]);
        for (size_t w = 0; w < sizeof weights / sizeof *weights; w++)
            vt->weight_free(m->be, weights[w]);
    }
    free(m->layers);
    if (m->head != m->embed)
        vt->weight_free(m->be, m->head);
    vt->weight_free(m->be, m->embed);
    vt->free(m->be, m->final_norm);
    free(m);
}
