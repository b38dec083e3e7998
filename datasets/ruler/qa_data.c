/* Reads SQuAD's and HotpotQA's JSON into questions and a pool of documents without repeats. Every fault is reported
 * with the file, the place in it and the field. Knows nothing of lengths and prompts. */
#include "datasets/ruler/ruler.h"
#include "host/base/file.h"
#include "host/base/json.h"

#include <stdlib.h>
#include <string.h>

enum { SQUAD = 1, HOTPOT = 2 };

/* A file being read. `place` is "FILE: data[3].paragraphs[0]" and so on, for messages. */
typedef struct reader {
    const char *path;
    kve_arena *arena;
    kve_qa *qa;
    kve_qa_question *questions; /* qa->questions, while it is written */
    uint32_t *scratch;          /* document numbers of one article or question */
    kve_str place, text;
} reader;

const char *kve_qa_wanted(int variant)
{
    return variant == SQUAD ? "SQuAD's JSON file, or a folder that holds, six levels deep, squad.json, dev-v2.0.json "
                              "or dev-v1.1.json"
                            : "HotpotQA's JSON file, or a folder that holds, six levels deep, hotpotqa.json or "
                              "hotpot_dev_distractor_v1.json";
}

/* SQuAD is one object, HotpotQA one list: enough to tell them apart before the whole file is read. */
static kve_status has_variant(int variant, const char *path, bool *yes)
{
    kve_map map = {0};
    KVE_TRY(kve_map_open(path, &map));
    size_t i = 0;
    while (i < map.size && memchr(" \t\r\n", map.data[i], 4))
        i++;
    *yes = i < map.size && map.data[i] == (variant == SQUAD ? '{' : '[');
    kve_map_close(&map);
    return KVE_OK;
}

/* In dir or below it, by name; *file stays empty where there is none. */
static kve_status locate_below(int variant, const char *dir, int depth, kve_str *file)
{
    enum { MAX_DEPTH = 6 };
    static const char *const NAMES[][3] = {
        [SQUAD] = {"squad.json", "dev-v2.0.json", "dev-v1.1.json"},
        [HOTPOT] = {"hotpotqa.json", "hotpot_dev_distractor_v1.json", NULL},
    };
    for (size_t i = 0; i < 3 && NAMES[variant][i]; i++) {
        KVE_TRY(kve_path_join(file, dir, NAMES[variant][i]));
        if (kve_path_exists(file->p))
            return KVE_OK;
    }
    kve_arena arena = {0};
    kve_str below = {0};
    char **names = NULL;
    size_t n = 0;
    kve_str_clear(file);
    kve_status st = depth < MAX_DEPTH ? kve_dir_list(dir, "", &arena, &names, &n) : KVE_OK;
    for (size_t i = 0; i < n && st == KVE_OK && !file->len; i++) {
        st = kve_path_join(&below, dir, names[i]);
        if (st == KVE_OK && kve_path_is_dir(below.p))
            st = locate_below(variant, below.p, depth + 1, file);
    }
    kve_str_free(&below);
    kve_arena_free(&arena);
    return st;
}

kve_status kve_qa_locate(int variant, const char *path, kve_str *file)
{
    kve_str_clear(file);
    if (!kve_path_is_dir(path)) {
        bool yes = false;
        KVE_TRY(has_variant(variant, path, &yes));
        if (yes)
            return kve_str_puts(file, path);
    } else {
        KVE_TRY(locate_below(variant, path, 0, file));
        if (file->len)
            return KVE_OK;
    }
    kve_fail(KVE_ERR_FILE, "%s: no questions for qa_%d there; it needs %s", path, variant, kve_qa_wanted(variant));
    return KVE_OK;
}

/* --- Documents: collected, then sorted without repeats, then found by number. */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void sort_documents(kve_qa *qa)
{
    size_t n = 0;
    qsort(qa->docs, qa->n_docs, sizeof *qa->docs, by_text);
    for (size_t i = 0; i < qa->n_docs; i++)
        if (n == 0 || strcmp(qa->docs[n - 1], qa->docs[i]) != 0)
            qa->docs[n++] = qa->docs[i];
    qa->n_docs = n;
}

