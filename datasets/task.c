/* Task names: what they stand for, and opening it. Knows the families only by their open functions. */
#include "datasets/items.h"
#include "datasets/ruler/ruler.h"
#include "host/base/text.h"

#include <ctype.h>
#include <string.h>

/* "4k", "512": the digits of text[0..len), times 1,024 after a k. False if it is no such thing. */
static bool parse_length(const char *text, size_t len, int64_t *out)
{
    enum { MAX_DIGITS = 12 };
    int64_t n = 0;
    bool kilo = len && (text[len - 1] == 'k' || text[len - 1] == 'K');
    len -= kilo;
    if (len == 0 || len > MAX_DIGITS)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (!isdigit((unsigned char)text[i]))
            return false;
        n = n * 10 + (text[i] - '0');
    }
    *out = kilo ? n * 1024 : n;
    return true;
}

static const struct {
    const char *name, *about;
    const kve_item_task *items; /* NULL: OASST2 */
} g_file_tasks[] = {
    {"boolq", "yes or no to a passage, which alone is compressed; accuracy", &kve_boolq},
    {"arc-challenge", "science questions with 3 to 5 choices; accuracy, also per character", &kve_arc},
    {"mmlu", "57 subjects, four choices, 5 examples (--shots); accuracy weighted by subject; mmlu/SUBJECT", &kve_mmlu},
    {"hellaswag", "four endings of a scene; accuracy, also per character", &kve_hellaswag},
    {"gov-report", "summary of a long report, which alone is compressed; ROUGE-L", &kve_gov_report},
    {"oasst2-4k", "dialogues of 4k tokens from OASST2's trees; perplexity of the last message; oasst2-LENGTH", NULL},
};
enum { N_FILE_TASKS = sizeof g_file_tasks / sizeof *g_file_tasks };

size_t kve_file_task_count(void)
{
    return N_FILE_TASKS;
}

const char *kve_file_task_name(size_t i)
{
    return g_file_tasks[i].name;
}

const char *kve_file_task_about(size_t i)
{
    return g_file_tasks[i].about;
}

static kve_status fail_unknown(const char *name)
{
    const char *known[N_FILE_TASKS + 3] = {"ruler-4k", "ruler", "text:"};
    for (size_t i = 0; i < N_FILE_TASKS; i++)
        known[3 + i] = g_file_tasks[i].name;
    return kve_fail(KVE_ERR_USAGE,
                    "task '%s' is unknown; did you mean '%s'? Known: ruler-LENGTH[/TASK] (ruler-4k, ruler-512, "
                    "ruler-8k/niah_single_1), ruler[/TASK] (rows from --data), text:FILE, and with files from --data: "
                    "boolq, arc-challenge, mmlu[/SUBJECT], hellaswag, gov-report, oasst2-4k",
                    name, kve_nearest(name, known, sizeof known / sizeof *known));
}

/* The first `len` characters of `name` are `known`; '-' equals '_'. */
static bool is_called(const char *name, size_t len, const char *known)
{
    for (size_t i = 0; i < len; i++)
        if (!known[i] || (name[i] == '_' ? '-' : name[i]) != known[i])
            return false;
    return known[len] == '\0';
}

/* A task with items, and of mmlu a subject. *found is false for any other name. */
static kve_status parse_items(const char *name, size_t head, kve_task_spec *out, bool *found)
{
    *found = false;
    for (size_t i = 0; i < N_FILE_TASKS && !*found; i++) {
        const kve_item_task *t = g_file_tasks[i].items;
        if (!t || !is_called(name, head, g_file_tasks[i].name))
            continue;
        *found = true;
        if (name[head] && !t->by_subject)
            return kve_fail(KVE_ERR_USAGE, "task '%s': %s has no parts; write '%s'", name, t->format.task,
                            t->format.task);
        if (name[head] && !name[head + 1])
            return kve_fail(KVE_ERR_USAGE, "task '%s' names no subject; write '%s', or a subject behind the slash",
                            name, t->format.task);
        *out = (kve_task_spec){.family = KVE_TASK_ITEMS, .items = t, .sub = name[head] ? name + head + 1 : NULL};
    }
    return KVE_OK;
}

/* The length behind "ruler-" or "oasst2-". */
static kve_status parse_length_of(const char *name, size_t head, size_t n_family, kve_task_spec *spec)
{
    const char *length = name + n_family + 1;
    if (!parse_length(length, head - n_family - 1, &spec->length_tok))
        return kve_fail(KVE_ERR_USAGE, "task '%s': '%.*s' is no length; write %.*s-4k, or the tokens: %.*s-4096", name,
                        (int)(head - n_family - 1), length, (int)n_family, name, (int)n_family, name);
    kve_status st = kve_ruler_check_length(spec->length_tok);
    return st == KVE_OK ? st : kve_fail_context(st, "task '%s'", name);
}

static bool is_family(const char *name, size_t head, const char *family)
{
    size_t n = strlen(family);
    return head > n && memcmp(name, family, n) == 0 && (name[n] == '-' || name[n] == '_');
}

