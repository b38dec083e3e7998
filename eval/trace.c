/* Traces: writing and reading. Contract: trace.h. */
#include "eval/trace.h"

#include "host/base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Writing */

enum { N_META = 6, PLAIN_TENSORS = 5, MAX_TENSORS = 8 };

static kve_st_tensor tensor2(const char *name, int64_t a, int64_t b)
{
    return (kve_st_tensor){.name = name, .dtype = KVE_ST_F32, .n_dims = 2, .dims = {a, b}, .count = a * b};
}

static kve_st_tensor tensor4(const char *name, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (kve_st_tensor){
        .name = name, .dtype = KVE_ST_F32, .n_dims = 4, .dims = {a, b, c, d}, .count = a * b * c * d};
}

/* Cached rows as f32, one layer and head after the other. */
static kve_status write_rows(kve_st_writer *w, const kve_model *m, const void *rows, int32_t n, int32_t cap)
{
    const kve_shape *s = &m->cfg.shape;
    size_t count = (size_t)n * (size_t)s->D, step = (size_t)cap * (size_t)s->D * kve_dtype_bytes(m->dtype);
    float *f32 = NULL;
    uint16_t *raw = NULL;
    kve_status st = kve_alloc(count, sizeof *f32, &f32);
    if (st == KVE_OK)
        st = kve_alloc(count, sizeof *raw, &raw);
    for (int32_t i = 0; i < s->L * s->Hkv && st == KVE_OK; i++) {
        const unsigned char *from = (const unsigned char *)rows + (size_t)i * step;
        bool bf16 = m->dtype == KVE_BF16;
        st = m->be->vt->read(m->be, bf16 ? (void *)raw : (void *)f32, from, count * kve_dtype_bytes(m->dtype));
        for (size_t j = 0; bf16 && j < count; j++) {
            uint32_t bits = (uint32_t)raw[j] << 16;
            memcpy(f32 + j, &bits, sizeof bits);
        }
        if (st == KVE_OK)
            st = kve_st_write(w, f32, count * sizeof *f32);
    }
    free(f32);
    free(raw);
    return st;
}

/* The queries of all tokens, and the tables. */
static kve_status write_queries(kve_st_writer *w, const kve_observation *seen)
{
    const kve_shape *s = &seen->m->cfg.shape;
    size_t row = (size_t)s->Hq * (size_t)s->D, bytes = (size_t)seen->ctx->n * row * sizeof(float);
    size_t table = (size_t)(seen->ctx->n + KVE_FUTURE_POSITIONS) * (size_t)s->R / 2 * sizeof(float);
    float *host = NULL;
    kve_status st = kve_alloc(bytes, 1, &host);
    for (int32_t i = 0; i < s->L && st == KVE_OK; i++) {
        st =
            seen->m->be->vt->read(seen->m->be, host, seen->ctx->q + (size_t)i * (size_t)seen->ctx->kv.cap * row, bytes);
        if (st == KVE_OK)
            st = kve_st_write(w, host, bytes);
    }
    free(host);
    if (st == KVE_OK)
        st = kve_st_write(w, seen->cos, table);
    return st == KVE_OK ? kve_st_write(w, seen->sin, table) : st;
}

static kve_status write_positions(kve_st_writer *w, int32_t n)
{
    kve_status st = KVE_OK;
    for (int32_t j = 0; j < n && st == KVE_OK; j++)
        st = kve_st_write(w, &j, sizeof j);
    return st;
}

static kve_status write_tensors(kve_st_writer *w, const kve_trace_source *source, const kve_observation *seen)
{
    const kve_shape *s = &seen->m->cfg.shape;
    size_t n = (size_t)seen->ctx->n;
    KVE_TRY(write_rows(w, seen->m, seen->ctx->kv.k, seen->ctx->n, seen->ctx->kv.cap));
    KVE_TRY(write_rows(w, seen->m, seen->ctx->kv.v, seen->ctx->n, seen->ctx->kv.cap));
    KVE_TRY(write_positions(w, seen->ctx->n));
    KVE_TRY(kve_st_write(w, seen->tokens, n * sizeof *seen->tokens));
    KVE_TRY(kve_st_write(w, seen->importance, (size_t)s->L * (size_t)s->Hkv * n * sizeof(float)));
    return source->queries ? write_queries(w, seen) : KVE_OK;
}

