/* kveval bench e2e: what a prefill, every policy's ranking, a decode step of one and of many forks, and a whole sweep
 * of policies and budgets cost on this machine with this model. Times only; no quality. */
#include "eval/scoring.h"
#include "host/base/clock.h"
#include "host/base/log.h"
#include "host/base/rng.h"
#include "host/cli/bench_rows.h"
#include "host/cli/eval_setup.h"
#include "host/engine/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 512, SHORT = 512, SINK = 4, RECENT = 16, SEED = 42, SWEEP_BUDGETS = 6, RULER_LEAST = 512 };

/* What the context of random tokens here cannot give. */
enum { NOT_OF_A_CONTEXT = KVE_NEED_FUTURE | KVE_NEED_REPLAY | KVE_NEED_QUESTION };

/* Of the sweep: those that evict of the first release, so that its figures stay comparable. */
static const kve_policy *const g_swept[] = {&kve_policy_random,  &kve_policy_streaming_llm, &kve_policy_knorm,
                                            &kve_policy_keydiff, &kve_policy_lagkv,         &kve_policy_snapkv,
                                            &kve_policy_tova,    &kve_policy_oracle};
enum { N_SWEPT = sizeof g_swept / sizeof *g_swept };

typedef struct bench {
    const kve_model *m;
    kve_session *s;
    kve_context ctx;
    int32_t n, forks, steps;
    int32_t *ids;     /* [n] */
    int32_t *lengths; /* [L Hkv]: of a ranking */
    kve_arena arena;  /* of the scoring's tables */
    kve_scoring scoring;
    kve_bench_rules rules;
    kve_bench_table table;
} bench;

/* A row's key is name, length and forks; `value` is what one looks for, in `unit`. */
static kve_status print_row(bench *b, const char *name, int32_t length, size_t forks, double value, const char *unit,
                            const kve_bench_series *s, const char *stop)
{
    const kve_bench_field own[] = {
        {"name", KVE_BENCH_TEXT, .text = name, .title = "name", .width = 19},
        {"length", KVE_BENCH_INT, .integer = length, .title = "length", .width = 6},
        {"forks", KVE_BENCH_INT, .integer = (int64_t)forks, .title = "forks", .width = 5},
        {"value", KVE_BENCH_NUM, .number = value, .title = "value", .width = 10, .decimals = 2},
        {"unit", KVE_BENCH_TEXT, .text = unit, .title = "unit", .width = 7},
    };
    return kve_bench_print(&b->table, own, sizeof own / sizeof *own, s, stop);
}

/* Measures and prints one thing; `work` units are done each time. */
static kve_status measure(bench *b, const char *name, int32_t length, int32_t forks, double work, const char *unit,
                          kve_bench_once once, void *ctx)
{
    kve_bench_result r;
    KVE_TRY(kve_bench_measure(&b->rules, once, ctx, 1, &r));
    double value = work / (r.series[0].median * 1e-3);
    return print_row(b, name, length, (size_t)forks, value, unit, &r.series[0], r.stop);
}

static kve_status prefill_once(void *ctx, double *us)
{
    bench *b = ctx;
    int64_t start = kve_now_us();
    KVE_TRY(kve_prefill(b->s, b->ids, b->n, &b->ctx));
    *us = (double)(kve_now_us() - start);
    return KVE_OK;
}

typedef struct decoding {
    const bench *b;
    kve_batch batch;
    int32_t *fork_of, *first; /* [X] */
    int32_t *found;           /* [steps at once][X] */
} decoding;

/* Decodes `steps` tokens of X forks as an evaluation does, its recording included where the backend records. */
static kve_status decode_once(void *ctx, double *us)
{
    decoding *d = ctx;
    const bench *b = d->b;
    kve_steps steps = {0};
    int32_t at_once = kve_steps_at_once(b->s, NULL);
    int64_t start = kve_now_us();
    for (int32_t x = 0; x < d->batch.X; x++) {
        d->batch.tail_len[x] = 0;
        d->first[x] = b->ids[x % b->n];
        d->fork_of[x] = x;
    }
    kve_status st = kve_steps_begin(b->s, &d->batch, d->fork_of, d->first, d->batch.X, &steps);
    for (int32_t i = 0, n; i < b->steps && st == KVE_OK; i += n) {
        n = b->steps - i < at_once ? b->steps - i : at_once;
        st = kve_steps_run(&steps, n, NULL, d->found);
    }
    kve_steps_end(&steps);
    *us = (double)(kve_now_us() - start);
    return st;
}

