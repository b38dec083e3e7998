/* Strict reading on top of cJSON, typed fields, and the writer. */
#include "host/base/json.h"

#include "host/base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 128, MAX_NUMBER = 63 };              /* cJSON cuts a longer number in two */
static const double EXACT_INTEGER = 9007199254740992.0; /* 2^53: above it a double skips integers */

/* The length of the UTF-8 sequence at s (1..4), 0 if it is malformed. */
static size_t utf8_sequence(const unsigned char *s, size_t left)
{
    unsigned c = s[0], low = 0x80, high = 0xbf;
    size_t n = c < 0x80 ? 1 : c >= 0xc2 && c <= 0xdf ? 2 : c >= 0xe0 && c <= 0xef ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
    if (n == 0 || n > left)
        return 0;
    if (c == 0xe0)
        low = 0xa0; /* overlong */
    else if (c == 0xed)
        high = 0x9f; /* surrogates */
    else if (c == 0xf0)
        low = 0x90; /* overlong */
    else if (c == 0xf4)
        high = 0x8f; /* beyond U+10FFFF */
    for (size_t i = 1; i < n; i++, low = 0x80, high = 0xbf)
        if (s[i] < low || s[i] > high)
            return 0;
    return n;
}

bool kve_utf8_valid(const char *s, size_t len, size_t *bad)
{
    for (size_t i = 0; i < len;) {
        size_t n = utf8_sequence((const unsigned char *)s + i, len - i);
        if (n == 0) {
            if (bad)
                *bad = i;
            return false;
        }
        i += n;
    }
    return true;
}

/* One string: *at goes from its first quote to behind its last. */
static kve_status scan_string(const char *text, size_t len, const char *name, size_t *at)
{
    size_t i = *at + 1;
    for (; i < len && text[i] != '"'; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < ' ')
            return kve_fail(KVE_ERR_FILE, "%s: byte %zu: a string holds the control character 0x%02x; write \\u%04x",
                            name, i, c, c);
        if (c != '\\')
            continue;
        i++;
        if (i < len && len - i >= 5 && memcmp(text + i, "u0000", 5) == 0)
            return kve_fail(KVE_ERR_FILE, "%s: byte %zu: a string holds \\u0000 (NUL), which ends texts; remove it",
                            name, i - 1);
    }
    if (i >= len)
        return kve_fail(KVE_ERR_FILE, "%s: not valid JSON: the string at byte %zu has no end; is the file cut off?",
                        name, *at);
    *at = i + 1;
    return KVE_OK;
}

/* One number, as JSON spells them: no "01", "1." or "+1". *at goes behind it. */
static kve_status scan_number(const char *text, size_t len, const char *name, size_t *at)
{
    static const char digits[] = "0123456789", any[] = "0123456789+-.eE";
    char s[MAX_NUMBER + 1] = "";
    size_t n = 0;
    while (*at + n < len && text[*at + n] && strchr(any, text[*at + n])) {
        if (n < MAX_NUMBER)
            s[n] = text[*at + n];
        n++;
    }
    const char *p = s + (s[0] == '-');
    size_t whole = strspn(p, digits);
    bool good = n <= MAX_NUMBER && whole > 0 && (whole == 1 || *p != '0');
    p += whole;
    if (good && *p == '.') {
        size_t part = strspn(p + 1, digits);
        good = part > 0;
        p += 1 + part;
    }
    if (good && (*p == 'e' || *p == 'E')) {
        p += p[1] == '+' || p[1] == '-' ? 2 : 1;
        good = *p != '\0';
        p += strspn(p, digits);
    }
    if (!good || *p)
        return kve_fail(KVE_ERR_FILE, "%s: not valid JSON: '%s' at byte %zu is no number of at most %d characters",
                        name, s, *at, (int)MAX_NUMBER);
    *at += n;
    return KVE_OK;
}

/* What cJSON lets through and we do not; json.h lists it. A text whose brackets close also keeps cJSON from reading
 * one byte behind it, which it does after a last comma. */
