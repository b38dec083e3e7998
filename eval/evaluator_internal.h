/* Inside the evaluator: the state of one sample, shared by evaluator.c (flow), forks.c (rankings, decoding) and
 * fill.c (records). */
#ifndef KVE_EVAL_EVALUATOR_INTERNAL_H
#define KVE_EVAL_EVALUATOR_INTERNAL_H

#include "eval/evaluator.h"
#include "eval/prompt.h"
#include "eval/scoring.h"
#include "host/engine/decode.h"

struct kve_evaluator {
    const kve_model *m;
    const kve_tokenizer *tk;
    const kve_chat *chat;
    kve_eval_options opt;
    kve_session *session;
    int32_t max_positions; /* of the session; 0 = none is open */
};

/* What one fork answered. */
typedef struct answer {
    const int32_t *ids; /* generated, in the arena */
    int32_t n;
    double nll_sum;
    int32_t n_scored;
    double *loglik;             /* [n_choices], in the arena, or NULL */
    int32_t kept_min, kept_max; /* lengths as read back from the device */
    int64_t decode_us;          /* of the batches that it took part in */
    int32_t n_forks;            /* of the largest of them */
} answer;

/* What a fork is fed and scored on: the tail, and one choice where there are choices. */
typedef struct script {
    const int32_t *ids; /* [n] */
    int32_t n;
} script;

/* What one policy's ranking gave. */
typedef struct ranking {
    int64_t score_us, rank_us, compact_us;
    double *lost; /* [budgets of this sample][L Hkv], in the arena, or NULL */
    double *sums; /* [L Hkv], sum over b = 1 .. n - 1 */
} ranking;

typedef struct sample_run {
    kve_evaluator *e;
    const kve_sample *s;
    kve_arena *arena;
    const kve_cell *cells;
    size_t n_cells;
    answer *answers;    /* [n_cells] */
    ranking **rankings; /* [n_cells]; NULL where all is kept; shared by the cells of a policy */
    kve_record *records;
    char *name; /* task/sample_id */
    kve_prompt prompt;
    kve_context ctx;
    int32_t n;
    bool teacher;      /* the forks are fed what they are scored on: metric nll, or choices */
    script *scripts;   /* teacher: [n_scripts] */
    size_t n_scripts;  /* forks of one cell: as many as there are choices, else 1 */
    float first_nll;   /* metric nll: of the first token after the cut, which no policy touches */
    float *importance; /* device [L][Hkv][n], or NULL */
    float *host_importance;
    int32_t n_future;
    double *oracle_sums; /* [L Hkv]: sum over budgets of what the best order would lose, or NULL */
    answer full;
    bool has_full;
    int64_t prefill_us, prefills_before;
} sample_run;

static inline size_t run_heads(const sample_run *r)
{
    return (size_t)r->e->m->cfg.shape.L * (size_t)r->e->m->cfg.shape.Hkv;
}

static inline bool cell_keeps_all(const sample_run *r, const kve_cell *c)
{
    return c->policy->keeps_all || c->budget >= r->n;
}

/* Rows of a fork's own cache: the longest of them. */
static inline int32_t tail_rows(const sample_run *r)
{
    int32_t most = (int32_t)r->prompt.tail.len + (r->teacher ? 0 : (int32_t)r->s->max_new_tokens);
    for (size_t c = 0; r->teacher && c < r->n_scripts; c++)
        most = r->scripts[c].n > most ? r->scripts[c].n : most;
    return most;
}

/* forks.c: the full fork alone, with its future queries; fills full, importance, n_future. Of a sample with choices the
 * future is the tail and the right choice. */
kve_status run_full_alone(sample_run *r);
/* forks.c: every cell that evicts (and the full one, if wanted and not run yet). */
kve_status run_forks(sample_run *r, bool with_full);

/* fill.c */
kve_status fill_records(sample_run *r);

#endif
