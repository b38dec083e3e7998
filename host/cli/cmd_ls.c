/* kveval ls: what can be named on the command line here: tasks, policies, models, devices. */
#include "datasets/dataset.h"
#include "host/base/json.h"
#include "host/cli/cli.h"
#include "policies/policy.h"

#include <stdio.h>
#include <string.h>

/* Rows of named columns, printed as a table or as a JSON array of objects. */
typedef struct listing {
    bool json;
    kve_str text; /* of the JSON form */
    kve_jw w;
    const char *const *columns;
} listing;

static void row(listing *l, const char *const *values)
{
    if (l->json)
        kve_jw_begin(&l->w, '{');
    for (size_t i = 0; l->columns[i]; i++) {
        if (l->json) {
            kve_jw_key(&l->w, l->columns[i]);
            kve_jw_str(&l->w, values[i]);
        } else if (l->columns[i + 1]) {
            printf("%-30s ", values[i] ? values[i] : "-");
        } else {
            printf("%s\n", values[i] ? values[i] : "-");
        }
    }
    if (l->json)
        kve_jw_end(&l->w, '}');
}

static kve_status ls_tasks(listing *l)
{
    static const char *const COLUMNS[] = {"task", "what", NULL};
    l->columns = COLUMNS;
    row(l, (const char *[]){"ruler-LENGTH", "all 13 tasks of RULER, generated: ruler-512, ruler-4k, ruler-8k ..."});
    for (size_t i = 0; i < kve_ruler_n_tasks(); i++) {
        char name[64];
        bool qa = strncmp(kve_ruler_task_name(i), "qa_", 3) == 0;
        snprintf(name, sizeof name, "ruler-LENGTH/%s", kve_ruler_task_name(i));
        row(l, (const char *[]){name, qa ? "one of them; needs --data" : "one of them"});
    }
    row(l, (const char *[]){"ruler", "ready-made RULER rows (validation.jsonl) from --data"});
    for (size_t i = 0; i < kve_file_task_count(); i++)
        row(l, (const char *[]){kve_file_task_name(i), kve_file_task_about(i)});
    row(l, (const char *[]){"text:FILE", "perplexity over windows of a text"});
    return KVE_OK;
}

static kve_status ls_policies(listing *l)
{
    static const char *const COLUMNS[] = {"policy", "sees", "what", NULL};
    l->columns = COLUMNS;
    for (size_t i = 0; i < kve_policy_count(); i++) {
        const kve_policy *p = kve_policy_at(i);
        row(l, (const char *[]){p->name, kve_policy_info(p), p->summary});
    }
    row(l, (const char *[]){"adakv:BASE", NULL, "adakv over another policy's scores; likewise criticalkv:BASE"});
    for (size_t i = 0; kve_shipped_name(i); i++)
        row(l, (const char *[]){kve_shipped_name(i), "attention-free", kve_shipped_summary(i)});
    row(l, (const char *[]){"kvp:FILE", "attention-free", "a network trained for the model (kveval train)"});
    row(l, (const char *[]){"rankings:DIR", NULL, "rankings made elsewhere (kveval rank writes such files)"});
    return KVE_OK;
}

static kve_status ls_models(listing *l)
{
    static const char *const COLUMNS[] = {"model", "path", NULL};
    kve_arena arena = {0};
    kve_found_model *found = NULL;
    size_t n = 0;
    l->columns = COLUMNS;
    kve_status st = kve_models_found(&arena, &found, &n);
    for (size_t i = 0; i < n && st == KVE_OK; i++)
        row(l, (const char *[]){found[i].name, found[i].path});
    if (st == KVE_OK && n == 0 && !l->json)
        fprintf(stderr, "none is cached; `bash bench/fetch_model.sh` gets the default model\n");
    kve_arena_free(&arena);
    return st;
}

static kve_status ls_devices(listing *l)
{
    static const char *const COLUMNS[] = {"backend", "device", NULL};
    static const char *const NAMES[] = {"cpu", "cuda"};
    l->columns = COLUMNS;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        kve_backend *be = NULL;
        kve_status st = kve_open_backend(NAMES[i], 0, &be);
        if (st != KVE_OK && (st != KVE_ERR_USAGE || strcmp(NAMES[i], "cpu") == 0))
            return st;
        row(l, (const char *[]){NAMES[i], be ? be->vt->describe(be) : kve_diag()});
        if (be)
            be->vt->close(be);
    }
    return KVE_OK;
}

static const struct {
    const char *name;
    kve_status (*list)(listing *l);
} g_lists[] = {{"tasks", ls_tasks}, {"policies", ls_policies}, {"models", ls_models}, {"devices", ls_devices}};

static kve_status print_list(size_t which, bool json)
{
    listing l = {.json = json};
    l.w.out = &l.text;
    if (json)
        kve_jw_begin(&l.w, '[');
    kve_status st = g_lists[which].list(&l);
    if (json) {
        kve_jw_end(&l.w, ']');
        st = st == KVE_OK ? l.w.status : st;
        if (st == KVE_OK)
            puts(l.text.p);
    }
    kve_str_free(&l.text);
    return st;
}

kve_status kve_cmd_ls(int argc, char **argv)
{
    kve_flag f[] = {{"--json", NULL, "a JSON array instead of a table", NULL}};
    bool help = argc >= 1 && strcmp(argv[0], "--help") == 0;
    for (size_t i = 0; argc >= 1 && i < sizeof g_lists / sizeof *g_lists; i++) {
        if (strcmp(argv[0], g_lists[i].name) != 0)
            continue;
        KVE_TRY(kve_flags_parse(argc - 1, argv + 1, f, 1, &help));
        if (!help)
            return print_list(i, f[0].value != NULL);
    }
    kve_flags_print("kveval ls tasks|policies|models|devices [--json]", f, 1);
    return help ? KVE_OK
                : kve_fail(KVE_ERR_USAGE, "what to list is missing or unknown: tasks, policies, models, devices");
}
