/* kveval eval: tasks x policies x budgets on a model, every cell a record; the same command again goes on where the
 * last one stopped. */
#include "eval/report.h"
#include "eval/runner.h"
#include "host/base/log.h"
#include "host/cli/eval_setup.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MODEL,
    TASK,
    POLICY,
    BUDGET,
    OUT,
    SAMPLES,
    WINDOW,
    SEED,
    SINK,
    RECENT,
    EVICT_EVERY,
    QUESTION,
    REWARD,
    BACKEND,
    DTYPE,
    THREADS,
    CHAT,
    DATA,
    SHOTS,
    ANSWER,
    SKIP_BAD,
    HAYSTACK,
    CHUNK_ROWS,
    MEMORY,
    RETRY,
    LOG_SAMPLES,
    DRY_RUN,
    CONFIG,
    QUIET,
    N_FLAGS
};

static const kve_flag g_flags[N_FLAGS] = {
    [MODEL] = {"--model", "PATH", "a .gguf file, a folder, org/name or smollm2", "smollm2"},
    [TASK] = {"--task", "LIST", "ruler-4k, ruler-1k/vt, text:FILE; with --data: boolq, mmlu, ... (kveval ls tasks)",
              NULL},
    [POLICY] = {"--policy", "LIST",
                "policies, all (kveval ls policies), kvp:FILE (kveval train), rankings:DIR (kveval rank)", "all"},
    [BUDGET] = {"--budget", "LIST", "tokens kept per layer and KV head, e.g. 128,256,512", NULL},
    [OUT] = {"--out", "DIR", "records, manifest and report; the same DIR resumes", NULL},
    [SAMPLES] = {"--samples", "N", "samples of each task; 0 = all; --limit is the same", "0"},
    [WINDOW] = {"--window", "N", "text: tokens of a window, 3/4 of it prefilled", "4096"},
    [SEED] = {"--seed", "N", "of generated samples and of the random policy", "42"},
    [SINK] = {"--sink", "N", "first tokens that every policy keeps", "4"},
    [RECENT] = {"--recent", "N", "last tokens that every policy keeps", "16"},
    [EVICT_EVERY] = {"--evict-every", "N",
                     "evict while decoding, too: after every N more tokens a cache is cut to its budget; 0: only once",
                     "0"},
    [QUESTION] = {"--question", "in|out", "in: the question is prefilled too; out: it comes after the eviction", "in"},
    [REWARD] = {"--reward", NULL, "also measure the lost future attention", NULL},
    [BACKEND] = {"--backend", "B", KVE_BACKEND_HELP, "auto"},
    [DTYPE] = {"--dtype", "T", "bf16 or f32: weights and KV cache", "bf16"},
    [THREADS] = {"--threads", "N", "0 = one per core", "0"},
    [CHAT] = {"--chat", "FAMILY", "chat template; default: the model's own", NULL},
    [DATA] = {"--data", "PATH", "task files: a file, or a folder that is searched for each task's", NULL},
    [SHOTS] = {"--shots", "N", "examples before each item with choices; default: mmlu 5, others 0", NULL},
    [ANSWER] = {"--answer", "loglik|generate",
                "choices: the likeliest text, or what the model writes (chat template, exact match)", "loglik"},
    [SKIP_BAD] = {"--skip-bad", NULL, "count bad rows of task files in the manifest instead of stopping", NULL},
    [HAYSTACK] = {"--haystack", "FILE", "essay text for RULER; default: built in", NULL},
    [CHUNK_ROWS] = {"--chunk", "N", "rows of one forward pass; changes speed, not results", "512"},
    [MEMORY] = {"--fork-mib", "N", "for ranked caches and forks at once; 0 = half of what is free (cpu: 1024 at most)",
                "0"},
    [RETRY] = {"--retry-failed", NULL, "run failed cells again", NULL},
    [LOG_SAMPLES] = {"--log-samples", NULL,
                     "also write DIR/samples: every prompt, its token ids and the template's hash", NULL},
    [DRY_RUN] = {"--dry-run", NULL, "say what would be done, show the first prompt, and stop", NULL},
    [CONFIG] = {"--config", "FILE", "a manifest.json: the same run again; other flags win over it", NULL},
    [QUIET] = {"--quiet", NULL, "no progress, no table", NULL},
};