static kve_status scan(const char *text, size_t len, const char *name)
{
    size_t bad = 0, i = 0;
    int depth = 0;
    if (!kve_utf8_valid(text, len, &bad))
        return kve_fail(KVE_ERR_FILE, "%s: byte %zu (0x%02x) is not valid UTF-8; save the file as UTF-8", name, bad,
                        (unsigned char)text[bad]);
    while (i < len) {
        char c = text[i];
        if (c == '"') {
            KVE_TRY(scan_string(text, len, name, &i));
            continue;
        }
        if (c == '-' || (c >= '0' && c <= '9')) {
            KVE_TRY(scan_number(text, len, name, &i));
            continue;
        }
        if ((unsigned char)c < ' ' && c != '\t' && c != '\r' && c != '\n')
            return kve_fail(KVE_ERR_FILE, "%s: byte %zu (0x%02x) is a control character; remove it", name, i,
                            (unsigned char)c);
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (depth > MAX_DEPTH)
            return kve_fail(KVE_ERR_FILE, "%s: byte %zu: nested deeper than %d levels", name, i, MAX_DEPTH);
        i++;
    }
    if (depth > 0)
        return kve_fail(KVE_ERR_FILE, "%s: not valid JSON: it ends with %d brackets still open; is the file cut off?",
                        name, depth);
    return KVE_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static kve_status check_keys(const cJSON *obj, const char *name)
{
    size_t n = 0, i = 0;
    const char **keys = NULL;
    for (const cJSON *c = obj->child; c; c = c->next)
        n++;
    KVE_TRY(kve_alloc(n, sizeof *keys, &keys));
    for (const cJSON *c = obj->child; c; c = c->next)
        keys[i++] = c->string;
    qsort(keys, n, sizeof *keys, by_text);
    kve_status st = KVE_OK;
    for (i = 1; i < n && st == KVE_OK; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            st = kve_fail(KVE_ERR_FILE, "%s: field '%s' stands twice in one object; keep one", name, keys[i]);
    free(keys);
    return st;
}

/* Duplicate names and numbers that overflowed to infinity. Depth is bounded by scan(). */
static kve_status check_tree(const cJSON *v, const char *name)
{
    if (cJSON_IsNumber(v) && !isfinite(v->valuedouble))
        return kve_fail(KVE_ERR_FILE, "%s: the number of field '%s' is too large for a double", name,
                        v->string ? v->string : "(list)");
    if (cJSON_IsObject(v))
        KVE_TRY(check_keys(v, name));
    for (const cJSON *c = v->child; c; c = c->next)
        KVE_TRY(check_tree(c, name));
    return KVE_OK;
}

kve_status kve_json_parse(const char *text, size_t len, const char *name, cJSON **out)
{
    const char *end = NULL;
    KVE_TRY(scan(text, len, name));
    cJSON *root = cJSON_ParseWithLengthOpts(text, len, &end, 0);
    if (!root)
        return kve_fail(KVE_ERR_FILE, "%s: not valid JSON near byte %zu", name, end ? (size_t)(end - text) : 0);
    while (end < text + len && strchr(" \t\r\n", *end))
        end++;
    kve_status st = end == text + len ? check_tree(root, name)
                                      : kve_fail(KVE_ERR_FILE, "%s: text after the JSON value at byte %zu; remove it",
                                                 name, (size_t)(end - text));
    if (st != KVE_OK)
        cJSON_Delete(root);
    else
        *out = root;
    return st;
}

kve_status kve_json_parse_file(const char *path, cJSON **out)
{
    char *text = NULL;
    size_t len = 0;
    KVE_TRY(kve_file_read(path, &text, &len));
    kve_status st = kve_json_parse(text, len, path, out);
    free(text);
    return st;
}

const cJSON *kve_json_get(const cJSON *obj, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(obj, key);
}

static kve_status fail_missing(const char *key, const char *name)
{
    return kve_fail(KVE_ERR_FILE, "%s: field '%s' is missing", name, key);
}

static kve_status fail_type(const char *key, const char *name, const char *want)
{
    return kve_fail(KVE_ERR_FILE, "%s: field '%s' is not %s", name, key, want);
}

/* NULL when the field is absent or null. */
static const cJSON *present(const cJSON *obj, const char *key)
{
    const cJSON *v = kve_json_get(obj, key);
    return v && !cJSON_IsNull(v) ? v : NULL;
}

kve_status kve_json_num_or(const cJSON *obj, const char *key, const char *name, double fallback, double *out)
{
    const cJSON *v = present(obj, key);
    if (v && !cJSON_IsNumber(v))
        return fail_type(key, name, "a number");
    *out = v ? v->valuedouble : fallback;
    return KVE_OK;
}

kve_status kve_json_int_or(const cJSON *obj, const char *key, const char *name, int64_t fallback, int64_t *out)
{
    const cJSON *v = present(obj, key);
    if (v && (!cJSON_IsNumber(v) || v->valuedouble != floor(v->valuedouble) || fabs(v->valuedouble) > EXACT_INTEGER))
        return fail_type(key, name, "a whole number within 2^53");
    *out = v ? (int64_t)v->valuedouble : fallback;
    return KVE_OK;
}

kve_status kve_json_str_or(const cJSON *obj, const char *key, const char *name, const char *fallback, const char **out)
{
    const cJSON *v = present(obj, key);
    if (v && !cJSON_IsString(v))
        return fail_type(key, name, "a text");
    *out = v ? v->valuestring : fallback;
    return KVE_OK;
}

kve_status kve_json_bool_or(const cJSON *obj, const char *key, const char *name, bool fallback, bool *out)
{
    const cJSON *v = present(obj, key);
    if (v && !cJSON_IsBool(v))
        return fail_type(key, name, "true or false");
    *out = v ? cJSON_IsTrue(v) : fallback;
    return KVE_OK;
}

kve_status kve_json_num(const cJSON *obj, const char *key, const char *name, double *out)
{
    return present(obj, key) ? kve_json_num_or(obj, key, name, 0, out) : fail_missing(key, name);
}

kve_status kve_json_int(const cJSON *obj, const char *key, const char *name, int64_t *out)
{
    return present(obj, key) ? kve_json_int_or(obj, key, name, 0, out) : fail_missing(key, name);
}

kve_status kve_json_str(const cJSON *obj, const char *key, const char *name, const char **out)
{
    return present(obj, key) ? kve_json_str_or(obj, key, name, NULL, out) : fail_missing(key, name);
}

kve_status kve_json_bool(const cJSON *obj, const char *key, const char *name, bool *out)
{
    return present(obj, key) ? kve_json_bool_or(obj, key, name, false, out) : fail_missing(key, name);
}

static void put(kve_jw *w, const char *bytes, size_t len)
{
    if (w->status == KVE_OK)
        w->status = kve_str_append(w->out, bytes, len);
}

static void comma(kve_jw *w)
{
    if (w->need_comma)
        put(w, ",", 1);
    w->need_comma = true;
}

void kve_jw_begin(kve_jw *w, char bracket)
{
    comma(w);
    put(w, &bracket, 1);
    w->need_comma = false;
}

void kve_jw_end(kve_jw *w, char bracket)
{
    put(w, &bracket, 1);
    w->need_comma = true;
}

void kve_jw_key(kve_jw *w, const char *key)
{
    kve_jw_str(w, key);
    put(w, ":", 1);
    w->need_comma = false;
}

void kve_jw_int(kve_jw *w, int64_t v)
{
    char text[32];
    comma(w);
    put(w, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)v));
}

