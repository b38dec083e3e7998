/* One cell of a run - sample x policy x budget - as one line of JSON. This file is the whole contract between the
 * runner that writes and the report that reads; it knows neither. */
#ifndef KVE_EVAL_RECORD_H
#define KVE_EVAL_RECORD_H

#include "host/base/mem.h"
#include "host/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Strings and arrays are borrowed. Unknown: NULL, KVE_NO_INT, NaN; each is written as null, never as 0. */
#define KVE_NO_INT INT64_MIN

typedef struct kve_record {
    const char *sample_id;    /* with task: one sample; "niah_single_1-17" */
    const char *task;         /* "ruler-4k/niah_single_1" */
    const char *task_version; /* of the generator or the file format */
    const char *policy;
    int64_t budget;     /* tokens per layer and KV head as asked for; null: full, to which no budget applies */
    const char *status; /* "ok" | "failed" */
    const char *reason; /* of a failure */
    const char *info;   /* "none" | "attention-free" | "prefill-attention" | "future-attention" */
    const char
        *allocation;   /* what shares the budget, which is a mean then: "uniform" | "layers" | "heads" | "all heads" */
    const char *note;  /* how the sample departs from the task's official form */
    int64_t n_context; /* tokens prefilled */
    int64_t kept_min;  /* tokens kept, the least and the most over layers and KV heads, as checked after the eviction */
    int64_t kept_max;  /* uniform: both = min(budget, n_context) */
    int64_t kv_bytes;  /* of the kept rows, K and V, all layers */
    int64_t sink, recent; /* protected tokens in this policy's ranking */
    int64_t evict_every;  /* tokens between two evictions while decoding; null: off, or the policy keeps all */
    int64_t n_evictions;  /* while decoding, after that of the prefill; choices: of the one with the most */
    bool question_in_prefill;
    const char *prompt_sha256; /* of the token ids before and after the cut, little-endian int32 */
    const char *prediction;
    const char *const *references;
    size_t n_references;
    const char *metric; /* "ruler_all" | "ruler_any" | "nll" | "acc" | "acc_norm" | "rouge_l" | "exact_match" */
    double score;       /* of the metric; nll: this sample's perplexity */
    double nll_sum;     /* nats over n_scored tokens */
    int64_t n_scored;
    double reward_lost;         /* share of the future attention I that was evicted: mean over layers and heads */
    double reward_norm;         /* R^b / R(oracle), mean over layers and heads (KVP paper) */
    double reward_sum;          /* sum over b = 1 .. n - 1 of the lost share: mean over layers and heads */
    double reward_sum_norm;     /* R / R(oracle) */
    const double *reward_heads; /* [L * Hkv] reward_lost per layer and head */
    size_t n_reward_heads;
    int64_t n_future;                                  /* future tokens behind the rewards */
    int64_t n_prefills;                                /* prefills that this sample took in all */
    double prefill_flops, score_flops;                 /* by count, of the sample; of the policy's scores */
    int64_t prefill_us, score_us, rank_us, compact_us; /* of the sample; of the policy's ranking (all budgets share) */
    int64_t decode_us;                                 /* of the whole batch of forks that this cell was decoded in */
    int64_t decode_forks;                              /* how many forks that batch had */
    int64_t n_generated;
    double acc, acc_norm; /* choices: 0 or 1, whichever of the two is the score */
    int64_t gold;         /* choices: index of the right one */
    const double *loglik; /* [n_choices] nats of each choice's tokens */
    size_t n_choices;
    double rouge_l_longbench; /* metric rouge_l: the other form */
    const char *subject;      /* a suite of subjects weighs every sample alike */
    int64_t shots;            /* examples in the prompt */
    int64_t attempt;          /* 1, or more after --retry-failed */
    int64_t unix_time;        /* seconds */
} kve_record;

/* All unknown. */
void kve_record_clear(kve_record *r);

/* Appends the JSON object, without a newline. */
kve_status kve_record_write(const kve_record *r, kve_str *out);

/* Parses one line. Texts and arrays are copied into the arena. `name` stands in messages ("records.jsonl:17"). Fields
 * that are missing are unknown; fields that are not known are ignored (a newer version may write more). */
kve_status kve_record_parse(const char *line, size_t len, const char *name, kve_arena *arena, kve_record *out);

/* Order of merged files: task, sample (numbers inside an id by value), policy, budget (null first). */
int kve_record_compare(const kve_record *a, const kve_record *b);

#endif
