/* Finding files and reading rows. Contract: source.h. */
#include "datasets/source.h"

#include "datasets/csv.h"
#include "host/base/file.h"

#include <ctype.h>
#include <string.h>

enum { MAX_DEPTH = 6, MAX_FILES = 20000, MAX_SNIFF = 1 << 24 };

static const char CONVERT[] = "python3 -c \"import pandas,sys; pandas.read_parquet(sys.argv[1])"
                              ".to_json(sys.argv[2],orient='records',lines=True)\" IN.parquet OUT.jsonl";

/* --- What a file is */

/* Formats that other tools open first. */
typedef enum packing { NOT_PACKED, PARQUET, GZIP } packing;

static packing packing_of(const kve_map *map)
{
    if (map->size >= 4 && memcmp(map->data, "PAR1", 4) == 0)
        return PARQUET;
    return map->size >= 2 && memcmp(map->data, "\x1f\x8b", 2) == 0 ? GZIP : NOT_PACKED;
}

/* The text without a byte order mark. */
static const char *text_of(const kve_map *map, size_t *len)
{
    bool bom = map->size >= 3 && memcmp(map->data, "\xef\xbb\xbf", 3) == 0;
    *len = map->size - (bom ? 3 : 0);
    return (const char *)map->data + (bom ? 3 : 0);
}

/* A CSV record as an object: columns are fields. */
static kve_status object_of(const kve_format *f, const char *const *fields, size_t n, const char *name, cJSON **out)
{
    if (n != f->n_columns)
        return kve_fail(KVE_ERR_FILE, "%s: has %zu columns; %zu are due: %s", name, n, f->n_columns, f->wanted);
    cJSON *obj = cJSON_CreateObject();
    for (size_t i = 0; i < n; i++)
        if (!obj || !cJSON_AddStringToObject(obj, f->columns[i], fields[i])) {
            cJSON_Delete(obj);
            return kve_fail(KVE_ERR_MEMORY, "%s: no memory for a row", name);
        }
    *out = obj;
    return KVE_OK;
}

static bool knows_json(const kve_format *f, const char *text, size_t len)
{
    const char *end = memchr(text, '\n', len);
    cJSON *row = NULL;
    size_t line = end ? (size_t)(end - text) : len;
    if (line > MAX_SNIFF || kve_json_parse(text, line, f->task, &row) != KVE_OK)
        return false;
    bool known = cJSON_IsObject(row) && f->knows(row);
    cJSON_Delete(row);
    return known;
}

static bool knows_csv(const kve_format *f, const char *text, size_t len)
{
    kve_csv csv = {.text = text, .len = len < MAX_SNIFF ? len : MAX_SNIFF, .line = 1};
    kve_arena arena = {0};
    const char *fields[KVE_CSV_MOST];
    cJSON *row = NULL;
    size_t n = 0;
    bool known = kve_csv_next(&csv, f->task, &arena, fields, &n) == KVE_OK &&
                 object_of(f, fields, n, f->task, &row) == KVE_OK && f->knows_csv(row);
    cJSON_Delete(row);
    kve_arena_free(&arena);
    return known;
}

static size_t skip_blank(const char *text, size_t len)
{
    size_t i = 0;
    while (i < len && strchr(" \t\r\n", text[i]) && text[i])
        i++;
    return i;
}

static bool looks_like_json(const char *text, size_t len)
{
    size_t i = skip_blank(text, len);
    return i < len && (text[i] == '{' || text[i] == '[');
}

static kve_split split_of_name(const char *name, size_t len)
{
    static const struct {
        const char *word;
        kve_split split;
    } WORDS[] = {{"test", KVE_SPLIT_TEST},        {"val", KVE_SPLIT_VALIDATION}, {"validation", KVE_SPLIT_VALIDATION},
                 {"valid", KVE_SPLIT_VALIDATION}, {"dev", KVE_SPLIT_DEV},        {"train", KVE_SPLIT_TRAIN}};
    for (size_t i = 0; i < len;) {
        size_t begin = i;
        while (i < len && isalpha((unsigned char)name[i]))
            i++;
        for (size_t w = 0; w < sizeof WORDS / sizeof *WORDS; w++)
            if (i - begin == strlen(WORDS[w].word) && strncasecmp(name + begin, WORDS[w].word, i - begin) == 0)
                return WORDS[w].split;
        i += i == begin;
        while (i < len && !isalpha((unsigned char)name[i]))
            i++;
    }
    return KVE_SPLIT_OTHER;
}

static kve_split split_of(const char *path)
{
    const char *base = kve_path_base(path), *dir = base;
    kve_split split = split_of_name(base, strlen(base));
    if (split != KVE_SPLIT_OTHER || base == path)
        return split;
    while (dir - 1 > path && dir[-2] != '/')
        dir--;
    dir -= dir > path;
    return split_of_name(dir, (size_t)(base - dir));
}

/* --- Searching */