static kve_status find_document(const reader *r, const char *text, uint32_t *number)
{
    char *const *hit = bsearch(&text, r->qa->docs, r->qa->n_docs, sizeof *r->qa->docs, by_text);
    if (!hit)
        return kve_fail(KVE_ERR_INTERNAL, "%s: a document is missing from its own list", r->place.p);
    *number = (uint32_t)(hit - r->qa->docs);
    return KVE_OK;
}

static kve_status keep_numbers(const reader *r, size_t n, const uint32_t **out)
{
    uint32_t *copy = NULL;
    KVE_TRY(kve_arena_alloc(r->arena, n, sizeof *copy, &copy));
    if (n)
        memcpy(copy, r->scratch, n * sizeof *copy);
    *out = copy;
    return KVE_OK;
}

/* --- Fields, with the place in the message. */

static kve_status filled_text(const reader *r, const cJSON *obj, const char *key, const char **out)
{
    KVE_TRY(kve_json_str(obj, key, r->place.p, out));
    return **out ? KVE_OK : kve_fail(KVE_ERR_FILE, "%s: field '%s' is empty", r->place.p, key);
}

static kve_status keep_text(const reader *r, const char *text, const char **out)
{
    char *copy = NULL;
    KVE_TRY(kve_arena_strndup(r->arena, text, strlen(text), &copy));
    *out = copy;
    return KVE_OK;
}

static kve_status list_of(const reader *r, const cJSON *obj, const char *key, const cJSON **out)
{
    *out = kve_json_get(obj, key);
    return cJSON_IsArray(*out) ? KVE_OK : kve_fail(KVE_ERR_FILE, "%s: field '%s' is not a list", r->place.p, key);
}

/* Appends ".key[i]" to the first `len` characters of the place. */
static kve_status enter(reader *r, size_t len, const char *key, size_t i, const cJSON *item)
{
    r->place.len = len;
    KVE_TRY(kve_str_printf(&r->place, "%s[%zu]", key, i));
    return cJSON_IsObject(item) ? KVE_OK : kve_fail(KVE_ERR_FILE, "%s: is not an object", r->place.p);
}

/* --- SQuAD: data[] of paragraphs[] with a context and qas[]. */

static kve_status squad_answers(reader *r, const cJSON *qas, kve_qa_question *q)
{
    const cJSON *list = NULL, *a;
    const char **texts = NULL, *text = NULL;
    size_t len = r->place.len, i = 0;
    KVE_TRY(list_of(r, qas, "answers", &list));
    if (!list->child)
        return kve_fail(KVE_ERR_FILE, "%s: field 'answers' is empty", r->place.p);
    KVE_TRY(kve_arena_alloc(r->arena, (size_t)cJSON_GetArraySize(list), sizeof *texts, &texts));
    cJSON_ArrayForEach(a, list)
    {
        bool known = false;
        KVE_TRY(enter(r, len, ".answers", i++, a));
        KVE_TRY(filled_text(r, a, "text", &text));
        for (size_t k = 0; k < q->n_answers && !known; k++)
            known = strcmp(texts[k], text) == 0;
        if (!known)
            KVE_TRY(keep_text(r, text, &texts[q->n_answers++]));
    }
    q->answers = texts;
    return KVE_OK;
}

static kve_status squad_paragraph(reader *r, const cJSON *p, kve_qa_question frame)
{
    const cJSON *list = NULL, *qas;
    const char *text = NULL;
    size_t len = r->place.len, i = 0;
    KVE_TRY(kve_json_str(p, "context", r->place.p, &text));
    KVE_TRY(find_document(r, text, &r->scratch[0]));
    KVE_TRY(keep_numbers(r, 1, &frame.golden));
    frame.n_golden = 1;
    KVE_TRY(list_of(r, p, "qas", &list));
    cJSON_ArrayForEach(qas, list)
    {
        bool impossible = false;
        KVE_TRY(enter(r, len, ".qas", i++, qas));
        KVE_TRY(kve_json_bool_or(qas, "is_impossible", r->place.p, false, &impossible));
        if (impossible)
            continue;
        kve_qa_question *q = &r->questions[r->qa->n_questions];
        *q = frame;
        KVE_TRY(filled_text(r, qas, "question", &text));
        KVE_TRY(keep_text(r, text, &q->text));
        KVE_TRY(squad_answers(r, qas, q));
        r->qa->n_questions++;
    }
    return KVE_OK;
}

