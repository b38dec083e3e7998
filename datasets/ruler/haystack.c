/* What needles lie in: a round of short noise sentences, and the cutting of an essay (essay.c, or a file) into
 * sentences. Knows nothing of tasks and lengths. */
#include "datasets/ruler/ruler.h"
#include "host/base/file.h"
#include "host/base/json.h"

#include <stdlib.h>
#include <string.h>

const char *kve_noise_sentence(size_t i)
{
    static const char *const ROUND[] = {
        "The kettle is warm.",
        "The window is open.",
        "The lane is long and dry.",
        "Somebody walks out and somebody walks home again.",
    };
    return ROUND[i % (sizeof ROUND / sizeof *ROUND)];
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool ends_sentence(const char *text, size_t first, size_t last)
{
    while (last > first && (text[last] == '"' || text[last] == '\'' || text[last] == ')' || text[last] == ']'))
        last--;
    return text[last] == '.' || text[last] == '!' || text[last] == '?';
}

/* Finds the next sentence from *pos: words up to one that ends with a stop, up to an empty line, or 60 words (a text
 * without stops must still be cut somewhere). False at the end of the text. */
static bool next_sentence(const char *text, size_t len, size_t *pos, size_t *begin, size_t *end)
{
    enum { MAX_WORDS = 60 };
    size_t i = *pos;
    while (i < len && is_space(text[i]))
        i++;
    *begin = *end = i;
    for (int words = 0; i < len && words < MAX_WORDS; words++) {
        size_t first = i;
        while (i < len && !is_space(text[i]))
            i++;
        *end = i;
        if (ends_sentence(text, first, i - 1))
            break;
        int newlines = 0;
        for (; i < len && is_space(text[i]); i++)
            newlines += text[i] == '\n';
        if (newlines > 1)
            break;
    }
    *pos = i;
    return *end > *begin;
}

/* A copy with every run of white space made one space. */
static kve_status copy_squeezed(const char *s, size_t len, kve_arena *arena, char **out)
{
    size_t n = 0;
    KVE_TRY(kve_arena_strndup(arena, s, len, out));
    for (size_t i = 0; i < len; i++) {
        if (!is_space(s[i]))
            (*out)[n++] = s[i];
        else if (n && (*out)[n - 1] != ' ')
            (*out)[n++] = ' ';
    }
    (*out)[n] = '\0';
    return KVE_OK;
}

kve_status kve_sentences_split(const char *text, size_t len, kve_arena *arena, kve_sentences *out)
{
    size_t n = 0, begin, end;
    for (size_t pos = 0; next_sentence(text, len, &pos, &begin, &end);)
        n++;
    KVE_TRY(kve_arena_alloc(arena, n, sizeof *out->items, &out->items));
    out->n = 0;
    for (size_t pos = 0; next_sentence(text, len, &pos, &begin, &end);)
        KVE_TRY(copy_squeezed(text + begin, end - begin, arena, &out->items[out->n++]));
    return KVE_OK;
}

static kve_status split_plain(const char *path, const char *text, size_t len, kve_arena *arena, kve_sentences *out)
{
    size_t bad = 0;
    if (!kve_utf8_valid(text, len, &bad))
        return kve_fail(KVE_ERR_FILE, "%s: byte %zu is not UTF-8; a haystack must be plain text", path, bad);
    if (memchr(text, '\0', len))
        return kve_fail(KVE_ERR_FILE, "%s: has a NUL byte; a haystack must be plain text", path);
    return kve_sentences_split(text, len, arena, out);
}

static kve_status split_json(const char *path, const char *text, size_t len, kve_arena *arena, kve_sentences *out)
{
    cJSON *root = NULL;
    const char *essay = NULL;
    KVE_TRY(kve_json_parse(text, len, path, &root));
    kve_status st = kve_json_str(root, "text", path, &essay);
    if (st == KVE_OK)
        st = kve_sentences_split(essay, strlen(essay), arena, out);
    cJSON_Delete(root);
    return st;
}

kve_status kve_sentences_load(const char *path, kve_arena *arena, kve_sentences *out)
{
    char *text = NULL;
    size_t len = 0, n = path ? strlen(path) : 0;
    if (!path)
        return kve_sentences_split(kve_essay, strlen(kve_essay), arena, out);
    bool json = n >= 5 && strcmp(path + n - 5, ".json") == 0;
    KVE_TRY(kve_file_read(path, &text, &len));
    kve_status st = json ? split_json(path, text, len, arena, out) : split_plain(path, text, len, arena, out);
    free(text);
    if (st == KVE_OK && out->n == 0)
        st = kve_fail(KVE_ERR_FILE, "%s: has no words; a haystack needs text", path);
    return st;
}
