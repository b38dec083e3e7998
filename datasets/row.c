/* One ready-made row into a sample: RULER's own layout, or context, question and answer in fields of their own.
 * Contract: row.h. */
#include "datasets/row.h"
#include "host/base/json.h"

#include <string.h>

enum { MAX_NEW_TOKENS = 4096 };

typedef struct parts {
    size_t question, prefix; /* where they begin; the context begins at 0 */
} parts;

static const char *last_of(const char *text, const char *needle)
{
    const char *hit = NULL, *at = text;
    while ((at = strstr(at, needle)))
        hit = at++;
    return hit;
}

/* RULER's input is context, question and answer prefix in one text. Its questions begin on a line of their own and with
 * words that never change, so the last such line is the question. False if there is none. */
static bool split_input(const char *input, bool niah, parts *p)
{
    const char *question = last_of(input, niah ? "\nWhat is the special magic " : "\nQuestion: ");
    const char *all = niah ? last_of(input, "\nWhat are all the special magic ") : NULL;
    if (all && (!question || all > question))
        question = all;
    if (!question)
        return false;
    question++; /* the line break stays with the context */
    const char *prefix = last_of(question, niah ? "The special magic " : "Answer:");
    if (prefix && prefix > question && prefix[-1] == ' ')
        prefix--;
    p->question = (size_t)(question - input);
    p->prefix = prefix ? (size_t)(prefix - input) : strlen(input);
    return true;
}

static kve_status keep(kve_sample *s, const char *text, size_t len, const char **out)
{
    char *copy = NULL;
    KVE_TRY(kve_arena_strndup(&s->arena, text, len, &copy));
    *out = copy;
    return KVE_OK;
}

static kve_status filled_text(const cJSON *obj, const char *key, const char *name, const char **out)
{
    KVE_TRY(kve_json_str(obj, key, name, out));
    return **out ? KVE_OK : kve_fail(KVE_ERR_FILE, "%s: field '%s' is empty", name, key);
}

/* A list of texts, or (single) one text. */
static kve_status read_references(const cJSON *obj, const char *key, const char *name, bool single, kve_sample *s)
{
    const cJSON *list = kve_json_get(obj, key), *item;
    const char **refs = NULL;
    size_t n = single && cJSON_IsString(list) ? 1 : cJSON_IsArray(list) ? (size_t)cJSON_GetArraySize(list) : 0;
    if (!list)
        return kve_fail(KVE_ERR_FILE, "%s: field '%s' is missing", name, key);
    if (n == 0)
        return kve_fail(KVE_ERR_FILE, "%s: field '%s' is no list of texts with one at least", name, key);
    KVE_TRY(kve_arena_alloc(&s->arena, n, sizeof *refs, &refs));
    item = cJSON_IsString(list) ? list : list->child;
    for (size_t i = 0; i < n; i++, item = item->next) {
        if (!cJSON_IsString(item) || !*item->valuestring)
            return kve_fail(KVE_ERR_FILE, "%s: field '%s': item %zu is not a text, or is empty", name, key, i);
        KVE_TRY(keep(s, item->valuestring, strlen(item->valuestring), &refs[i]));
    }
    s->references = refs;
    s->n_references = n;
    return KVE_OK;
}

/* index, input, outputs, length and perhaps answer_prefix */
static kve_status read_ruler(const cJSON *obj, const char *name, const kve_ruler_task *task, kve_sample *s)
{
    const char *input = NULL, *prefix = NULL;
    int64_t length = 0;
    parts p = {0};
    KVE_TRY(filled_text(obj, "input", name, &input));
    KVE_TRY(kve_json_str_or(obj, "answer_prefix", name, NULL, &prefix));
    KVE_TRY(kve_json_int_or(obj, "length", name, 1, &length));
    if (length < 1)
        return kve_fail(KVE_ERR_FILE, "%s: field 'length' is %lld; it must be positive", name, (long long)length);
    KVE_TRY(read_references(obj, "outputs", name, false, s));
    size_t len = strlen(input);
    if (!split_input(input, task->generate == kve_ruler_niah, &p)) {
        p = (parts){len, len};
        s->note = "no question was found in the row's input: all of it is context";
    }
    if (prefix)
        p.prefix = len;
    KVE_TRY(keep(s, input, p.question, &s->context));
    KVE_TRY(keep(s, input + p.question, p.prefix - p.question, &s->question));
    return prefix ? keep(s, prefix, strlen(prefix), &s->answer_prefix)
                  : keep(s, input + p.prefix, len - p.prefix, &s->answer_prefix);
}

