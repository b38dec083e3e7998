/* Row-wise ops of the forward pass: embed, rmsnorm, glu, nll, argmax. Formulas and shapes: kernels/ops.h. Every row is
 * computed by one worker in one order, so results depend on the row alone. Long sums run in double, in fixed lanes. */
#include "kernels/cpu/simd.h"

static void embed_row(void *ctx, int64_t t, int32_t worker)
{
    const kve_embed_params *p = ctx;
    (void)worker;
    cpu_weight_row(p->table, p->ids[t], p->out + (size_t)t * (size_t)p->E);
}

kve_status cpu_embed(kve_backend *be, const kve_embed_params *p)
{
    cpu_parallel_for(cpu_of(be), p->T, embed_row, (void *)(uintptr_t)p);
    return KVE_OK;
}

static void rmsnorm_row(void *ctx, int64_t t, int32_t worker)
{
    const kve_rmsnorm_params *p = ctx;
    const float *x = p->x + (size_t)t * (size_t)p->E;
    float *out = p->out + (size_t)t * (size_t)p->E;
    double sum = 0;
    (void)worker;
    for (int32_t i = 0; i < p->E; i++)
        sum += (double)x[i] * (double)x[i];
    float scale = (float)(1.0 / sqrt(sum / p->E + (double)p->eps));
    for (int32_t i = 0; i < p->E; i++)
        out[i] = x[i] * scale * p->gain[i];
}

kve_status cpu_rmsnorm(kve_backend *be, const kve_rmsnorm_params *p)
{
    cpu_parallel_for(cpu_of(be), p->T, rmsnorm_row, (void *)(uintptr_t)p);
    return KVE_OK;
}

/* x / (1 + e^-x), with the exponential of a number that is never positive. */
CPU_INLINE void silu_row(const float *gate, const float *up, float *out, int32_t F)
{
    for (int32_t i = 0; i < F; i++) {
        float e = cpu_exp(-fabsf(gate[i]));
        out[i] = gate[i] * (gate[i] < 0 ? e : 1.0f) / (1.0f + e) * up[i];
    }
}

CPU_INSTANCES(silu, (const float *gate, const float *up, float *out, int32_t F), silu_row(gate, up, out, F))

static void gelu_tanh_row(const float *gate, const float *up, float *out, int32_t F)
{
    for (int32_t i = 0; i < F; i++) {
        float x = gate[i];
        out[i] = 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x))) * up[i];
    }
}

typedef struct glu_job {
    const kve_glu_params *p;
    silu_fn silu;
} glu_job;

static void glu_item(void *ctx, int64_t t, int32_t worker)
{
    const glu_job *x = ctx;
    const kve_glu_params *p = x->p;
    const float *gate = p->gate_up + (size_t)t * 2 * (size_t)p->F, *up = gate + p->F;
    float *out = p->out + (size_t)t * (size_t)p->F;
    (void)worker;
    if (p->act == KVE_SILU)
        x->silu(gate, up, out, p->F);
    else
        gelu_tanh_row(gate, up, out, p->F);
}

kve_status cpu_glu(kve_backend *be, const kve_glu_params *p)
{
    glu_job x = {p, silu_pick(cpu_of(be)->isa)};
    cpu_parallel_for(cpu_of(be), p->T, glu_item, &x);
    return KVE_OK;
}

/* sum of e^(x - top) in double; NaN where x holds one. */
CPU_INLINE void sum_exp_row(const float *x, int32_t V, float top, double *out)
{
    double lane[CPU_LANES] = {0}, sum = 0;
    int32_t i = 0;
    for (; i + CPU_LANES <= V; i += CPU_LANES)
        for (int l = 0; l < CPU_LANES; l++)
            lane[l] += (double)cpu_exp(x[i + l] - top);
    for (int l = 0; i + l < V; l++)
        lane[l] += (double)cpu_exp(x[i + l] - top);
    for (int l = 0; l < CPU_LANES; l++)
        sum += lane[l];
    *out = sum;
}

CPU_INSTANCES(sum_exp, (const float *x, int32_t V, float top, double *out), sum_exp_row(x, V, top, out))

typedef struct nll_job {
    const kve_nll_params *p;
    sum_exp_fn sum_exp;
} nll_job;

static void nll_item(void *ctx, int64_t t, int32_t worker)
{
    const nll_job *job = ctx;
    const kve_nll_params *p = job->p;
    const float *x = p->logits + (size_t)t * (size_t)p->V;
    float top = -INFINITY;
    double sum = 1;
    bool nan = false;
    (void)worker;
    for (int32_t i = 0; i < p->V; i++) {
        nan |= isnan(x[i]);
        top = x[i] > top ? x[i] : top;
    }
    if (!isinf(top)) /* an infinite maximum is its own logarithm of the sum */
        job->sum_exp(x, p->V, top, &sum);
    p->nll[t] = nan ? NAN : (float)(log(sum) + (double)top - (double)x[p->target[t]]);
}

kve_status cpu_nll(kve_backend *be, const kve_nll_params *p)
{
    nll_job x = {p, sum_exp_pick(cpu_of(be)->isa)};
    cpu_parallel_for(cpu_of(be), p->T, nll_item, &x);
    return KVE_OK;
}

static void argmax_row(void *ctx, int64_t t, int32_t worker)
{
    const kve_argmax_params *p = ctx;
    const float *x = p->logits + (size_t)t * (size_t)p->V;
    int32_t best = -1;
    (void)worker;
    for (int32_t i = 0; i < p->V; i++)
        if (!isnan(x[i]) && (best < 0 || x[i] > x[best]))
            best = i;
    p->ids[t] = best;
}

kve_status cpu_argmax(kve_backend *be, const kve_argmax_params *p)
{
    cpu_parallel_for(cpu_of(be), p->T, argmax_row, (void *)(uintptr_t)p);
    return KVE_OK;
}

kve_status cpu_advance(kve_backend *be, const kve_advance_params *p)
{
    (void)be;
    if (p->T == 0)
        return KVE_OK;
    int32_t *log = p->log + (size_t)*p->n_logged * (size_t)p->T;
    for (int32_t t = 0; t < p->T; t++) {
        log[t] = p->next[t];
        p->ids[t] = p->next[t] < 0 ? 0 : p->next[t];
        p->pos_of[t]++;
        p->index_of[t]++;
        p->tail_len[p->slot_of[t]]++;
    }
    ++*p->n_logged;
    return KVE_OK;
}