void kve_jw_num(kve_jw *w, double v)
{
    char text[40];
    int n = 0;
    if (!isfinite(v)) {
        kve_jw_null(w);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        n = snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    comma(w);
    put(w, text, (size_t)n);
}

void kve_jw_bool(kve_jw *w, bool v)
{
    comma(w);
    put(w, v ? "true" : "false", v ? 4 : 5);
}

void kve_jw_null(kve_jw *w)
{
    comma(w);
    put(w, "null", 4);
}

void kve_jw_str(kve_jw *w, const char *s)
{
    if (s)
        kve_jw_strn(w, s, strlen(s));
    else
        kve_jw_null(w);
}

void kve_jw_strn(kve_jw *w, const char *s, size_t len)
{
    comma(w);
    put(w, "\"", 1);
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)s[i];
        size_t n = utf8_sequence((const unsigned char *)s + i, len - i);
        char escape[8];
        if (n == 0 || c == 0)
            put(w, "\xef\xbf\xbd", 3);
        else if (c == '"' || c == '\\')
            put(w, escape, (size_t)snprintf(escape, sizeof escape, "\\%c", c));
        else if (c < 0x20 || c == 0x7f)
            put(w, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", c));
        else
            put(w, s + i, n);
        i += n ? n : 1;
    }
    put(w, "\"", 1);
}
