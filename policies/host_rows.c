/* Rows on the host. Contract: host_rows.h. */
#include "policies/host_rows.h"

#include "host/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 16 };

size_t kve_host_width(int32_t D)
{
    return ((size_t)D + LANES - 1) / LANES * LANES;
}

static float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

kve_status kve_host_rows(const kve_policy_view *v, kve_host_kind kind, int32_t h, kve_span t, float *out)
{
    size_t D = (size_t)v->shape->D, width = kve_host_width(v->shape->D), count = (size_t)t.count * D;
    size_t row = ((size_t)v->i_layer * (size_t)v->shape->Hkv + (size_t)h) * (size_t)v->kv.cap + (size_t)t.first;
    size_t bytes = kve_dtype_bytes(v->kv_dtype);
    const char *from = kind == KVE_HOST_KEYS ? v->kv.k : v->kv.v;
    void *raw = NULL;
    KVE_TRY(kve_alloc(count, bytes, &raw));
    kve_status st = v->be->vt->read(v->be, raw, from + row * D * bytes, count * bytes);
    for (size_t j = 0; j < (size_t)t.count && st == KVE_OK; j++) {
        float *to = out + j * width;
        if (v->kv_dtype == KVE_F32)
            memcpy(to, (const float *)raw + j * D, D * sizeof *to);
        else
            for (size_t d = 0; d < D; d++)
                to[d] = from_bf16(((const uint16_t *)raw)[j * D + d]);
        memset(to + D, 0, (width - D) * sizeof *to);
    }
    free(raw);
    return st;
}

kve_status kve_host_queries(const kve_policy_view *v, kve_span t, float *out)
{
    size_t D = (size_t)v->shape->D, Hq = (size_t)v->shape->Hq, width = kve_host_width(v->shape->D);
    size_t count = (size_t)t.count * Hq * D;
    float *raw = NULL;
    KVE_TRY(kve_alloc(count, sizeof *raw, &raw));
    kve_status st = v->be->vt->read(v->be, raw, v->q + (size_t)t.first * Hq * D, count * sizeof *raw);
    for (size_t h = 0; h < Hq && st == KVE_OK; h++)
        for (size_t j = 0; j < (size_t)t.count; j++) {
            float *to = out + (h * (size_t)t.count + j) * width;
            memcpy(to, raw + (j * Hq + h) * D, D * sizeof *to);
            memset(to + D, 0, (width - D) * sizeof *to);
        }
    free(raw);
    return st;
}

void kve_host_unrotate(const kve_policy_view *v, kve_span t, float *rows, size_t width)
{
    size_t half = (size_t)v->shape->R / 2;
    for (size_t j = 0; j < (size_t)t.count; j++) {
        const float *cos = v->cos + ((size_t)t.first + j) * half, *sin = v->sin + ((size_t)t.first + j) * half;
        float *low = rows + j * width, *high = low + half;
        for (size_t d = 0; d < half; d++) {
            double a = (double)low[d], b = (double)high[d], c = (double)cos[d], s = (double)sin[d],
                   size = c * c + s * s;
            low[d] = (float)((a * c + b * s) / size);
            high[d] = (float)((b * c - a * s) / size);
        }
    }
}

void kve_host_center(float *rows, int32_t count, size_t width, float *mean)
{
    for (size_t d = 0; d < width; d += LANES) {
        double sum[LANES] = {0};
        for (size_t j = 0; j < (size_t)count; j++)
            for (size_t l = 0; l < LANES; l++)
                sum[l] += (double)rows[j * width + d + l];
        for (size_t l = 0; l < LANES; l++)
            mean[d + l] = (float)(sum[l] / count);
        for (size_t j = 0; j < (size_t)count; j++)
            for (size_t l = 0; l < LANES; l++)
                rows[j * width + d + l] -= mean[d + l];
    }
}

void kve_host_norms(const float *rows, int32_t count, size_t width, float *out)
{
    for (size_t j = 0; j < (size_t)count; j++) {
        double sum = 0;
        for (size_t d = 0; d < width; d++)
            sum += (double)rows[j * width + d] * (double)rows[j * width + d];
        out[j] = (float)sqrt(sum);
    }
}

void kve_host_z_scores(float *x, size_t n)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i];
    double mean = n ? sum / (double)n : 0;
    for (size_t i = 0; i < n; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    double std = n > 1 ? sqrt(squares / (double)(n - 1)) : 0;
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(((double)x[i] - mean) / (std < 1e-6 ? 1e-6 : std));
}

kve_status kve_host_scores_out(const kve_policy_view *v, const float *host, float *scores)
{
    return v->be->vt->write(v->be, scores, host, (size_t)v->shape->Hkv * (size_t)v->n * sizeof *host);
}

kve_status kve_host_scores_equal(const kve_policy_view *v, float *scores)
{
    float *zeros = NULL;
    KVE_TRY(kve_alloc((size_t)v->shape->Hkv * (size_t)v->n, sizeof *zeros, &zeros));
    kve_status st = kve_host_scores_out(v, zeros, scores);
    free(zeros);
    return st;
}
