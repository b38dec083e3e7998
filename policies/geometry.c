/* Attention-free policies on the shape of the keys and values as a set: cur (kvpress CURPress: products of row norms,
 * blocks of 16, 4 sinks) and leverage (LeverageScorePress: approximate leverage of the keys before RoPE through a
 * Gaussian sketch of 48 columns). kvpress takes the sketch from torch's generator and raises the 0.01 where its f32
 * Cholesky fails; here all of it is in doubles, which the 0.01 keeps definite, because keys that depend on each other
 * nearly turn f32's rounding into 1e-3 of a score. */
#include "policies/geometry.h"

#include "host/base/mem.h"
#include "host/base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CUR_SINKS = 4, CUR_BLOCK = 16, S = KVE_SKETCH };

/* --- cur */

/* x[j] = norm^2 of row j over the sum of its block. */
static void block_shares(float *x, int32_t n)
{
    for (int32_t first = 0; first < n; first += CUR_BLOCK) {
        int32_t end = first + CUR_BLOCK < n ? first + CUR_BLOCK : n;
        double sum = 0;
        for (int32_t j = first; j < end; j++)
            sum += (double)x[j] * (double)x[j];
        for (int32_t j = first; j < end; j++)
            x[j] = sum > 0 ? (float)((double)x[j] * (double)x[j] / sum) : 0;
    }
}

static void cur_head(float *k_norms, float *v_norms, int32_t n, float *out)
{
    double total = 0;
    block_shares(k_norms, n);
    block_shares(v_norms, n);
    for (int32_t j = 0; j < n; j++)
        total += (double)k_norms[j] * (double)v_norms[j];
    for (int32_t j = 0; j < n; j++)
        out[j] = j < CUR_SINKS ? 1.0f : total > 0 ? (float)((double)k_norms[j] * (double)v_norms[j] / total) : 0;
}

static kve_status score_cur(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    size_t n = (size_t)v->n, width = kve_host_width(v->shape->D);
    float *rows = NULL, *out = NULL;
    KVE_TRY(kve_alloc(n, (width + 2) * sizeof *rows, &rows)); /* rows, then the norms of keys and of values */
    float *k_norms = rows + n * width, *v_norms = k_norms + n;
    kve_status st = kve_alloc((size_t)v->shape->Hkv * n, sizeof *out, &out);
    for (int32_t h = 0; h < v->shape->Hkv && st == KVE_OK; h++) {
        kve_span all = {0, v->n};
        KVE_TRY_GOTO(st, kve_host_rows(v, KVE_HOST_KEYS, h, all, rows), done);
        kve_host_norms(rows, v->n, width, k_norms);
        KVE_TRY_GOTO(st, kve_host_rows(v, KVE_HOST_VALUES, h, all, rows), done);
        kve_host_norms(rows, v->n, width, v_norms);
        cur_head(k_norms, v_norms, v->n, out + (size_t)h * n);
    }
    if (st == KVE_OK)
        st = kve_host_scores_out(v, out, scores);
done:
    free(rows);
    free(out);
    return st;
}

/* --- leverage */

void kve_draw_sketch(const kve_policy_view *v, float *out)
{
    size_t per_head = (size_t)v->shape->D * S; /* even: S is */
    for (size_t h = 0; h < (size_t)v->shape->Hkv; h++) {
        kve_rng r;
        kve_rng_init(&r, v->seed, v->sample, (uint64_t)v->i_layer, h);
        for (size_t i = 0; i < per_head; i += 2) { /* Box and Muller: two uniforms give two normals */
            double length = sqrt(-2 * log(1 - kve_rng_double(&r))), angle = 2 * acos(-1.0) * kve_rng_double(&r);
            out[h * per_head + i] = (float)(length * cos(angle));
            out[h * per_head + i + 1] = (float)(length * sin(angle));
        }
    }
}

/* x [count][S] = rows phi, less its mean: the same as with the mean of the rows taken off first. */
static void sketch_rows(const float *rows, int32_t count, int32_t D, size_t width, const double *phi, double *x)
{
    double mean[S] = {0};
    for (size_t j = 0; j < (size_t)count; j++) {
        double *restrict to = x + j * S;
        memset(to, 0, S * sizeof *to);
        for (size_t d = 0; d < (size_t)D; d++) {
            double f = (double)rows[j * width + d];
            for (size_t c = 0; c < S; c++)
                to[c] += f * phi[d * S + c];
        }
        for (size_t c = 0; c < S; c++)
            mean[c] += to[c] / count;
    }
    for (size_t j = 0; j < (size_t)count; j++)
        for (size_t c = 0; c < S; c++)
            x[j * S + c] -= mean[c];
}

