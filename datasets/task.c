/* Task names: what they stand for, and opening it. Knows the families only by their open functions. */
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

static kve_status fail_unknown(const char *name)
{
    static const char *const KNOWN[] = {"ruler-4k", "ruler", "text:"};
    return kve_fail(KVE_ERR_USAGE,
                    "task '%s' is unknown; did you mean '%s'? Known: ruler-LENGTH[/TASK] (ruler-4k, ruler-512, "
                    "ruler-8k/niah_single_1), ruler[/TASK] (rows from --data), text:FILE",
                    name, kve_nearest(name, KNOWN, sizeof KNOWN / sizeof *KNOWN));
}

kve_status kve_task_parse(const char *name, kve_task_spec *out)
{
    static const char TEXT[] = "text:", RULER[] = "ruler";
    const size_t n_text = sizeof TEXT - 1, n_ruler = sizeof RULER - 1;
    kve_task_spec spec = {0};
    if (strncmp(name, TEXT, n_text) == 0) {
        if (!name[n_text])
            return kve_fail(KVE_ERR_USAGE, "task '%s' names no file; write text:FILE", name);
        *out = (kve_task_spec){.family = KVE_TASK_TEXT, .path = name + n_text};
        return KVE_OK;
    }
    size_t head = strcspn(name, "/");
    if (head == n_ruler && memcmp(name, RULER, n_ruler) == 0) {
        spec.family = KVE_TASK_ROWS;
    } else if (head > n_ruler && memcmp(name, RULER, n_ruler) == 0 && (name[n_ruler] == '-' || name[n_ruler] == '_')) {
        spec.family = KVE_TASK_RULER;
        if (!parse_length(name + n_ruler + 1, head - n_ruler - 1, &spec.length_tok))
            return kve_fail(KVE_ERR_USAGE, "task '%s': '%.*s' is no length; write ruler-4k, or the tokens: ruler-4096",
                            name, (int)(head - n_ruler - 1), name + n_ruler + 1);
        kve_status st = kve_ruler_check_length(spec.length_tok);
        if (st != KVE_OK)
            return kve_fail_context(st, "task '%s'", name);
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

static kve_status open_all(const char *name, const kve_task_spec *spec, const kve_task_options *o,
                           kve_dataset_list *out)
{
    if (spec->family == KVE_TASK_TEXT)
        return open_text(spec, o, out);
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
