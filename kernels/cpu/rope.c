/* rope_append: head norms (qwen3), rotate-half RoPE, append to the row's slot. Contract: kernels/ops.h. One worker per
 * row; a slot's rows are distinct, so no two workers write the same place. */
#include "kernels/cpu/cpu.h"

#include <math.h>

static void normalize(float *x, const float *gain, int32_t D, float eps)
{
    double sum = 0;
    for (int32_t d = 0; d < D; d++)
        sum += (double)x[d] * (double)x[d];
    float scale = (float)(1.0 / sqrt(sum / D + (double)eps));
    for (int32_t d = 0; d < D; d++)
        x[d] = x[d] * scale * gain[d];
}

static void rotate(float *x, const float *cosines, const float *sines, int32_t R)
{
    int32_t half = R / 2;
    for (int32_t d = 0; d < half; d++) {
        float a = x[d], b = x[d + half];
        x[d] = a * cosines[d] - b * sines[d];
        x[d + half] = b * cosines[d] + a * sines[d];
    }
}

static void rope_row(void *ctx, int64_t row, int32_t worker)
{
    const kve_rope_append_params *p = ctx;
    size_t D = (size_t)p->D, t = (size_t)row, half = (size_t)p->R / 2;
    const float *in = p->qkv + t * (size_t)(p->Hq + 2 * p->Hkv) * D;
    const float *cosines = p->cos + (size_t)p->pos_of[t] * half, *sines = p->sin + (size_t)p->pos_of[t] * half;
    const kve_kv *to = &p->slots[p->slot_of[t]].tail;
    float head[CPU_MAX_D];
    (void)worker;
    for (int32_t h = 0; h < p->Hq; h++, in += D) {
        float *q = p->q + (t * (size_t)p->Hq + (size_t)h) * D;
        memcpy(q, in, D * sizeof *q);
        if (p->q_norm)
            normalize(q, p->q_norm, p->D, p->norm_eps);
        rotate(q, cosines, sines, p->R);
    }
    for (int32_t h = 0; h < p->Hkv; h++, in += D) {
        memcpy(head, in, D * sizeof *head);
        if (p->k_norm)
            normalize(head, p->k_norm, p->D, p->norm_eps);
        rotate(head, cosines, sines, p->R);
        cpu_store_row(to->k, cpu_kv_row(to, p->Hkv, p->D, p->i_layer, h, p->index_of[t]), p->D, p->kv_dtype, head);
    }
    for (int32_t h = 0; h < p->Hkv; h++, in += D)
        cpu_store_row(to->v, cpu_kv_row(to, p->Hkv, p->D, p->i_layer, h, p->index_of[t]), p->D, p->kv_dtype, in);
}

kve_status cpu_rope_append(kve_backend *be, const kve_rope_append_params *p)
{
    if (p->D > CPU_MAX_D)
        return kve_fail(KVE_ERR_USAGE, "cpu: head dimension %d is beyond %d", p->D, CPU_MAX_D);
    cpu_parallel_for(cpu_of(be), p->T, rope_row, (void *)(uintptr_t)p);
    return KVE_OK;
}
