/* Row-wise ops of the forward pass: embed, rmsnorm, glu, nll, argmax. Formulas and shapes: kernels/ops.h. Every row is
 * computed by one worker in one order, so results depend on the row alone. Sums in double: these ops are bound by
 * memory, not by arithmetic. */
#include "kernels/cpu/cpu.h"

#include <math.h>

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

static float silu(float x)
{
    return x / (1.0f + expf(-x));
}

static float gelu_tanh(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

static void glu_row(void *ctx, int64_t t, int32_t worker)
{
    const kve_glu_params *p = ctx;
    const float *gate = p->gate_up + (size_t)t * 2 * (size_t)p->F, *up = gate + p->F;
    float *out = p->out + (size_t)t * (size_t)p->F;
    (void)worker;
    for (int32_t i = 0; i < p->F; i++)
        out[i] = (p->act == KVE_SILU ? silu(gate[i]) : gelu_tanh(gate[i])) * up[i];
}

kve_status cpu_glu(kve_backend *be, const kve_glu_params *p)
{
    cpu_parallel_for(cpu_of(be), p->T, glu_row, (void *)(uintptr_t)p);
    return KVE_OK;
}

static void nll_row(void *ctx, int64_t t, int32_t worker)
{
    const kve_nll_params *p = ctx;
    const float *x = p->logits + (size_t)t * (size_t)p->V;
    float top = -INFINITY;
    bool nan = false;
    double sum = 0;
    (void)worker;
    for (int32_t i = 0; i < p->V; i++) {
        nan |= isnan(x[i]);
        top = x[i] > top ? x[i] : top;
    }
    for (int32_t i = 0; i < p->V && !nan; i++)
        sum += (double)expf(x[i] - top);
    p->nll[t] = nan ? NAN : (float)(log(sum) + (double)top - (double)x[p->target[t]]);
}

kve_status cpu_nll(kve_backend *be, const kve_nll_params *p)
{
    cpu_parallel_for(cpu_of(be), p->T, nll_row, (void *)(uintptr_t)p);
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
