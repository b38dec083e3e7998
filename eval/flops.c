/* Sums over the ops of one layer. Contract: flops.h. */
#include "eval/flops.h"

#include "kernels/cost.h"

#include <math.h>

static double matmul(int32_t T, int32_t N, int32_t K, bool accumulate)
{
    const kve_matmul_params p = {.T = T, .accumulate = accumulate};
    return kve_cost_matmul(&p, N, K, KVE_F32).flops;
}

double kve_flops_prefill(const kve_shape *s, int32_t n)
{
    const kve_rmsnorm_params norm = {.T = n, .E = s->E};
    const kve_rope_append_params rope = {.T = n, .Hq = s->Hq, .Hkv = s->Hkv, .D = s->D, .R = s->R};
    const kve_attention_prefill_params attention = {.T = n, .Hq = s->Hq, .Hkv = s->Hkv, .D = s->D};
    const kve_glu_params glu = {.T = n, .F = s->F};
    double layer = 2 * kve_cost_rmsnorm(&norm).flops + matmul(n, (s->Hq + 2 * s->Hkv) * s->D, s->E, false) +
                   kve_cost_rope_append(&rope).flops + kve_cost_attention_prefill(&attention).flops +
                   matmul(n, s->E, s->Hq * s->D, true) + matmul(n, 2 * s->F, s->E, false) + kve_cost_glu(&glu).flops +
                   matmul(n, s->E, s->F, true);
    return s->L * layer;
}

double kve_flops_score(const kve_policy *p, const kve_shape *s, int32_t n)
{
    return p->flops ? s->L * p->flops(p, s, n) : (double)NAN;
}
