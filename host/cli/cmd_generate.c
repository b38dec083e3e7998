/* kveval generate: prefill a prompt, evict by a policy to a budget, answer greedily. */
#include "eval/scoring.h"
#include "host/cli/cli.h"
#include "host/engine/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 512 };

typedef struct job {
    const kve_policy *policy;
    int32_t budget, max_new, sink, recent;
    kve_ids prompt, tail; /* prefilled; fed after the eviction */
} job;

static kve_status answer(const kve_opened *o, kve_session *s, const job *j, kve_kv prefix, int32_t n,
                         const int32_t *kept)
{
    const kve_model *m = o->model;
    kve_fork_slot slot = {.prefix = prefix};
    kve_batch batch = {0};
    kve_str text = {0};
    int32_t *lengths = NULL, *ids = NULL, n_ids = 0;
    kve_status st = kve_upload_lengths(m, kept, &lengths);
    slot.prefix_len = lengths;
    if (st == KVE_OK)
        st = kve_alloc((size_t)j->max_new, sizeof *ids, &ids);
    if (st == KVE_OK)
        st = kve_kv_alloc(m, (int32_t)j->tail.len + j->max_new, &slot.tail);
    if (st == KVE_OK)
        st = kve_batch_alloc(m, &slot, &n, 1, &batch);
    if (st == KVE_OK)
        st = kve_decode_greedy(s, m, &batch, j->tail.p, (int32_t)j->tail.len, j->max_new, CHUNK, NULL, ids, &n_ids);
    if (st == KVE_OK)
        st = kve_detokenize(o->tk, ids, (size_t)n_ids, false, &text);
    if (st == KVE_OK)
        printf("%s\n", text.p ? text.p : "");
    kve_str_free(&text);
    kve_batch_free(m, &batch);
    kve_kv_free(m, &slot.tail);
    m->be->vt->free(m->be, lengths);
    free(ids);
    return st;
}

/* Ranks and gathers; total: the session's positions. */
static kve_status evict(const kve_model *m, const job *j, const kve_context *ctx, int32_t total, kve_ranking *out)
{
    kve_arena arena = {0};
    kve_scoring scoring = {.m = m,
                           .ctx = ctx,
                           .sample_name = "prompt",
                           .budget = j->budget,
                           .seed = 42,
                           .sink = j->sink,
                           .recent = j->recent};
    kve_status st = kve_scoring_tables(m, ctx->n, total, &arena, &scoring);
    if (st == KVE_OK)
        st = kve_rank_context(&scoring, j->policy, out);
    kve_arena_free(&arena);
    return st;
}

static kve_status run(const kve_opened *o, const job *j)
{
    const kve_model *m = o->model;
    int32_t n = (int32_t)j->prompt.len, total = n + (int32_t)j->tail.len + j->max_new;
    size_t heads = (size_t)m->cfg.shape.L * (size_t)m->cfg.shape.Hkv;
    bool all = j->policy->keeps_all || j->budget >= n;
    kve_session_options opt = {.chunk = CHUNK, .max_forks = 1, .max_positions = total};
    kve_session *s = NULL;
    kve_context ctx = {0};
    kve_ranking made = {.budgets = &j->budget, .n_budgets = 1};
    KVE_TRY(kve_session_open(m, &opt, &s));
    kve_status st = kve_alloc(heads, sizeof *made.lengths, &made.lengths);
    for (size_t h = 0; h < heads && st == KVE_OK; h++)
        made.lengths[h] = n;
    if (st == KVE_OK)
        st = kve_context_alloc(m, n, &ctx);
    if (st == KVE_OK && (j->policy->needs & KVE_NEED_QUERIES))
        st = kve_context_queries(m, &ctx);
    if (st == KVE_OK)
        st = kve_prefill(s, j->prompt.p, n, &ctx);
    if (st == KVE_OK && !all)
        st = evict(m, j, &ctx, total, &made);
    if (st == KVE_OK)
        st = answer(o, s, j, all ? ctx.kv : made.ranked.kv, n, made.lengths);
    if (st == KVE_OK)
        fprintf(stderr, "kept %d of %d tokens per layer and KV head%s (%s)\n", all ? n : j->budget, n,
                !all && j->policy->allocate ? " in the mean" : "", j->policy->name);
    kve_ranked_free(m, &made.ranked);
    free(made.lengths);
    kve_context_free(m, &ctx);
    kve_session_close(s);
    return st;
}

