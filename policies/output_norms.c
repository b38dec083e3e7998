/* Norms behind the output projection. Contract: output_norms.h. The product is the backend's: one f32 weight [G E][D]
 * per KV head, made of the rows that its embed op gives back exactly; the sums of magnitudes are the host's. */
#include "policies/output_norms.h"

#include "host/base/mem.h"
#include "policies/host_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 128, LANES = 16 };

typedef struct norms {
    const kve_policy_view *v;
    size_t width, columns; /* G E */
    float *projection;     /* host [E][Hq D] */
    float *slice;          /* host [G E][width]: one KV head's */
    float *values;         /* host [n][width] */
    float *x, *y;          /* device [ROWS][width], [ROWS][G E] */
    float *y_host;         /* [ROWS][G E] */
    kve_weight *weight;
} norms;

/* The output projection as f32, whatever its dtype and packing. */
static kve_status read_projection(const norms *w)
{
    const kve_shape *s = w->v->shape;
    kve_backend *be = w->v->be;
    size_t E = (size_t)s->E, K = (size_t)s->Hq * (size_t)s->D;
    int32_t *ids = NULL, *device_ids = NULL;
    float *rows = NULL;
    KVE_TRY(kve_alloc(E, sizeof *ids, &ids));
    for (int32_t e = 0; e < s->E; e++)
        ids[e] = e;
    kve_status st = be->vt->alloc(be, E * sizeof *ids, &device_ids);
    if (st == KVE_OK)
        st = be->vt->alloc(be, E * K * sizeof *rows, &rows);
    if (st == KVE_OK)
        st = be->vt->write(be, device_ids, ids, E * sizeof *ids);
    if (st == KVE_OK)
        st = be->vt->embed(
            be, &(kve_embed_params){.ids = device_ids, .table = w->v->output, .out = rows, .T = s->E, .E = (int32_t)K});
    if (st == KVE_OK)
        st = be->vt->read(be, w->projection, rows, E * K * sizeof *rows);
    be->vt->free(be, rows);
    be->vt->free(be, device_ids);
    free(ids);
    return st;
}

static kve_status make_weight(norms *w, int32_t h)
{
    const kve_shape *s = w->v->shape;
    kve_backend *be = w->v->be;
    size_t E = (size_t)s->E, D = (size_t)s->D, K = (size_t)s->Hq * D, G = (size_t)kve_shape_group(s);
    for (size_t g = 0; g < G; g++)
        for (size_t e = 0; e < E; e++) /* beyond D the slice is zeros from the start */
            memcpy(w->slice + (g * E + e) * w->width, w->projection + e * K + ((size_t)h * G + g) * D,
                   D * sizeof(float));
    KVE_TRY(be->vt->weight_create(be, KVE_F32, (int32_t)w->columns, (int32_t)w->width, &w->weight));
    KVE_TRY(be->vt->weight_fill(be, w->weight, 0, (int32_t)w->columns, w->slice));
    return be->vt->weight_seal(be, w->weight);
}

static float norm1(const float *restrict y, size_t n)
{
    float lane[LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            lane[l] += fabsf(y[i + l]);
    for (; i < n; i++)
        sum += fabsf(y[i]);
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int l = 0; l < step; l++)
            lane[l] += lane[l + step];
    return sum + lane[0];
}

static kve_status head_norms(norms *w, int32_t h, float *out)
{
    const kve_policy_view *v = w->v;
    kve_backend *be = v->be;
    KVE_TRY(make_weight(w, h));
    KVE_TRY(kve_host_rows(v, KVE_HOST_VALUES, h, (kve_span){0, v->n}, w->values));
    for (int32_t at = 0; at < v->n; at += ROWS) {
        int32_t count = v->n - at < ROWS ? v->n - at : ROWS;
        size_t x_bytes = (size_t)count * w->width * sizeof(float);
        KVE_TRY(be->vt->write(be, w->x, w->values + (size_t)at * w->width, x_bytes));
        KVE_TRY(be->vt->matmul(be, &(kve_matmul_params){.x = w->x, .w = w->weight, .y = w->y, .T = count}));
        KVE_TRY(be->vt->read(be, w->y_host, w->y, (size_t)count * w->columns * sizeof(float)));
        for (int32_t j = 0; j < count; j++)
            out[at + j] = norm1(w->y_host + (size_t)j * w->columns, w->columns) / (float)kve_shape_group(v->shape);
    }
    return KVE_OK;
}

static kve_status layer_norms(norms *w, kve_arena *arena, float *out)
{
    const kve_shape *s = w->v->shape;
    kve_backend *be = w->v->be;
    size_t n = (size_t)w->v->n, K = (size_t)s->Hq * (size_t)s->D;
    KVE_TRY(kve_arena_alloc(arena, (size_t)s->E * K, sizeof(float), &w->projection));
    KVE_TRY(kve_arena_alloc(arena, w->columns * w->width, sizeof(float), &w->slice));
    KVE_TRY(kve_arena_alloc(arena, n * w->width, sizeof(float), &w->values));
    KVE_TRY(kve_arena_alloc(arena, ROWS * w->columns, sizeof(float), &w->y_host));
    KVE_TRY(be->vt->alloc(be, ROWS * w->width * sizeof(float), &w->x));
    KVE_TRY(be->vt->alloc(be, ROWS * w->columns * sizeof(float), &w->y));
    KVE_TRY(read_projection(w));
    for (int32_t h = 0; h < s->Hkv; h++) {
        kve_status st = head_norms(w, h, out + (size_t)h * n);
        be->vt->weight_free(be, w->weight);
        w->weight = NULL;
        KVE_TRY(st);
    }
    return KVE_OK;
}

kve_status kve_output_norms(const kve_policy_view *v, float *out)
{
    norms w = {.v = v,
               .width = kve_host_width(v->shape->D),
               .columns = (size_t)kve_shape_group(v->shape) * (size_t)v->shape->E};
    kve_arena arena = {0};
    kve_status st = layer_norms(&w, &arena, out);
    v->be->vt->free(v->be, w.x);
    v->be->vt->free(v->be, w.y);
    kve_arena_free(&arena);
    return st;
}
