/* From answers to records: texts, scores, rewards, times. */
#include "eval/evaluator_internal.h"
#include "eval/flops.h"
#include "eval/metric_basic.h"
#include "eval/metric_choice.h"
#include "eval/metric_rouge.h"
#include "eval/metric_ruler.h"

#include "host/base/stats.h"

#include <string.h>
#include <time.h>

void kve_record_begin(const kve_evaluator *e, const kve_sample *s, const kve_cell *cell, kve_record *r)
{
    kve_record_clear(r);
    r->sample_id = s->id;
    r->task = s->task;
    r->task_version = s->task_version;
    r->policy = cell->policy->name;
    r->budget = cell->budget;
    r->info = kve_policy_info(cell->policy);
    r->allocation = cell->policy->allocation ? cell->policy->allocation : "uniform";
    r->note = s->note;
    if (!cell->policy->keeps_all) {
        r->sink = e->opt.sink;
        r->recent = kve_protected_recent(cell->policy, e->opt.recent);
        r->evict_every = e->opt.evict_every ? e->opt.evict_every : KVE_NO_INT;
    }
    r->question_in_prefill = kve_question_in(s, e->opt.question_in);
    r->references = s->references;
    r->n_references = s->n_references;
    r->metric = kve_metric_name(s->metric);
    r->subject = s->subject;
    if (s->n_shots >= 0)
        r->shots = s->n_shots;
    if (s->n_choices)
        r->gold = (int64_t)s->gold;
    r->attempt = 1;
    r->unix_time = (int64_t)time(NULL);
}

static void judge_choices(const sample_run *r, const answer *a, kve_record *rec)
{
    const kve_sample *s = r->s;
    size_t plain = kve_choice_best(a->loglik, s->n_choices);
    size_t norm = kve_choice_best_norm(a->loglik, s->choices, s->n_choices);
    bool by_norm = s->metric == KVE_METRIC_ACC_NORM;
    const char *picked = s->choices[by_norm ? norm : plain];
    rec->loglik = a->loglik;
    rec->n_choices = s->n_choices;
    rec->acc = plain == s->gold;
    rec->acc_norm = norm == s->gold;
    rec->score = by_norm ? rec->acc_norm : rec->acc;
    rec->prediction = picked + (*picked == ' ');
}

/* The reference is one word already, in whatever case. */
static kve_status judge_word(const char *text, const char *reference, double *score)
{
    kve_str said = {0}, meant = {0};
    kve_status st = kve_choice_word(text, &said);
    if (st == KVE_OK)
        st = kve_choice_word(reference, &meant);
    if (st == KVE_OK)
        *score = kve_exact_match(said.p, meant.p);
    kve_str_free(&said);
    kve_str_free(&meant);
    return st;
}

static kve_status judge_text(const sample_run *r, const char *text, kve_record *rec)
{
    const kve_sample *s = r->s;
    if (s->metric == KVE_METRIC_EXACT)
        return judge_word(text, s->references[0], &rec->score);
    if (s->metric != KVE_METRIC_ROUGE_L)
        return kve_metric_ruler(text, strlen(text), s->references, s->n_references, s->metric == KVE_METRIC_RULER_ANY,
                                &rec->score);
    KVE_TRY(kve_rouge_best(kve_rouge_l, text, s->references, s->n_references, &rec->score));
    return kve_rouge_best(kve_rouge_l_longbench, text, s->references, s->n_references, &rec->rouge_l_longbench);
}

static kve_status judge(const sample_run *r, const answer *a, kve_record *rec)
{
    kve_str text = {0};
    char *copy = NULL;
    if (r->s->n_choices) {
        judge_choices(r, a, rec);
        return KVE_OK;
    }
    if (r->teacher) {
        rec->nll_sum = a->nll_sum;
        rec->n_scored = a->n_scored;
        rec->score = kve_perplexity(a->nll_sum, a->n_scored);
        return KVE_OK;
    }
    kve_status st = kve_detokenize(r->e->tk, a->ids, (size_t)a->n, false, &text);
    if (st == KVE_OK)
        st = kve_arena_strndup(r->arena, text.p ? text.p : "", text.len, &copy);
    kve_str_free(&text);
    KVE_TRY(st);
    rec->prediction = copy;
    rec->n_generated = a->n;
    return judge_text(r, copy, rec);
}

/* `cell_row`: the cell's place among its policy's budgets. Everything kept loses nothing, by definition. */
static void fill_reward(const sample_run *r, const ranking *rank, size_t cell_row, kve_record *rec)
{
    size_t heads = run_heads(r);
    const double *lost = rank ? rank->lost + cell_row * heads : NULL;
    double sum_lost = 0, sum_norm = 0, sums = 0, sums_norm = 0;
    for (size_t h = 0; h < heads; h++) {
        double best = r->oracle_sums[h];
        sum_lost += lost ? lost[h] : 0;
        sum_norm += lost && best > 0 ? lost[h] / best : 0;
        sums += rank && rank->sums ? rank->sums[h] : 0;
        sums_norm += rank && rank->sums && best > 0 ? rank->sums[h] / best : 0;
    }
    rec->reward_lost = sum_lost / (double)heads;
    rec->reward_norm = sum_norm / (double)heads;
    if (rank && rank->sums) {
        rec->reward_sum = sums / (double)heads;
        rec->reward_sum_norm = sums_norm / (double)heads;
    }
    rec->reward_heads = lost;
    rec->n_reward_heads = lost ? heads : 0;
    rec->n_future = r->n_future;
}

static size_t row_among_budgets(const sample_run *r, size_t cell)
{
    size_t row = 0;
    for (size_t i = 0; i < cell; i++)
        row += r->rankings[i] == r->rankings[cell];
    return row;
}

kve_status fill_records(sample_run *r)
{
    for (size_t i = 0; i < r->n_cells; i++) {
        const ranking *rank = r->rankings[i];
        const answer *a = rank ? &r->answers[i] : &r->full;
        kve_record *rec = &r->records[i];
        char *sha = NULL;
        kve_record_begin(r->e, r->s, &r->cells[i], rec);
        if (rank && rank->refused) {
            rec->status = "failed";
            rec->reason = rank->refused;
            continue;
        }
        rec->status = "ok";
        KVE_TRY(kve_arena_strndup(r->arena, r->prompt.sha256, strlen(r->prompt.sha256), &sha));
        rec->prompt_sha256 = sha;
        rec->n_context = r->n;
        rec->kept_min = a->kept_min;
        rec->kept_max = a->kept_max;
        rec->kv_bytes = (int64_t)kve_kv_bytes(r->e->m, a->kept_rows);
        rec->n_prefills = kve_session_prefills(r->e->session) - r->prefills_before;
        rec->prefill_us = r->prefill_us;
        rec->prefill_flops = kve_flops_prefill(&r->e->m->cfg.shape, r->n);
        rec->decode_us = a->decode_us;
        rec->decode_forks = a->n_forks;
        if (rec->evict_every != KVE_NO_INT)
            rec->n_evictions = a->n_evictions;
        if (rank) {
            rec->score_us = rank->score_us;
            rec->score_flops = kve_flops_score(r->cells[i].policy, &r->e->m->cfg.shape, r->n);
            rec->rank_us = rank->rank_us;
            rec->compact_us = rank->compact_us;
        }
        KVE_TRY(judge(r, a, rec));
        if (r->e->opt.reward)
            fill_reward(r, rank, rank ? row_among_budgets(r, i) : 0, rec);
    }
    return KVE_OK;
}
