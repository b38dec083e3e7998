/* kveval tokens: the text of a trace with each token coloured by the rank that policies give it, as one HTML page.
 * Needs the model's tokenizer, none of its weights. */
#include "eval/scoring.h"
#include "eval/token_page.h"
#include "eval/trace.h"
#include "host/base/file.h"
#include "host/base/log.h"
#include "host/cli/eval_setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRACE, POLICY, OUT, MODEL, SINK, RECENT, SEED, BACKEND, THREADS, N_FLAGS };

static const kve_flag g_flags[N_FLAGS] = {
    [TRACE] = {"--trace", "F", "a file of kveval trace", NULL},
    [POLICY] = {"--policy", "LIST", "one column each: kveval ls policies; all; kvp:FILE (kveval train)", NULL},
    [OUT] = {"--out", "F", "the page: one .html file that needs no network", NULL},
    [MODEL] = {"--model", "PATH", "the model that the trace was made with: a .gguf file, a folder, org/name or smollm2",
               "smollm2"},
    [SINK] = {"--sink", "N", "first tokens ranked ahead of all others", "4"},
    [RECENT] = {"--recent", "N", "last tokens ranked next, the newest first", "16"},
    [SEED] = {"--seed", "N", "of the random policy", "42"},
    [BACKEND] = {"--backend", "B", KVE_BACKEND_HELP, "auto"},
    [THREADS] = {"--threads", "N", "0 = one per core", "0"},
};

/* A model without its weights. */
typedef struct text_model {
    kve_checkpoint *ck;
    kve_tokenizer *tk;
    char sha[KVE_SHA256_HEX];
} text_model;

static kve_status open_text(const char *path, text_model *m)
{
    KVE_TRY(kve_checkpoint_open(path, &m->ck));
    KVE_TRY(kve_checkpoint_sha256(m->ck, m->sha));
    return kve_tokenizer_create(kve_checkpoint_vocab(m->ck), &m->tk);
}

static void close_text(text_model *m)
{
    kve_tokenizer_free(m->tk);
    kve_checkpoint_close(m->ck);
}

/* Token ids mean something under one vocabulary only. */
static kve_status check_model(const kve_trace *t, const char *model, const char *sha)
{
    const char *was = kve_st_meta_get(&t->file, "model_sha256");
    if (!was)
        return kve_fail(KVE_ERR_FILE,
                        "%s: has no metadata 'model_sha256', so nothing says whose token ids it holds; make it with "
                        "kveval trace",
                        t->file.name);
    if (strcmp(was, sha) != 0)
        return kve_fail(KVE_ERR_USAGE,
                        "%s: was made with another model than --model %s (model_sha256 %.12s, the model has %.12s); "
                        "name the model of the trace",
                        t->file.name, model, was, sha);
    return KVE_OK;
}

/* *tokens: the caller frees. */
static kve_status read_tokens(const kve_trace *t, const kve_vocab *v, int32_t **tokens)
{
    int32_t n = t->ctx.n;
    KVE_TRY(kve_alloc((size_t)n, sizeof **tokens, tokens));
    KVE_TRY(kve_st_copy(&t->file, "tokens", KVE_ST_I32, n, *tokens));
    for (int32_t j = 0; j < n; j++)
        if ((*tokens)[j] < 0 || (*tokens)[j] >= v->n_tokens)
            return kve_fail(KVE_ERR_FILE,
                            "%s: 'tokens', value %d is %d, outside the model's vocabulary of %d; make the trace again",
                            t->file.name, j, (*tokens)[j], v->n_tokens);
    return KVE_OK;
}

static kve_status check_policy(const kve_trace *t, const kve_policy *p)
{
    if (p->keeps_all)
        return kve_fail(KVE_ERR_USAGE, "--policy: '%s' keeps every token, so there are no ranks to show", p->name);
    if (p->by_budget)
        return kve_fail(KVE_ERR_USAGE,
                        "--policy: '%s' ranks anew for every budget, and the page has one ranking for all of them; "
                        "leave it out",
                        p->name);
    return p->fits ? p->fits(p, &t->model.cfg.shape, kve_st_meta_get(&t->file, "model_sha256")) : KVE_OK;
}

/* *column: set on success only; the caller frees its order. */
static kve_status make_column(const kve_scoring *s, const kve_policy *p, kve_token_column *column)
{
    const kve_shape *d = &s->m->cfg.shape;
    size_t heads = (size_t)d->L * (size_t)d->Hkv;
    const int32_t budget = 1;
    int32_t *order = NULL, *lengths = NULL;
    kve_status st = kve_alloc(heads * (size_t)s->ctx->n, sizeof *order, &order);
    if (st == KVE_OK)
        st = kve_alloc(heads, sizeof *lengths, &lengths);
    kve_ranking made = {.budgets = &budget, .n_budgets = 1, .lengths = lengths, .order = order};
    if (st == KVE_OK)
        st = kve_rank_context(s, p, &made);
    free(lengths);
    if (st != KVE_OK) {
        free(order);
        return st;
    }
    kve_ranked_free(s->m, &made.ranked);
    *column = (kve_token_column){.name = p->name, .info = kve_policy_info(p), .shared = p->allocation, .order = order};
    return KVE_OK;
}