/* X forks over the first `kept` tokens of the context. */
static kve_status bench_decode(bench *b, int32_t X, int32_t kept)
{
    kve_arena a = {0};
    kve_fork_slot *slots = NULL;
    int32_t *lengths = NULL, *ints = NULL;
    decoding d = {.b = b};
    size_t n_slots = (size_t)X;
    kve_status st = kve_arena_alloc(&a, n_slots, sizeof *slots, &slots);
    if (st == KVE_OK)
        st = kve_arena_alloc(&a, (3 + (size_t)kve_steps_at_once(b->s, NULL)) * n_slots, sizeof *ints, &ints);
    if (st == KVE_OK)
        st = kve_uniform_lengths(b->m, kept, b->n, &lengths);
    for (int32_t x = 0; x < X && st == KVE_OK; x++) {
        slots[x] = (kve_fork_slot){.prefix = b->ctx.kv, .prefix_len = lengths};
        ints[x] = b->n;
        st = kve_kv_alloc(b->m, b->steps, &slots[x].tail);
    }
    if (st == KVE_OK)
        st = kve_batch_alloc(b->m, slots, ints, X, &d.batch);
    if (st == KVE_OK) {
        d.fork_of = ints + n_slots;
        d.first = ints + 2 * n_slots;
        d.found = ints + 3 * n_slots;
        st = measure(b, "decode", kept, X, (double)X * b->steps, "tok/s", decode_once, &d);
    }
    kve_batch_free(b->m, &d.batch);
    for (int32_t x = 0; x < X && slots; x++)
        kve_kv_free(b->m, &slots[x].tail);
    b->m->be->vt->free(b->m->be, lengths);
    kve_arena_free(&a);
    return st;
}

typedef struct ranking {
    const bench *b;
    const kve_policy *policy;
} ranking;

static kve_status rank_once(void *ctx, double us[3])
{
    const ranking *r = ctx;
    const bench *b = r->b;
    const int32_t budget = b->scoring.budget;
    kve_ranking out = {.budgets = &budget, .n_budgets = 1, .lengths = b->lengths};
    KVE_TRY(kve_rank_context(&b->scoring, r->policy, &out));
    us[0] = (double)out.score_us;
    us[1] = (double)out.ranked.rank_us;
    us[2] = (double)out.ranked.compact_us;
    kve_ranked_free(b->m, &out.ranked);
    return KVE_OK;
}

/* Ranking and compaction to half the tokens are the same work for every policy: one of them shows it. */
static kve_status bench_policy(bench *b, const kve_policy *p)
{
    ranking r = {b, p};
    kve_bench_result res;
    char what[64];
    const char *names[3] = {what, "rank", "compact"};
    size_t n_series = p == &kve_policy_random ? 3 : 1;
    snprintf(what, sizeof what, "score %s", p->name);
    KVE_TRY(kve_bench_measure(&b->rules, rank_once, &r, n_series, &res));
    for (size_t k = 0; k < n_series; k++) {
        double value = b->n / (res.series[k].median * 1e-3);
        KVE_TRY(print_row(b, names[k], b->n, 1, value, "tok/s", &res.series[k], res.stop));
    }
    return KVE_OK;
}

static kve_status bench_engine(bench *b)
{
    int32_t shorter = b->n < SHORT ? b->n : SHORT;
    KVE_TRY(measure(b, "prefill", b->n, 1, b->n, "tok/s", prefill_once, b));
    for (size_t i = 0; i < kve_policy_count(); i++)
        if (!kve_policy_at(i)->keeps_all && !(kve_policy_at(i)->needs & NOT_OF_A_CONTEXT))
            KVE_TRY(bench_policy(b, kve_policy_at(i)));
    KVE_TRY(bench_decode(b, 1, shorter));
    if (shorter < b->n)
        KVE_TRY(bench_decode(b, 1, b->n));
    return b->forks > 1 ? bench_decode(b, b->forks, shorter) : KVE_OK;
}

/* What policies want to see, all of it. */
static kve_status policy_inputs(bench *b)
{
    b->scoring = (kve_scoring){.m = b->m,
                               .ctx = &b->ctx,
                               .sample_name = "bench",
                               .budget = b->n / 2 + 1,
                               .seed = SEED,
                               .sink = SINK,
                               .recent = RECENT};
    KVE_TRY(kve_context_queries(b->m, &b->ctx));
    KVE_TRY(kve_alloc((size_t)b->m->cfg.shape.L * (size_t)b->m->cfg.shape.Hkv, sizeof *b->lengths, &b->lengths));
    return kve_scoring_tables(b->m, b->n, b->n + b->steps, &b->arena, &b->scoring);
}

