/* Opening, forks, comparisons. Contract: fixture.h. */
#include "tests/engine/fixture.h"

#include "host/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void fixture_open(const char *path, kve_dtype dtype, int32_t threads, fixture *out)
{
    kve_backend_options opt = {.threads = threads};
    *out = (fixture){0};
    MUST(kve_checkpoint_open(path, &out->ck));
    MUST(kve_cpu_open(&opt, &out->be));
    MUST(kve_model_load(out->be, out->ck, dtype, &out->m));
}

/* What the test took from the backend must be back by now. */
void fixture_close(fixture *f)
{
    kve_model_free(f->m);
    if (f->be) {
        size_t left = f->be->vt->bytes_in_use(f->be);
        f->be->vt->close(f->be);
        assert_int_equal(left, 0);
    }
    kve_checkpoint_close(f->ck);
    *f = (fixture){0};
}

kve_session *open_session(const kve_model *m, int32_t chunk, int32_t max_forks, int32_t max_positions)
{
    kve_session_options opt = {.chunk = chunk, .max_forks = max_forks, .max_positions = max_positions};
    kve_session *s = NULL;
    MUST(kve_session_open(m, &opt, &s));
    return s;
}

void *must_alloc(size_t n, size_t size)
{
    void *p = NULL;
    MUST(kve_alloc(n, size, &p));
    return p;
}

double relative_error(const float *a, const float *b, size_t n)
{
    double off = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i]))
            return (double)INFINITY;
        off = fmax(off, fabs((double)a[i] - (double)b[i]));
        top = fmax(top, fabs((double)b[i]));
    }
    return top > 0 ? off / top : (double)INFINITY;
}

double worst_row(const float *a, const float *b, int32_t rows, size_t n)
{
    double worst = 0;
    for (size_t r = 0; r < (size_t)rows; r++)
        worst = fmax(worst, relative_error(a + r * n, b + r * n, n));
    return worst;
}

bool same_bits(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isnan(a[i]) || isnan(b[i]))
            return false;
    return memcmp(a, b, n * sizeof *a) == 0;
}

void forks_add(forks *f, kve_kv prefix, int32_t kept, int32_t n_context, int32_t tail_cap)
{
    int32_t x = f->X++;
    assert_true(x < MOST_FORKS);
    f->n_context[x] = n_context;
    f->slots[x] = (kve_fork_slot){.prefix = prefix};
    MUST(kve_uniform_lengths(f->m, kept, n_context, &f->lengths[x]));
    f->slots[x].prefix_len = f->lengths[x];
    MUST(kve_kv_alloc(f->m, tail_cap, &f->slots[x].tail));
}

void forks_begin(forks *f)
{
    MUST(kve_batch_alloc(f->m, f->slots, f->n_context, f->X, &f->batch));
}

void forks_end(forks *f)
{
    kve_batch_free(f->m, &f->batch);
    for (int32_t x = 0; x < f->X; x++) {
        kve_kv_free(f->m, &f->slots[x].tail);
        f->m->be->vt->free(f->m->be, f->lengths[x]);
    }
    *f = (forks){0};
}

static void rows_logits(kve_session *s, int32_t T, float *logits)
{
    int32_t *rows = must_alloc((size_t)T, sizeof *rows);
    for (int32_t i = 0; i < T; i++)
        rows[i] = i;
    MUST(kve_row_logits(s, rows, T, logits));
    free(rows);
}

void extend_fork(kve_session *s, forks *f, int32_t x, const int32_t *ids, int32_t n, int32_t chunk, float *logits)
{
    size_t V = (size_t)f->m->cfg.shape.V;
    for (int32_t at = 0, T; at < n; at += T) {
        int32_t q_len[MOST_FORKS] = {0};
        T = q_len[x] = n - at < chunk ? n - at : chunk;
        MUST(kve_extend(s, &f->batch, ids + at, q_len, NULL));
        if (logits)
            rows_logits(s, T, logits + (size_t)at * V);
    }
}

kve_ranked ranked_make(const kve_model *m, const kve_context *ctx, const float *scores, int32_t b, int32_t sink,
                       int32_t recent)
{
    int32_t rows[256], heads = m->cfg.shape.L * m->cfg.shape.Hkv;
    kve_ranked r;
    assert_in_range(heads, 1, 256);
    for (int32_t h = 0; h < heads; h++)
        rows[h] = b;
    MUST(kve_ranked_order(m, ctx, scores, sink, recent, &r));
    MUST(kve_ranked_gather(m, ctx, rows, &r));
    return r;
}
