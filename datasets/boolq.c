/* BoolQ: a passage, a question about it, and yes or no. The passage alone is prefilled. Reads Hugging Face's rows
 * (question, answer, passage), the original ones (also a title) and SuperGLUE's (question, passage, idx, label). */
#include "datasets/items.h"

static bool boolq_knows(const cJSON *row)
{
    return kve_json_get(row, "passage") && kve_json_get(row, "question");
}

/* true or false in `answer`; 0 or 1, true or false in `label`. *yes: 0 or 1. */
static kve_status boolq_answer(const cJSON *row, const kve_place *at, size_t *yes)
{
    bool truth = false;
    const char *key = !kve_json_get(row, "answer") && kve_json_get(row, "label") ? "label" : "answer";
    if (cJSON_IsNumber(kve_json_get(row, key)))
        return kve_item_label(row, key, at, 2, yes);
    KVE_TRY(kve_json_bool(row, key, at->name, &truth));
    *yes = truth;
    return KVE_OK;
}

static kve_status boolq_read(const cJSON *row, const kve_place *at, kve_arena *arena, kve_item *out)
{
    static const char *const CHOICES[] = {"no", "yes"};
    const char *question = NULL;
    int64_t idx = -1;
    out->long_field = "passage";
    KVE_TRY(kve_field_text(row, "passage", at, arena, &out->context));
    KVE_TRY(kve_field_text(row, "question", at, arena, &question));
    KVE_TRY(boolq_answer(row, at, &out->gold));
    KVE_TRY(kve_json_int_or(row, "idx", at->name, -1, &idx));
    if (idx >= 0)
        KVE_TRY(kve_item_text(arena, &out->id, "idx-%lld", (long long)idx));
    out->choices = CHOICES;
    out->n_choices = 2;
    out->answer_prefix = "\nAnswer:";
    return kve_item_text(arena, &out->question, "\nQuestion: %s?", question);
}

const kve_item_task kve_boolq = {
    .format = {.task = "boolq", .wanted = "rows with question, passage and answer", .knows = boolq_knows},
    .version = "boolq-1",
    .rank = {[KVE_SPLIT_VALIDATION] = 0,
             [KVE_SPLIT_DEV] = 0,
             [KVE_SPLIT_OTHER] = 1,
             [KVE_SPLIT_TEST] = 2,
             [KVE_SPLIT_TRAIN] = 3},
    .shot_rank = {[KVE_SPLIT_TRAIN] = 0,
                  [KVE_SPLIT_OTHER] = 1,
                  [KVE_SPLIT_DEV] = 2,
                  [KVE_SPLIT_VALIDATION] = 2,
                  [KVE_SPLIT_TEST] = 3},
    .metric = KVE_METRIC_ACC,
    .plain = true,
    .question_place = KVE_QUESTION_AFTER,
    .ask_version = "boolq-generate-1",
    .ask_for = "Answer with yes or no.",
    .read = boolq_read,
};
