/* Lists, data sets and the manifest of kveval eval. Contract: eval_setup.h. */
#include "host/cli/eval_setup.h"

#include "eval/manifest.h"
#include "eval/prompt.h"
#include "host/base/file.h"
#include "host/base/json.h"
#include "host/base/log.h"
#include "host/base/processor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kve_eval_setup_free(kve_eval_setup *s)
{
    for (size_t i = 0; i < s->n_policies; i++)
        kve_close_policy(s->policies[i]);
    kve_dataset_list_close(&s->data);
    kve_arena_free(&s->arena);
    *s = (kve_eval_setup){0};
}

static kve_status add_policy(kve_eval_setup *s, const kve_policy *p)
{
    for (size_t i = 0; i < s->n_policies; i++)
        if (s->policies[i] == p)
            return KVE_OK;
    if (s->n_policies == KVE_MAX_POLICIES)
        return kve_fail(KVE_ERR_USAGE, "--policy: more than %d policies", KVE_MAX_POLICIES);
    s->policies[s->n_policies++] = p;
    return KVE_OK;
}

static bool allowed(const kve_eval_setup *s, const kve_policy *p)
{
    return !s->while_decoding || p->while_decoding || p->keeps_all;
}

static kve_status names_of_allowed(const kve_eval_setup *s, kve_str *out)
{
    for (size_t i = 0; i < kve_policy_count(); i++)
        if (allowed(s, kve_policy_at(i)))
            KVE_TRY(kve_str_printf(out, "%s%s", out->len ? ", " : "", kve_policy_at(i)->name));
    return KVE_OK;
}

static kve_status refuse(const kve_eval_setup *s, const kve_policy *p)
{
    kve_str names = {0};
    kve_status st = names_of_allowed(s, &names);
    if (st == KVE_OK)
        st = kve_fail(
            KVE_ERR_USAGE,
            "--evict-every: policy '%s' cannot evict while decoding: it needs more than the keys, the values and "
            "the order of what is cached, or heads would keep different numbers; these can: %s",
            p->name, names.p);
    kve_str_free(&names);
    return st;
}

/* Every policy that every task and model can have: one that looks for a question in the prefill, or reads the context a
 * second time, must be named. */
static kve_status add_all(kve_eval_setup *s)
{
    const kve_policy *p;
    for (size_t i = 0; i < kve_policy_count(); i++)
        if (!(kve_policy_at(i)->needs & (KVE_NEED_QUESTION | KVE_NEED_REPLAY)) && allowed(s, kve_policy_at(i)))
            KVE_TRY(add_policy(s, kve_policy_at(i)));
    if (s->while_decoding) {
        kve_note("--evict-every: 'all' stands for the policies that can evict while decoding");
        return KVE_OK;
    }
    for (size_t i = 0; s->model_sha256 && kve_shipped_name(i); i++) {
        KVE_TRY(kve_open_shipped(kve_shipped_name(i), s->model_sha256, &s->arena, &p));
        if (p)
            KVE_TRY(add_policy(s, p));
        else
            kve_note("policy %s: no weights for this model; it is left out", kve_shipped_name(i));
    }
    return KVE_OK;
}

static kve_status policy_item(void *ctx, const char *item)
{
    kve_eval_setup *s = ctx;
    const kve_policy *p;
    if (strcmp(item, "all") == 0)
        return add_all(s);
    KVE_TRY(kve_open_policy(item, s->model_sha256, &s->arena, &p));
    if (!allowed(s, p))
        return refuse(s, p);
    for (size_t i = 0; i < s->n_policies; i++)
        if (s->policies[i] != p && strcmp(s->policies[i]->name, p->name) == 0)
            return kve_fail(KVE_ERR_USAGE, "--policy: '%s' is named twice; the records could not tell them apart",
                            p->name);
    return add_policy(s, p);
}

kve_status kve_setup_policies(const char *list, const char *model_sha256, kve_eval_setup *s)
{
    s->model_sha256 = model_sha256;
    kve_status st = kve_flag_each("--policy", list, policy_item, s);
    s->model_sha256 = NULL;
    return st;
}

static kve_status budget_item(void *ctx, const char *item)
{
    kve_eval_setup *s = ctx;
    kve_flag one = {.name = "--budget", .value = item};
    int32_t b;
    KVE_TRY(kve_flag_int(&one, 1, 1 << 24, &b));
    for (size_t i = 0; i < s->n_budgets; i++)
        if (s->budgets[i] == b)
            return KVE_OK;
    if (s->n_budgets == KVE_MAX_BUDGETS)
        return kve_fail(KVE_ERR_USAGE, "--budget: more than %d budgets", KVE_MAX_BUDGETS);
    s->budgets[s->n_budgets++] = b;
    return KVE_OK;
}

