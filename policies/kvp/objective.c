/* Rankings, rewards, gradients. Contract: objective.h. */
#include "policies/kvp/objective.h"

#include "host/base/mem.h"
#include "host/base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const g_names[] = {"rl", "regression", "topb"};

const char *kvp_objective_name(kvp_objective o)
{
    return g_names[o];
}

kve_status kvp_objective_parse(const char *name, kvp_objective *out)
{
    for (size_t i = 0; i < sizeof g_names / sizeof *g_names; i++)
        if (strcmp(name, g_names[i]) == 0) {
            *out = (kvp_objective)i;
            return KVE_OK;
        }
    return kve_fail(KVE_ERR_USAGE, "--objective: '%s' is unknown; use rl, regression or topb", name);
}

kve_status kvp_rank_work_create(int32_t max_m, int32_t samples, kvp_rank_work *w)
{
    size_t m = (size_t)max_m;
    *w = (kvp_rank_work){.max_m = max_m, .samples = samples};
    kve_status st = KVE_OK;
    for (int i = 0; i < 2 && st == KVE_OK; i++) {
        st = kve_alloc(m, sizeof *w->key[i], &w->key[i]);
        if (st == KVE_OK)
            st = kve_alloc(m, sizeof *w->index[i], &w->index[i]);
    }
    if (st == KVE_OK)
        st = kve_alloc(m, sizeof *w->noisy, &w->noisy);
    if (st == KVE_OK)
        st = kve_alloc(m, sizeof *w->weight, &w->weight);
    if (st == KVE_OK)
        st = kve_alloc(m, sizeof *w->behind, &w->behind);
    if (st == KVE_OK)
        st = kve_alloc((size_t)samples, sizeof *w->reward, &w->reward);
    if (st == KVE_OK)
        st = kve_alloc((size_t)samples * m, sizeof *w->orders, &w->orders);
    if (st == KVE_OK)
        st = kve_alloc(m, sizeof *w->best, &w->best);
    if (st != KVE_OK)
        kvp_rank_work_free(w);
    return st;
}

void kvp_rank_work_free(kvp_rank_work *w)
{
    for (int i = 0; i < 2; i++) {
        free(w->key[i]);
        free(w->index[i]);
    }
    free(w->noisy);
    free(w->weight);
    free(w->behind);
    free(w->reward);
    free(w->orders);
    free(w->best);
    *w = (kvp_rank_work){0};
}

/* Larger floats have smaller keys; -0 equals +0. */
static uint32_t descending_key(float x)
{
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? bits : ~bits & 0x7fffffffu;
}

/* Radix sort, a byte at a time from the lowest: stable, so equal scores stay in the order of their index. */
void kvp_sort(const float *scores, int32_t m, kvp_rank_work *w, int32_t *order)
{
    enum { BYTES = 4, VALUES = 256 };
    uint32_t counts[BYTES][VALUES] = {{0}};
    for (int32_t i = 0; i < m; i++) {
        uint32_t key = w->key[0][i] = descending_key(scores[i]);
        w->index[0][i] = i;
        for (int b = 0; b < BYTES; b++)
            counts[b][key >> (8 * b) & 255]++;
    }
    for (int b = 0; b < BYTES; b++) {
        const uint32_t *key = w->key[b & 1];
        const int32_t *index = w->index[b & 1];
        uint32_t *to_key = w->key[~b & 1], at = 0;
        int32_t *to_index = b == BYTES - 1 ? order : w->index[~b & 1];
        for (int v = 0; v < VALUES; v++) {
            uint32_t count = counts[b][v];
            counts[b][v] = at;
            at += count;
        }
        for (int32_t i = 0; i < m; i++) {
            uint32_t to = counts[b][key[i] >> (8 * b) & 255]++;
            to_key[to] = key[i];
            to_index[to] = index[i];
        }
    }
}

static double lost(const kvp_target *t, const int32_t *order)
{
    double sum = 0;
    for (int32_t r = 0; r < t->m; r++)
        sum += (double)(t->first + r) * (double)t->importance[order[r]];
    return t->fixed + sum;
}

kvp_target kvp_target_make(const float *importance, int32_t n, int32_t sink, int32_t recent, kvp_rank_work *w)
{
    kvp_target t = {.importance = importance + sink, .m = n - sink - recent, .first = sink + recent, .order = w->best};
    for (int32_t r = 0; r < sink; r++)
        t.fixed += (double)r * (double)importance[r];
    for (int32_t r = 0; r < recent; r++)
        t.fixed += (double)(sink + r) * (double)importance[n - 1 - r];
    kvp_sort(t.importance, t.m, w, t.order);
    t.oracle = lost(&t, t.order);
    return t;
}