/* context, question, answer_prefix, answer and perhaps max_new_tokens */
static kve_status read_parts(const cJSON *obj, const char *name, kve_sample *s)
{
    const char *context = NULL, *question = NULL, *prefix = NULL;
    KVE_TRY(filled_text(obj, "context", name, &context));
    KVE_TRY(filled_text(obj, "question", name, &question));
    KVE_TRY(kve_json_str_or(obj, "answer_prefix", name, "", &prefix));
    KVE_TRY(kve_json_int_or(obj, "max_new_tokens", name, s->max_new_tokens, &s->max_new_tokens));
    if (s->max_new_tokens < 1 || s->max_new_tokens > MAX_NEW_TOKENS)
        return kve_fail(KVE_ERR_FILE, "%s: field 'max_new_tokens' is %lld, outside 1 .. %d", name,
                        (long long)s->max_new_tokens, MAX_NEW_TOKENS);
    KVE_TRY(read_references(obj, "answer", name, true, s));
    KVE_TRY(keep(s, context, strlen(context), &s->context));
    KVE_TRY(keep(s, question, strlen(question), &s->question));
    return keep(s, prefix, strlen(prefix), &s->answer_prefix);
}

static kve_status row_task(const kve_ruler_task *unnamed, const cJSON *obj, const char *name,
                           const kve_ruler_task **task)
{
    const char *text = NULL;
    KVE_TRY(kve_json_str_or(obj, "task", name, NULL, &text));
    if (!text) {
        *task = unnamed;
        return *task ? KVE_OK
                     : kve_fail(KVE_ERR_FILE,
                                "%s: field 'task' is missing and the folder is not named after a task; ask for the "
                                "task by name, as in ruler/niah_single_1",
                                name);
    }
    kve_status st = kve_ruler_resolve(text, task);
    if (st == KVE_OK)
        return st;
    (void)kve_fail_context(st, "%s: field 'task'", name);
    return KVE_ERR_FILE;
}

/* Everything of one parsed row; *r gets its task and index. */
static kve_status read_object(const kve_ruler_task *unnamed, const cJSON *obj, const char *name, kve_row *r,
                              kve_sample *s)
{
    if (!cJSON_IsObject(obj))
        return kve_fail(KVE_ERR_FILE, "%s: the row is not an object", name);
    bool whole = kve_json_get(obj, "input");
    if (!whole && !kve_json_get(obj, "context"))
        return kve_fail(KVE_ERR_FILE, "%s: has neither field 'input' (RULER's rows) nor field 'context'", name);
    KVE_TRY(row_task(unnamed, obj, name, &r->task));
    KVE_TRY(whole ? kve_json_int(obj, "index", name, &r->index) : kve_json_int_or(obj, "index", name, -1, &r->index));
    if (r->index < 0 && (whole || kve_json_get(obj, "index")))
        return kve_fail(KVE_ERR_FILE, "%s: field 'index' is %lld; it must not be negative", name, (long long)r->index);
    s->task = r->task->name;
    s->task_version = KVE_ROWS_VERSION;
    s->max_new_tokens = r->task->max_new_tokens;
    s->metric = r->task->metric;
    KVE_TRY(whole ? read_ruler(obj, name, r->task, s) : read_parts(obj, name, s));
    kve_str id = {0};
    kve_status st = r->index >= 0 ? kve_str_printf(&id, "%s-%lld", s->task, (long long)r->index)
                                  : kve_str_printf(&id, "%s-line%zu", s->task, r->line);
    if (st == KVE_OK)
        st = keep(s, id.p, id.len, &s->id);
    kve_str_free(&id);
    return st;
}

kve_status kve_row_read(const char *text, const char *path, const kve_ruler_task *unnamed, kve_row *r, kve_sample *s)
{
    kve_str name = {0};
    cJSON *obj = NULL;
    KVE_TRY(kve_str_printf(&name, "%s:%zu", path, r->line));
    kve_status st = kve_json_parse(text + r->offset, r->len, name.p, &obj);
    if (st == KVE_OK)
        st = read_object(unnamed, obj, name.p, r, s);
    cJSON_Delete(obj);
    kve_str_free(&name);
    return st;
}
