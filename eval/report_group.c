/* Cells: counts, kept tokens, timings, statistics and differences of every scope x policy x slot. Contract:
 * report_data.h.
 *
 * What is averaged: a task's cell uses each of its own samples that are ok and known; a failed or unknown one is
 * counted, never averaged in. A suite is the mean over its tasks of the task means (of subjects: of all samples), and
 * exists only where every task does. Differences use the samples that both cells know. */
#include "eval/report_data.h"

#include "host/base/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const kve_measure_info kve_measures[KVE_N_MEASURES] = {
    [KVE_M_SCORE] = {"score", "Score", false, false, "%.3f"},
    [KVE_M_NLL] = {"perplexity", "Perplexity", true, false, "%.3f"},
    [KVE_M_LOST] = {"reward_lost", "Lost future attention", true, false, "%.4f"},
    [KVE_M_NORM] = {"reward_norm", "Lost future attention, relative to the oracle", true, false, "%.5f"},
    [KVE_M_SUM] = {"reward_sum", "Lost future attention, summed over all budgets", true, true, "%.4g"},
    [KVE_M_SUM_NORM] = {"reward_sum_norm", "Summed loss, relative to the oracle", true, true, "%.4f"},
    [KVE_M_ACC] = {"acc", "Accuracy (acc)", false, false, "%.3f"},
    [KVE_M_ROUGE_LONGBENCH] = {"rouge_l_longbench", "ROUGE-L as LongBench counts it (rouge_l_longbench)", false, false,
                               "%.3f"},
};

kve_report_cell *kve_report_at(const kve_report *r, size_t i_scope, size_t i_policy, size_t i_slot)
{
    return &r->cells[(i_scope * r->n_policies + i_policy) * r->n_slots + i_slot];
}

const char *kve_report_mark(const kve_report_policy *p)
{
    static const char *const marks[][2] = {[KVE_C_NONE] = {"", "\xc2\xb6"},
                                           [KVE_C_FREE] = {"", "\xc2\xb6"},
                                           [KVE_C_PREFILL] = {"\xe2\x80\xa0", "\xe2\x80\xa0\xc2\xb6"},
                                           [KVE_C_SECOND] = {"\xc2\xa7", "\xc2\xa7\xc2\xb6"},
                                           [KVE_C_FUTURE] = {"\xe2\x80\xa1", "\xe2\x80\xa1\xc2\xb6"}};
    return marks[p->class][p->shared != NULL];
}

bool kve_report_uncompressed(const kve_report_cell *c)
{
    return c->n_measured > 0 && c->n_compressed == 0;
}

size_t kve_report_policy_slot(const kve_report *r, size_t i_scope, size_t i_policy, kve_measure m)
{
    size_t best = 0;
    for (size_t b = 1; b < r->n_slots; b++)
        if (kve_report_at(r, i_scope, i_policy, b)->stat[m].n > kve_report_at(r, i_scope, i_policy, best)->stat[m].n)
            best = b;
    return best;
}

/* --- counts of a task's cell ------------------------------------------------------------------------------------ */

static void see_kept(kve_report_cell *c, const kve_report_row *row, int64_t budget)
{
    if (row->kept_min == KVE_NO_INT || row->kept_max == KVE_NO_INT)
        return;
    c->kept_min = c->kept_min == KVE_NO_INT || row->kept_min < c->kept_min ? row->kept_min : c->kept_min;
    c->kept_max = row->kept_max > c->kept_max ? row->kept_max : c->kept_max; /* unknown is the least */
    c->uneven = c->uneven || (row->kept_min != row->kept_max && !row->shared);
    if (budget != KVE_NO_INT) {
        bool fits = row->n_context != KVE_NO_INT && row->n_context <= budget;
        bool later = row->n_evictions > 0; /* while decoding */
        c->short_prompts = c->short_prompts || (fits && !later);
        c->n_measured += row->n_context != KVE_NO_INT;
        c->n_compressed += row->kept_min < row->n_context || later; /* unknown is the least */
        c->below = c->below || (!row->shared && row->kept_min < (fits ? row->n_context : budget));
        c->above = c->above || (!row->shared && row->kept_max > budget);
    }
}

static void count_rows(kve_report_cell *c, int64_t budget)
{
    for (size_t i = 0; i < c->n_rows; i++) {
        const kve_report_row *row = &c->rows[i];
        if (!row->ok) {
            c->n_failed++;
            continue;
        }
        c->metric = c->n_ok == 0 || c->metric == row->metric ? row->metric : NULL;
        c->n_ok++;
        c->n_unknown += !isfinite(row->x[KVE_M_SCORE]) && !isfinite(row->x[KVE_M_NLL]);
        see_kept(c, row, budget);
    }
    c->n_tasks = c->n_ok > 0;
}

