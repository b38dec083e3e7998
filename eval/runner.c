/* The loop over samples. Contract: runner.h. */
#include "eval/runner.h"

#include "eval/metric_basic.h"
#include "host/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct loop {
    const kve_run *run;
    kve_run_counts *counts;
    kve_progress progress;
    kve_cell *grid;    /* [n_grid]: full once, the others at every budget */
    kve_cell *cells;   /* [n_grid]: the missing ones of a sample */
    int64_t *attempts; /* [n_grid] of those */
    kve_record *records;
    size_t n_grid;
    bool old_failures;
    double nll; /* of the grid's first cell in texts so far: the running perplexity */
    int64_t n_scored;
} loop;

static kve_status make_grid(loop *l)
{
    const kve_run *run = l->run;
    size_t most = run->n_policies * (run->n_budgets + 1);
    KVE_TRY(kve_alloc(most, sizeof *l->grid, &l->grid));
    KVE_TRY(kve_alloc(most, sizeof *l->cells, &l->cells));
    KVE_TRY(kve_alloc(most, sizeof *l->attempts, &l->attempts));
    KVE_TRY(kve_alloc(most, sizeof *l->records, &l->records));
    for (size_t p = 0; p < run->n_policies; p++) {
        if (run->policies[p]->keeps_all)
            l->grid[l->n_grid++] = (kve_cell){run->policies[p], KVE_NO_INT};
        else
            for (size_t b = 0; b < run->n_budgets; b++)
                l->grid[l->n_grid++] = (kve_cell){run->policies[p], run->budgets[b]};
    }
    return KVE_OK;
}

/* The cells of this sample that have no result yet. *prompt: that of the results that are there, NULL if unknown. */
static size_t missing_cells(loop *l, const char *task, const char *id, const char **prompt)
{
    size_t n = 0;
    *prompt = NULL;
    for (size_t i = 0; i < l->n_grid; i++) {
        kve_found found = kve_store_find(l->run->store, task, id, l->grid[i].policy->name, l->grid[i].budget);
        bool again = found.any && !found.ok && l->run->retry_failed;
        *prompt = found.prompt_sha256 ? found.prompt_sha256 : *prompt;
        if (found.any && !again) {
            l->counts->before++;
            l->old_failures = l->old_failures || !found.ok;
            continue;
        }
        l->attempts[n] = again ? found.attempt + 1 : 1;
        l->cells[n++] = l->grid[i];
    }
    return n;
}

static kve_status store_records(loop *l, size_t n)
{
    int64_t n_ok = 0;
    for (size_t i = 0; i < n; i++) {
        const kve_record *r = &l->records[i];
        l->records[i].attempt = l->attempts[i];
        bool ok = strcmp(r->status, "ok") == 0;
        n_ok += ok;
        if (ok && l->cells[i].policy == l->grid[0].policy && l->cells[i].budget == l->grid[0].budget && r->metric &&
            strcmp(r->metric, "nll") == 0 && r->n_scored > 0) {
            l->nll += r->nll_sum;
            l->n_scored += r->n_scored;
        }
    }
    KVE_TRY(kve_store_append(l->run->store, l->records, n));
    l->counts->ok += n_ok;
    l->counts->failed += (int64_t)n - n_ok;
    return KVE_OK;
}

/* A sample's name says where it lies in its data set, not what it is: a text that was edited, or another file of the
 * same name, would take over the old one's results. */
static kve_status check_prompt(const loop *l, const kve_sample *s, const char *was)
{
    char now[KVE_SHA256_HEX];
    if (!was || kve_evaluator_prompt(l->run->evaluator, s, now) != KVE_OK || strcmp(was, now) == 0)
        return KVE_OK; /* a prompt that cannot be made fails in its evaluation */
    return kve_fail(KVE_ERR_USAGE,
                    "sample %s/%s: the folder holds results of another prompt under this name (prompt_sha256 %.12s... "
                    "there, %.12s... now); the text or the data have changed: use another --out",
                    s->task, s->id, was, now);
}