double kvp_ratio(const kvp_target *t, const int32_t *order)
{
    return t->oracle > 0 ? lost(t, order) / t->oracle : 1;
}

double kvp_ratio_of_chance(const kvp_target *t)
{
    double sum = 0;
    for (int32_t i = 0; i < t->m; i++)
        sum += (double)t->importance[i];
    return t->oracle > 0 ? (t->fixed + sum * (t->first + (t->m - 1) / 2.0)) / t->oracle : 1;
}

void kvp_draw(const float *scores, int32_t m, kve_rng *rng, kvp_rank_work *w, int32_t *order)
{
    for (int32_t i = 0; i < m; i++) {
        double u = kve_rng_double(rng) + 0x1p-54; /* never 0 */
        w->noisy[i] = (float)((double)scores[i] - log(-log(u)));
    }
    kvp_sort(w->noisy, m, w, order);
}

/* Scores 600 and more below the largest count as 600 below: their sums stay above 0. */
void kvp_weigh(const float *scores, int32_t m, kvp_rank_work *w)
{
    float top = scores[0];
    for (int32_t i = 1; i < m; i++)
        top = scores[i] > top ? scores[i] : top;
    for (int32_t i = 0; i < m; i++)
        w->weight[i] = exp(fmax((double)scores[i] - (double)top, -600.0));
}

/* d log pi / d score[i] = 1 - e^score[i] x sum over the ranks r up to its own of 1 / (sum of e^score behind r - 1). */
void kvp_log_pi_gradient(const int32_t *order, int32_t m, double factor, kvp_rank_work *w, float *grad)
{
    double sum = 0;
    for (int32_t r = m - 1; r >= 0; r--)
        w->behind[r] = sum += w->weight[order[r]];
    sum = 0;
    for (int32_t r = 0; r < m; r++) {
        int32_t i = order[r];
        sum += 1 / w->behind[r];
        grad[i] += (float)(factor * (1 - w->weight[i] * sum));
    }
}

void kvp_advantages(double *rewards, int32_t n)
{
    double sum = 0, square = 0;
    for (int32_t k = 0; k < n; k++)
        sum += rewards[k];
    for (int32_t k = 0; k < n; k++) {
        rewards[k] -= (sum - rewards[k]) / (n - 1);
        square += rewards[k] * rewards[k];
    }
    const double deviation = sqrt(square / n);
    for (int32_t k = 0; k < n; k++)
        rewards[k] = deviation > 1e-12 ? rewards[k] / deviation : 0;
}

static void rl_gradient(const kvp_target *t, const float *scores, kve_rng *rng, kvp_rank_work *w, float *grad)
{
    size_t m = (size_t)t->m;
    for (int32_t k = 0; k < w->samples; k++) {
        kvp_draw(scores, t->m, rng, w, w->orders + (size_t)k * m);
        w->reward[k] = -kvp_ratio(t, w->orders + (size_t)k * m);
    }
    kvp_advantages(w->reward, w->samples);
    kvp_weigh(scores, t->m, w);
    for (int32_t k = 0; k < w->samples; k++)
        kvp_log_pi_gradient(w->orders + (size_t)k * m, t->m, -w->reward[k] / ((double)w->samples * (double)m), w, grad);
}

static void regression_gradient(const kvp_target *t, const float *scores, float *grad)
{
    double sum = 0;
    for (int32_t i = 0; i < t->m; i++)
        sum += (double)t->importance[i];
    const double mean = sum > 0 ? sum / t->m : 1;
    for (int32_t i = 0; i < t->m; i++)
        grad[i] = (float)(2 * ((double)scores[i] - log((double)t->importance[i] / mean + 1e-4)) / t->m);
}

static void topb_gradient(const kvp_target *t, const float *scores, kve_rng *rng, float *grad)
{
    int32_t b = t->m > 1 ? 1 + (int32_t)kve_rng_below(rng, (uint64_t)(t->m - 1)) : 1;
    for (int32_t r = 0; r < t->m; r++) {
        int32_t i = t->order[r];
        double p = 1 / (1 + exp(-(double)scores[i]));
        grad[i] = (float)((p - (r < b)) / t->m);
    }
}

void kvp_objective_gradient(kvp_objective o, const kvp_target *t, const float *scores, kve_rng *rng, kvp_rank_work *w,
                            float *grad)
{
    memset(grad, 0, (size_t)t->m * sizeof *grad);
    if (o == KVP_REGRESSION)
        regression_gradient(t, scores, grad);
    else if (o == KVP_TOPB)
        topb_gradient(t, scores, rng, grad);
    else
        rl_gradient(t, scores, rng, w, grad);
}