typedef struct search {
    const kve_format *f;
    kve_arena *arena;
    kve_sources *out;
    size_t n_files;
    const char *packed; /* one that was seen */
    packing packing;
} search;

static kve_status add(search *s, const char *path, bool csv, size_t bytes)
{
    kve_sources *l = s->out;
    KVE_TRY(kve_list_room(s->arena, l->n, &l->cap, sizeof *l->items, &l->items));
    char *copy = NULL;
    KVE_TRY(kve_arena_strndup(s->arena, path, strlen(path), &copy));
    l->items[l->n++] = (kve_source){.path = copy, .split = split_of(copy), .csv = csv, .bytes = bytes};
    return KVE_OK;
}

/* A file that cannot be read, or is no text, is just not one of ours. */
static kve_status look_at(search *s, const char *path)
{
    kve_map map = {0};
    size_t len;
    if (++s->n_files > MAX_FILES)
        return kve_fail(KVE_ERR_USAGE, "--data holds more than %d files; name the folder of the task", (int)MAX_FILES);
    if (kve_map_open(path, &map) != KVE_OK)
        return KVE_OK;
    const char *text = text_of(&map, &len);
    bool json = looks_like_json(text, len), known = false;
    packing packed = packing_of(&map);
    if (packed && !s->packed) {
        s->packed = path;
        s->packing = packed;
    }
    if (packed)
        known = false;
    else if (json)
        known = knows_json(s->f, text, len);
    else if (s->f->columns)
        known = knows_csv(s->f, text, len);
    kve_status st = known ? add(s, path, !json, map.size) : KVE_OK;
    kve_map_close(&map);
    return st;
}

static kve_status walk(search *s, const char *dir, int depth)
{
    char **names = NULL, *path = NULL;
    size_t n = 0;
    kve_str joined = {0};
    KVE_TRY(kve_dir_list(dir, "", s->arena, &names, &n));
    kve_status st = KVE_OK;
    for (size_t i = 0; i < n && st == KVE_OK; i++) {
        if (names[i][0] == '.')
            continue;
        st = kve_path_join(&joined, dir, names[i]);
        if (st == KVE_OK)
            st = kve_arena_strndup(s->arena, joined.p, joined.len, &path);
        if (st != KVE_OK)
            break;
        if (!kve_path_is_dir(path))
            st = look_at(s, path);
        else if (depth < MAX_DEPTH)
            st = walk(s, path, depth + 1);
    }
    kve_str_free(&joined);
    return st;
}

static kve_status fail_packed(const kve_format *f, const char *path, packing p)
{
    if (p == GZIP)
        return kve_fail(KVE_ERR_FILE, "%s: is compressed (gzip); unpack it for task '%s': gunzip -k FILE", path,
                        f->task);
    return kve_fail(KVE_ERR_FILE, "%s: is a Parquet file; convert it for task '%s': %s", path, f->task, CONVERT);
}

static kve_status take_file(search *s, const char *path)
{
    kve_map map = {0};
    size_t len;
    KVE_TRY(kve_map_open(path, &map));
    const char *text = text_of(&map, &len);
    bool csv = s->f->columns && !looks_like_json(text, len);
    packing packed = packing_of(&map);
    kve_status st = packed ? fail_packed(s->f, path, packed) : add(s, path, csv, map.size);
    kve_map_close(&map);
    return st;
}

kve_status kve_sources_find(const kve_format *f, const char *path, kve_arena *arena, kve_sources *out)
{
    search s = {.f = f, .arena = arena, .out = out};
    *out = (kve_sources){0};
    if (!kve_path_is_dir(path))
        return take_file(&s, path);
    KVE_TRY(walk(&s, path, 0));
    if (out->n)
        return KVE_OK;
    if (s.packed)
        return fail_packed(f, s.packed, s.packing);
    return kve_fail(KVE_ERR_FILE, "%s: none of the %zu files in this folder is one of task '%s' (%s)", path, s.n_files,
                    f->task, f->wanted);
}

/* --- Reading */

typedef struct reading {
    const kve_source *s;
    const kve_format *f;
    kve_bad_rows *bad;
    kve_row_fn row;
    void *ctx;
    kve_str name; /* "FILE:LINE" */
    size_t n;
} reading;

/* Takes over *obj. `st`: how its making went. */
static kve_status hand_over(reading *r, kve_status st, cJSON *obj, size_t line)
{
    kve_place at = {.name = r->name.p, .path = r->s->path, .line = line};
    r->n++;
    if (st == KVE_OK && !cJSON_IsObject(obj))
        st = kve_fail(KVE_ERR_FILE, "%s: the row is not an object; one object a line is due (JSON Lines)", at.name);
    if (st == KVE_OK)
        st = r->row(r->ctx, obj, &at);
    cJSON_Delete(obj);
    if (st != KVE_ERR_FILE || !r->bad->skip)
        return st;
    return r->bad->n++ ? KVE_OK : kve_str_puts(&r->bad->first, kve_diag());
}

