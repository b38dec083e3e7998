/* Weights in panels (layout: cpu.h): creation, filling by rows, and reading a row back for the embedding. */
#include "host/base/mem.h"
#include "kernels/cpu/cpu.h"

#include <stdlib.h>

static size_t padded_k(const kve_weight *w)
{
    return w->dtype == KVE_BF16 ? ((size_t)w->K + 1) & ~(size_t)1 : (size_t)w->K;
}

/* Element offset of (row, k) in the panels. */
static size_t element(const kve_weight *w, int32_t row, int32_t k)
{
    size_t panel = (size_t)(row / CPU_PANEL) * padded_k(w) * CPU_PANEL, col = (size_t)(row % CPU_PANEL);
    if (w->dtype == KVE_F32)
        return panel + (size_t)k * CPU_PANEL + col;
    return panel + ((size_t)(k / 2) * CPU_PANEL + col) * 2 + (size_t)(k % 2);
}

kve_status cpu_weight_create(kve_backend *be, kve_dtype dtype, int32_t N, int32_t K, kve_weight **out)
{
    kve_weight *w = NULL;
    if (N < 1 || K < 1)
        return kve_fail(KVE_ERR_USAGE, "cpu: a weight of %d x %d; both must be at least 1", N, K);
    KVE_TRY(kve_alloc(1, sizeof *w, &w));
    *w = (kve_weight){.dtype = dtype, .N = N, .K = K};
    size_t panels = ((size_t)N + CPU_PANEL - 1) / CPU_PANEL;
    w->bytes = panels * CPU_PANEL * padded_k(w) * kve_dtype_bytes(dtype);
    kve_status st = kve_alloc(w->bytes, 1, &w->data);
    if (st != KVE_OK) {
        free(w);
        return st;
    }
    atomic_fetch_add(&cpu_of(be)->bytes, w->bytes);
    *out = w;
    return KVE_OK;
}

typedef struct fill {
    kve_weight *w;
    int32_t row0;
    const float *rows;
} fill;

static void fill_row(void *ctx, int64_t i, int32_t worker)
{
    const fill *f = ctx;
    int32_t row = f->row0 + (int32_t)i;
    const float *in = f->rows + (size_t)i * (size_t)f->w->K;
    (void)worker;
    for (int32_t k = 0; k < f->w->K; k++) {
        size_t at = element(f->w, row, k);
        if (f->w->dtype == KVE_F32)
            ((float *)f->w->data)[at] = in[k];
        else
            ((uint16_t *)f->w->data)[at] = cpu_to_bf16(in[k]);
    }
}

kve_status cpu_weight_fill(kve_backend *be, kve_weight *w, int32_t row0, int32_t n_rows, const float *host_rows)
{
    if (row0 < 0 || n_rows < 0 || row0 > w->N - n_rows)
        return kve_fail(KVE_ERR_USAGE, "cpu: rows %d to %d of a weight of %d rows", row0, row0 + n_rows, w->N);
    fill f = {w, row0, host_rows};
    cpu_parallel_for(cpu_of(be), n_rows, fill_row, &f);
    return KVE_OK;
}

kve_status cpu_weight_seal(kve_backend *be, kve_weight *w)
{
    (void)be;
    (void)w;
    return KVE_OK;
}

void cpu_weight_free(kve_backend *be, kve_weight *w)
{
    if (!w)
        return;
    atomic_fetch_sub(&cpu_of(be)->bytes, w->bytes);
    free(w->data);
    free(w);
}

void cpu_weight_row(const kve_weight *w, int32_t row, float *out)
{
    for (int32_t k = 0; k < w->K; k++) {
        size_t at = element(w, row, k);
        out[k] = w->dtype == KVE_F32 ? ((const float *)w->data)[at] : cpu_from_bf16(((const uint16_t *)w->data)[at]);
    }
}