static kve_status write_page(const kve_flag *f, const kve_token_page *page)
{
    kve_str html = {0};
    kve_status st = kve_token_page_html(page, &html);
    if (st == KVE_OK)
        st = kve_make_parents(f[OUT].value);
    if (st == KVE_OK)
        st = kve_file_write(f[OUT].value, html.p, html.len);
    if (st == KVE_OK)
        kve_note("wrote %s: %zu policies, %.1f MB", f[OUT].value, page->n_columns, (double)html.len * 1e-6);
    kve_str_free(&html);
    return st;
}

/* Of `all` policies those that this trace has what it takes for. */
static kve_status make_columns(const kve_flag *policy, const kve_trace *t, const kve_scoring *scoring,
                               const kve_eval_setup *s, kve_token_column *columns, size_t *n)
{
    bool all = strcmp(policy->value, "all") == 0;
    for (size_t i = 0; i < s->n_policies; i++) {
        kve_status st = check_policy(t, s->policies[i]);
        if (st == KVE_OK)
            st = make_column(scoring, s->policies[i], &columns[*n]);
        *n += st == KVE_OK;
        if (st == KVE_ERR_USAGE && all)
            kve_note("no column: %s", kve_diag());
        else
            KVE_TRY(st);
    }
    return KVE_OK;
}

static kve_status show(const kve_flag *f, const text_model *m, const kve_trace *t, const kve_scoring *scoring,
                       const kve_eval_setup *s)
{
    kve_token_column columns[KVE_MAX_POLICIES] = {0};
    kve_token_page page = {.tk = m->tk,
                           .sample = t->sample_name,
                           .model = kve_checkpoint_config(m->ck)->name,
                           .L = t->model.cfg.shape.L,
                           .Hkv = t->model.cfg.shape.Hkv,
                           .n = t->ctx.n,
                           .sink = scoring->sink,
                           .recent = scoring->recent,
                           .columns = columns};
    int32_t *tokens = NULL;
    KVE_TRY(check_model(t, f[MODEL].value, m->sha));
    if (t->ctx.n > KVE_TOKEN_PAGE_MAX)
        return kve_fail(KVE_ERR_USAGE, "%s: has %d tokens; a page holds %d at most: make a shorter trace", t->file.name,
                        t->ctx.n, KVE_TOKEN_PAGE_MAX);
    kve_status st = read_tokens(t, kve_checkpoint_vocab(m->ck), &tokens);
    page.tokens = tokens;
    if (st == KVE_OK)
        st = make_columns(&f[POLICY], t, scoring, s, columns, &page.n_columns);
    if (st == KVE_OK)
        st = write_page(f, &page);
    for (size_t i = 0; i < page.n_columns; i++)
        free((void *)columns[i].order);
    free(tokens);
    return st;
}

static kve_status show_trace(kve_backend *be, const kve_flag *f, const text_model *m, kve_scoring *scoring,
                             const kve_eval_setup *s)
{
    kve_trace t = {0};
    kve_status st = kve_trace_open(be, f[TRACE].value, &t);
    scoring->m = &t.model;
    scoring->ctx = &t.ctx;
    scoring->sample_name = t.sample_name;
    scoring->importance = t.importance;
    scoring->cos = t.cos;
    scoring->sin = t.sin;
    if (st == KVE_OK)
        st = show(f, m, &t, scoring, s);
    kve_trace_close(&t);
    return st;
}

static kve_status run(const kve_flag *f, int32_t threads, kve_scoring *scoring)
{
    text_model m = {0};
    kve_eval_setup s = {0};
    kve_backend *be = NULL;
    kve_status st = open_text(f[MODEL].value, &m);
    if (st == KVE_OK)
        st = kve_setup_policies(f[POLICY].value, m.sha, &s);
    if (st == KVE_OK)
        st = kve_open_backend(f[BACKEND].value, threads, &be);
    if (st == KVE_OK)
        st = show_trace(be, f, &m, scoring, &s);
    kve_eval_setup_free(&s); /* its policies go before their backend */
    if (be)
        be->vt->close(be);
    close_text(&m);
    return st;
}

kve_status kve_cmd_tokens(int argc, char **argv)
{
    kve_flag f[N_FLAGS];
    kve_scoring scoring = {0};
    int32_t seed, threads;
    bool help;
    memcpy(f, g_flags, sizeof f);
    KVE_TRY(kve_flags_parse(argc, argv, f, N_FLAGS, &help));
    if (help) {
        kve_flags_print("kveval tokens --trace F --policy LIST --out F [flags]", f, N_FLAGS);
        return KVE_OK;
    }
    for (int i = TRACE; i <= OUT; i++)
        if (!f[i].value)
            return kve_fail(KVE_ERR_USAGE, "%s is missing (%s)", f[i].name, f[i].help);
    KVE_TRY(kve_flag_int(&f[SINK], 0, 1 << 24, &scoring.sink));
    KVE_TRY(kve_flag_int(&f[RECENT], 0, 1 << 24, &scoring.recent));
    KVE_TRY(kve_flag_int(&f[SEED], 0, 0x7fffffff, &seed));
    KVE_TRY(kve_flag_int(&f[THREADS], 0, 1024, &threads));
    scoring.seed = (uint64_t)seed;
    return run(f, threads, &scoring);
}