static kve_status run_engine(bench *b)
{
    kve_session_options opt = {.chunk = CHUNK, .max_forks = b->forks, .max_positions = b->n + b->steps};
    kve_rng rng;
    KVE_TRY(kve_alloc((size_t)b->n, sizeof *b->ids, &b->ids));
    kve_rng_init(&rng, SEED, 0, 0, 0);
    for (int32_t i = 0; i < b->n; i++)
        b->ids[i] = (int32_t)kve_rng_below(&rng, (uint64_t)b->m->cfg.shape.V);
    kve_status st = kve_session_open(b->m, &opt, &b->s);
    if (st != KVE_OK)
        kve_fail_context(st, "--length %d, --steps %d", b->n, b->steps);
    if (st == KVE_OK)
        st = kve_context_alloc(b->m, b->n, &b->ctx);
    if (st == KVE_OK)
        st = policy_inputs(b);
    if (st == KVE_OK)
        st = bench_engine(b);
    kve_arena_free(&b->arena);
    free(b->lengths);
    kve_context_free(b->m, &b->ctx);
    kve_session_close(b->s);
    free(b->ids);
    return st;
}

typedef struct sweep {
    kve_evaluator *e;
    const kve_sample *sample;
    kve_cell cells[N_SWEPT * SWEEP_BUDGETS], one;
    size_t n_cells;
} sweep;

static kve_status time_cells(const sweep *s, const kve_cell *cells, size_t n, double *us)
{
    kve_arena arena = {0};
    kve_record *records = NULL;
    kve_status st = kve_arena_alloc(&arena, n, sizeof *records, &records);
    int64_t start = kve_now_us();
    if (st == KVE_OK)
        st = kve_evaluate(s->e, s->sample, cells, n, &arena, records);
    *us = (double)(kve_now_us() - start);
    kve_arena_free(&arena);
    return st;
}

/* In turns, so that a busy machine disturbs both alike. */
static kve_status sweep_once(void *ctx, double us[2])
{
    const sweep *s = ctx;
    KVE_TRY(time_cells(s, &s->one, 1, &us[0]));
    return time_cells(s, s->cells, s->n_cells, &us[1]);
}

static void choose_cells(sweep *s, int32_t length)
{
    static const int32_t of_32[SWEEP_BUDGETS] = {1, 2, 4, 8, 12, 16}; /* of 4,096: 128 ... 2,048 */
    for (size_t i = 0; i < N_SWEPT; i++)
        for (size_t k = 0; k < SWEEP_BUDGETS; k++) {
            int64_t budget = (int64_t)length * of_32[k] / 32;
            s->cells[s->n_cells++] = (kve_cell){g_swept[i], budget > 0 ? budget : 1};
        }
    s->one = (kve_cell){&kve_policy_knorm, length / 4 + 1}; /* cheap to rank: the ratio flatters nobody */
}

/* One sample at every policy and budget, against the same sample at one of each. */
static kve_status bench_sweep(bench *b, const kve_opened *o, const kve_sample *sample)
{
    const kve_eval_options opt = {.sink = SINK,
                                  .recent = RECENT,
                                  .question_in = true,
                                  .seed = SEED,
                                  .chunk = CHUNK,
                                  .fork_bytes = (size_t)1 << 30};
    sweep s = {.sample = sample};
    kve_bench_result r;
    choose_cells(&s, b->n);
    KVE_TRY(kve_evaluator_open(o->model, o->tk, &o->chat, &opt, &s.e));
    kve_status st = kve_bench_measure(&b->rules, sweep_once, &s, 2, &r);
    kve_evaluator_close(s.e);
    KVE_TRY(st);
    const kve_bench_series *cell = &r.series[0], *all = &r.series[1];
    KVE_TRY(print_row(b, "cell", b->n, 1, 1000 / cell->median, "cells/s", cell, r.stop));
    return print_row(b, "sweep", b->n, s.n_cells, all->median / cell->median, "x cell", all, r.stop);
}

static kve_status run_sweep(bench *b, const kve_opened *o, const kve_flag *task, const kve_flag *length)
{
    char ruler[64];
    snprintf(ruler, sizeof ruler, "ruler-%d/niah_single_1", b->n);
    if (!task->value && b->n < RULER_LEAST) {
        kve_warn("no sweep: a RULER sample has at least %d tokens; name another --task", RULER_LEAST);
        return KVE_OK;
    }
    const kve_flag name = {task->name, .value = task->value ? task->value : ruler},
                   samples = {"--samples", .value = "1"}, seed = {"--seed", .value = "42"}, none = {0};
    kve_eval_setup s = {0};
    kve_sample sample = {0};
    kve_status st =
        kve_setup_tasks(&(kve_task_flags){&name, &samples, length, &seed, &none, &none, NULL, NULL, NULL}, o, &s);
    if (st == KVE_OK)
        st = kve_dataset_sample(s.data.items[0], 0, &sample);
    if (st == KVE_OK)
        st = bench_sweep(b, o, &sample);
    kve_sample_free(&sample);
    kve_eval_setup_free(&s);
    return st;
}

