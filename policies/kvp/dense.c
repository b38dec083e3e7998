/* Arithmetic for training. Contract: dense.h. Each function is one body, compiled for plain C and for AVX2 with FMA;
 * loops over 16 lanes keep the order of every sum the same under both. */
#include "policies/kvp/dense.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

enum { LANES = KVP_LANES, TILE = 6 };

/* --- Products: tiles of up to 6 rows by 16 columns */

INLINE void tile_body(const kvp_gemm *g, int32_t row, int32_t rows, int32_t col)
{
    const float *a = g->a + (size_t)row * g->a_row, *b = g->b + (size_t)(col / LANES) * g->b_panel;
    float *c = g->c + (size_t)row * g->c_row + col;
    for (int32_t r = 0; r < rows; r++, a += g->a_row, c += g->c_row) {
        float sum[LANES] = {0};
        for (int32_t p = 0; p < g->k; p++) {
            float x = a[(size_t)p * g->a_step];
            for (int l = 0; l < LANES; l++)
                sum[l] += x * b[(size_t)p * g->b_step + (size_t)l];
        }
        for (int l = 0; l < LANES; l++)
            c[l] = g->add ? c[l] + sum[l] : sum[l];
    }
}

static void gemm_portable(const kvp_gemm *g)
{
    for (int32_t col = 0; col < g->n; col += LANES)
        tile_body(g, 0, g->m, col);
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,fma")))

/* `rows` is a constant in every instance, so that all sums stay in registers. */
AVX2 INLINE void tile_avx2(const kvp_gemm *g, int32_t row, const int32_t rows, int32_t col)
{
    const float *a = g->a + (size_t)row * g->a_row, *b = g->b + (size_t)(col / LANES) * g->b_panel;
    float *c = g->c + (size_t)row * g->c_row + col;
    __m256 s[TILE][2];
    for (int32_t r = 0; r < rows; r++)
        s[r][0] = s[r][1] = _mm256_setzero_ps();
    for (int32_t p = 0; p < g->k; p++, a += g->a_step, b += g->b_step) {
        __m256 low = _mm256_loadu_ps(b), high = _mm256_loadu_ps(b + 8);
        for (int32_t r = 0; r < rows; r++) {
            __m256 x = _mm256_broadcast_ss(a + (size_t)r * g->a_row);
            s[r][0] = _mm256_fmadd_ps(x, low, s[r][0]);
            s[r][1] = _mm256_fmadd_ps(x, high, s[r][1]);
        }
    }
    for (int32_t r = 0; r < rows; r++, c += g->c_row)
        for (int h = 0; h < 2; h++)
            _mm256_storeu_ps(c + 8 * h, g->add ? _mm256_add_ps(_mm256_loadu_ps(c + 8 * h), s[r][h]) : s[r][h]);
}

AVX2 static void gemm_avx2(const kvp_gemm *g)
{
    for (int32_t col = 0; col < g->n; col += LANES) {
        int32_t row = 0;
        for (; row + TILE <= g->m; row += TILE)
            tile_avx2(g, row, TILE, col);
        switch (g->m - row) {
        case 5:
            tile_avx2(g, row, 5, col);
            break;
        case 4:
            tile_avx2(g, row, 4, col);
            break;
        case 3:
            tile_avx2(g, row, 3, col);
            break;
        case 2:
            tile_avx2(g, row, 2, col);
            break;
        case 1:
            tile_avx2(g, row, 1, col);
            break;
        default:
            break;
        }
    }
}
#endif

/* --- Rows */

INLINE float sum_lanes(float lane[LANES])
{
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] += lane[l + w];
    return lane[0];
}

/* 1 / (1 + e^-x). e^-|x| = 2^n 2^f with f in [-1/2, 1/2]: n through the exponent bits, 2^f by its Taylor polynomial. */
INLINE float sigmoid(float x)
{
    const float to_integer = 12582912.0f; /* 1.5 * 2^23: what is added to it is rounded to an integer */
    float y = fabsf(x);
    y = (y > 87.0f ? 87.0f : y) * -1.44269504f;
    float shifted = y + to_integer, f = y - (shifted - to_integer);
    float e = 1.5403530e-4f;
    e = e * f + 1.33335581e-3f;
    e = e * f + 9.61812911e-3f;
    e = e * f + 5.55041087e-2f;
    e = e * f + 2.40226507e-1f;
    e = e * f + 6.93147181e-1f;
    e = e * f + 1.0f;
    uint32_t bits;
    float scale;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127u) << 23;
    memcpy(&scale, &bits, sizeof scale);
    e *= scale;
    return (x < 0 ? e : 1.0f) / (1.0f + e); /* NaN stays NaN: the polynomial of NaN is */
}

