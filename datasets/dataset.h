/* What a dataset gives to an evaluation: samples by index, each with everything it owns in one arena. The rest of the
 * program is known here only through kve_token_fns: a dataset can count and encode tokens, but sees no tokenizer,
 * no chat template, no model. A dataset is used by one thread at a time. */
#ifndef KVE_DATASETS_DATASET_H
#define KVE_DATASETS_DATASET_H

#include "host/base/mem.h"
#include "host/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum kve_metric {
    KVE_METRIC_RULER_ALL, /* mean over the references of "it is a substring of the answer" */
    KVE_METRIC_RULER_ANY, /* 1 if any reference is a substring of the answer */
    KVE_METRIC_NLL,       /* teacher-forced negative log-likelihood of ids[n_prefill..n_ids) or of the last turn */
    KVE_METRIC_ACC,       /* choices: the likeliest one is the gold one */
    KVE_METRIC_ACC_NORM,  /* choices: the likeliest one per character is the gold one */
    KVE_METRIC_ROUGE_L,   /* longest common subsequence of words with a reference, the best of them */
    KVE_METRIC_EXACT,     /* choices as words: the first word of the answer is the reference's */
} kve_metric;

const char *
kve_metric_name(kve_metric m); /* "ruler_all" | "ruler_any" | "nll" | "acc" | "acc_norm" | "rouge_l" | "exact_match" */

/* Where a sample's question goes. */
typedef enum kve_question_place {
    KVE_QUESTION_ASKED, /* where --question says */
    KVE_QUESTION_IN,    /* always prefilled */
    KVE_QUESTION_AFTER, /* never prefilled */
} kve_question_place;

/* The tokenizer as datasets see it. `count` and `encode` add no BOS and treat the text as plain text. */
typedef struct kve_token_fns {
    void *ctx;
    kve_status (*count)(void *ctx, const char *text, size_t len, size_t *n_tok);
    kve_status (*encode)(void *ctx, const char *text, size_t len, kve_arena *arena, int32_t **ids, size_t *n_ids);
} kve_token_fns;

typedef struct kve_turn {
    const char *role, *text; /* "user" | "assistant" */
} kve_turn;

/* One sample. Three kinds: a prompt (context ... choices), a raw window of tokens (ids), or a dialogue (turns). A
 * prompt is chat opening + context + question + chat closing + answer_prefix, then at most max_new_tokens greedy
 * tokens, or each of the choices; the context is always prefilled and compressed, the question is prefilled with it or
 * comes after the compression. context + question is the user's whole text: nothing is put between them. A dialogue is
 * prefilled up to its last turn, which is scored. All strings live in `arena`. */
typedef struct kve_sample {
    const char *id; /* unique in its dataset and stable: the key of a resumed run */
    const char *task, *task_version;
    const char *context, *question, *answer_prefix; /* "" where there is none */
    const char *const *references;
    size_t n_references;
    int64_t max_new_tokens;
    kve_metric metric;
    const char *note; /* how the sample departs from the task's official counts; NULL = it does not */
    int64_t n_tok;    /* generated tasks: prompt + chat overhead + prefix + tokens to generate; otherwise 0 */
    const int32_t *ids;
    size_t n_ids, n_prefill; /* window: ids[0..n_prefill) is the context, the rest is scored */
    bool plain;              /* no chat template, no turn: the text itself, as log-likelihood tasks are defined */
    kve_question_place question_place;
    const char *const *choices; /* texts that go on from the prompt, with their leading space */
    size_t n_choices, gold;     /* metrics acc, acc_norm: two choices at least, gold is the right one's index */
    const char *subject;        /* of a task that is weighted by subject; NULL = it is not */
    int64_t n_shots;            /* examples in the context; -1: the task knows none */
    const kve_turn *turns;      /* dialogue: the last one is the assistant's and is scored */
    size_t n_turns;
    const char *source; /* "FILE:LINE: field 'passage'", for messages; NULL = generated */
    kve_arena arena;
} kve_sample;

void kve_sample_free(kve_sample *s); /* leaves it empty and usable */

