/* HellaSwag: the begin of a scene and four endings. Reads Hugging Face's rows (label a text) and the original ones
 * (label a number). The texts are cleaned as the log-likelihood task defines it. */
#include "datasets/items.h"

#include <ctype.h>
#include <string.h>

enum { N_ENDINGS = 4 };

static bool hellaswag_knows(const cJSON *row)
{
    return cJSON_IsArray(kve_json_get(row, "endings"));
}

/* "A bracket [and what is in it]" goes, unless a line break stands inside. `text` is changed in place. */
static void drop_brackets(char *text)
{
    char *to = text;
    for (const char *from = text; *from;) {
        const char *close = *from == '[' ? strpbrk(from, "]\n") : NULL;
        if (close && *close == ']')
            from = close + 1;
        else
            *to++ = *from++;
    }
    *to = '\0';
}

static kve_status put_replaced(const char *text, const char *what, const char *with, kve_str *out)
{
    for (const char *hit; (hit = strstr(text, what)); text = hit + strlen(what)) {
        KVE_TRY(kve_str_append(out, text, (size_t)(hit - text)));
        KVE_TRY(kve_str_puts(out, with));
    }
    return kve_str_puts(out, text);
}

/* Trim; " [title]" is a full stop; other brackets go; two spaces become one, once. */
static kve_status clean(const char *text, kve_arena *arena, const char **out)
{
    kve_str titled = {0}, single = {0};
    char *trimmed = NULL;
    text += strspn(text, " \t\r\n\f\v");
    size_t len = strlen(text);
    while (len && strchr(" \t\r\n\f\v", text[len - 1]))
        len--;
    kve_status st = kve_arena_strndup(arena, text, len, &trimmed);
    if (st == KVE_OK)
        st = put_replaced(trimmed, " [title]", ". ", &titled);
    if (st == KVE_OK) {
        drop_brackets(titled.p);
        st = put_replaced(titled.p, "  ", " ", &single);
    }
    if (st == KVE_OK)
        st = kve_item_text(arena, out, "%s", single.p);
    kve_str_free(&titled);
    kve_str_free(&single);
    return st;
}

/* First letter large, the others small; letters of other scripts stay as they are. */
static kve_status capitalise(const char *text, kve_arena *arena, const char **out)
{
    char *copy = NULL;
    KVE_TRY(kve_arena_strndup(arena, text, strlen(text), &copy));
    for (size_t i = 0; copy[i]; i++)
        if ((unsigned char)copy[i] < 0x80)
            copy[i] = (char)(i ? tolower((unsigned char)copy[i]) : toupper((unsigned char)copy[i]));
    *out = copy;
    return KVE_OK;
}

static kve_status clean_endings(const cJSON *row, const kve_place *at, kve_arena *arena, kve_item *out)
{
    const char *const *raw = NULL;
    const char **endings = NULL;
    KVE_TRY(kve_field_texts(row, "endings", at, N_ENDINGS, N_ENDINGS, arena, &raw, &out->n_choices));
    KVE_TRY(kve_arena_alloc(arena, N_ENDINGS, sizeof *endings, &endings));
    for (size_t i = 0; i < N_ENDINGS; i++) {
        KVE_TRY(clean(raw[i], arena, &endings[i]));
        if (kve_is_blank(endings[i]))
            return kve_fail(KVE_ERR_FILE, "%s: field 'endings': item %zu is nothing but brackets", at->name, i);
    }
    out->choices = endings;
    return KVE_OK;
}

static kve_status hellaswag_read(const cJSON *row, const kve_place *at, kve_arena *arena, kve_item *out)
{
    const char *activity = NULL, *a = NULL, *b = NULL, *whole = NULL;
    out->long_field = "ctx_a";
    KVE_TRY(kve_field_text(row, "activity_label", at, arena, &activity));
    KVE_TRY(kve_field_text(row, "ctx_a", at, arena, &a));
    KVE_TRY(kve_json_str(row, "ctx_b", at->name, &b));
    KVE_TRY(capitalise(b, arena, &b));
    KVE_TRY(kve_item_text(arena, &whole, "%s: %s %s", activity, a, b));
    KVE_TRY(clean(whole, arena, &out->context));
    KVE_TRY(clean_endings(row, at, arena, out));
    return kve_item_label(row, "label", at, N_ENDINGS, &out->gold);
}

const kve_item_task kve_hellaswag = {
    .format = {.task = "hellaswag",
               .wanted = "rows with activity_label, ctx_a, ctx_b, endings and label",
               .knows = hellaswag_knows},
    .version = "hellaswag-1",
    .rank = {[KVE_SPLIT_VALIDATION] = 0,
             [KVE_SPLIT_DEV] = 0,
             [KVE_SPLIT_OTHER] = 1,
             [KVE_SPLIT_TEST] = 2,
             [KVE_SPLIT_TRAIN] = 3},
    .shot_rank = {[KVE_SPLIT_TRAIN] = 0,
                  [KVE_SPLIT_OTHER] = 1,
                  [KVE_SPLIT_DEV] = 2,
                  [KVE_SPLIT_VALIDATION] = 2,
                  [KVE_SPLIT_TEST] = KVE_RANK_NEVER},
    .metric = KVE_METRIC_ACC_NORM,
    .plain = true,
    .ask_version = "hellaswag-generate-1",
    .ask_list = "\nHow does it go on?",
    .ask_for = "Answer with the letter of the right choice.",
    .read = hellaswag_read,
};