static kve_status tokenize_prompt(const kve_opened *o, const char *prompt, job *j)
{
    kve_str open = {0}, close = {0};
    kve_status st = kve_chat_single(&o->chat, &open, &close);
    const kve_text_rules before = {.special_to = open.len, .add_bos = true},
                         after = {.special_to = close.len, .continues = true};
    if (st == KVE_OK)
        st = kve_str_puts(&open, prompt);
    if (st == KVE_OK)
        st = kve_tokenize_as(o->tk, open.p, open.len, &before, &j->prompt);
    if (st == KVE_OK && close.len)
        st = kve_tokenize_as(o->tk, close.p, close.len, &after, &j->tail);
    if (st == KVE_OK && j->tail.len == 0 &&
        j->prompt.len > 0) /* plain text: the last token is fed after the eviction */
        st = kve_ids_push(&j->tail, j->prompt.p[--j->prompt.len]);
    if (st == KVE_OK && j->prompt.len == 0)
        st = kve_fail(KVE_ERR_USAGE, "--prompt: nothing is left to prefill; give at least two tokens of text");
    kve_str_free(&open);
    kve_str_free(&close);
    return st;
}

kve_status kve_cmd_generate(int argc, char **argv)
{
    enum { MODEL, PROMPT, POLICY, BUDGET, NEW, SINK, RECENT, BACKEND, DTYPE, THREADS, CHAT, N_FLAGS };
    kve_flag f[N_FLAGS] = {{"--model", "PATH", "model file or folder", "smollm2"},
                           {"--prompt", "TEXT", "the user's message", NULL},
                           {"--policy", "P", "eviction policy (kveval ls policies), kvp:FILE (kveval train)", "full"},
                           {"--budget", "B", "tokens kept per layer and KV head", "512"},
                           {"--max-new", "N", "tokens to generate at the most", "128"},
                           {"--sink", "N", "first tokens always kept", "4"},
                           {"--recent", "N", "last tokens always kept", "16"},
                           {"--backend", "B", KVE_BACKEND_HELP, "auto"},
                           {"--dtype", "T", "bf16 or f32", "bf16"},
                           {"--threads", "N", "0 = one per core", "0"},
                           {"--chat", "NAME", "template family instead of the model's own (plain, chatml, ...)", NULL}};
    job j = {0};
    kve_opened o = {0};
    kve_arena arena = {0};
    char sha[KVE_SHA256_HEX];
    int32_t threads;
    bool help;
    KVE_TRY(kve_flags_parse(argc, argv, f, N_FLAGS, &help));
    if (help || !f[PROMPT].value) {
        kve_flags_print("kveval generate --prompt TEXT [flags]", f, N_FLAGS);
        return help ? KVE_OK : kve_fail(KVE_ERR_USAGE, "--prompt is missing");
    }
    KVE_TRY(kve_flag_int(&f[BUDGET], 1, 1 << 24, &j.budget));
    KVE_TRY(kve_flag_int(&f[NEW], 1, 1 << 16, &j.max_new));
    KVE_TRY(kve_flag_int(&f[SINK], 0, 1 << 24, &j.sink));
    KVE_TRY(kve_flag_int(&f[RECENT], 0, 1 << 24, &j.recent));
    KVE_TRY(kve_flag_int(&f[THREADS], 0, 1024, &threads));
    kve_status st = kve_open_model(
        &(kve_open_options){f[MODEL].value, f[DTYPE].value, f[BACKEND].value, f[CHAT].value, threads}, &o);
    if (st == KVE_OK)
        st = kve_checkpoint_sha256(o.ck, sha);
    if (st == KVE_OK)
        st = kve_open_policy(f[POLICY].value, sha, &arena, &j.policy);
    if (st == KVE_OK)
        st = kve_policies_fit(&j.policy, 1, &o);
    if (st == KVE_OK)
        st = tokenize_prompt(&o, f[PROMPT].value, &j);
    if (st == KVE_OK)
        st = run(&o, &j);
    kve_close_policy(j.policy);
    kve_ids_free(&j.prompt);
    kve_ids_free(&j.tail);
    kve_close_model(&o);
    kve_arena_free(&arena);
    return st;
}