typedef struct kve_dataset kve_dataset;
struct kve_dataset {
    const char *name; /* lives as long as the dataset */
    size_t n_samples;
    kve_status (*sample)(kve_dataset *self, size_t i, kve_sample *out);
    void (*close)(kve_dataset *self);
};

/* Sample i < n_samples into *out (overwritten, not freed). On failure *out is empty. The caller: kve_sample_free. */
kve_status kve_dataset_sample(kve_dataset *d, size_t i, kve_sample *out);
void kve_dataset_close(kve_dataset *d); /* NULL is allowed */

/* Datasets that belong to one task name, and what was left out of it. Zero-initialise; kve_dataset_list_close. */
typedef struct kve_dataset_skip {
    const char *name, *reason; /* "ruler-4k/qa_1", and why it is not there */
} kve_dataset_skip;

typedef struct kve_dataset_list {
    kve_dataset **items; /* [n] */
    kve_dataset_skip *skipped;
    size_t n, n_skipped, cap, cap_skipped;
    size_t n_bad_rows; /* left out because kve_task_options.skip_bad says so */
    kve_arena arena;
} kve_dataset_list;

kve_status kve_dataset_list_add(kve_dataset_list *l, kve_dataset *d); /* takes d over, also when it fails */
kve_status kve_dataset_list_skip(kve_dataset_list *l, const char *name, const char *reason); /* copies both */
void kve_dataset_list_close(kve_dataset_list *l);                                            /* closes every dataset */

/* --- Task names:
 *   ruler-LENGTH[/TASK]  generated; LENGTH is a number of tokens, or of 1,024 tokens with a k: "ruler-4k", "ruler-512"
 *   ruler[/TASK]         ready-made rows from data_path
 *   text:FILE            windows of a text
 *   boolq, arc-challenge, mmlu[/SUBJECT], hellaswag, gov-report, oasst2-4k   from files in data_path */
typedef enum kve_task_family {
    KVE_TASK_RULER,
    KVE_TASK_ROWS,
    KVE_TASK_TEXT,
    KVE_TASK_ITEMS,
    KVE_TASK_OASST,
} kve_task_family;

typedef struct kve_item_task kve_item_task;

typedef struct kve_task_spec {
    kve_task_family family;
    int64_t length_tok; /* RULER: 512 .. 131072; otherwise 0 */
    const char *sub;    /* one of RULER's tasks (static), or a subject of mmlu (in the name); NULL = all of them */
    const char *path;   /* text: points into the name that was parsed; otherwise NULL */
    const kve_item_task *items; /* ITEMS: which one */
} kve_task_spec;

/* KVE_ERR_USAGE names the nearest task. In names of tasks '-' equals '_'. */
kve_status kve_task_parse(const char *name, kve_task_spec *out);

typedef struct kve_task_options {
    kve_token_fns tokens; /* RULER: count; text: encode */
    uint64_t seed;
    size_t n_samples;          /* of each dataset; 0 = all, or RULER's own 500; fewer where there are fewer */
    int64_t overhead_tok;      /* RULER: tokens of the chat opening and closing */
    const char *data_path;     /* file or folder: rows, items, dialogues; RULER: of qa_1 and qa_2; NULL = none */
    const char *haystack_path; /* RULER: NULL = the built-in essay */
    size_t window_tok;         /* text: n_prefill = 3/4 of it, the rest is scored */
    bool has_shots;            /* tasks with choices: `shots` examples instead of the task's standard number */
    size_t shots;
    bool generate;    /* tasks with choices: the answer is generated and compared instead of the likeliest choice */
    bool skip_bad;    /* rows of files that are wrong are counted and left out instead of being an error */
    int64_t turn_tok; /* dialogues: tokens that the chat template puts around one further message */
} kve_task_options;

/* Opens everything a task name stands for. Of RULER's 13 tasks, those whose data is not there are left out and stand
 * in out->skipped; asked for by name, they are an error. On failure *out is empty. The caller: kve_dataset_list_close.
 */
