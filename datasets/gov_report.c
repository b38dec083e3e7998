/* GovReport: a long report and its summary. The report alone is prefilled; the instruction comes after. Reads
 * LongBench's rows (context, answers) and rows with report and summary. */
#include "datasets/items.h"

#include <ctype.h>
#include <string.h>

enum { MOST_ANSWERS = 64 };

static bool gov_report_knows(const cJSON *row)
{
    const char *set = cJSON_GetStringValue(kve_json_get(row, "dataset"));
    if (kve_json_get(row, "report") && kve_json_get(row, "summary"))
        return true;
    return kve_json_get(row, "context") && kve_json_get(row, "answers") &&
           (!set || strncmp(set, "gov_report", 10) == 0);
}

static size_t count_words(const char *text)
{
    size_t n = 0;
    for (bool inside = false; *text; text++) {
        bool now = isalnum((unsigned char)*text) || (unsigned char)*text >= 0x80;
        n += now && !inside;
        inside = now;
    }
    return n;
}

/* A summary of one word is a damaged row; it would score by luck. */
static kve_status check_summaries(const kve_item *item, const char *key, const kve_place *at)
{
    for (size_t i = 0; i < item->n_references; i++)
        if (count_words(item->references[i]) < 2)
            return kve_fail(KVE_ERR_FILE, "%s: field '%s': item %zu has fewer than 2 words; a summary is due", at->name,
                            key, i);
    return KVE_OK;
}

static kve_status gov_report_read(const cJSON *row, const kve_place *at, kve_arena *arena, kve_item *out)
{
    bool longbench = kve_json_get(row, "context");
    const char *const *references = NULL;
    const char **one = NULL, *key = longbench ? "answers" : "summary", *name = longbench ? "_id" : "id";
    out->long_field = longbench ? "context" : "report";
    KVE_TRY(kve_field_text(row, out->long_field, at, arena, &out->context));
    if (longbench) {
        KVE_TRY(kve_field_texts(row, key, at, 1, MOST_ANSWERS, arena, &references, &out->n_references));
        out->references = references;
    } else {
        KVE_TRY(kve_arena_alloc(arena, 1, sizeof *one, &one));
        KVE_TRY(kve_field_text(row, key, at, arena, one));
        out->references = one;
        out->n_references = 1;
    }
    KVE_TRY(check_summaries(out, key, at));
    if (kve_json_get(row, name) && !cJSON_IsNull(kve_json_get(row, name)))
        KVE_TRY(kve_field_text(row, name, at, arena, &out->id));
    out->question = "\n\nNow, write a one-page summary of the report.\n\nSummary:";
    return KVE_OK;
}

const kve_item_task kve_gov_report = {
    .format = {.task = "gov-report",
               .wanted = "rows with context and answers, or with report and summary",
               .knows = gov_report_knows},
    .version = "gov-report-1",
    .note = "the instruction stands behind the report only, not also in front of it",
    .rank = {[KVE_SPLIT_TEST] = 0,
             [KVE_SPLIT_OTHER] = 1,
             [KVE_SPLIT_VALIDATION] = 2,
             [KVE_SPLIT_DEV] = 2,
             [KVE_SPLIT_TRAIN] = 3},
    .metric = KVE_METRIC_ROUGE_L,
    .question_place = KVE_QUESTION_AFTER,
    .max_new_tokens = 512,
    .read = gov_report_read,
};
