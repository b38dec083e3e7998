/* kveval rank: the ranking that a policy gives to a trace, as a safetensors file. Needs no model. */
#include "eval/scoring.h"
#include "eval/trace.h"
#include "host/base/mem.h"
#include "host/cli/cli.h"

#include <stdio.h>
#include <stdlib.h>

enum { TRACE, POLICY, OUT, BUDGET, SINK, RECENT, SEED, BACKEND, THREADS, N_FLAGS };

typedef struct result {
    int32_t *order; /* [L][Hkv][n] */
    float *scores;
    int32_t *lengths; /* [L][Hkv]: of the budget, if there is one */
} result;

static kve_status write_result(const char *path, const kve_trace *t, const kve_policy *p, const kve_flag *f,
                               const result *r)
{
    const kve_shape *s = &t->model.cfg.shape;
    int64_t n = t->ctx.n, count = (int64_t)s->L * s->Hkv * n;
    const char *info = kve_policy_info(p);
    kve_st_writer *w = NULL;
    const kve_st_tensor tensors[] = {
        {.name = "ranking", .dtype = KVE_ST_I32, .n_dims = 3, .dims = {s->L, s->Hkv, n}, .count = count},
        {.name = "scores", .dtype = KVE_ST_F32, .n_dims = 3, .dims = {s->L, s->Hkv, n}, .count = count},
        {.name = "lengths", .dtype = KVE_ST_I32, .n_dims = 2, .dims = {s->L, s->Hkv}, .count = s->L * s->Hkv}};
    size_t n_tensors = f[BUDGET].value ? 3 : 2;
    const kve_st_meta meta[] = {{"sample", t->sample_name}, {"policy", p->name},         {"info", info ? info : ""},
                                {"sink", f[SINK].value},    {"recent", f[RECENT].value}, {"seed", f[SEED].value}};
    KVE_TRY(kve_st_create(path, tensors, n_tensors, meta, sizeof meta / sizeof *meta, &w));
    kve_status st = kve_st_write(w, r->order, (size_t)count * sizeof *r->order);
    if (st == KVE_OK)
        st = kve_st_write(w, r->scores, (size_t)count * sizeof *r->scores);
    if (st == KVE_OK && n_tensors == 3)
        st = kve_st_write(w, r->lengths, (size_t)(s->L * s->Hkv) * sizeof *r->lengths);
    if (st == KVE_OK)
        return kve_st_finish(w);
    kve_st_abort(w);
    return st;
}

static kve_status rank_trace(const kve_scoring *s, const kve_policy *p, result *r)
{
    size_t count = (size_t)s->m->cfg.shape.L * (size_t)s->m->cfg.shape.Hkv * (size_t)s->ctx->n;
    const int32_t budget = s->budget > 0 ? s->budget : 1;
    kve_ranking made = {.budgets = &budget, .n_budgets = 1};
    KVE_TRY(kve_alloc(count, sizeof *r->order, &r->order));
    KVE_TRY(kve_alloc(count, sizeof *r->scores, &r->scores));
    KVE_TRY(kve_alloc((size_t)s->m->cfg.shape.L * (size_t)s->m->cfg.shape.Hkv, sizeof *r->lengths, &r->lengths));
    made.order = r->order;
    made.scores = r->scores;
    made.lengths = r->lengths;
    KVE_TRY(kve_rank_context(s, p, &made));
    kve_ranked_free(s->m, &made.ranked);
    return KVE_OK;
}

static kve_status open_policy(const char *item, const kve_trace *t, kve_arena *arena, const kve_policy **out)
{
    const char *sha = kve_st_meta_get(&t->file, "model_sha256");
    KVE_TRY(kve_open_policy(item, sha, arena, out));
    return (*out)->fits ? (*out)->fits(*out, &t->model.cfg.shape, sha) : KVE_OK;
}

static kve_status run(kve_backend *be, const kve_flag *f, kve_scoring *scoring)
{
    const kve_policy *p = NULL;
    kve_arena arena = {0};
    kve_trace t = {0};
    result r = {0};
    kve_status st = kve_trace_open(be, f[TRACE].value, &t);
    if (st == KVE_OK)
        st = open_policy(f[POLICY].value, &t, &arena, &p);
    scoring->m = &t.model;
    scoring->ctx = &t.ctx;
    scoring->sample_name = t.sample_name;
    scoring->importance = t.importance;
    scoring->cos = t.cos;
    scoring->sin = t.sin;
    if (st == KVE_OK)
        st = rank_trace(scoring, p, &r);
    if (st == KVE_OK)
        st = write_result(f[OUT].value, &t, p, f, &r);
    kve_close_policy(p);
    free(r.order);
    free(r.scores);
    free(r.lengths);
    kve_trace_close(&t);
    kve_arena_free(&arena);
    return st;
}

kve_status kve_cmd_rank(int argc, char **argv)
{
    kve_flag f[N_FLAGS] = {
        {"--trace", "F", "a file of kveval trace, or one with the same tensors", NULL},
        {"--policy", "P", "kveval ls policies; kvp:FILE (kveval train)", NULL},
        {"--out", "F", "safetensors: ranking I32, scores F32, both [layers][KV heads][tokens]; lengths I32 at --budget",
         NULL},
        {"--budget", "N", "tokens per layer and KV head, for policies whose ranking depends on it or which share it",
         NULL},
        {"--sink", "N", "first tokens ranked ahead of all others", "4"},
        {"--recent", "N", "last tokens ranked next, the newest first", "16"},
        {"--seed", "N", "of the random policy", "42"},
        {"--backend", "B", KVE_BACKEND_HELP, "auto"},
        {"--threads", "N", "0 = one per core", "0"}};
    kve_scoring scoring = {0};
    kve_backend *be = NULL;
    int32_t seed, threads;
    bool help;
    KVE_TRY(kve_flags_parse(argc, argv, f, N_FLAGS, &help));
    if (help) {
        kve_flags_print("kveval rank --trace F --policy P --out F [flags]", f, N_FLAGS);
        return KVE_OK;
    }
    for (int i = TRACE; i <= OUT; i++)
        if (!f[i].value)
            return kve_fail(KVE_ERR_USAGE, "%s is missing (%s)", f[i].name, f[i].help);
    if (f[BUDGET].value)
        KVE_TRY(kve_flag_int(&f[BUDGET], 1, 1 << 24, &scoring.budget));
    KVE_TRY(kve_flag_int(&f[SINK], 0, 1 << 24, &scoring.sink));
    KVE_TRY(kve_flag_int(&f[RECENT], 0, 1 << 24, &scoring.recent));
    KVE_TRY(kve_flag_int(&f[SEED], 0, 0x7fffffff, &seed));
    KVE_TRY(kve_flag_int(&f[THREADS], 0, 1024, &threads));
    scoring.seed = (uint64_t)seed;
    kve_status st = kve_open_backend(f[BACKEND].value, threads, &be);
    if (st == KVE_OK)
        st = run(be, f, &scoring);
    if (be)
        be->vt->close(be);
    return st;
}
