/* MMLU: a question, four choices, and a subject, by which results are weighted. Reads Hugging Face's rows (question,
 * subject, choices, answer) and the original headerless CSV, one file per subject, which names the subject. */
#include "datasets/items.h"
#include "host/base/file.h"

#include <string.h>

enum { N_CHOICES = 4 };
static const char *const g_columns[] = {"question", "A", "B", "C", "D", "answer"};

static bool mmlu_knows(const cJSON *row)
{
    return kve_json_get(row, "question") && kve_json_get(row, "subject") && cJSON_IsArray(kve_json_get(row, "choices"));
}

static bool mmlu_knows_csv(const cJSON *row)
{
    const char *answer = cJSON_GetStringValue(kve_json_get(row, "answer"));
    return answer && answer[0] >= 'A' && answer[0] < 'A' + N_CHOICES && !answer[1];
}

/* "anatomy_test.csv" is of subject anatomy. */
static kve_status subject_of_file(const kve_place *at, kve_arena *arena, const char **out)
{
    static const char *const TAILS[] = {"_test", "_dev", "_val", "_train"};
    const char *base = kve_path_base(at->path), *dot = strrchr(base, '.');
    size_t len = dot ? (size_t)(dot - base) : strlen(base);
    for (size_t i = 0; i < sizeof TAILS / sizeof *TAILS; i++) {
        size_t tail = strlen(TAILS[i]);
        if (len > tail && memcmp(base + len - tail, TAILS[i], tail) == 0) {
            len -= tail;
            break;
        }
    }
    return kve_item_text(arena, out, "%.*s", (int)len, base);
}

static kve_status csv_choices(const cJSON *row, const kve_place *at, kve_arena *arena, kve_item *out)
{
    const char **texts = NULL;
    KVE_TRY(kve_arena_alloc(arena, N_CHOICES, sizeof *texts, &texts));
    for (size_t i = 0; i < N_CHOICES; i++)
        KVE_TRY(kve_field_text(row, g_columns[1 + i], at, arena, &texts[i]));
    out->choices = texts;
    out->n_choices = N_CHOICES;
    return subject_of_file(at, arena, &out->subject);
}

/* The header speaks of "high school chemistry". */
static kve_status make_header(kve_arena *arena, kve_item *out)
{
    char *spoken = NULL;
    KVE_TRY(kve_arena_strndup(arena, out->subject, strlen(out->subject), &spoken));
    for (char *c = spoken; *c; c++)
        *c = *c == '_' ? ' ' : *c;
    return kve_item_text(arena, &out->header,
                         "The following are multiple choice questions (with answers) about %s.\n\n", spoken);
}

static kve_status mmlu_read(const cJSON *row, const kve_place *at, kve_arena *arena, kve_item *out)
{
    static const char *const LETTERS[] = {"A", "B", "C", "D"};
    const char *question = NULL;
    out->long_field = "question";
    KVE_TRY(kve_field_text(row, "question", at, arena, &question));
    if (kve_json_get(row, "choices")) {
        KVE_TRY(kve_field_texts(row, "choices", at, N_CHOICES, N_CHOICES, arena, &out->choices, &out->n_choices));
        KVE_TRY(kve_field_text(row, "subject", at, arena, &out->subject));
    } else {
        KVE_TRY(csv_choices(row, at, arena, out));
    }
    KVE_TRY(kve_item_label(row, "answer", at, N_CHOICES, &out->gold));
    KVE_TRY(make_header(arena, out));
    question += strspn(question, " \t\r\n\f\v");
    size_t len = strlen(question);
    while (strchr(" \t\r\n\f\v", question[len - 1]))
        len--;
    const char *const *c = out->choices;
    out->answer_prefix = "\nAnswer:";
    out->choices = LETTERS;
    return kve_item_text(arena, &out->question, "%.*s\nA. %s\nB. %s\nC. %s\nD. %s", (int)len, question, c[0], c[1],
                         c[2], c[3]);
}

const kve_item_task kve_mmlu = {
    .format = {.task = "mmlu",
               .wanted =
                   "rows with question, subject, choices and answer, or CSV of question, four choices and a letter",
               .knows = mmlu_knows,
               .columns = g_columns,
               .n_columns = sizeof g_columns / sizeof *g_columns,
               .knows_csv = mmlu_knows_csv},
    .version = "mmlu-1",
    .rank = {[KVE_SPLIT_TEST] = 0,
             [KVE_SPLIT_OTHER] = 1,
             [KVE_SPLIT_VALIDATION] = 2,
             [KVE_SPLIT_TRAIN] = 3,
             [KVE_SPLIT_DEV] = KVE_RANK_NEVER},
    .shot_rank = {[KVE_SPLIT_DEV] = 0,
                  [KVE_SPLIT_OTHER] = KVE_RANK_NEVER,
                  [KVE_SPLIT_TRAIN] = KVE_RANK_NEVER,
                  [KVE_SPLIT_VALIDATION] = KVE_RANK_NEVER,
                  [KVE_SPLIT_TEST] = KVE_RANK_NEVER},
    .shots = 5,
    .by_subject = true,
    .metric = KVE_METRIC_ACC,
    .plain = true,
    .question_place = KVE_QUESTION_IN,
    .ask_version = "mmlu-generate-1",
    .ask_for = "Answer with the letter of the right choice.",
    .read = mmlu_read,
};
