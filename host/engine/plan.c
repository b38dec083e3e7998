/* The memory of a run. Contract: plan.h. */
#include "host/engine/plan.h"

void kve_plan_make(const kve_plan_request *r, kve_plan *out)
{
    const kve_shape *s = &r->cfg->shape;
    const kve_session_options session = {.chunk = r->chunk, .max_forks = r->chunk, .max_positions = r->n + r->n_tail};
    size_t heads = (size_t)s->L * (size_t)s->Hkv, row = 2 * heads * (size_t)s->D * kve_dtype_bytes(r->dtype);
    size_t budgets = (size_t)r->n_budgets, policies = (size_t)r->n_policies;
    kve_plan p = {.weights = r->weight_bytes,
                  .scratch = kve_session_bytes(s, &session),
                  .context = kve_context_bytes(s, r->dtype, r->n),
                  .ranked = row * (size_t)r->b_max + heads * (size_t)r->n * sizeof(int32_t),
                  .fork = row * (size_t)r->n_tail + heads * sizeof(int32_t) + sizeof(kve_fork_slot)};
    p.fixed = p.weights + p.scratch + p.context;
    size_t policy = p.ranked + budgets * p.fork, room = r->free_bytes > p.fixed ? r->free_bytes - p.fixed : 0;
    size_t fit = policy ? room / policy : 0, rows = budgets ? (size_t)r->chunk / budgets : 0;
    fit = fit < policies ? fit : policies;
    fit = fit < rows ? fit : rows; /* a decode step has one row per fork */
    p.all = p.fixed + policies * policy;
    p.policies_at_once = (int32_t)fit;
    p.forks_at_once = (int32_t)(fit * budgets);
    *out = p;
}
