/* kveval trace: keys, values and future attention of a text, or of a task's samples, as safetensors files: what a
 * policy may look at, for numpy, for training, for kveval rank. Evicts nothing. */
#include "eval/trace.h"
#include "host/base/file.h"
#include "host/cli/eval_setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 512 };

typedef struct job {
    kve_trace_source source;
    const char *file; /* one text: where its trace goes; otherwise NULL */
    const char *dir;  /* a task: the folder */
} job;

static kve_status write_seen(void *ctx, const kve_observation *seen)
{
    const job *j = ctx;
    kve_str path = {0};
    kve_status st = j->file ? kve_str_puts(&path, j->file) : kve_path_below(j->dir, seen->name, ".safetensors", &path);
    if (st == KVE_OK)
        st = kve_trace_write(path.p, &j->source, seen);
    if (st == KVE_OK)
        fprintf(stderr, "%s: %d tokens, %d of the future\n", path.p, seen->ctx->n, seen->n_future);
    kve_str_free(&path);
    return st;
}

static kve_status trace_text(kve_evaluator *e, const char *path, int32_t max_new, job *j)
{
    char *text = NULL;
    size_t len;
    KVE_TRY(kve_file_read(path, &text, &len));
    kve_sample s = {.id = kve_path_base(path),
                    .task = "prompt",
                    .context = text,
                    .question = "",
                    .answer_prefix = "",
                    .max_new_tokens = max_new};
    kve_status st = strlen(text) == len
                        ? kve_observe(e, &s, write_seen, j)
                        : kve_fail(KVE_ERR_FILE, "%s: a NUL byte at %zu; plain text is due", path, strlen(text));
    free(text);
    return st == KVE_OK ? st : kve_fail_context(st, "%s", path);
}

static kve_status trace_tasks(kve_evaluator *e, const kve_eval_setup *s, job *j)
{
    for (size_t d = 0; d < s->data.n; d++)
        for (size_t i = 0; i < s->data.items[d]->n_samples; i++) {
            kve_sample sample = {0};
            KVE_TRY(kve_dataset_sample(s->data.items[d], i, &sample));
            kve_status st = kve_observe(e, &sample, write_seen, j);
            kve_sample_free(&sample);
            KVE_TRY(st);
        }
    return KVE_OK;
}

enum {
    MODEL,
    PROMPT_FILE,
    TASK,
    OUT,
    QUERIES,
    MAX_NEW,
    SAMPLES,
    WINDOW,
    SEED,
    QUESTION,
    BACKEND,
    DTYPE,
    THREADS,
    CHAT,
    DATA,
    HAYSTACK,
    N_FLAGS
};

static const kve_flag g_flags[N_FLAGS] = {
    [MODEL] = {"--model", "PATH", "a .gguf file, a folder, org/name or smollm2", "smollm2"},
    [PROMPT_FILE] = {"--prompt-file", "F", "a text to prefill; its future is the model's own answer", NULL},
    [TASK] = {"--task", "LIST", "instead of a text: the samples of tasks, as in kveval eval", NULL},
    [OUT] = {"--out", "PATH", "the .safetensors file; with --task a folder, TASK/SAMPLE.safetensors in it", NULL},
    [QUERIES] = {"--queries", NULL, "also all queries and RoPE's tables, which some policies need", NULL},
    [MAX_NEW] = {"--max-new", "N", "a text: tokens of the answer at the most", "64"},
    [SAMPLES] = {"--samples", "N", "samples of each task; 0 = all", "1"},
    [WINDOW] = {"--window", "N", "text tasks: tokens of a window, 3/4 of it prefilled", "4096"},
    [SEED] = {"--seed", "N", "of generated samples", "42"},
    [QUESTION] = {"--question", "in|out", "in: the question is prefilled too; out: it belongs to the future", "in"},
    [BACKEND] = {"--backend", "B", KVE_BACKEND_HELP, "auto"},
    [DTYPE] = {"--dtype", "T", "bf16 or f32: weights and KV cache", "bf16"},
    [THREADS] = {"--threads", "N", "0 = one per core", "0"},
    [CHAT] = {"--chat", "FAMILY", "chat template; default: the model's own", NULL},
    [DATA] = {"--data", "PATH", "task files, as in kveval eval", NULL},
    [HAYSTACK] = {"--haystack", "FILE", "essay text for RULER; default: built in", NULL},
};

static kve_status run(const kve_flag *f, const kve_opened *o, kve_eval_setup *s, int32_t max_new)
{
    char sha[KVE_SHA256_HEX];
    kve_eval_options opt = {.chunk = CHUNK, .all_queries = f[QUERIES].value != NULL};
    kve_evaluator *e = NULL;
    job j = {.source = {kve_checkpoint_config(o->ck)->name, sha, f[QUERIES].value != NULL},
             .file = f[TASK].value ? NULL : f[OUT].value,
             .dir = f[OUT].value};
    KVE_TRY(kve_setup_question(&f[QUESTION], &opt.question_in));
    KVE_TRY(kve_checkpoint_sha256(o->ck, sha));
    if (f[TASK].value)
        KVE_TRY(kve_setup_tasks(
            &(kve_task_flags){&f[TASK], &f[SAMPLES], &f[WINDOW], &f[SEED], &f[DATA], &f[HAYSTACK], NULL, NULL, NULL}, o,
            s));
    KVE_TRY(kve_evaluator_open(o->model, o->tk, &o->chat, &opt, &e));
    kve_status st = f[TASK].value ? trace_tasks(e, s, &j) : trace_text(e, f[PROMPT_FILE].value, max_new, &j);
    kve_evaluator_close(e);
    return st;
}

kve_status kve_cmd_trace(int argc, char **argv)
{
    kve_flag f[N_FLAGS];
    kve_opened o = {0};
    kve_eval_setup s = {0};
    int32_t threads, max_new;
    bool help;
    memcpy(f, g_flags, sizeof f);
    KVE_TRY(kve_flags_parse(argc, argv, f, N_FLAGS, &help));
    if (help) {
        kve_flags_print("kveval trace --prompt-file F --out F | --task LIST --out DIR [flags]", f, N_FLAGS);
        return KVE_OK;
    }
    if (!f[OUT].value || !f[PROMPT_FILE].value == !f[TASK].value)
        return kve_fail(KVE_ERR_USAGE, "--out and either --prompt-file or --task are needed");
    KVE_TRY(kve_flag_int(&f[MAX_NEW], 1, 1 << 16, &max_new));
    KVE_TRY(kve_flag_int(&f[THREADS], 0, 1024, &threads));
    KVE_TRY(kve_open_model(
        &(kve_open_options){f[MODEL].value, f[DTYPE].value, f[BACKEND].value, f[CHAT].value, threads}, &o));
    kve_status st = run(f, &o, &s, max_new);
    kve_eval_setup_free(&s);
    kve_close_model(&o);
    return st;
}
