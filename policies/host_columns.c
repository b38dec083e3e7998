/* Column sums of a softmax. Contract: host_columns.h. The scores of 32 queries against all keys at a time come from the
 * product of matrices that training uses; the loops below are written in lanes, so that they become vectors and the
 * order of every sum stays the same. */
#include "policies/host_columns.h"

#include "host/base/mem.h"
#include "policies/kvp/dense.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = KVP_LANES, QUERIES = 32 };

/* e^x for x <= 0, to about 2e-7: x = i ln 2 + r with i whole and |r| <= ln 2 / 2; e^r by its Taylor series, 2^i through
 * the exponent bits. Below -87 it is 0; NaN stays NaN. */
static inline float exp_of_negative(float x)
{
    const float to_integer = 12582912.0f; /* 1.5 * 2^23: what is added to it is rounded to an integer */
    float shifted = x * 1.44269504f + to_integer, i = shifted - to_integer;
    float r = x - i * 0.693145752f; /* ln 2 in two parts, the first of few bits: i times it is exact */
    r -= i * 1.42860677e-6f;
    float y = 1.0f / 5040;
    y = y * r + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    uint32_t bits;
    float power;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127u) << 23;
    memcpy(&power, &bits, sizeof power);
    y *= power;
    return x < -87.0f ? 0.0f : y;
}

/* Keys by panels of 16: element (d, j) at [(j / 16)][d][j % 16]; keys that are not there are zeros. */
static void pack(const float *k, int32_t n_keys, size_t width, float *panels)
{
    for (size_t j = 0; j < (size_t)n_keys; j++) {
        float *to = panels + j / LANES * LANES * width + j % LANES;
        for (size_t d = 0; d < width; d++)
            to[d * LANES] = k[j * width + d];
    }
}

/* p [padded]: products in, the row's exponentials out, 0 where nothing is seen; returns their sum. */
static float softmax_row(float *restrict p, int32_t seen, int32_t padded, float scale)
{
    float top[LANES], sum[LANES];
    for (int32_t j = 0; j < seen; j++)
        p[j] *= scale;
    for (int32_t j = seen; j < padded; j++)
        p[j] = -INFINITY;
    for (int l = 0; l < LANES; l++) {
        top[l] = -INFINITY;
        sum[l] = 0;
    }
    for (int32_t j = 0; j < padded; j += LANES)
        for (int l = 0; l < LANES; l++)
            top[l] = p[j + l] > top[l] ? p[j + l] : top[l];
    for (int l = 1; l < LANES; l++)
        top[0] = top[l] > top[0] ? top[l] : top[0];
    const float highest = top[0];
    for (int32_t j = 0; j < padded; j += LANES)
        for (int l = 0; l < LANES; l++) {
            p[j + l] = exp_of_negative(p[j + l] - highest);
            sum[l] += p[j + l];
        }
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int l = 0; l < w; l++)
            sum[l] += sum[l + w];
    return sum[0];
}

static void add_row(float *restrict sums, const float *restrict p, int32_t padded, float factor)
{
    for (int32_t j = 0; j < padded; j++)
        sums[j] += factor * p[j];
}

/* panels, p and sums: see kve_column_sums. */
static void add_queries(const kve_columns *c, int32_t padded, const float *panels, float *p, float *sums)
{
    const kvp_math *math = kvp_math_pick();
    for (int32_t i0 = 0; i0 < c->n_queries; i0 += QUERIES) {
        int32_t count = c->n_queries - i0 < QUERIES ? c->n_queries - i0 : QUERIES;
        math->gemm(&(kvp_gemm){.a = c->q + (size_t)i0 * c->width,
                               .b = panels,
                               .c = p,
                               .a_row = c->width,
                               .a_step = 1,
                               .b_panel = c->width * LANES,
                               .b_step = LANES,
                               .c_row = (size_t)padded,
                               .m = count,
                               .n = padded,
                               .k = (int32_t)c->width});
        for (int32_t i = 0; i < count; i++) {
            float *row = p + (size_t)i * (size_t)padded;
            int32_t seen = c->visible + i0 + i < c->n_keys ? c->visible + i0 + i : c->n_keys;
            float total = softmax_row(row, seen, padded, c->scale);
            add_row(sums, row, padded, (c->weight ? c->weight[i0 + i] : 1.0f) / total);
        }
    }
}

kve_status kve_column_sums(const kve_columns *c)
{
    int32_t padded = (c->n_keys + LANES - 1) / LANES * LANES;
    float *panels = NULL; /* [padded][width], then products [QUERIES][padded], then sums [padded] */
    KVE_TRY(kve_alloc((size_t)padded, (c->width + QUERIES + 1) * sizeof *panels, &panels));
    float *p = panels + (size_t)padded * c->width, *sums = p + (size_t)padded * QUERIES;
    pack(c->k, c->n_keys, c->width, panels);
    add_queries(c, padded, panels, p, sums);
    for (int32_t j = 0; j < c->n_keys; j++)
        c->sums[j] += sums[j];
    free(panels);
    return KVE_OK;
}
