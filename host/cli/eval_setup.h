/* kveval eval's preparations: lists of names and numbers, data sets, the manifest. Used by cmd_eval.c only. */
#ifndef KVE_CLI_EVAL_SETUP_H
#define KVE_CLI_EVAL_SETUP_H

#include "datasets/dataset.h"
#include "eval/evaluator.h"
#include "host/cli/cli.h"

enum { KVE_MAX_POLICIES = 64, KVE_MAX_BUDGETS = 256 };

typedef struct kve_eval_setup {
    const kve_policy *policies[KVE_MAX_POLICIES];
    size_t n_policies;
    const char *model_sha256;         /* during kve_setup_policies */
    bool while_decoding;              /* only policies that can evict while decoding, and the full cache, are taken */
    int32_t budgets[KVE_MAX_BUDGETS]; /* ascending, no repeats */
    size_t n_budgets;
    kve_dataset_list data;
    kve_arena arena;
} kve_eval_setup; /* zero-initialise; kve_eval_setup_free */

void kve_eval_setup_free(kve_eval_setup *s);

/* "knorm,tova" or "all", for the model of this SHA-256 (NULL: not known). */
kve_status kve_setup_policies(const char *list, const char *model_sha256, kve_eval_setup *s);
/* "128,256": token counts; a ratio is refused with the reason. */
kve_status kve_setup_budgets(const char *list, kve_eval_setup *s);
/* "ruler-1k,text:book.txt": opens every task; what had to be left out is said on stderr. */
typedef struct kve_task_flags {
    const kve_flag *task, *samples, *window, *seed, *data, *haystack;
    const kve_flag *shots, *skip_bad; /* NULL: the task's standard number; bad rows are an error */
    const kve_flag *answer;           /* "loglik" | "generate"; NULL: loglik */
} kve_task_flags;
kve_status kve_setup_tasks(const kve_task_flags *f, const kve_opened *o, kve_eval_setup *s);
/* "in" | "out". */
kve_status kve_setup_question(const kve_flag *f, bool *question_in);

/* eval_plan.c: cells, lengths, memory, the time of the prefills, and the first prompt, to stdout. */
kve_status kve_eval_plan(const kve_opened *o, const kve_eval_setup *s, const kve_eval_options *opt);

/* Fills the flags that still hold their defaults from a manifest.json: the run that it describes, again. Texts live in
 * the setup's arena. */
kve_status kve_setup_replay(const char *path, const kve_flag *defaults, kve_flag *f, size_t n_flags, kve_eval_setup *s);

/* What the run is, for the manifest: values as the user gave them. */
typedef struct kve_run_facts {
    int argc;
    char **argv;
    const char *task, *policy, *budget, *samples, *window, *seed, *sink, *recent, *evict_every, /* NULL: off */
        *question, *dtype, *data, *haystack, *chat, *shots, *answer;
    bool reward;
    size_t n_bad_rows; /* left out by --skip-bad */
} kve_run_facts;
kve_status kve_setup_manifest(const char *dir, const kve_opened *o, const kve_run_facts *facts);

#endif
