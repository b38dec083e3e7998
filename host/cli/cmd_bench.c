/* kveval bench e2e: what a prefill, a decode step of one and of many forks, and every policy's ranking cost on this
 * machine with this model. Times only; no quality. */
#include "eval/scoring.h"
#include "host/base/clock.h"
#include "host/base/rng.h"
#include "host/base/stats.h"
#include "host/cli/cli.h"
#include "host/engine/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { CHUNK = 512, MAX_REPEAT = 64 };

typedef struct bench {
    const kve_model *m;
    kve_session *s;
    kve_context ctx;
    int32_t n, forks, steps, repeat;
    int32_t *ids; /* [n] */
} bench;

static void print_row(const bench *b, const char *what, double *us, double per, const char *unit)
{
    double median = kve_median(us, (size_t)b->repeat);
    printf("| %-28s | %10.1f | %10.1f %-9s | %5.1f %% |\n", what, median / 1000, per / (median * 1e-6), unit,
           100 * (us[b->repeat - 1] - us[0]) / median);
    fflush(stdout);
}

static kve_status bench_prefill(bench *b)
{
    double us[MAX_REPEAT];
    char what[64];
    for (int32_t i = 0; i < b->repeat; i++) {
        int64_t start = kve_now_us();
        KVE_TRY(kve_prefill(b->s, b->ids, b->n, &b->ctx));
        us[i] = (double)(kve_now_us() - start);
    }
    snprintf(what, sizeof what, "prefill %d", b->n);
    print_row(b, what, us, b->n, "tok/s");
    return KVE_OK;
}

/* Decodes `steps` tokens of X forks over the whole context, the arg-max being fed back. */
static kve_status decode_once(const bench *b, kve_batch *batch, int32_t *next, int32_t *q_len, double *us)
{
    int64_t start = kve_now_us();
    int32_t X = batch->X, *rows = q_len + X;
    for (int32_t x = 0; x < X; x++) {
        batch->tail_len[x] = 0;
        next[x] = b->ids[x % b->n];
        q_len[x] = 1;
        rows[x] = x;
    }
    for (int32_t i = 0; i < b->steps; i++) {
        KVE_TRY(kve_extend(b->s, batch, next, q_len, NULL));
        KVE_TRY(kve_next_tokens(b->s, rows, X, next));
    }
    *us = (double)(kve_now_us() - start);
    return KVE_OK;
}

static kve_status bench_decode(const bench *b, int32_t X, int32_t kept)
{
    kve_arena a = {0};
    kve_fork_slot *slots = NULL;
    int32_t *lengths = NULL, *ints = NULL;
    kve_batch batch = {0};
    double us[MAX_REPEAT];
    char what[64];
    size_t n_slots = (size_t)X;
    kve_status st = kve_arena_alloc(&a, n_slots, sizeof *slots, &slots);
    if (st == KVE_OK)
        st = kve_arena_alloc(&a, 4 * n_slots, sizeof *ints, &ints);
    if (st == KVE_OK)
        st = kve_uniform_lengths(b->m, kept, b->n, &lengths);
    for (int32_t x = 0; x < X && st == KVE_OK; x++) {
        slots[x] = (kve_fork_slot){.prefix = b->ctx.kv, .prefix_len = lengths};
        ints[x] = b->n;
        st = kve_kv_alloc(b->m, b->steps, &slots[x].tail);
    }
    if (st == KVE_OK)
        st = kve_batch_alloc(b->m, slots, ints, X, &batch);
    for (int32_t i = 0; i < b->repeat && st == KVE_OK; i++)
        st = decode_once(b, &batch, ints + X, ints + 2 * X, &us[i]);
    snprintf(what, sizeof what, "decode %d x %d over %d", X, b->steps, kept);
    if (st == KVE_OK)
        print_row(b, what, us, (double)X * b->steps, "tok/s");
    kve_batch_free(b->m, &batch);
    for (int32_t x = 0; x < X && slots; x++)
        kve_kv_free(b->m, &slots[x].tail);
    b->m->be->vt->free(b->m->be, lengths);
    kve_arena_free(&a);
    return st;
}

static kve_status bench_policy(const bench *b, const kve_policy *p)
{
    kve_scoring s = {.m = b->m, .ctx = &b->ctx, .sample_name = "bench", .seed = 42, .sink = 4, .recent = 16};
    double score[MAX_REPEAT], rank[MAX_REPEAT], compact[MAX_REPEAT];
    char what[64];
    for (int32_t i = 0; i < b->repeat; i++) {
        kve_ranked r;
        int64_t score_us;
        KVE_TRY(kve_rank_context(&s, p, b->n / 2, NULL, &r, &score_us));
        score[i] = (double)score_us;
        rank[i] = (double)r.rank_us;
        compact[i] = (double)r.compact_us;
        kve_ranked_free(b->m, &r);
    }
    snprintf(what, sizeof what, "score %s", p->name);
    print_row(b, what, score, b->n, "tok/s");
    if (strcmp(p->name, "random") == 0) { /* the same work for every policy */
        print_row(b, "rank", rank, b->n, "tok/s");
        print_row(b, "compact to n/2", compact, b->n, "tok/s");
    }
    return KVE_OK;
}