INLINE void norm_body(const kvp_norm *p)
{
    float *x = p->x;
    for (int32_t r = 0; r < p->rows; r++, x += p->width) {
        float lane[LANES] = {0};
        for (int32_t i = 0; i < p->width && p->bias; i++)
            x[i] += p->bias[i];
        for (int32_t i = 0; i < p->width; i += LANES)
            for (int l = 0; l < LANES; l++)
                lane[l] += x[i + l];
        const float mean = sum_lanes(lane) / (float)p->width;
        memset(lane, 0, sizeof lane);
        for (int32_t i = 0; i < p->width; i += LANES)
            for (int l = 0; l < LANES; l++)
                lane[l] += (x[i + l] - mean) * (x[i + l] - mean);
        const float scale = 1.0f / sqrtf(sum_lanes(lane) / (float)p->width + 1e-5f);
        for (int32_t i = 0; i < p->width; i++)
            x[i] = (x[i] - mean) * scale;
        p->scale[r] = scale;
    }
}

INLINE void affine_body(const kvp_affine *p)
{
    const float *restrict gain = p->gain, *restrict shift = p->shift;
    for (int32_t r = 0; r < p->rows; r++) {
        const float *restrict y = p->y + (size_t)r * p->y_row;
        float *restrict out = p->out + (size_t)r * p->out_row;
        if (p->silu)
            for (int32_t i = 0; i < p->width; i++) {
                float z = y[i] * gain[i] + shift[i];
                out[i] = z * sigmoid(z);
            }
        else
            for (int32_t i = 0; i < p->width; i++)
                out[i] = y[i] * gain[i] + shift[i];
    }
}

/* d becomes the gradient of the affine's output z. */
INLINE void silu_back(const float *restrict y, const float *restrict gain, const float *restrict shift,
                      float *restrict d, int32_t width)
{
    for (int32_t i = 0; i < width; i++) {
        float z = y[i] * gain[i] + shift[i], s = sigmoid(z);
        d[i] *= s * (1.0f + z * (1.0f - s));
    }
}

/* d becomes gain d; the sums of that and of that times y. */
INLINE void affine_back(const float *restrict y, const float *restrict gain, float *restrict d, float *restrict d_gain,
                        float *restrict d_shift, int32_t width, float *sum, float *sum_y)
{
    float lane[LANES] = {0}, lane_y[LANES] = {0};
    for (int32_t i = 0; i < width; i += LANES)
        for (int l = 0; l < LANES; l++) {
            d_shift[i + l] += d[i + l];
            d_gain[i + l] += d[i + l] * y[i + l];
            float t = d[i + l] * gain[i + l];
            lane[l] += t;
            lane_y[l] += t * y[i + l];
            d[i + l] = t;
        }
    *sum = sum_lanes(lane);
    *sum_y = sum_lanes(lane_y);
}

INLINE void norm_back_body(const kvp_norm_back *p)
{
    const float share = 1.0f / (float)p->width;
    for (int32_t r = 0; r < p->rows; r++) {
        const float *restrict y = p->y + (size_t)r * p->y_row;
        float *restrict d = p->d + (size_t)r * p->d_row, *restrict d_bias = p->d_bias, sum, sum_y;
        if (p->silu)
            silu_back(y, p->gain, p->shift, d, p->width);
        affine_back(y, p->gain, d, p->d_gain, p->d_shift, p->width, &sum, &sum_y);
        if (!p->scale)
            continue;
        const float scale = p->scale[r], mean = sum * share, mean_y = sum_y * share;
        for (int32_t i = 0; i < p->width; i++) {
            d[i] = scale * (d[i] - mean - y[i] * mean_y);
            d_bias[i] += d[i];
        }
    }
}