static int ascending(const void *a, const void *b)
{
    return (*(const int32_t *)a > *(const int32_t *)b) - (*(const int32_t *)a < *(const int32_t *)b);
}

kve_status kve_setup_budgets(const char *list, kve_eval_setup *s)
{
    KVE_TRY(kve_flag_each("--budget", list, budget_item, s));
    qsort(s->budgets, s->n_budgets, sizeof *s->budgets, ascending);
    return KVE_OK;
}

typedef struct task_ctx {
    kve_eval_setup *s;
    const kve_task_options *options;
} task_ctx;

static kve_status task_item(void *ctx, const char *item)
{
    const task_ctx *t = ctx;
    kve_dataset_list one = {0};
    KVE_TRY(kve_task_open(item, t->options, &one));
    kve_status st = KVE_OK;
    for (size_t i = 0; i < one.n; i++) {
        if (st == KVE_OK)
            st = kve_dataset_list_add(&t->s->data, one.items[i]);
        else
            kve_dataset_close(one.items[i]);
    }
    one.n = 0; /* they belong to the setup now */
    t->s->data.n_bad_rows += one.n_bad_rows;
    for (size_t i = 0; i < one.n_skipped && st == KVE_OK; i++) {
        kve_warn("%s is left out: %s", one.skipped[i].name, one.skipped[i].reason);
        st = kve_dataset_list_skip(&t->s->data, one.skipped[i].name, one.skipped[i].reason);
    }
    kve_dataset_list_close(&one);
    return st;
}

static kve_status task_options(const kve_task_flags *f, const kve_opened *o, kve_task_options *out)
{
    int32_t samples, window, seed, shots;
    *out = (kve_task_options){
        .tokens = kve_prompt_token_fns(o->tk), .data_path = f->data->value, .haystack_path = f->haystack->value};
    KVE_TRY(kve_flag_int(f->samples, 0, 1 << 24, &samples));
    KVE_TRY(kve_flag_int(f->window, 8, 1 << 24, &window));
    KVE_TRY(kve_flag_int(f->seed, 0, 0x7fffffff, &seed));
    out->n_samples = (size_t)samples;
    out->window_tok = (size_t)window;
    out->seed = (uint64_t)seed;
    out->skip_bad = f->skip_bad && f->skip_bad->value;
    out->has_shots = f->shots && f->shots->value;
    if (out->has_shots) {
        KVE_TRY(kve_flag_int(f->shots, 0, 1024, &shots));
        out->shots = (size_t)shots;
    }
    out->generate = f->answer && strcmp(f->answer->value, "generate") == 0;
    if (f->answer && !out->generate && strcmp(f->answer->value, "loglik") != 0)
        return kve_fail(KVE_ERR_USAGE, "%s: '%s' is neither 'loglik' nor 'generate'", f->answer->name,
                        f->answer->value);
    KVE_TRY(kve_prompt_turn_overhead(o->tk, &o->chat, &out->turn_tok));
    return kve_prompt_overhead(o->tk, &o->chat, &out->overhead_tok);
}

kve_status kve_setup_tasks(const kve_task_flags *f, const kve_opened *o, kve_eval_setup *s)
{
    kve_task_options options;
    KVE_TRY(task_options(f, o, &options));
    task_ctx ctx = {s, &options};
    KVE_TRY(kve_flag_each("--task", f->task->value, task_item, &ctx));
    for (size_t i = 0; i < s->data.n; i++)
        for (size_t j = 0; j < i; j++)
            if (strcmp(s->data.items[i]->name, s->data.items[j]->name) == 0)
                return kve_fail(KVE_ERR_USAGE, "--task: '%s' is named twice", s->data.items[i]->name);
    return KVE_OK;
}

kve_status kve_setup_question(const kve_flag *f, bool *question_in)
{
    *question_in = strcmp(f->value, "in") == 0;
    if (!*question_in && strcmp(f->value, "out") != 0)
        return kve_fail(KVE_ERR_USAGE, "%s: '%s' is neither 'in' nor 'out'", f->name, f->value);
    return KVE_OK;
}

/* A flag's key in the manifest: "evict_every" of "--evict-every". */
static void key_of(const kve_flag *f, char *key, size_t size)
{
    snprintf(key, size, "%s", f->name + 2);
    for (char *at = key; *at; at++)
        if (*at == '-')
            *at = '_';
}

