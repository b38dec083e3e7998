/* The report's data: rows (one record each, what the report needs of it), and cells (scope x policy x slot) with their
 * statistics. A scope is a task, or a suite of tasks ("ruler-4k" of "ruler-4k/niah_single_1"). Knows records and
 * host/base; knows neither tables nor files of the report. */
#ifndef KVE_EVAL_REPORT_DATA_H
#define KVE_EVAL_REPORT_DATA_H

#include "eval/record.h"
#include "host/base/mem.h"
#include "host/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KVE_REPORT_RESAMPLES = 2000, KVE_REPORT_NONE = -1 };

typedef enum kve_measure {
    KVE_M_SCORE, /* the task's metric in 0..1 */
    KVE_M_NLL,   /* nats per token, token-weighted; shown as perplexity = exp */
    KVE_M_LOST,  /* reward_lost */
    KVE_M_NORM,  /* reward_norm */
    KVE_M_SUM,   /* reward_sum, of the policy: every budget of a sample repeats it */
    KVE_M_SUM_NORM,
    KVE_M_ACC, /* these two: a task's second metric, beside acc_norm and rouge_l as its score */
    KVE_M_ROUGE_LONGBENCH,
    KVE_N_MEASURES,
} kve_measure;

typedef struct kve_measure_info {
    const char *name, *title; /* as in CSV; as in headings */
    bool lower_better, per_policy;
    const char *format; /* of one value, for printf */
} kve_measure_info;
extern const kve_measure_info kve_measures[KVE_N_MEASURES];

typedef enum kve_timing { KVE_T_PREFILL, KVE_T_SCORE, KVE_T_RANK, KVE_T_COMPACT, KVE_N_TIMINGS } kve_timing;

/* Texts are interned: equal texts are equal pointers. */
typedef struct kve_report_row {
    size_t i_task, i_policy, i_slot, line;
    const char *sample, *reason, *metric, *info, *note, *prompt, *version; /* NULL: unknown */
    const char *shared;                                                    /* allocation, unless that is "uniform" */
    bool ok, question, by_subject;
    double x[KVE_N_MEASURES];          /* NaN: unknown. KVE_M_NLL: nll_sum / n_scored */
    double weight;                     /* n_scored where x[KVE_M_NLL] is known, else 1 */
    double prefill_flops, score_flops; /* NaN: unknown */
    int64_t timing[KVE_N_TIMINGS], kv_bytes, n_context, kept_min, kept_max;
    int64_t decode_us, decode_forks, n_generated, attempt;
    int64_t evict_every, n_evictions; /* KVE_NO_INT: no eviction while decoding */
    const double *heads;              /* [n_heads] reward_heads of an ok row; NULL: unknown */
    size_t n_heads;
} kve_report_row;

/* n == 0: nothing is known, or a suite lacks one of its tasks; then the rest is NaN. */
typedef struct kve_report_stat {
    size_t n;
    double mean, low, high;
} kve_report_stat;

typedef enum kve_baseline { KVE_VS_FULL, KVE_VS_FREE, KVE_N_BASELINES } kve_baseline;
enum { KVE_N_DIFF_MEASURES = KVE_M_NLL + 1 }; /* differences exist for the score and for the nats per token */

typedef struct kve_report_cell {
    const kve_report_row *rows;               /* of a task's cell, by sample; a suite has none of its own */
    size_t n_rows, n_ok, n_failed, n_unknown; /* unknown: ok, but without a score and without nats */
    size_t n_tasks;                           /* tasks of the scope that have an ok row here */
    bool partial;                             /* fewer ok samples than the fullest cell, in any task of the scope */
    bool uneven, below, above;       /* kept: differs over heads; under min(budget, n_context); over the budget */
    bool short_prompts;              /* some prompt is no longer than the budget: nothing was evicted there */
    size_t n_measured, n_compressed; /* ok rows with a budget whose kept tokens are known; those that lost some */
    int64_t kept_min, kept_max;      /* KVE_NO_INT: unknown */
    const char *metric;              /* of the ok rows if they agree, else NULL */
    double kv_bytes, timing[KVE_N_TIMINGS], decode_rate; /* mean; medians in us; tokens/s. NaN: unknown */
    double score_flops, flops_share;                     /* means; the share is of the prefill's. NaN: unknown */
    kve_report_stat stat[KVE_N_MEASURES];
    kve_report_stat diff[KVE_N_BASELINES][KVE_N_DIFF_MEASURES];
} kve_report_cell;

typedef enum kve_report_class { KVE_C_NONE, KVE_C_FREE, KVE_C_PREFILL, KVE_C_SECOND, KVE_C_FUTURE } kve_report_class;

