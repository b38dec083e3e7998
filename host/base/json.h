/* JSON: strict reading through cJSON with errors that name file and field, and a small writer that prints numbers
 * exactly (integers as integers, doubles as the shortest text that reads back, NaN and infinity as null).
 * Refused beyond what cJSON refuses: text after the value, two fields of one name in an object, a NUL in a string (also
 * as \u0000) and other control characters that are not escaped, invalid UTF-8, numbers that JSON does not know ("01",
 * "1."), that overflow ("1e999") or have more than 63 characters, more than 128 levels. Names are exact, also in case;
 * integers end at 2^53. A byte order mark in front is skipped. */
#ifndef KVE_BASE_JSON_H
#define KVE_BASE_JSON_H

#include "host/base/mem.h"
#include "host/base/status.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

/* Parses exactly one JSON value (white space around it allowed). `name` stands in messages ("config.json",
 * "rows.jsonl:17"). The caller owns *out: cJSON_Delete. */
kve_status kve_json_parse(const char *text, size_t len, const char *name, cJSON **out);
kve_status kve_json_parse_file(const char *path, cJSON **out);

/* Fields of an object, by exact name. `name` is the file for the message. A missing field is an error in the plain
 * forms; the _or forms return `fallback` when the field is absent or null (a wrong type is still an error). */
kve_status kve_json_int(const cJSON *obj, const char *key, const char *name, int64_t *out);
kve_status kve_json_num(const cJSON *obj, const char *key, const char *name, double *out);
kve_status kve_json_str(const cJSON *obj, const char *key, const char *name, const char **out); /* lives in obj */
kve_status kve_json_bool(const cJSON *obj, const char *key, const char *name, bool *out);
kve_status kve_json_int_or(const cJSON *obj, const char *key, const char *name, int64_t fallback, int64_t *out);
kve_status kve_json_num_or(const cJSON *obj, const char *key, const char *name, double fallback, double *out);
kve_status kve_json_str_or(const cJSON *obj, const char *key, const char *name, const char *fallback, const char **out);
kve_status kve_json_bool_or(const cJSON *obj, const char *key, const char *name, bool fallback, bool *out);
const cJSON *kve_json_get(const cJSON *obj, const char *key); /* exact name; NULL if absent */

/* Writer into a kve_str: commas are its business. An allocation failure sticks in `status`; check it once at the end.
 *   kve_jw w = {.out = &s}; kve_jw_begin(&w, '{'); kve_jw_key(&w, "n"); kve_jw_int(&w, 3); kve_jw_end(&w, '}'); */
typedef struct kve_jw {
    kve_str *out;
    kve_status status;
    bool need_comma;
} kve_jw;

void kve_jw_begin(kve_jw *w, char bracket); /* '{' or '[' */
void kve_jw_end(kve_jw *w, char bracket);   /* '}' or ']' */
void kve_jw_key(kve_jw *w, const char *key);
void kve_jw_int(kve_jw *w, int64_t v);
void kve_jw_num(kve_jw *w, double v); /* NaN and infinity become null */
void kve_jw_bool(kve_jw *w, bool v);
void kve_jw_null(kve_jw *w);
void kve_jw_str(kve_jw *w, const char *s); /* NULL becomes null; invalid UTF-8 and a NUL byte become U+FFFD */
void kve_jw_strn(kve_jw *w, const char *s, size_t len);

/* True if s[0..len) is well-formed UTF-8; otherwise *bad (may be NULL) is the offset of the first bad byte. */
bool kve_utf8_valid(const char *s, size_t len, size_t *bad);

#endif
