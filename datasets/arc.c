/* ARC-Challenge: a question and 3 to 5 choices. Reads Hugging Face's rows (choices.text, choices.label) and AI2's own
 * (question.stem, question.choices); labels are letters or digits, whichever the row's choices carry. */
#include "datasets/items.h"

#include <string.h>

enum { LEAST = 2, MOST = 26 };

static bool arc_knows(const cJSON *row)
{
    const cJSON *choices = kve_json_get(row, "choices"), *question = kve_json_get(row, "question");
    return kve_json_get(row, "answerKey") && (cJSON_IsObject(choices) || cJSON_IsObject(question));
}

typedef struct labels {
    const char *const *text;
    size_t n;
} labels;

/* choices.text and choices.label. */
static kve_status read_columns(const cJSON *row, const kve_place *at, kve_arena *arena, kve_item *out, labels *l)
{
    const cJSON *choices = kve_json_get(row, "choices");
    if (!cJSON_IsObject(choices))
        return kve_fail(KVE_ERR_FILE, "%s: field 'choices' is missing, or no object with text and label", at->name);
    KVE_TRY(kve_field_texts(choices, "text", at, LEAST, MOST, arena, &out->choices, &out->n_choices));
    KVE_TRY(kve_field_texts(choices, "label", at, LEAST, MOST, arena, &l->text, &l->n));
    if (l->n != out->n_choices)
        return kve_fail(KVE_ERR_FILE, "%s: field 'choices' has %zu texts and %zu labels", at->name, out->n_choices,
                        l->n);
    return KVE_OK;
}

/* A list of {text, label}. */
static kve_status read_pairs(const cJSON *question, const kve_place *at, kve_arena *arena, kve_item *out, labels *l)
{
    const cJSON *list = kve_json_get(question, "choices"), *item;
    const char **texts = NULL, **names = NULL;
    size_t n = cJSON_IsArray(list) ? (size_t)cJSON_GetArraySize(list) : 0, i = 0;
    if (n < LEAST || n > MOST)
        return kve_fail(KVE_ERR_FILE, "%s: field 'choices' is no list of %d to %d choices", at->name, LEAST, MOST);
    KVE_TRY(kve_arena_alloc(arena, n, sizeof *texts, &texts));
    KVE_TRY(kve_arena_alloc(arena, n, sizeof *names, &names));
    for (item = list->child; item; item = item->next, i++) {
        KVE_TRY(kve_field_text(item, "text", at, arena, &texts[i]));
        KVE_TRY(kve_field_text(item, "label", at, arena, &names[i]));
    }
    out->choices = texts;
    out->n_choices = n;
    *l = (labels){names, n};
    return KVE_OK;
}

/* Where `key` is among the labels, which must all differ. */
static kve_status find_key(const labels *l, const char *key, const kve_place *at, size_t *gold)
{
    size_t found = l->n;
    for (size_t i = 0; i < l->n; i++) {
        for (size_t j = 0; j < i; j++)
            if (strcmp(l->text[i], l->text[j]) == 0)
                return kve_fail(KVE_ERR_FILE, "%s: field 'label': '%s' stands twice", at->name, l->text[i]);
        found = strcmp(l->text[i], key) == 0 ? i : found;
    }
    if (found == l->n)
        return kve_fail(KVE_ERR_FILE, "%s: field 'answerKey' is '%s', none of the %zu labels ('%s' to '%s')", at->name,
                        key, l->n, l->text[0], l->text[l->n - 1]);
    *gold = found;
    return KVE_OK;
}

static kve_status arc_read(const cJSON *row, const kve_place *at, kve_arena *arena, kve_item *out)
{
    const cJSON *own = kve_json_get(row, "question");
    const char *question = NULL, *key = NULL;
    labels l = {0};
    out->long_field = "question";
    KVE_TRY(kve_field_text(row, "id", at, arena, &out->id));
    if (cJSON_IsObject(own)) {
        KVE_TRY(kve_field_text(own, "stem", at, arena, &question));
        KVE_TRY(read_pairs(own, at, arena, out, &l));
    } else {
        KVE_TRY(kve_field_text(row, "question", at, arena, &question));
        KVE_TRY(read_columns(row, at, arena, out, &l));
    }
    KVE_TRY(kve_field_text(row, "answerKey", at, arena, &key));
    KVE_TRY(find_key(&l, key, at, &out->gold));
    out->answer_prefix = "\nAnswer:";
    return kve_item_text(arena, &out->question, "Question: %s", question);
}

const kve_item_task kve_arc = {
    .format = {.task = "arc-challenge", .wanted = "rows with id, question, choices and answerKey", .knows = arc_knows},
    .version = "arc-1",
    .rank = {[KVE_SPLIT_TEST] = 0,
             [KVE_SPLIT_VALIDATION] = 1,
             [KVE_SPLIT_DEV] = 1,
             [KVE_SPLIT_OTHER] = 2,
             [KVE_SPLIT_TRAIN] = 3},
    .shot_rank = {[KVE_SPLIT_TRAIN] = 0,
                  [KVE_SPLIT_OTHER] = 1,
                  [KVE_SPLIT_DEV] = 2,
                  [KVE_SPLIT_VALIDATION] = 2,
                  [KVE_SPLIT_TEST] = 3},
    .metric = KVE_METRIC_ACC_NORM,
    .plain = true,
    .question_place = KVE_QUESTION_IN,
    .ask_version = "arc-generate-1",
    .ask_list = "",
    .ask_for = "Answer with the letter of the right choice.",
    .read = arc_read,
};
