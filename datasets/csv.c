/* CSV records. Contract: csv.h. */
#include "datasets/csv.h"

#include <string.h>

typedef struct reader {
    kve_csv *c;
    const char *name;
    size_t line; /* of the record's begin */
    kve_str field;
} reader;

static bool at_end(const kve_csv *c)
{
    return c->at >= c->len || c->text[c->at] == '\n' ||
           (c->text[c->at] == '\r' && c->at + 1 < c->len && c->text[c->at + 1] == '\n');
}

/* c->at is behind the first quote; goes behind the last one. */
static kve_status read_quoted(reader *r)
{
    kve_csv *c = r->c;
    for (; c->at < c->len; c->at++) {
        bool quote = c->text[c->at] == '"', twice = quote && c->at + 1 < c->len && c->text[c->at + 1] == '"';
        if (quote && !twice) {
            c->at++;
            if (!at_end(c) && c->text[c->at] != ',')
                return kve_fail(KVE_ERR_FILE, "%s:%zu: text follows a closed quote; write a quote inside quotes twice",
                                r->name, r->line);
            return KVE_OK;
        }
        c->line += c->text[c->at] == '\n';
        KVE_TRY(kve_str_append(&r->field, c->text + c->at, 1));
        c->at += twice;
    }
    return kve_fail(KVE_ERR_FILE, "%s:%zu: a quote is never closed; is the file cut off?", r->name, r->line);
}

static kve_status read_plain(reader *r)
{
    kve_csv *c = r->c;
    size_t begin = c->at;
    while (!at_end(c) && c->text[c->at] != ',')
        c->at++;
    return kve_str_append(&r->field, c->text + begin, c->at - begin);
}

static kve_status read_field(reader *r, kve_arena *arena, const char **out)
{
    char *copy = NULL;
    kve_str_clear(&r->field);
    if (r->c->at < r->c->len && r->c->text[r->c->at] == '"') {
        r->c->at++;
        KVE_TRY(read_quoted(r));
    } else {
        KVE_TRY(read_plain(r));
    }
    if (r->field.len && memchr(r->field.p, 0, r->field.len))
        return kve_fail(KVE_ERR_FILE, "%s:%zu: holds a NUL byte; remove it", r->name, r->line);
    KVE_TRY(kve_arena_strndup(arena, r->field.p ? r->field.p : "", r->field.len, &copy));
    *out = copy;
    return KVE_OK;
}

static void skip_line(kve_csv *c)
{
    while (c->at < c->len && c->text[c->at] != '\n')
        c->at++;
    if (c->at < c->len) {
        c->at++;
        c->line++;
    }
}

kve_status kve_csv_next(kve_csv *c, const char *name, kve_arena *arena, const char *fields[KVE_CSV_MOST], size_t *n)
{
    reader r = {.c = c, .name = name, .line = c->line};
    kve_status st = KVE_OK;
    *n = 0;
    for (bool more = true; more && st == KVE_OK;) {
        if (*n == KVE_CSV_MOST) {
            st = kve_fail(KVE_ERR_FILE, "%s:%zu: has more than %d fields", name, r.line, (int)KVE_CSV_MOST);
            break;
        }
        st = read_field(&r, arena, &fields[*n]);
        *n += st == KVE_OK;
        more = c->at < c->len && c->text[c->at] == ',';
        c->at += more;
    }
    skip_line(c);
    kve_str_free(&r.field);
    return st;
}
