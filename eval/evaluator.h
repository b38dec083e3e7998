/* The cells of one sample - policies x budgets - computed from ONE prefill: rank once, fork everywhere, decode all
 * forks together. Knows engine, policies and metrics; no files, no command line. */
#ifndef KVE_EVAL_EVALUATOR_H
#define KVE_EVAL_EVALUATOR_H

#include "datasets/dataset.h"
#include "eval/record.h"
#include "host/base/hash.h"
#include "host/engine/session.h"
#include "host/text/chat.h"
#include "host/text/tokenizer.h"
#include "policies/policy.h"

typedef struct kve_eval_options {
    int32_t sink, recent;
    bool question_in, reward;
    bool all_queries; /* kve_observe: the context holds the queries of all tokens */
    uint64_t seed;
    int32_t evict_every; /* > 0: also evict while decoding; then all policies are `while_decoding` or keep all */
    int32_t chunk;       /* rows of one forward */
    size_t fork_bytes;   /* ranked caches and tails that may live at once; policies beyond it go in turns */
} kve_eval_options;

/* One cell: a policy and a budget >= 1, or KVE_NO_INT for a policy that keeps all. */
typedef struct kve_cell {
    const kve_policy *policy;
    int64_t budget;
} kve_cell;

typedef struct kve_evaluator kve_evaluator;

/* Everything passed in must outlive the evaluator. */
kve_status kve_evaluator_open(const kve_model *m, const kve_tokenizer *tk, const kve_chat *chat,
                              const kve_eval_options *opt, kve_evaluator **out);
void kve_evaluator_close(kve_evaluator *e);

/* records[i] for cells[i]; texts and arrays live in `arena` and in the sample. A cell whose budget is at or above n is
 * the full cell itself, computed once. With evict_every a cell's cache is its own: cut to the budget after the prefill,
 * and again whenever budget + evict_every rows are full and another token is to come, by new scores of all of them; the
 * full cell is then where context and answer never exceed the budget. Cells of a policy that lacks what it needs in
 * this sample come out as failed records. On failure the records are unset. */
kve_status kve_evaluate(kve_evaluator *e, const kve_sample *s, const kve_cell *cells, size_t n_cells, kve_arena *arena,
                        kve_record *records);

/* The prompt_sha256 that the sample's records will have. */
kve_status kve_evaluator_prompt(const kve_evaluator *e, const kve_sample *s, char sha256[KVE_SHA256_HEX]);

/* What a sample's prefill and its answer from the full cache leave behind, valid during the call only. */
typedef struct kve_observation {
    const kve_model *m;
    const char *name;          /* task/sample id */
    const char *prompt_sha256; /* as in a record */
    const int32_t *tokens;     /* [ctx->n] */
    const kve_context *ctx;
    const float *importance; /* host [L][Hkv][n] */
    const float *cos, *sin;  /* host [n + KVE_FUTURE_POSITIONS][R/2] */
    int32_t n_future;
} kve_observation;
typedef kve_status (*kve_observer)(void *ctx, const kve_observation *seen);

/* Prefills the sample, answers it from the full cache, and shows the observer what was seen. */
kve_status kve_observe(kve_evaluator *e, const kve_sample *s, kve_observer observer, void *ctx);

/* What every record of the sample says whatever happens: names, metric, references, settings. */
void kve_record_begin(const kve_evaluator *e, const kve_sample *s, const kve_cell *cell, kve_record *r);

#endif
