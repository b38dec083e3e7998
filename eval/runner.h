/* A run: every sample of every data set, every missing cell, into the store. One sample at a time, samples of all data
 * sets in turn, so that a run that is stopped has covered all tasks evenly. */
#ifndef KVE_EVAL_RUNNER_H
#define KVE_EVAL_RUNNER_H

#include "eval/evaluator.h"
#include "eval/sample_log.h"
#include "eval/store.h"

#include <signal.h>

typedef struct kve_run {
    kve_evaluator *evaluator;
    kve_store *store;
    kve_dataset *const *datasets;
    size_t n_datasets;
    const kve_policy *const *policies;
    size_t n_policies;
    const int32_t *budgets; /* ascending, no repeats */
    size_t n_budgets;
    bool retry_failed;
    const kve_sample_log *log;         /* NULL: samples are not logged */
    const volatile sig_atomic_t *stop; /* non-zero: finish the sample, then KVE_ERR_STOPPED */
} kve_run;

typedef struct kve_run_counts {
    int64_t total, before, ok, failed; /* cells: of the grid, found done, computed, computed but failed */
} kve_run_counts;

/* KVE_ERR_PARTIAL where cells failed, in this run or before; KVE_ERR_STOPPED where it was stopped; other errors end the
 * run at once (the store cannot be written). A failing sample becomes failed records, and the run goes on. */
kve_status kve_run_all(const kve_run *run, kve_run_counts *counts);

#endif