static volatile sig_atomic_t g_stop;

static void on_signal(int sig)
{
    g_stop = 1;
    signal(sig, SIG_DFL); /* a second one ends the program at once; the records are safe */
}

static kve_status eval_options(const kve_flag *f, kve_eval_options *out)
{
    int32_t seed;
    *out = (kve_eval_options){.reward = f[REWARD].value != NULL};
    KVE_TRY(kve_setup_question(&f[QUESTION], &out->question_in));
    KVE_TRY(kve_flag_int(&f[SEED], 0, 0x7fffffff, &seed));
    KVE_TRY(kve_flag_int(&f[SINK], 0, 1 << 24, &out->sink));
    KVE_TRY(kve_flag_int(&f[RECENT], 0, 1 << 24, &out->recent));
    KVE_TRY(kve_flag_int(&f[EVICT_EVERY], 0, 1 << 24, &out->evict_every));
    KVE_TRY(kve_flag_int(&f[CHUNK_ROWS], 64, 1 << 16, &out->chunk));
    out->seed = (uint64_t)seed;
    return KVE_OK;
}

/* What the model leaves is shared by the context, the forward pass's scratch, and the forks. */
static kve_status fork_bytes(const kve_flag *flag, kve_backend *be, size_t *out)
{
    const size_t most_on_cpu = (size_t)1 << 30;
    int32_t mib;
    size_t free_bytes;
    KVE_TRY(kve_flag_int(flag, 0, 1 << 20, &mib));
    *out = (size_t)mib << 20;
    if (mib > 0)
        return KVE_OK;
    KVE_TRY(be->vt->free_bytes(be, &free_bytes));
    *out = free_bytes / 2;
    if (strcmp(be->vt->name, "cpu") == 0 && *out > most_on_cpu)
        *out = most_on_cpu;
    return KVE_OK;
}

/* Runs, merges whatever was written, and says what came out. */
static kve_status run_and_merge(const kve_flag *f, const kve_run *run)
{
    kve_run_counts c;
    kve_merge merge;
    kve_status st = kve_run_all(run, &c);
    kve_str why = {0};
    if (c.before)
        kve_note("resume: %lld of %lld cells were done already", (long long)c.before, (long long)c.total);
    if (st != KVE_OK) /* the merge below may not hide it */
        (void)kve_str_puts(&why, kve_diag());
    kve_status merged = kve_store_merge(f[OUT].value, &merge);
    if (merged == KVE_OK)
        kve_note("%s/records.jsonl: %zu records, %zu of them failed; %zu duplicates and %zu torn lines dropped",
                 f[OUT].value, merge.n_records, merge.n_failed, merge.n_duplicates, merge.n_damaged);
    if (merged == KVE_OK && merge.n_records && !f[QUIET].value && (st == KVE_OK || st == KVE_ERR_PARTIAL)) {
        /* The run is done and its exit code is its own: a mix in the folder is marked here, and kveval report refuses
         * it. */
        kve_report_options report = {.dir = f[OUT].value, .out = stdout, .brief = true, .mix = true};
        merged = kve_report_run(&report);
    }
    if (st != KVE_OK)
        kve_fail(st, "%s", why.p ? why.p : "stopped");
    kve_str_free(&why);
    return st != KVE_OK ? st : merged;
}

static kve_status evaluate(const kve_flag *f, const kve_opened *o, const kve_eval_setup *s, const kve_eval_options *opt)
{
    kve_sample_log log = {f[OUT].value, o->tk, &o->chat, opt->question_in};
    kve_run run = {.datasets = s->data.items,
                   .n_datasets = s->data.n,
                   .policies = s->policies,
                   .n_policies = s->n_policies,
                   .budgets = s->budgets,
                   .n_budgets = s->n_budgets,
                   .retry_failed = f[RETRY].value != NULL,
                   .log = f[LOG_SAMPLES].value ? &log : NULL,
                   .stop = &g_stop};
    KVE_TRY(kve_evaluator_open(o->model, o->tk, &o->chat, opt, &run.evaluator));
    kve_status st = kve_store_open(f[OUT].value, &run.store);
    if (st == KVE_OK)
        st = run_and_merge(f, &run);
    kve_store_close(run.store);
    kve_evaluator_close(run.evaluator);
    return st;
}