kve_status kve_report_find_rows(kve_report *r)
{
    size_t n_cells = r->n_scopes * r->n_policies * r->n_slots;
    KVE_TRY(kve_arena_alloc(&r->arena, r->n_scopes * r->n_policies, r->n_slots * sizeof *r->cells, &r->cells));
    for (size_t i = 0; i < n_cells; i++) {
        kve_report_cell *c = &r->cells[i];
        c->kept_min = c->kept_max = KVE_NO_INT;
        for (int b = 0; b < KVE_N_BASELINES; b++)
            for (int m = 0; m < KVE_N_DIFF_MEASURES; m++)
                c->diff[b][m] = (kve_report_stat){.mean = NAN, .low = NAN, .high = NAN};
    }
    for (size_t i = 0; i < r->n_rows; i++) {
        const kve_report_row *row = &r->rows[i];
        kve_report_cell *c = kve_report_at(r, row->i_task, row->i_policy, row->i_slot);
        kve_report_scope *task = &r->scopes[row->i_task], *suite = &r->scopes[task->i_suite];
        if (c->n_rows++ == 0)
            c->rows = row;
        for (int m = 0; m < KVE_N_MEASURES; m++) {
            task->has[m] = task->has[m] || (row->ok && isfinite(row->x[m]));
            suite->has[m] = suite->has[m] || task->has[m];
        }
        suite->pooled = suite->pooled || row->by_subject;
    }
    return KVE_OK;
}

static void count_tasks(kve_report *r)
{
    for (size_t t = 0; t < r->n_tasks; t++) {
        kve_report_scope *scope = &r->scopes[t];
        for (size_t p = 0; p < r->n_policies; p++)
            for (size_t b = 0; b < r->n_slots; b++) {
                kve_report_cell *c = kve_report_at(r, t, p, b);
                count_rows(c, r->budgets[b]);
                scope->n_samples =
                    c->n_ok - c->n_unknown > scope->n_samples ? c->n_ok - c->n_unknown : scope->n_samples;
            }
        r->scopes[scope->i_suite].n_samples += scope->n_samples;
    }
}

/* A cell belongs to the grid of its suite if any task of the suite has rows there. */
static void mark_partial(kve_report *r, size_t s, size_t p, size_t b)
{
    const kve_report_scope *suite = &r->scopes[s];
    kve_report_cell *all = kve_report_at(r, s, p, b);
    for (size_t t = suite->first_task; t < suite->first_task + suite->n_tasks; t++) {
        const kve_report_cell *c = kve_report_at(r, t, p, b);
        all->metric = t == suite->first_task || all->metric == c->metric ? c->metric : NULL;
        all->n_rows += c->n_rows;
        all->n_ok += c->n_ok;
        all->n_failed += c->n_failed;
        all->n_unknown += c->n_unknown;
        all->n_tasks += c->n_tasks;
        all->uneven = all->uneven || c->uneven;
        all->below = all->below || c->below;
        all->short_prompts = all->short_prompts || c->short_prompts;
        all->n_measured += c->n_measured;
        all->n_compressed += c->n_compressed;
        all->above = all->above || c->above;
        if (c->kept_min != KVE_NO_INT && (all->kept_min == KVE_NO_INT || c->kept_min < all->kept_min))
            all->kept_min = c->kept_min;
        all->kept_max = c->kept_max > all->kept_max ? c->kept_max : all->kept_max;
    }
    for (size_t t = suite->first_task; t < suite->first_task + suite->n_tasks; t++) {
        kve_report_cell *c = kve_report_at(r, t, p, b);
        c->partial = all->n_rows > 0 && c->n_ok - c->n_unknown < r->scopes[t].n_samples;
        all->partial = all->partial || c->partial;
    }
}

/* --- statistics ------------------------------------------------------------------------------------------------- */

typedef struct work {
    const kve_report_cell **a, **b; /* [n_tasks] */
    const char **names;
    bool *uses;
    kve_report_stat *per_task;
} work;

static kve_status make_work(kve_report *r, work *w)
{
    KVE_TRY(kve_arena_alloc(&r->arena, r->n_tasks, sizeof *w->a, &w->a));
    KVE_TRY(kve_arena_alloc(&r->arena, r->n_tasks, sizeof *w->b, &w->b));
    KVE_TRY(kve_arena_alloc(&r->arena, r->n_tasks, sizeof *w->names, &w->names));
    KVE_TRY(kve_arena_alloc(&r->arena, r->n_tasks, sizeof *w->uses, &w->uses));
    return kve_arena_alloc(&r->arena, r->n_tasks, sizeof *w->per_task, &w->per_task);
}

static kve_report_tasks tasks_of(const kve_report *r, work *w, size_t s, kve_measure m)
{
    const kve_report_scope *suite = &r->scopes[s];
    for (size_t t = 0; t < suite->n_tasks; t++) {
        w->names[t] = r->scopes[suite->first_task + t].name;
        w->uses[t] = r->scopes[suite->first_task + t].has[m];
    }
    return (kve_report_tasks){
        .n_tasks = suite->n_tasks, .a = w->a, .names = w->names, .uses = w->uses, .pooled = suite->pooled};
}