kve_status kve_task_parse(const char *name, kve_task_spec *out)
{
    static const char TEXT[] = "text:", RULER[] = "ruler", OASST[] = "oasst2";
    const size_t n_text = sizeof TEXT - 1, n_ruler = sizeof RULER - 1;
    kve_task_spec spec = {0};
    bool found = false;
    if (strncmp(name, TEXT, n_text) == 0) {
        if (!name[n_text])
            return kve_fail(KVE_ERR_USAGE, "task '%s' names no file; write text:FILE", name);
        *out = (kve_task_spec){.family = KVE_TASK_TEXT, .path = name + n_text};
        return KVE_OK;
    }
    size_t head = strcspn(name, "/");
    KVE_TRY(parse_items(name, head, out, &found));
    if (found)
        return KVE_OK;
    if (head == n_ruler && memcmp(name, RULER, n_ruler) == 0) {
        spec.family = KVE_TASK_ROWS;
    } else if (is_family(name, head, RULER)) {
        spec.family = KVE_TASK_RULER;
        KVE_TRY(parse_length_of(name, head, n_ruler, &spec));
    } else if (is_family(name, head, OASST) && !name[head]) {
        spec.family = KVE_TASK_OASST;
        KVE_TRY(parse_length_of(name, head, sizeof OASST - 1, &spec));
    } else {
        return fail_unknown(name);
    }
    if (name[head] == '/') {
        const kve_ruler_task *task = NULL;
        kve_status st = kve_ruler_resolve(name + head + 1, &task);
        if (st != KVE_OK)
            return kve_fail_context(st, "task '%s'", name);
        spec.sub = task->name;
    }
    *out = spec;
    return KVE_OK;
}

/* Whether the data of a qa task is there. Where it is not, *reason says why. */
static kve_status find_qa_data(int variant, const char *path, bool *found, kve_str *reason)
{
    kve_str file = {0};
    *found = false;
    if (!path)
        return kve_str_printf(reason, "needs --data: %s", kve_qa_wanted(variant));
    kve_status st = kve_qa_locate(variant, path, &file);
    *found = st == KVE_OK && file.len;
    if (st == KVE_OK && !*found)
        st = kve_str_puts(reason, kve_diag());
    kve_str_free(&file);
    return st;
}

static kve_status open_ruler_task(const kve_task_spec *spec, const char *head, const kve_ruler_task *task,
                                  const kve_task_options *o, kve_dataset_list *out)
{
    kve_dataset *d = NULL;
    kve_ruler_options r = {.task = task->name,
                           .length_tok = spec->length_tok,
                           .overhead_tok = o->overhead_tok,
                           .seed = o->seed,
                           .n_samples = o->n_samples,
                           .haystack_path = o->haystack_path,
                           .data_path = o->data_path,
                           .tokens = o->tokens};
    if (task->generate == kve_ruler_qa && !spec->sub) {
        bool found = false;
        kve_str reason = {0}, name = {0};
        kve_status st = find_qa_data(task->variant, o->data_path, &found, &reason);
        if (st == KVE_OK && !found) {
            st = kve_str_printf(&name, "%s/%s", head, task->name);
            if (st == KVE_OK)
                st = kve_dataset_list_skip(out, name.p, reason.p);
        }
        kve_str_free(&reason);
        kve_str_free(&name);
        if (st != KVE_OK || !found)
            return st;
    }
    KVE_TRY(kve_ruler_open(&r, &d));
    return kve_dataset_list_add(out, d);
}

static kve_status open_text(const kve_task_spec *spec, const kve_task_options *o, kve_dataset_list *out)
{
    kve_dataset *d = NULL;
    size_t n_prefill = o->window_tok - (o->window_tok + 3) / 4; /* three quarters, rounded down, without overflow */
    kve_text_options t = {.path = spec->path,
                          .n_prefill = n_prefill,
                          .n_score = o->window_tok - n_prefill,
                          .n_samples = o->n_samples,
                          .tokens = o->tokens};
    if (o->window_tok < 2)
        return kve_fail(KVE_ERR_USAGE, "task 'text:%s' needs --window of 2 tokens at least, not %zu", spec->path,
                        o->window_tok);
    KVE_TRY(kve_text_open(&t, &d));
    return kve_dataset_list_add(out, d);
}

static kve_status open_oasst(const char *name, const kve_task_spec *spec, const kve_task_options *o,
                             kve_dataset_list *out)
{
    kve_oasst_options d = {.name = name,
                           .path = o->data_path,
                           .length_tok = spec->length_tok,
                           .overhead_tok = o->overhead_tok,
                           .turn_tok = o->turn_tok,
                           .seed = o->seed,
                           .n_samples = o->n_samples,
                           .skip_bad = o->skip_bad,
                           .tokens = o->tokens};
    return kve_oasst_open(&d, out);
}

static kve_status open_all(const char *name, const kve_task_spec *spec, const kve_task_options *o,
                           kve_dataset_list *out)
{
    if (spec->family == KVE_TASK_TEXT)
        return open_text(spec, o, out);
    if (spec->family == KVE_TASK_ITEMS)
        return kve_items_open(spec->items, spec->sub, o, out);
    if (spec->family == KVE_TASK_OASST)
        return open_oasst(name, spec, o, out);
    if (spec->family == KVE_TASK_ROWS) {
        kve_rows_options rows = {.path = o->data_path, .task = spec->sub, .n_samples = o->n_samples};
        if (!o->data_path)
            return kve_fail(KVE_ERR_USAGE,
                            "task '%s' needs --data: a file of rows, or a folder with TASK/validation.jsonl; for "
                            "generated samples write ruler-4k",
                            name);
        return kve_rows_open_all(&rows, out);
    }
    for (size_t i = 0; i < kve_ruler_n_tasks(); i++)
        if (!spec->sub || strcmp(spec->sub, kve_ruler_at(i)->name) == 0)
            KVE_TRY(open_ruler_task(spec, name, kve_ruler_at(i), o, out));
    return KVE_OK;
}

kve_status kve_task_open(const char *name, const kve_task_options *options, kve_dataset_list *out)
{
    kve_task_spec spec = {0};
    KVE_TRY(kve_task_parse(name, &spec));
    *out = (kve_dataset_list){0};
    kve_status st = open_all(name, &spec, options, out);
    if (st != KVE_OK)
        kve_dataset_list_close(out);
    return st;
}
