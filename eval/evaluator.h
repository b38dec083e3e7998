/* The cells of one sample - policies x budgets - computed from ONE prefill: rank once, fork everywhere, decode all
 * forks together. Knows engine, policies and metrics; no files, no command line. */
#ifndef KVE_EVAL_EVALUATOR_H
#define KVE_EVAL_EVALUATOR_H

#include "datasets/dataset.h"
#include "eval/record.h"
#include "host/engine/session.h"
#include "host/text/chat.h"
#include "host/text/tokenizer.h"
#include "policies/policy.h"

typedef struct kve_eval_options {
    int32_t sink, recent;
    bool question_in, reward;
    uint64_t seed;
    int32_t chunk;     /* rows of one forward */
    size_t fork_bytes; /* ranked caches and tails that may live at once; policies beyond it go in turns */
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
 * the full cell itself, computed once. On failure the records are unset. */
kve_status kve_evaluate(kve_evaluator *e, const kve_sample *s, const kve_cell *cells, size_t n_cells, kve_arena *arena,
                        kve_record *records);

/* What every record of the sample says whatever happens: names, metric, references, settings. */
void kve_record_begin(const kve_evaluator *e, const kve_sample *s, const kve_cell *cell, kve_record *r);

#endif