/* First pass (collect = true): the documents. Second: the questions. */
static kve_status squad_article(reader *r, const cJSON *article, bool collect, size_t *n_questions)
{
    const cJSON *list = NULL, *p;
    const char *text = NULL;
    kve_qa_question frame = {0};
    size_t len = r->place.len, i = 0;
    KVE_TRY(list_of(r, article, "paragraphs", &list));
    cJSON_ArrayForEach(p, list)
    {
        KVE_TRY(enter(r, len, ".paragraphs", i, p));
        KVE_TRY(filled_text(r, p, "context", &text));
        if (collect) {
            KVE_TRY(kve_arena_strndup(r->arena, text, strlen(text), &r->qa->docs[r->qa->n_docs++]));
            *n_questions += (size_t)cJSON_GetArraySize(kve_json_get(p, "qas"));
        } else {
            KVE_TRY(find_document(r, text, &r->scratch[i]));
        }
        i++;
    }
    if (collect)
        return KVE_OK;
    KVE_TRY(keep_numbers(r, i, &frame.near));
    frame.n_near = i;
    i = 0;
    cJSON_ArrayForEach(p, list)
    {
        KVE_TRY(enter(r, len, ".paragraphs", i++, p));
        KVE_TRY(squad_paragraph(r, p, frame));
    }
    return KVE_OK;
}

static kve_status read_squad(reader *r, const cJSON *root)
{
    const cJSON *data = NULL, *article;
    size_t n_paragraphs = 0, n_questions = 0, len = r->place.len;
    KVE_TRY(list_of(r, root, "data", &data));
    cJSON_ArrayForEach(article, data) n_paragraphs += (size_t)cJSON_GetArraySize(kve_json_get(article, "paragraphs"));
    KVE_TRY(kve_arena_alloc(r->arena, n_paragraphs, sizeof *r->qa->docs, &r->qa->docs));
    KVE_TRY(kve_alloc(n_paragraphs + 1, sizeof *r->scratch, &r->scratch));
    for (int pass = 0; pass < 2; pass++) {
        size_t i = 0;
        cJSON_ArrayForEach(article, data)
        {
            KVE_TRY(enter(r, len, " data", i++, article));
            KVE_TRY(squad_article(r, article, pass == 0, &n_questions));
        }
        if (pass == 0) {
            sort_documents(r->qa);
            KVE_TRY(kve_arena_alloc(r->arena, n_questions, sizeof *r->questions, &r->questions));
        }
    }
    return KVE_OK;
}

/* --- HotpotQA: a list of questions, each with its own ten paragraphs [title, [sentence, ...]]. */

/* "title\nsentences" of one paragraph into r->text. */
static kve_status hotpot_text(reader *r, const cJSON *pair, size_t i)
{
    const cJSON *title = cJSON_GetArrayItem(pair, 0), *sentences = cJSON_GetArrayItem(pair, 1), *s;
    if (!cJSON_IsArray(pair) || cJSON_GetArraySize(pair) != 2 || !cJSON_IsString(title) || !cJSON_IsArray(sentences))
        return kve_fail(KVE_ERR_FILE, "%s: field 'context'[%zu] is not [title, [sentence, ...]]", r->place.p, i);
    kve_str_clear(&r->text);
    KVE_TRY(kve_str_printf(&r->text, "%s\n", title->valuestring));
    cJSON_ArrayForEach(s, sentences)
    {
        if (!cJSON_IsString(s))
            return kve_fail(KVE_ERR_FILE, "%s: field 'context'[%zu] has a sentence that is no text", r->place.p, i);
        KVE_TRY(kve_str_puts(&r->text, s->valuestring));
    }
    return KVE_OK;
}

static kve_status hotpot_documents(reader *r, const cJSON *item)
{
    const cJSON *context = NULL, *pair;
    size_t i = 0;
    KVE_TRY(list_of(r, item, "context", &context));
    cJSON_ArrayForEach(pair, context)
    {
        KVE_TRY(hotpot_text(r, pair, i++));
        KVE_TRY(kve_arena_strndup(r->arena, r->text.p, r->text.len, &r->qa->docs[r->qa->n_docs++]));
    }
    return KVE_OK;
}

static bool supports(const cJSON *facts, const char *title)
{
    const cJSON *fact;
    cJSON_ArrayForEach(fact, facts)
    {
        const cJSON *name = cJSON_GetArrayItem(fact, 0);
        if (cJSON_IsString(name) && strcmp(name->valuestring, title) == 0)
            return true;
    }
    return false;
}

