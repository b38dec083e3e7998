/* kveval eval --dry-run: what the run would do, and the first prompt as the model would see it. Writes no file. */
#include "eval/sample_log.h"
#include "host/base/clock.h"
#include "host/cli/eval_setup.h"

#include <inttypes.h>
#include <stdio.h>

enum { PROBE_TOKENS = 512 };

typedef struct plan {
    const kve_opened *o;
    const kve_eval_setup *s;
    const kve_eval_options *opt;
    int64_t cells_per_sample, samples, prefill_tokens;
    int32_t longest, longest_tail;
} plan;

static kve_status first_prompt(const plan *p, size_t dataset, kve_sample *sample, kve_prompt *prompt)
{
    KVE_TRY(kve_dataset_sample(p->s->data.items[dataset], 0, sample));
    kve_status st = kve_prompt_make(p->o->tk, &p->o->chat, sample, p->opt->question_in, prompt);
    if (st != KVE_OK)
        kve_sample_free(sample);
    return st;
}

static kve_status plan_task(plan *p, size_t dataset)
{
    const kve_dataset *d = p->s->data.items[dataset];
    kve_sample sample = {0};
    kve_prompt prompt;
    if (d->n_samples == 0)
        return KVE_OK;
    KVE_TRY(first_prompt(p, dataset, &sample, &prompt));
    int32_t n = (int32_t)prompt.context.len, tail = (int32_t)prompt.tail.len;
    int64_t fresh = sample.metric == KVE_METRIC_NLL ? 0 : sample.max_new_tokens;
    printf("  %-28s %5zu samples; the first: %d tokens before the cut, %d after it, ", d->name, d->n_samples, n, tail);
    if (sample.n_choices)
        printf("then one of %zu choices\n", sample.n_choices);
    else
        printf("%" PRId64 " generated at the most\n", fresh);
    for (size_t c = 0; c < prompt.n_choices; c++)
        fresh = (int64_t)prompt.choices[c].len > fresh ? (int64_t)prompt.choices[c].len : fresh;
    p->samples += (int64_t)d->n_samples;
    p->prefill_tokens += n * (int64_t)d->n_samples;
    p->longest = n > p->longest ? n : p->longest;
    p->longest_tail = tail + (int32_t)fresh > p->longest_tail ? tail + (int32_t)fresh : p->longest_tail;
    kve_prompt_free(&prompt);
    kve_sample_free(&sample);
    return KVE_OK;
}

/* Tokens a second of a short prefill: what can be known without running a sample. */
static kve_status probe_speed(const plan *p, const kve_prompt *prompt, double *rate)
{
    const kve_model *m = p->o->model;
    int32_t n = (int32_t)prompt->context.len < PROBE_TOKENS ? (int32_t)prompt->context.len : PROBE_TOKENS;
    kve_session_options opt = {.chunk = p->opt->chunk, .max_forks = 1, .max_positions = n};
    kve_session *session = NULL;
    kve_context ctx = {0};
    KVE_TRY(kve_session_open(m, &opt, &session));
    kve_status st = kve_context_alloc(m, n, &ctx);
    if (st == KVE_OK) /* once to warm up */
        st = kve_prefill(session, prompt->context.p, n, &ctx);
    int64_t start = kve_now_us();
    if (st == KVE_OK)
        st = kve_prefill(session, prompt->context.p, n, &ctx);
    *rate = 1e6 * n / (double)(kve_now_us() - start + 1);
    kve_context_free(m, &ctx);
    kve_session_close(session);
    return st;
}

static kve_status print_costs(const plan *p, const kve_prompt *prompt)
{
    const kve_model *m = p->o->model;
    int64_t heads = (int64_t)m->cfg.shape.L * m->cfg.shape.Hkv;
    double mib = 1024.0 * 1024.0, rate;
    size_t context = kve_kv_bytes(m, heads * (p->longest + p->longest_tail));
    for (size_t i = 0; i < p->s->n_policies; i++)
        if (p->s->policies[i]->needs & KVE_NEED_QUERIES) {
            context += kve_context_queries_bytes(&m->cfg.shape, (int32_t)p->longest);
            break;
        }
    KVE_TRY(probe_speed(p, prompt, &rate));
    printf("memory  weights %.0f MiB; the longest context %.0f MiB; ranked caches and forks up to %.0f MiB\n",
           (double)m->be->vt->bytes_in_use(m->be) / mib, (double)context / mib, (double)p->opt->fork_bytes / mib);
    printf("time    a prefill runs at %.0f tokens/s here: %.0f s for all prefills; scoring and answers come on top\n",
           rate, (double)p->prefill_tokens / rate);
    return KVE_OK;
}

static kve_status print_first(const plan *p)
{
    kve_sample sample = {0};
    kve_prompt prompt;
    kve_str context = {0}, tail = {0};
    KVE_TRY(first_prompt(p, 0, &sample, &prompt));
    kve_status st = print_costs(p, &prompt);
    if (st == KVE_OK)
        st = kve_sample_texts(p->o->tk, &prompt, &context, &tail);
    if (st == KVE_OK)
        printf("\nthe first prompt, %s/%s, up to the cut:\n%s\n---- after the cut:\n%s\n", sample.task, sample.id,
               context.p, tail.p);
    kve_str_free(&context);
    kve_str_free(&tail);
    kve_prompt_free(&prompt);
    kve_sample_free(&sample);
    return st;
}

kve_status kve_eval_plan(const kve_opened *o, const kve_eval_setup *s, const kve_eval_options *opt)
{
    plan p = {.o = o, .s = s, .opt = opt};
    for (size_t i = 0; i < s->n_policies; i++)
        p.cells_per_sample += s->policies[i]->keeps_all ? 1 : (int64_t)s->n_budgets;
    printf("tasks\n");
    for (size_t d = 0; d < s->data.n; d++)
        KVE_TRY(plan_task(&p, d));
    printf("cells   %" PRId64 " samples x %" PRId64 " (policies x budgets; full once) = %" PRId64 "\n", p.samples,
           p.cells_per_sample, p.samples * p.cells_per_sample);
    return p.samples ? print_first(&p) : KVE_OK;
}