kve_status kve_trace_write(const char *path, const kve_trace_source *source, const kve_observation *seen)
{
    const kve_shape *s = &seen->m->cfg.shape;
    int64_t n = seen->ctx->n;
    char n_future[16];
    kve_st_writer *w = NULL;
    const kve_st_tensor tensors[MAX_TENSORS] = {
        tensor4("keys", s->L, s->Hkv, n, s->D),
        tensor4("values", s->L, s->Hkv, n, s->D),
        {.name = "positions", .dtype = KVE_ST_I32, .n_dims = 1, .dims = {n}, .count = n},
        {.name = "tokens", .dtype = KVE_ST_I32, .n_dims = 1, .dims = {n}, .count = n},
        {.name = "importance", .dtype = KVE_ST_F32, .n_dims = 3, .dims = {s->L, s->Hkv, n}, .count = s->L * s->Hkv * n},
        tensor4("queries", s->L, n, s->Hq, s->D),
        tensor2("cos", n + KVE_FUTURE_POSITIONS, s->R / 2),
        tensor2("sin", n + KVE_FUTURE_POSITIONS, s->R / 2)};
    const kve_st_meta meta[N_META] = {{"sample", seen->name},
                                      {"prompt_sha256", seen->prompt_sha256},
                                      {"n_future", n_future},
                                      {"model", source->model_name},
                                      {"model_sha256", source->model_sha256},
                                      {"dtype", seen->m->dtype == KVE_BF16 ? "bf16" : "f32"}};
    snprintf(n_future, sizeof n_future, "%d", seen->n_future);
    KVE_TRY(kve_make_parents(path));
    KVE_TRY(kve_st_create(path, tensors, source->queries ? MAX_TENSORS : PLAIN_TENSORS, meta, N_META, &w));
    kve_status st = write_tensors(w, source, seen);
    if (st == KVE_OK)
        return kve_st_finish(w);
    kve_st_abort(w);
    return st;
}

/* --- Reading */

/* The tensor, F32 with these dimensions; a dimension of 0 is free. */
static kve_status find_f32(const kve_trace *t, const char *name, const int64_t *dims, int32_t n_dims,
                           const kve_st_tensor **out)
{
    const kve_st_tensor *f = kve_st_find(&t->file, name);
    if (!f)
        return kve_fail(KVE_ERR_FILE, "%s: no tensor '%s'; kveval trace writes such files", t->file.name, name);
    bool same = f->dtype == KVE_ST_F32 && f->n_dims == n_dims && f->count > 0;
    for (int32_t i = 0; same && i < n_dims; i++)
        same = dims[i] == 0 || f->dims[i] == dims[i];
    if (!same) {
        kve_str want = {0};
        for (int32_t i = 0; i < n_dims; i++)
            (void)kve_str_printf(&want, dims[i] ? "[%lld]" : "[.]", (long long)dims[i]);
        kve_status st = kve_fail(KVE_ERR_FILE, "%s: '%s' is not F32 %s as 'keys' demand", t->file.name, name, want.p);
        kve_str_free(&want);
        return st;
    }
    for (int64_t i = 0; i < f->count; i++) {
        float x;
        memcpy(&x, f->data + (size_t)i * sizeof x, sizeof x);
        if (!isfinite(x))
            return kve_fail(KVE_ERR_FILE, "%s: '%s', value %lld is %g; a ranking needs finite numbers", t->file.name,
                            name, (long long)i, (double)x);
    }
    *out = f;
    return KVE_OK;
}

static kve_status read_shape(kve_trace *t, const kve_st_tensor **keys)
{
    static const int64_t FREE[4] = {0};
    KVE_TRY(find_f32(t, "keys", FREE, 4, keys));
    const int64_t *d = (*keys)->dims;
    if (d[0] > 4096 || d[1] > 4096 || d[2] > 1 << 24 || d[3] > 4096 || d[3] % 2)
        return kve_fail(KVE_ERR_FILE,
                        "%s: 'keys' is [%lld][%lld][%lld][%lld]; [layers][KV heads][tokens][dimensions] "
                        "is due, dimensions even",
                        t->file.name, (long long)d[0], (long long)d[1], (long long)d[2], (long long)d[3]);
    t->model.cfg.shape = (kve_shape){.L = (int32_t)d[0],
                                     .Hkv = (int32_t)d[1],
                                     .Hq = (int32_t)d[1], /* until the queries say otherwise */
                                     .D = (int32_t)d[3]};
    t->ctx.n = (int32_t)d[2];
    return KVE_OK;
}