INLINE void dots_body(const float *x, int32_t rows, int32_t width, const float *w, float bias, float *out)
{
    for (int32_t r = 0; r < rows; r++, x += width) {
        float lane[LANES] = {0};
        for (int32_t i = 0; i < width; i += LANES)
            for (int l = 0; l < LANES; l++)
                lane[l] += x[i + l] * w[i + l];
        out[r] = sum_lanes(lane) + bias;
    }
}

INLINE double square_sum_body(const float *x, size_t n)
{
    double lane[LANES] = {0}, sum = 0;
    for (size_t i = 0; i < n; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            lane[l] += (double)x[i + l] * (double)x[i + l];
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

INLINE void adamw_body(const kvp_adamw *p)
{
    float *restrict w = p->w, *restrict mean = p->mean, *restrict square = p->square;
    const float *restrict grad = p->grad;
    const float keep = 1.0f - p->lr * p->decay, factor = p->factor, beta1 = p->beta1, beta2 = p->beta2;
    const float lr = p->lr, eps = p->eps, fix1 = p->fix1, fix2 = p->fix2;
    for (size_t i = 0; i < p->n; i++) {
        float g = grad[i] * factor;
        mean[i] = beta1 * mean[i] + (1.0f - beta1) * g;
        square[i] = beta2 * square[i] + (1.0f - beta2) * g * g;
        w[i] = w[i] * keep - lr * (mean[i] * fix1) / (sqrtf(square[i] * fix2) + eps);
    }
}

INLINE void blend_body(float *restrict to, const float *restrict from, size_t n, float keep)
{
    for (size_t i = 0; i < n; i++)
        to[i] = keep * to[i] + (1.0f - keep) * from[i];
}

/* --- One instance of everything for each instruction set */

#define INSTANCES(SET, ATTRIBUTE)                                                                                      \
    ATTRIBUTE static void norm_##SET(const kvp_norm *p)                                                                \
    {                                                                                                                  \
        norm_body(p);                                                                                                  \
    }                                                                                                                  \
    ATTRIBUTE static void affine_##SET(const kvp_affine *p)                                                            \
    {                                                                                                                  \
        affine_body(p);                                                                                                \
    }                                                                                                                  \
    ATTRIBUTE static void norm_back_##SET(const kvp_norm_back *p)                                                      \
    {                                                                                                                  \
        norm_back_body(p);                                                                                             \
    }                                                                                                                  \
    ATTRIBUTE static void dots_##SET(const float *x, int32_t rows, int32_t width, const float *w, float bias,          \
                                     float *out)                                                                       \
    {                                                                                                                  \
        dots_body(x, rows, width, w, bias, out);                                                                       \
    }                                                                                                                  \
    ATTRIBUTE static double square_sum_##SET(const float *x, size_t n)                                                 \
    {                                                                                                                  \
        return square_sum_body(x, n);                                                                                  \
    }                                                                                                                  \
    ATTRIBUTE static void adamw_##SET(const kvp_adamw *p)                                                              \
    {                                                                                                                  \
        adamw_body(p);                                                                                                 \
    }                                                                                                                  \
    ATTRIBUTE static void blend_##SET(float *to, const float *from, size_t n, float keep)                              \
    {                                                                                                                  \
        blend_body(to, from, n, keep);                                                                                 \
    }

#define TABLE(SET)                                                                                                     \
    {                                                                                                                  \
        .name = #SET, .gemm = gemm_##SET, .norm = norm_##SET, .affine = affine_##SET, .norm_back = norm_back_##SET,    \
        .dots = dots_##SET, .square_sum = square_sum_##SET, .adamw = adamw_##SET, .blend = blend_##SET                 \
    }

#define NOTHING
INSTANCES(portable, NOTHING)
const kvp_math kvp_math_portable = TABLE(portable);
#if defined(__x86_64__)
INSTANCES(avx2, AVX2)
static const kvp_math g_avx2 = TABLE(avx2);
#endif

const kvp_math *kvp_math_pick(void)
{
#if defined(__x86_64__)
    const char *wish = getenv("KVEVAL_ISA");
    if (!(wish && strcmp(wish, "portable") == 0) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &g_avx2;
#endif
    return &kvp_math_portable;
}