kve_status kve_setup_replay(const char *path, const kve_flag *defaults, kve_flag *f, size_t n_flags, kve_eval_setup *s)
{
    cJSON *manifest = NULL;
    kve_status st = kve_json_parse_file(path, &manifest);
    for (size_t i = 0; i < n_flags && st == KVE_OK; i++) {
        const char *value = NULL;
        char *copy = NULL, key[32];
        if (f[i].value != defaults[i].value) /* given on the command line, which wins */
            continue;
        key_of(&f[i], key, sizeof key);
        st = kve_json_str_or(manifest, key, path, NULL, &value);
        if (st != KVE_OK || !value || (!f[i].value_name && strcmp(value, "yes") != 0))
            continue;
        st = kve_arena_strndup(&s->arena, value, strlen(value), &copy);
        f[i].value = copy;
    }
    cJSON_Delete(manifest);
    return st;
}

static kve_status command_line(const kve_run_facts *f, kve_str *out)
{
    KVE_TRY(kve_str_puts(out, "kveval eval"));
    for (int i = 0; i < f->argc; i++) {
        bool plain = strspn(f->argv[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,=+@%") ==
                     strlen(f->argv[i]);
        KVE_TRY(kve_str_printf(out, plain && f->argv[i][0] ? " %s" : " '%s'", f->argv[i]));
    }
    return KVE_OK;
}

/* A file's hash; a folder is named only: its files are hashed where they are read. */
static kve_status hash_input(const char *path, char hex[KVE_SHA256_HEX])
{
    hex[0] = 0;
    return path && !kve_path_is_dir(path) ? kve_sha256_file(path, hex) : KVE_OK;
}

kve_status kve_setup_manifest(const char *dir, const kve_opened *o, const kve_run_facts *f)
{
    kve_str command = {0};
    char layers[16], kv_heads[16], bad_rows[24], sha[KVE_SHA256_HEX], tokenizer_sha[KVE_SHA256_HEX],
        data_sha[KVE_SHA256_HEX], hay_sha[KVE_SHA256_HEX], cpu[128];
    const kve_vocab *v = kve_checkpoint_vocab(o->ck);
    const kve_shape *shape = &kve_checkpoint_config(o->ck)->shape;
    kve_processor_name(cpu, sizeof cpu);
    snprintf(layers, sizeof layers, "%d", shape->L);
    snprintf(kv_heads, sizeof kv_heads, "%d", shape->Hkv);
    snprintf(bad_rows, sizeof bad_rows, "%zu", f->n_bad_rows);
    kve_status st = kve_checkpoint_sha256(o->ck, sha);
    if (st == KVE_OK)
        st = kve_vocab_sha256(v, tokenizer_sha);
    if (st == KVE_OK)
        st = hash_input(f->data, data_sha);
    if (st == KVE_OK)
        st = hash_input(f->haystack, hay_sha);
    if (st == KVE_OK)
        st = command_line(f, &command);
    const kve_manifest_field fields[] = {
        {"command", command.p, false},
        {"version", KVEVAL_VERSION, false},
        {"commit", KVEVAL_COMMIT[0] ? KVEVAL_COMMIT : NULL, false},
        {"model", kve_checkpoint_path(o->ck), false},
        {"model_name", kve_checkpoint_config(o->ck)->name, false},
        {"model_sha256", sha, true},
        {"layers", layers, false}, /* follow from the hash */
        {"kv_heads", kv_heads, false},
        {"chat_family", kve_chat_family_name(o->chat.family), true},
        {"chat_template_sha256", o->chat.sha256, true},
        {"tokenizer_sha256", tokenizer_sha, false},
        {"add_bos", v->add_bos ? "yes" : "no", true},
        {"backend", o->be->vt->name, true},
        {"device", o->be->vt->describe(o->be), false},
        {"hardware", cpu, false},
        {"dtype", f->dtype, true},
        {"seed", f->seed, true},
        {"sink", f->sink, true},
        {"recent", f->recent, true},
        {"evict_every", f->evict_every, true},
        {"question", f->question, true},
        {"reward", f->reward ? "yes" : "no", true},
        {"window", f->window, true},
        {"shots", f->shots, true},
        {"answer", f->answer, true},
        {"skipped_bad_rows", f->n_bad_rows ? bad_rows : NULL, false},
        {"data", f->data, false},
        {"haystack", f->haystack, false},
        {"chat", f->chat, false},
        {"data_sha256", f->data ? data_sha : NULL, true},
        {"haystack_sha256", f->haystack ? hay_sha : NULL, true},
        {"task", f->task, false},
        {"policy", f->policy, false},
        {"budget", f->budget, false},
        {"samples", f->samples, false},
    };
    if (st == KVE_OK)
        st = kve_manifest_update(dir, fields, sizeof fields / sizeof *fields);
    kve_str_free(&command);
    return st;
}
