/* Inside the evaluator: the state of one sample, shared by evaluator.c (flow), forks.c (rankings, decoding), future.c
 * (what the answer attends to), rolling.c (eviction while decoding), replay.c (a second pass) and fill.c (records). */
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
    int64_t kept_rows;          /* over all layers and heads */
    int32_t n_evictions;        /* while decoding */
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
    const char *refused; /* why the policy cannot rank this sample, in the arena; its cells fail, the others go on */
    double *lost;        /* [budgets of this sample][L Hkv], in the arena, or NULL */
    double *sums;        /* [L Hkv], sum over b = 1 .. n - 1; NULL also where other budgets have another ranking */
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
    bool teacher;           /* the forks are fed what they are scored on: metric nll, or choices */
    script *scripts;        /* teacher: [n_scripts] */
    size_t n_scripts;       /* forks of one cell: as many as there are choices, else 1 */
    float first_nll;        /* metric nll: of the first token after the cut, which no policy touches */
    float *importance;      /* device [L][Hkv][n], or NULL */
    float *replay;          /* device [L][Hkv][n], or NULL */
    const float *cos, *sin; /* host, in the arena, or NULL (kve_scoring) */
    float *host_importance;
    int32_t n_future;
    double *oracle_sums; /* [L Hkv]: sum over budgets of what the best order would lose, or NULL */
    answer full;
    bool has_full;
    int32_t replay_part; /* tokens that are repeated at once */
    int64_t prefill_us, prefills_before, replay_us;
} sample_run;

static inline size_t run_heads(const sample_run *r)
{
    return (size_t)r->e->m->cfg.shape.L * (size_t)r->e->m->cfg.shape.Hkv;
}

/* Rows that a fork appends to its cache: the most of them. */
static inline int32_t tail_rows(const sample_run *r)
{
    int32_t most = (int32_t)r->prompt.tail.len + (r->teacher ? 0 : (int32_t)r->s->max_new_tokens);
    for (size_t c = 0; r->teacher && c < r->n_scripts; c++)
        most = r->scripts[c].n > most ? r->scripts[c].n : most;
    return most;
}

/* While decoding, a budget may also be exceeded by what is appended. */
static inline bool cell_keeps_all(const sample_run *r, const kve_cell *c)
{
    return c->policy->keeps_all || c->budget >= r->n + (r->e->opt.evict_every ? tail_rows(r) : 0);
}

/* evaluator.c: whether a cell that evicts has a policy of these needs. */
bool run_needs(const sample_run *r, unsigned needs);

/* rolling.c: eviction while decoding, of a fork that has a cache of its own: rows in order of position. How many rows
 * it has room for; how many it begins with; these, by the ranking `order` (host [L][Hkv][n]); and one eviction from n
 * rows to the cell's budget, after n_before others. */
int32_t rolling_rows(const sample_run *r, const kve_cell *c);
int32_t rolling_kept(const sample_run *r, const kve_cell *c);
kve_status rolling_fill(const sample_run *r, const kve_cell *c, const int32_t *order, kve_kv to);
kve_status rolling_evict(const sample_run *r, const kve_cell *c, kve_kv kv, int32_t n, int32_t n_before);

/* future.c: what the captured tokens of a tail attend to in the context, summed over them or the most of it; out:
 * device [Hkv][n], of one layer. */
kve_status attention_of(const sample_run *r, const kve_capture *capture, kve_kv tail, int32_t i_layer, bool maximum,
                        float *out);
/* From the queries of the full fork and its tail, importance and what the best order would lose; fills
 * importance, host_importance, n_future, oracle_sums. */
kve_status measure_future(sample_run *r, const kve_capture *capture, kve_kv tail);

/* forks.c: the full fork alone, with its future queries; fills full, importance, n_future. Of a sample with choices the
 * future is the tail and the right choice. */
kve_status run_full_alone(sample_run *r);
/* forks.c: every cell that evicts (and the full one, if wanted and not run yet). */
kve_status run_forks(sample_run *r, bool with_full);

/* replay.c: KVzip's second pass, if a cell asks for it. First its size: *rows that its longest part adds behind the
 * context, and replay_part; both 0 where no cell asks for it, or the model's context has no room. Then itself: fills
 * replay. */
kve_status replay_rows(sample_run *r, int32_t *rows);
kve_status run_replay(sample_run *r);

/* fill.c */
kve_status fill_records(sample_run *r);

#endif