/* g = X'X, the lower triangle. */
static void gram(const double *x, int32_t count, double g[S][S])
{
    memset(g, 0, sizeof(double[S][S]));
    for (size_t j = 0; j < (size_t)count; j++) {
        const double *row = x + j * S;
        for (int r = 0; r < S; r++)
            for (int c = 0; c <= r; c++)
                g[r][c] += row[r] * row[c];
    }
}

/* g = L L' becomes L; both in the lower triangle. */
static void factor(double g[S][S])
{
    for (int r = 0; r < S; r++)
        for (int c = 0; c <= r; c++) {
            double sum = g[r][c];
            for (int i = 0; i < c; i++)
                sum -= g[r][i] * g[c][i];
            g[r][c] = c == r ? sqrt(sum) : sum / g[c][c];
        }
}

/* t[c] = column c of L^-1, zeros above its diagonal. */
static void invert(double l[S][S], double t[S][S])
{
    for (int c = 0; c < S; c++)
        for (int r = 0; r < S; r++) {
            double sum = r == c;
            for (int i = c; i < r; i++)
                sum -= l[r][i] * t[c][i];
            t[c][r] = r < c ? 0 : sum / l[r][r];
        }
}

/* out[j] = x_j (X'X + 0.01 I)^-1 x_j' = |L^-1 x_j|^2 */
static void leverage(const double *x, int32_t count, float *out)
{
    double g[S][S], t[S][S];
    gram(x, count, g);
    for (int i = 0; i < S; i++)
        g[i][i] += 0.01;
    factor(g);
    invert(g, t);
    for (size_t j = 0; j < (size_t)count; j++) {
        double y[S] = {0}, sum = 0;
        for (int c = 0; c < S; c++) {
            double f = x[j * S + (size_t)c];
            for (int r = 0; r < S; r++)
                y[r] += f * t[c][r];
        }
        for (int r = 0; r < S; r++)
            sum += y[r] * y[r];
        out[j] = (float)sum;
    }
}

kve_status kve_leverage_z(const kve_policy_view *v, const float *sketch, kve_span t, float *out)
{
    size_t per_head = (size_t)v->shape->D * S, width = kve_host_width(v->shape->D), count = (size_t)t.count;
    float *rows = NULL;
    double *x = NULL; /* then phi */
    KVE_TRY(kve_alloc(count, width * sizeof *rows, &rows));
    kve_status st = kve_alloc(count * S + per_head, sizeof *x, &x);
    for (size_t h = 0; h < (size_t)v->shape->Hkv && st == KVE_OK; h++) {
        KVE_TRY_GOTO(st, kve_host_rows(v, KVE_HOST_KEYS, (int32_t)h, t, rows), done);
        kve_host_unrotate(v, t, rows, width);
        double *phi = x + count * S;
        for (size_t i = 0; i < per_head; i++)
            phi[i] = (double)sketch[h * per_head + i] / sqrt(S);
        sketch_rows(rows, t.count, v->shape->D, width, phi, x);
        leverage(x, t.count, out + h * count);
    }
    if (st == KVE_OK)
        kve_host_z_scores(out, (size_t)v->shape->Hkv * count);
done:
    free(rows);
    free(x);
    return st;
}

static kve_status score_leverage(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    size_t Hkv = (size_t)v->shape->Hkv, per_head = (size_t)v->shape->D * S;
    float *sketch = NULL; /* then the scores */
    KVE_TRY(kve_alloc(Hkv, (per_head + (size_t)v->n) * sizeof *sketch, &sketch));
    float *out = sketch + Hkv * per_head;
    kve_draw_sketch(v, sketch);
    kve_status st = kve_leverage_z(v, sketch, (kve_span){0, v->n}, out);
    if (st == KVE_OK)
        st = kve_host_scores_out(v, out, scores);
    free(sketch);
    return st;
}

const kve_policy kve_policy_cur = {.name = "cur",
                                   .summary = "keeps rows of large norm among their 16, by key and value",
                                   .needs = KVE_NEED_KEYS | KVE_NEED_VALUES,
                                   .while_decoding = true,
                                   .score = score_cur};
const kve_policy kve_policy_leverage = {.name = "leverage",
                                        .summary = "keeps keys that few others resemble, before rotation",
                                        .needs = KVE_NEED_KEYS | KVE_NEED_ROTATION,
                                        .score = score_leverage};