static kve_status run_all(bench *b)
{
    printf("model %s, %s, %s\n\n", b->m->cfg.name, b->m->dtype == KVE_BF16 ? "bf16" : "f32",
           b->m->be->vt->describe(b->m->be));
    printf("| what                         |  median ms |           throughput | spread  |\n");
    printf("| ---------------------------- | ---------: | -------------------: | ------: |\n");
    KVE_TRY(bench_prefill(b));
    for (size_t i = 0; i < kve_policy_count(); i++)
        if (!kve_policy_at(i)->keeps_all && !(kve_policy_at(i)->needs & KVE_NEED_FUTURE))
            KVE_TRY(bench_policy(b, kve_policy_at(i)));
    KVE_TRY(bench_decode(b, 1, b->n < 512 ? b->n : 512));
    KVE_TRY(bench_decode(b, 1, b->n));
    KVE_TRY(bench_decode(b, b->forks, b->n < 512 ? b->n : 512));
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    printf("\npeak memory %.2f GiB\n", (double)use.ru_maxrss / (1024 * 1024));
    return KVE_OK;
}

static kve_status run_bench(const kve_opened *o, bench *b)
{
    kve_session_options opt = {
        .chunk = CHUNK, .max_forks = b->forks, .max_positions = b->n + (b->steps > 64 ? b->steps : 64)};
    kve_rng rng;
    b->m = o->model;
    KVE_TRY(kve_alloc((size_t)b->n, sizeof *b->ids, &b->ids));
    kve_rng_init(&rng, 42, 0, 0, 0);
    for (int32_t i = 0; i < b->n; i++)
        b->ids[i] = (int32_t)kve_rng_below(&rng, (uint64_t)b->m->cfg.shape.V);
    kve_status st = kve_session_open(b->m, &opt, &b->s);
    if (st == KVE_OK)
        st = kve_context_alloc(b->m, b->n, &b->ctx);
    if (st == KVE_OK)
        st = run_all(b);
    kve_context_free(b->m, &b->ctx);
    kve_session_close(b->s);
    free(b->ids);
    return st;
}

kve_status kve_cmd_bench(int argc, char **argv)
{
    enum { MODEL, LENGTH, FORKS, STEPS, REPEAT, DTYPE, THREADS, N_FLAGS };
    kve_flag f[N_FLAGS] = {{"--model", "PATH", "model file or folder", "smollm2"},
                           {"--length", "N", "tokens to prefill", "4096"},
                           {"--forks", "X", "forks decoded as one batch", "48"},
                           {"--steps", "N", "tokens decoded per fork", "32"},
                           {"--repeat", "N", "repetitions; the median is printed", "5"},
                           {"--dtype", "T", "bf16 or f32", "bf16"},
                           {"--threads", "N", "0 = one per core", "0"}};
    bool help;
    bench b = {0};
    int32_t threads;
    kve_opened o = {0};
    if (argc < 1 || strcmp(argv[0], "e2e") != 0) {
        kve_flags_print("kveval bench e2e [flags]", f, N_FLAGS);
        return argc >= 1 && strcmp(argv[0], "--help") == 0 ? KVE_OK
                                                           : kve_fail(KVE_ERR_USAGE, "which bench? There is one: e2e");
    }
    KVE_TRY(kve_flags_parse(argc - 1, argv + 1, f, N_FLAGS, &help));
    if (help) {
        kve_flags_print("kveval bench e2e [flags]", f, N_FLAGS);
        return KVE_OK;
    }
    KVE_TRY(kve_flag_int(&f[LENGTH], 1, 1 << 24, &b.n));
    KVE_TRY(kve_flag_int(&f[FORKS], 1, CHUNK, &b.forks));
    KVE_TRY(kve_flag_int(&f[STEPS], 1, 4096, &b.steps));
    KVE_TRY(kve_flag_int(&f[REPEAT], 1, MAX_REPEAT, &b.repeat));
    KVE_TRY(kve_flag_int(&f[THREADS], 0, 1024, &threads));
    KVE_TRY(kve_open_model(f[MODEL].value, f[DTYPE].value, threads, "plain", &o));
    kve_status st = run_bench(&o, &b);
    kve_close_model(&o);
    return st;
}