typedef struct kve_report_policy {
    const char *name, *info;
    kve_report_class class;
    const char *shared; /* over what it shares a budget, as its records say; NULL: every head has the same */
    bool mixed;         /* records of this policy disagree about the class; the strongest counts */
} kve_report_policy;

typedef struct kve_report_scope {
    const char *name;
    bool is_suite;
    size_t i_suite, first_task, n_tasks; /* i_suite: index into scopes; a task covers itself */
    size_t n_samples;                    /* ok samples of the fullest cell; a suite: summed over its tasks */
    bool has[KVE_N_MEASURES];
    bool pooled;                      /* a suite of subjects: every sample weighs alike, not every task */
    double prefill_rate, decode_rate; /* tokens/s; NaN: unknown */
    bool single_forks; /* every batch of this scope had one fork: decode_rate of a cell means something */
    bool has_heads;    /* a suite: some row says what each head lost */
} kve_report_scope;

typedef struct kve_report {
    kve_arena arena; /* owns everything below */
    const char *dir;
    const char *limit; /* the run's --samples, where that cut its tasks short; NULL: it did not, or is not known */
    kve_report_row *rows;
    size_t n_rows, n_superseded, n_repeated; /* earlier attempts; the same attempt twice */
    kve_report_policy *policies;             /* in the order of their classes; then by name */
    size_t n_policies;
    int64_t *budgets; /* slot 0 is "no budget" (KVE_NO_INT); then ascending */
    size_t n_slots;
    kve_report_scope *scopes; /* the tasks, in the order of their suites, then the suites */
    size_t n_tasks, n_scopes;
    kve_report_cell *cells;   /* [n_scopes][n_policies][n_slots] */
    int i_full;               /* the policy "full", or KVE_REPORT_NONE */
    int *best_free;           /* [n_scopes][n_slots][KVE_N_DIFF_MEASURES]: best attention-free policy of the suite */
    int32_t layers, kv_heads; /* the model's, by the manifest; 0: not known */
    bool any_heads;           /* some record has reward_heads, whatever they are */
    size_t n_odd_heads, odd_line, odd_count; /* rows whose reward_heads do not fit; the first of them, its values */
} kve_report;

/* Reads dir/records.jsonl: of each (task, sample, policy, budget) the last attempt. Zero-initialise *r; free it after a
 * failure too. */
kve_status kve_report_load(const char *dir, kve_report *r);
void kve_report_free(kve_report *r);

/* Fills the cells: counts, means, intervals, differences, and (kve_report_time) times and rates. */
kve_status kve_report_summarise(kve_report *r);
kve_status kve_report_time(kve_report *r);
/* Its first step alone: makes the cells, with their rows and nothing else. */
kve_status kve_report_find_rows(kve_report *r);

kve_report_cell *kve_report_at(const kve_report *r, size_t i_scope, size_t i_policy, size_t i_slot);

/* Takes layers and kv_heads from the manifest's texts (NULL: absent), and forgets reward_heads that do not fit them. */
void kve_report_heads_shape(kve_report *r, const char *layers, const char *kv_heads);
/* Lost share of every head: mean [layers * kv_heads], by the rules of KVE_M_LOST. *n: samples; 0: not known, and mean
 * is unset. */
void kve_report_heads_mean(const kve_report *r, size_t i_suite, size_t i_policy, size_t i_slot, double *mean,
                           size_t *n);

/* Something has a budget here, and nothing lost a token to it: the value is the full cache's. */
bool kve_report_uncompressed(const kve_report_cell *c);

/* The class, "†", "§", "‡" or "", and "¶" where a budget is shared unevenly. */
const char *kve_report_mark(const kve_report_policy *p);

/* The slot that stands for the policy in per-policy measures: most samples, then the least budget. */
size_t kve_report_policy_slot(const kve_report *r, size_t i_scope, size_t i_policy, kve_measure m);

/* Statistics over the tasks [first, first + n) of a scope: mean over tasks of the weighted task means; the interval
 * resamples samples inside each task. `a` alone: its values. With `b`: paired differences a - b over the samples that
 * are known in both. pooled: the samples of all tasks are one set. a[t], b[t] are the cells of task t. per_task, if
 * not NULL, gets each task's own statistics. Tasks without `m` anywhere (uses[t] false) are left out; a task that
 * should have it but has not makes n = 0. */
typedef struct kve_report_tasks {
    size_t n_tasks;
    const kve_report_cell *const *a, *const *b; /* [n_tasks]; b NULL: no pairs */
    const char *const *names;                   /* [n_tasks]: seeds */
    const bool *uses;                           /* [n_tasks] */
    bool pooled;
} kve_report_tasks;
kve_status kve_report_aggregate(const kve_report_tasks *tasks, kve_measure m, kve_report_stat *out,
                                kve_report_stat *per_task);

#endif