static kve_status run_sample(loop *l, const kve_sample *s)
{
    kve_arena arena = {0};
    kve_str reason = {0};
    const char *prompt;
    size_t n = missing_cells(l, s->task, s->id, &prompt);
    KVE_TRY(check_prompt(l, s, prompt));
    if (n == 0)
        return KVE_OK;
    kve_status st = kve_evaluate(l->run->evaluator, s, l->cells, n, &arena, l->records);
    if (st != KVE_OK) {
        kve_status kept = kve_str_puts(&reason, kve_diag());
        kve_warn("sample %s/%s failed: %s", s->task, s->id, kve_diag());
        for (size_t i = 0; i < n; i++) {
            kve_record_begin(l->run->evaluator, s, &l->cells[i], &l->records[i]);
            l->records[i].status = "failed";
            l->records[i].reason = kept == KVE_OK ? reason.p : "out of memory";
        }
    }
    kve_status logged = st == KVE_OK && l->run->log ? kve_sample_log_write(l->run->log, s) : KVE_OK;
    st = logged == KVE_OK ? store_records(l, n) : logged;
    kve_str_free(&reason);
    kve_arena_free(&arena);
    return st;
}

/* A sample that could not even be made is recorded under a name of its own. */
static kve_status run_unmade(loop *l, const kve_dataset *d, size_t i)
{
    char id[32], *reason = NULL;
    const char *prompt;
    kve_sample s = {.id = id, .task = d->name, .question = "", .metric = KVE_METRIC_RULER_ALL};
    KVE_TRY(kve_strndup(kve_diag(), strlen(kve_diag()), &reason));
    snprintf(id, sizeof id, "sample-%zu", i);
    kve_warn("%s, sample %zu: %s", d->name, i, reason);
    size_t n = missing_cells(l, s.task, s.id, &prompt);
    for (size_t c = 0; c < n; c++) {
        kve_record_begin(l->run->evaluator, &s, &l->cells[c], &l->records[c]);
        l->records[c].metric = NULL;
        l->records[c].status = "failed";
        l->records[c].reason = reason;
    }
    kve_status st = n ? store_records(l, n) : KVE_OK;
    free(reason);
    return st;
}

static void show_progress(loop *l, const char *task)
{
    char detail[192];
    const kve_cell *first = &l->grid[0];
    int at = snprintf(detail, sizeof detail, "%s", task);
    if (l->n_scored > 0 && at > 0 && (size_t)at < sizeof detail) {
        at += snprintf(detail + at, sizeof detail - (size_t)at, "; %s", first->policy->name);
        if (first->budget != KVE_NO_INT && (size_t)at < sizeof detail)
            at += snprintf(detail + at, sizeof detail - (size_t)at, " at %lld", (long long)first->budget);
        if ((size_t)at < sizeof detail)
            snprintf(detail + at, sizeof detail - (size_t)at, ": perplexity %.2f so far",
                     kve_perplexity(l->nll, l->n_scored));
    }
    l->progress.skipped = l->counts->before;
    kve_progress_update(&l->progress, l->counts->before + l->counts->ok + l->counts->failed, detail);
}

static kve_status run_index(loop *l, size_t i)
{
    for (size_t d = 0; d < l->run->n_datasets; d++) {
        kve_dataset *set = l->run->datasets[d];
        kve_sample s = {0};
        if (i >= set->n_samples)
            continue;
        if (l->run->stop && *l->run->stop)
            return kve_fail(KVE_ERR_STOPPED, "stopped on request; the same command goes on from here");
        if (kve_dataset_sample(set, i, &s) != KVE_OK) {
            KVE_TRY(run_unmade(l, set, i));
        } else {
            kve_status st = run_sample(l, &s);
            kve_sample_free(&s);
            KVE_TRY(st);
        }
        show_progress(l, set->name);
    }
    return KVE_OK;
}

static kve_status run_samples(loop *l)
{
    size_t most = 0;
    for (size_t d = 0; d < l->run->n_datasets; d++) {
        size_t n = l->run->datasets[d]->n_samples;
        l->counts->total += (int64_t)(n * l->n_grid);
        most = n > most ? n : most;
    }
    kve_progress_begin(&l->progress, "cells", l->counts->total);
    kve_status st = KVE_OK;
    for (size_t i = 0; i < most && st == KVE_OK; i++)
        st = run_index(l, i);
    kve_progress_end(&l->progress);
    return st;
}

kve_status kve_run_all(const kve_run *run, kve_run_counts *counts)
{
    loop l = {.run = run, .counts = counts};
    *counts = (kve_run_counts){0};
    kve_status st = make_grid(&l);
    if (st == KVE_OK)
        st = run_samples(&l);
    free(l.grid);
    free(l.cells);
    free(l.attempts);
    free(l.records);
    if (st == KVE_OK && (counts->failed || l.old_failures))
        st = kve_fail(KVE_ERR_PARTIAL, "some cells failed (status 'failed' in the records says why); --retry-failed "
                                       "runs them again");
    return st;
}