static kve_status set_name(reading *r, size_t line)
{
    kve_str_clear(&r->name);
    return kve_str_printf(&r->name, "%s:%zu", r->s->path, line);
}

static kve_status read_json(reading *r, const char *text, size_t len)
{
    for (size_t at = 0, line = 1; at < len; line++) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        cJSON *obj = NULL;
        KVE_TRY(set_name(r, line));
        kve_status st = skip_blank(text + at, n) < n ? kve_json_parse(text + at, n, r->name.p, &obj)
                                                     : kve_fail(KVE_ERR_FILE, "%s: the line is empty", r->name.p);
        KVE_TRY(hand_over(r, st, obj, line));
        at += n + (end != NULL);
    }
    return KVE_OK;
}

static kve_status read_csv(reading *r, const char *text, size_t len)
{
    kve_csv csv = {.text = text, .len = len, .line = 1};
    size_t bad = 0;
    if (!kve_utf8_valid(text, len, &bad)) {
        size_t line = 1;
        for (size_t i = 0; i < bad; i++)
            line += text[i] == '\n';
        return kve_fail(KVE_ERR_FILE, "%s:%zu: byte %zu of the file (0x%02x) is not valid UTF-8; save it as UTF-8",
                        r->s->path, line, bad, (unsigned char)text[bad]);
    }
    while (csv.at < csv.len) {
        kve_arena arena = {0};
        const char *fields[KVE_CSV_MOST];
        cJSON *obj = NULL;
        size_t n = 0, line = csv.line;
        KVE_TRY(set_name(r, line));
        kve_status st = kve_csv_next(&csv, r->s->path, &arena, fields, &n);
        if (st == KVE_OK)
            st = object_of(r->f, fields, n, r->name.p, &obj);
        st = hand_over(r, st, obj, line);
        kve_arena_free(&arena);
        KVE_TRY(st);
    }
    return KVE_OK;
}

kve_status kve_source_read(const kve_source *s, const kve_format *f, kve_bad_rows *bad, kve_row_fn row, void *ctx)
{
    reading r = {.s = s, .f = f, .bad = bad, .row = row, .ctx = ctx};
    kve_map map = {0};
    size_t len;
    KVE_TRY(kve_map_open(s->path, &map));
    const char *text = text_of(&map, &len);
    kve_status st = s->csv ? read_csv(&r, text, len) : read_json(&r, text, len);
    if (st == KVE_OK && r.n == 0)
        st = kve_fail(KVE_ERR_FILE, "%s: has no rows; %s is due", s->path, f->wanted);
    kve_str_free(&r.name);
    kve_map_close(&map);
    return st;
}

/* --- Fields */

bool kve_is_blank(const char *text)
{
    return text[strspn(text, " \t\r\n\f\v")] == '\0';
}

kve_status kve_field_text(const cJSON *row, const char *key, const kve_place *at, kve_arena *arena, const char **out)
{
    const char *text = NULL;
    char *copy = NULL;
    KVE_TRY(kve_json_str(row, key, at->name, &text));
    if (kve_is_blank(text))
        return kve_fail(KVE_ERR_FILE, "%s: field '%s' is empty", at->name, key);
    KVE_TRY(kve_arena_strndup(arena, text, strlen(text), &copy));
    *out = copy;
    return KVE_OK;
}

kve_status kve_field_texts(const cJSON *row, const char *key, const kve_place *at, size_t low, size_t high,
                           kve_arena *arena, const char *const **out, size_t *n)
{
    const cJSON *list = kve_json_get(row, key), *item;
    const char **texts = NULL;
    if (!list)
        return kve_fail(KVE_ERR_FILE, "%s: field '%s' is missing", at->name, key);
    if (!cJSON_IsArray(list))
        return kve_fail(KVE_ERR_FILE, "%s: field '%s' is not a list of texts", at->name, key);
    size_t count = (size_t)cJSON_GetArraySize(list), i = 0;
    if (count < low || count > high) {
        if (low == high)
            return kve_fail(KVE_ERR_FILE, "%s: field '%s' has %zu texts; %zu are due", at->name, key, count, low);
        return kve_fail(KVE_ERR_FILE, "%s: field '%s' has %zu texts; %zu to %zu are due", at->name, key, count, low,
                        high);
    }
    KVE_TRY(kve_arena_alloc(arena, count, sizeof *texts, &texts));
    for (item = list->child; item; item = item->next, i++) {
        char *copy = NULL;
        if (!cJSON_IsString(item) || kve_is_blank(item->valuestring))
            return kve_fail(KVE_ERR_FILE, "%s: field '%s': item %zu is not a text, or is empty", at->name, key, i);
        KVE_TRY(kve_arena_strndup(arena, item->valuestring, strlen(item->valuestring), &copy));
        texts[i] = copy;
    }
    *out = texts;
    *n = count;
    return KVE_OK;
}