static kve_status read_queries(kve_trace *t, const kve_st_tensor **queries)
{
    kve_shape *s = &t->model.cfg.shape;
    const int64_t dims[4] = {s->L, 0, 0, s->D};
    *queries = NULL;
    if (!kve_st_find(&t->file, "queries"))
        return KVE_OK;
    KVE_TRY(find_f32(t, "queries", dims, 4, queries));
    int64_t rows = (*queries)->dims[1], heads = (*queries)->dims[2];
    int32_t W = t->ctx.n < KVE_WINDOW ? t->ctx.n : KVE_WINDOW;
    if (rows < W || rows > t->ctx.n || heads % s->Hkv || heads > 4096)
        return kve_fail(KVE_ERR_FILE,
                        "%s: 'queries' has %lld tokens and %lld heads; the last %d to %d tokens and a multiple of the "
                        "%d KV heads are due",
                        t->file.name, (long long)rows, (long long)heads, W, t->ctx.n, s->Hkv);
    s->Hq = (int32_t)heads;
    t->ctx.W = W;
    return KVE_OK;
}

/* Tensor rows of every layer: of `rows` rows in the file the last `keep`, packed. */
static kve_status upload(const kve_trace *t, void *device, const kve_st_tensor *f, int64_t rows, int64_t keep)
{
    size_t layer = (size_t)(f->count / f->dims[0]) * sizeof(float), row = layer / (size_t)rows;
    for (int32_t i = 0; i < t->model.cfg.shape.L; i++)
        KVE_TRY(t->model.be->vt->write(t->model.be, (unsigned char *)device + (size_t)i * (size_t)keep * row,
                                       f->data + (size_t)i * layer + (size_t)(rows - keep) * row, (size_t)keep * row));
    return KVE_OK;
}

static kve_status read_importance(kve_trace *t)
{
    const kve_shape *s = &t->model.cfg.shape;
    const int64_t dims[3] = {s->L, s->Hkv, t->ctx.n};
    const kve_st_tensor *f = NULL;
    if (!kve_st_find(&t->file, "importance"))
        return KVE_OK;
    KVE_TRY(find_f32(t, "importance", dims, 3, &f));
    KVE_TRY(t->model.be->vt->alloc(t->model.be, f->bytes, &t->importance));
    return t->model.be->vt->write(t->model.be, t->importance, f->data, f->bytes);
}

static kve_status read_table(kve_trace *t, const char *name, float **out)
{
    kve_shape *s = &t->model.cfg.shape;
    const int64_t dims[2] = {t->ctx.n + KVE_FUTURE_POSITIONS, s->R / 2};
    const kve_st_tensor *f = NULL;
    KVE_TRY(find_f32(t, name, dims, 2, &f));
    if (f->dims[1] > s->D / 2)
        return kve_fail(KVE_ERR_FILE, "%s: '%s' turns %lld dimensions; a head has %d", t->file.name, name,
                        (long long)(2 * f->dims[1]), s->D);
    s->R = 2 * (int32_t)f->dims[1];
    KVE_TRY(kve_alloc((size_t)f->count, sizeof **out, out));
    memcpy(*out, f->data, f->bytes);
    return KVE_OK;
}

static kve_status read_trace(kve_trace *t, const char *path)
{
    const kve_st_tensor *keys = NULL, *values = NULL, *queries = NULL;
    int32_t n, W;
    KVE_TRY(kve_safetensors_open(path, &t->file));
    KVE_TRY(read_shape(t, &keys));
    KVE_TRY(find_f32(t, "values", keys->dims, 4, &values));
    KVE_TRY(read_queries(t, &queries));
    n = t->ctx.n;
    W = t->ctx.W;
    KVE_TRY(kve_context_alloc(&t->model, n, &t->ctx));
    t->ctx.n = n;
    t->ctx.W = W;
    if (queries && queries->dims[1] == n) {
        KVE_TRY(kve_context_queries(&t->model, &t->ctx));
        KVE_TRY(upload(t, t->ctx.q, queries, n, n));
    }
    if (kve_st_find(&t->file, "cos")) {
        KVE_TRY(read_table(t, "cos", &t->cos));
        KVE_TRY(read_table(t, "sin", &t->sin));
    }
    KVE_TRY(upload(t, t->ctx.kv.k, keys, n, n));
    KVE_TRY(upload(t, t->ctx.kv.v, values, n, n));
    if (queries)
        KVE_TRY(upload(t, t->ctx.q_window, queries, queries->dims[1], W));
    const char *sample = kve_st_meta_get(&t->file, "sample");
    t->sample_name = sample ? sample : "trace";
    return read_importance(t);
}

kve_status kve_trace_open(kve_backend *be, const char *path, kve_trace *out)
{
    *out = (kve_trace){.model = {.be = be, .dtype = KVE_F32}};
    return read_trace(out, path);
}

void kve_trace_close(kve_trace *t)
{
    free(t->cos);
    free(t->sin);
    t->model.be->vt->free(t->model.be, t->importance);
    kve_context_free(&t->model, &t->ctx);
    kve_safetensors_close(&t->file);
}