static void to_perplexity(kve_report_stat *s)
{
    s->mean = exp(s->mean);
    s->low = exp(s->low);
    s->high = exp(s->high);
}

static kve_status fill_stat(kve_report *r, work *w, size_t s, size_t p, size_t b, kve_measure m)
{
    const kve_report_scope *suite = &r->scopes[s];
    kve_report_stat *all = &kve_report_at(r, s, p, b)->stat[m];
    kve_report_tasks tasks = tasks_of(r, w, s, m);
    for (size_t t = 0; t < suite->n_tasks; t++)
        w->a[t] = kve_report_at(r, suite->first_task + t, p, b);
    KVE_TRY(kve_report_aggregate(&tasks, m, all, w->per_task));
    if (m == KVE_M_NLL)
        to_perplexity(all);
    for (size_t t = 0; t < suite->n_tasks; t++) {
        kve_report_stat *own = &kve_report_at(r, suite->first_task + t, p, b)->stat[m];
        *own = w->per_task[t];
        if (m == KVE_M_NLL)
            to_perplexity(own);
    }
    return KVE_OK;
}

static int *best_free_at(const kve_report *r, size_t s, size_t b, kve_measure m)
{
    return &r->best_free[(s * r->n_slots + b) * KVE_N_DIFF_MEASURES + m];
}

static void find_best_free(kve_report *r, size_t s, size_t b, kve_measure m)
{
    int best = KVE_REPORT_NONE;
    double best_mean = NAN;
    for (size_t p = 0; p < r->n_policies; p++) {
        const kve_report_cell *c = kve_report_at(r, s, p, b);
        const kve_report_stat *stat = &c->stat[m];
        if (r->policies[p].class != KVE_C_FREE || stat->n == 0 || kve_report_uncompressed(c))
            continue;
        if (best == KVE_REPORT_NONE ||
            (kve_measures[m].lower_better ? stat->mean < best_mean : stat->mean > best_mean)) {
            best = (int)p;
            best_mean = stat->mean;
        }
    }
    *best_free_at(r, s, b, m) = best;
}

static kve_status fill_diff(kve_report *r, work *w, size_t s, size_t p, size_t b, kve_measure m, kve_baseline base)
{
    const kve_report_scope *suite = &r->scopes[s];
    int q = base == KVE_VS_FULL ? r->i_full : *best_free_at(r, s, b, m);
    if (q == KVE_REPORT_NONE || (size_t)q == p)
        return KVE_OK;
    kve_report_tasks tasks = tasks_of(r, w, s, m);
    tasks.b = w->b;
    for (size_t t = 0; t < suite->n_tasks; t++) {
        w->a[t] = kve_report_at(r, suite->first_task + t, p, b);
        w->b[t] = kve_report_at(r, suite->first_task + t, (size_t)q, base == KVE_VS_FULL ? 0 : b);
    }
    KVE_TRY(kve_report_aggregate(&tasks, m, &kve_report_at(r, s, p, b)->diff[base][m], w->per_task));
    for (size_t t = 0; t < suite->n_tasks; t++)
        kve_report_at(r, suite->first_task + t, p, b)->diff[base][m] = w->per_task[t];
    return KVE_OK;
}

static kve_status fill_suite(kve_report *r, work *w, size_t s)
{
    for (size_t p = 0; p < r->n_policies; p++)
        for (size_t b = 0; b < r->n_slots; b++) {
            mark_partial(r, s, p, b);
            for (int m = 0; m < KVE_N_MEASURES; m++)
                KVE_TRY(fill_stat(r, w, s, p, b, (kve_measure)m));
        }
    for (int m = 0; m < KVE_N_DIFF_MEASURES; m++)
        for (size_t b = 0; b < r->n_slots; b++) {
            find_best_free(r, s, b, (kve_measure)m);
            for (size_t p = 0; p < r->n_policies; p++) {
                KVE_TRY(fill_diff(r, w, s, p, b, (kve_measure)m, KVE_VS_FULL));
                KVE_TRY(fill_diff(r, w, s, p, b, (kve_measure)m, KVE_VS_FREE));
            }
        }
    return KVE_OK;
}

kve_status kve_report_summarise(kve_report *r)
{
    work w;
    KVE_TRY(kve_arena_alloc(&r->arena, r->n_scopes * r->n_slots, KVE_N_DIFF_MEASURES * sizeof *r->best_free,
                            &r->best_free));
    KVE_TRY(make_work(r, &w));
    KVE_TRY(kve_report_find_rows(r));
    count_tasks(r);
    for (size_t s = r->n_tasks; s < r->n_scopes; s++)
        KVE_TRY(fill_suite(r, &w, s));
    return kve_report_time(r);
}