/* Golden are the paragraphs that the supporting facts name; without such facts, all of the question's own. */
static kve_status hotpot_question(reader *r, const cJSON *item)
{
    const cJSON *context = NULL, *facts = kve_json_get(item, "supporting_facts"), *pair;
    kve_qa_question *q = &r->questions[r->qa->n_questions];
    const char **answer = NULL, *text = NULL;
    size_t i = 0, n = 0;
    KVE_TRY(filled_text(r, item, "question", &text));
    KVE_TRY(keep_text(r, text, &q->text));
    KVE_TRY(filled_text(r, item, "answer", &text));
    KVE_TRY(kve_arena_alloc(r->arena, 1, sizeof *answer, &answer));
    KVE_TRY(keep_text(r, text, answer));
    q->answers = answer;
    q->n_answers = 1;
    KVE_TRY(list_of(r, item, "context", &context));
    for (int golden = 1; golden >= 0; golden--) {
        n = i = 0;
        cJSON_ArrayForEach(pair, context)
        {
            KVE_TRY(hotpot_text(r, pair, i++));
            if (!golden || !facts || supports(facts, cJSON_GetArrayItem(pair, 0)->valuestring))
                KVE_TRY(find_document(r, r->text.p, &r->scratch[n++]));
        }
        if (golden && n == 0)
            return kve_fail(KVE_ERR_FILE, "%s: field 'supporting_facts' names no title of 'context'", r->place.p);
        KVE_TRY(keep_numbers(r, n, golden ? &q->golden : &q->near));
        *(golden ? &q->n_golden : &q->n_near) = n;
    }
    r->qa->n_questions++;
    return KVE_OK;
}

static kve_status read_hotpot(reader *r, const cJSON *root)
{
    const cJSON *item;
    size_t n = 0, longest = 0, i = 0, len = r->place.len;
    cJSON_ArrayForEach(item, root)
    {
        size_t own = (size_t)cJSON_GetArraySize(kve_json_get(item, "context"));
        n += own;
        longest = own > longest ? own : longest;
    }
    KVE_TRY(kve_arena_alloc(r->arena, n, sizeof *r->qa->docs, &r->qa->docs));
    KVE_TRY(kve_arena_alloc(r->arena, (size_t)cJSON_GetArraySize(root), sizeof *r->questions, &r->questions));
    KVE_TRY(kve_alloc(longest + 1, sizeof *r->scratch, &r->scratch));
    cJSON_ArrayForEach(item, root)
    {
        KVE_TRY(enter(r, len, " ", i++, item));
        KVE_TRY(hotpot_documents(r, item));
    }
    sort_documents(r->qa);
    i = 0;
    cJSON_ArrayForEach(item, root)
    {
        KVE_TRY(enter(r, len, " ", i++, item));
        KVE_TRY(hotpot_question(r, item));
    }
    return KVE_OK;
}

static kve_status read_file(reader *r, int variant)
{
    cJSON *root = NULL;
    KVE_TRY(kve_str_printf(&r->place, "%s:", r->path));
    KVE_TRY(kve_arena_alloc(r->arena, 1, sizeof *r->qa, &r->qa));
    KVE_TRY(kve_json_parse_file(r->path, &root));
    kve_status st = variant == SQUAD ? read_squad(r, root) : read_hotpot(r, root);
    cJSON_Delete(root);
    if (st == KVE_OK && r->qa->n_questions == 0)
        st = kve_fail(KVE_ERR_FILE, "%s: has no question with an answer", r->path);
    r->qa->questions = r->questions;
    return st;
}

kve_status kve_qa_open(int variant, const char *path, kve_arena *arena, kve_qa **out)
{
    kve_str file = {0};
    kve_status st = kve_qa_locate(variant, path, &file);
    if (st == KVE_OK && file.len == 0)
        st = KVE_ERR_FILE; /* kve_qa_locate has said why */
    if (st == KVE_OK) {
        reader r = {.path = file.p, .arena = arena};
        st = read_file(&r, variant);
        free(r.scratch);
        kve_str_free(&r.place);
        kve_str_free(&r.text);
        if (st == KVE_OK)
            *out = r.qa;
    }
    kve_str_free(&file);
    return st;
}