static kve_status prepare_and_run(const kve_flag *f, int argc, char **argv, kve_opened *o, kve_eval_setup *s)
{
    kve_eval_options opt;
    char sha[KVE_SHA256_HEX];
    int32_t threads;
    kve_run_facts facts = {argc,
                           argv,
                           f[TASK].value,
                           f[POLICY].value,
                           f[BUDGET].value,
                           f[SAMPLES].value,
                           f[WINDOW].value,
                           f[SEED].value,
                           f[SINK].value,
                           f[RECENT].value,
                           NULL,
                           f[QUESTION].value,
                           f[DTYPE].value,
                           f[DATA].value,
                           f[HAYSTACK].value,
                           f[CHAT].value,
                           f[SHOTS].value,
                           f[ANSWER].value,
                           f[REWARD].value != NULL,
                           0};
    KVE_TRY(kve_setup_budgets(f[BUDGET].value, s));
    KVE_TRY(eval_options(f, &opt));
    s->while_decoding = opt.evict_every > 0;
    facts.evict_every = s->while_decoding ? f[EVICT_EVERY].value : NULL;
    KVE_TRY(kve_flag_int(&f[THREADS], 0, 1024, &threads));
    KVE_TRY(kve_open_model(
        &(kve_open_options){f[MODEL].value, f[DTYPE].value, f[BACKEND].value, f[CHAT].value, threads}, o));
    KVE_TRY(kve_checkpoint_sha256(o->ck, sha));
    KVE_TRY(kve_setup_policies(f[POLICY].value, sha, s));
    KVE_TRY(kve_policies_fit(s->policies, s->n_policies, o));
    KVE_TRY(fork_bytes(&f[MEMORY], o->be, &opt.fork_bytes));
    KVE_TRY(kve_setup_tasks(&(kve_task_flags){&f[TASK], &f[SAMPLES], &f[WINDOW], &f[SEED], &f[DATA], &f[HAYSTACK],
                                              &f[SHOTS], &f[SKIP_BAD], &f[ANSWER]},
                            o, s));
    facts.n_bad_rows = s->data.n_bad_rows;
    if (f[DRY_RUN].value)
        return kve_eval_plan(o, s, &opt);
    KVE_TRY(kve_setup_manifest(f[OUT].value, o, &facts));
    KVE_TRY(kve_policies_pin(s->policies, s->n_policies, f[OUT].value));
    return evaluate(f, o, s, &opt);
}

static kve_status check_needed(const kve_flag *f)
{
    const int needed[] = {TASK, BUDGET, OUT};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!f[needed[i]].value)
            return kve_fail(KVE_ERR_USAGE, "%s is missing (%s)", f[needed[i]].name, f[needed[i]].help);
    return KVE_OK;
}

kve_status kve_cmd_eval(int argc, char **argv)
{
    kve_flag f[N_FLAGS];
    bool help;
    kve_opened o = {0};
    kve_eval_setup s = {0};
    memcpy(f, g_flags, sizeof f);
    KVE_TRY(kve_flags_parse(argc, argv, f, N_FLAGS, &help));
    if (help) {
        kve_flags_print("kveval eval --task LIST --budget LIST --out DIR [flags]", f, N_FLAGS);
        return KVE_OK;
    }
    kve_log_quiet(f[QUIET].value != NULL);
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    kve_status st = f[CONFIG].value ? kve_setup_replay(f[CONFIG].value, g_flags, f, N_FLAGS, &s) : KVE_OK;
    if (st == KVE_OK)
        st = check_needed(f);
    if (st == KVE_OK)
        st = prepare_and_run(f, argc, argv, &o, &s);
    kve_eval_setup_free(&s);
    kve_close_model(&o);
    return st;
}