enum {
    MODEL,
    LENGTH,
    FORKS,
    STEPS,
    TASK,
    MIN_SAMPLES,
    MAX_NOISE,
    MIN_TIME,
    TIMEOUT,
    FORMAT,
    BACKEND,
    DTYPE,
    THREADS,
    N_FLAGS
};

static const kve_flag g_flags[N_FLAGS] = {
    [MODEL] = {"--model", "PATH", "a .gguf file, a folder, org/name or smollm2", "smollm2"},
    [LENGTH] = {"--length", "N", "tokens to prefill", "4096"},
    [FORKS] = {"--forks", "X", "forks decoded as one batch", "48"},
    [STEPS] = {"--steps", "N", "tokens decoded per fork", "32"},
    [TASK] = {"--task", "NAME", "its first sample is swept; default ruler-LENGTH/niah_single_1", NULL},
    [MIN_SAMPLES] = {"--min-samples", "N", "a row is measured at least so often (-r)", "3"},
    [MAX_NOISE] = {"--max-noise", "PCT", "then it ends when the noise (1.4826 MAD / median) is below this", "2"},
    [MIN_TIME] = {"--min-time", "S", "but not before so many seconds", "0.5"},
    [TIMEOUT] = {"--timeout", "S", "and in any case after these", "60"},
    [FORMAT] = {"--format", "F", "md, csv, json or jsonl (-o)", "md"},
    [BACKEND] = {"--backend", "B", KVE_BACKEND_HELP, "auto"},
    [DTYPE] = {"--dtype", "T", "bf16 or f32: weights and KV cache", "bf16"},
    [THREADS] = {"--threads", "N", "0 = one per core", "0"},
};

static kve_status run(const kve_flag *f, kve_opened *o)
{
    bench b = {0};
    kve_bench_format format;
    int32_t threads;
    KVE_TRY(kve_flag_int(&f[LENGTH], 1, 1 << 24, &b.n));
    KVE_TRY(kve_flag_int(&f[FORKS], 1, CHUNK, &b.forks));
    KVE_TRY(kve_flag_int(&f[STEPS], 1, 4096, &b.steps));
    KVE_TRY(kve_bench_rules_parse(&f[MIN_SAMPLES], &f[MAX_NOISE], &f[MIN_TIME], &f[TIMEOUT], &b.rules));
    KVE_TRY(kve_bench_format_parse(&f[FORMAT], &format));
    KVE_TRY(kve_flag_int(&f[THREADS], 0, 1024, &threads));
    KVE_TRY(kve_open_model(&(kve_open_options){f[MODEL].value, f[DTYPE].value, f[BACKEND].value, "plain", threads}, o));
    b.m = o->model;
    kve_bench_table_open(o->be, format, f[DTYPE].value, threads, &b.table);
    KVE_TRY(kve_bench_table_model(&b.table, o->ck));
    kve_status st = run_engine(&b);
    if (st == KVE_OK)
        st = run_sweep(&b, o, &f[TASK], &f[LENGTH]);
    kve_bench_table_close(&b.table);
    return st;
}

static kve_status bench_e2e(int argc, char **argv)
{
    kve_flag f[N_FLAGS];
    bool help;
    kve_opened o = {0};
    memcpy(f, g_flags, sizeof f);
    KVE_TRY(kve_flags_parse(argc, argv, f, N_FLAGS, &help));
    if (help) {
        kve_flags_print("kveval bench e2e [flags]", f, N_FLAGS);
        return KVE_OK;
    }
    kve_status st = run(f, &o);
    kve_close_model(&o);
    return st;
}

kve_status kve_cmd_bench(int argc, char **argv)
{
    if (argc >= 1 && strcmp(argv[0], "e2e") == 0)
        return bench_e2e(argc - 1, argv + 1);
    if (argc >= 1 && strcmp(argv[0], "kernels") == 0)
        return kve_cmd_bench_kernels(argc - 1, argv + 1);
    if (argc != 1 || strcmp(argv[0], "--help") != 0)
        return kve_fail(KVE_ERR_USAGE, "%s%s; there are two benches, e2e and kernels",
                        argc ? "unknown: " : "which bench", argc ? argv[0] : "");
    printf("usage: kveval bench e2e|kernels [flags]\n"
           "  e2e        what a model costs here: prefill, scoring, ranking, decoding, a whole sweep\n"
           "  kernels    what each op costs here, against the copy bandwidth and the GEMM rate of the device\n"
           "Each has --help.\n");
    return KVE_OK;
}