kve_status kve_task_open(const char *name, const kve_task_options *options, kve_dataset_list *out);

/* --- RULER's 13 tasks, generated: RULER's structure in this project's own words (task_version "kveval-1"). */
#define KVE_RULER_VERSION "kveval-1"

typedef struct kve_ruler_options {
    const char *task;          /* "niah_single_1" ... "qa_2" */
    int64_t length_tok;        /* 512 .. 131072: prompt, chat overhead, answer prefix and generated tokens together */
    int64_t overhead_tok;      /* tokens of the chat opening and closing */
    uint64_t seed;             /* a sample is a function of (seed, task, index), the length and the tokenizer */
    size_t n_samples;          /* 0 = RULER's own 500; qa: at most as many as the file has questions */
    const char *haystack_path; /* essay instead of the built-in one (which lasts for 4k): plain text, or JSON with a
                                  field "text" like RULER's PaulGrahamEssays.json; NULL = built-in */
    const char *data_path;     /* qa only: SQuAD's or HotpotQA's JSON file, or a folder that holds it */
    kve_token_fns tokens;      /* count is needed, encode is not */
} kve_ruler_options;

kve_status kve_ruler_open(const kve_ruler_options *options, kve_dataset **out);
size_t kve_ruler_n_tasks(void);
const char *kve_ruler_task_name(size_t i); /* i < kve_ruler_n_tasks(), in RULER's order */

/* --- Ready-made rows, JSON Lines: RULER's validation.jsonl (index, input, outputs, length; newer ones also
 * answer_prefix) or rows in the manner of simonjegou/ruler (context, question, answer_prefix, answer, task,
 * max_new_tokens). Used exactly as they are: context + question + answer_prefix is the row's text, byte by byte.
 * RULER's input is one text; it is cut where its question begins and where its answer prefix begins. Every row is
 * checked on opening; a fault names file:line and field. */
#define KVE_ROWS_VERSION "rows-1"

typedef struct kve_rows_options {
    const char *path;
    const char *task; /* RULER's files do not name their task: this does, or (NULL) the folder's name; where rows do
                         name their task, only those of this one are kept */
    size_t n_samples; /* 0 = all; otherwise the first n (fewer where there are fewer) */
} kve_rows_options;

/* A file whose rows are all of one task (or are narrowed down to one by options->task). */
kve_status kve_rows_open(const kve_rows_options *options, kve_dataset **out);

/* Appends one dataset per task, in RULER's order. path: a file, or a folder TASK/validation.jsonl for each task. */
kve_status kve_rows_open_all(const kve_rows_options *options, kve_dataset_list *out);

/* --- Tasks from files: their names and what stands in a listing, i < kve_file_task_count(). */
size_t kve_file_task_count(void);
const char *kve_file_task_name(size_t i);
const char *kve_file_task_about(size_t i);

/* --- OASST2: message trees as dialogues of length_tok tokens at the most (prompt, chat template and scored message
 * together) and three quarters of it at the least; metric nll over the last assistant message. */
#define KVE_OASST_VERSION "oasst2-1"

typedef struct kve_oasst_options {
    const char *name, *path; /* path: file or folder of trees or flat rows */
    int64_t length_tok, overhead_tok, turn_tok;
    uint64_t seed;
    size_t n_samples; /* 0 = as many as the trees give; otherwise the first n (fewer ...) */
    bool skip_bad;
    kve_token_fns tokens; /* count is needed */
} kve_oasst_options;

kve_status kve_oasst_open(const kve_oasst_options *options, kve_dataset_list *out);

/* --- Any text as windows of n_prefill + n_score tokens, side by side from the beginning; metric nll. */
#define KVE_TEXT_VERSION "text-1"

typedef struct kve_text_options {
    const char *path;
    size_t n_prefill, n_score;
    size_t n_samples;     /* 0 = as many whole windows as the text holds; otherwise the first n (fewer ...) */
    kve_token_fns tokens; /* encode is needed, count is not */
} kve_text_options;

kve_status kve_text_open(const kve_text_options *options, kve_dataset **out);

#endif
