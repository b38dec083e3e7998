/* The manifest of a run. Contract: manifest.h. */
#include "eval/manifest.h"

#include "host/base/file.h"
#include "host/base/json.h"

#include <string.h>

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static kve_status check(const char *path, const kve_manifest_field *fields, size_t n_fields)
{
    cJSON *old = NULL;
    KVE_TRY(kve_json_parse_file(path, &old));
    kve_status st = KVE_OK;
    for (size_t i = 0; i < n_fields && st == KVE_OK; i++) {
        const char *was = NULL;
        if (!fields[i].binding)
            continue;
        st = kve_json_str_or(old, fields[i].key, path, NULL, &was);
        if (st == KVE_OK && !same_text(was, fields[i].value))
            st = kve_fail(KVE_ERR_USAGE,
                          "%s: this folder was made with %s = %s, but the command says %s; results of the two must not "
                          "mix: use another --out, or the same setting",
                          path, fields[i].key, was ? was : "(none)", fields[i].value ? fields[i].value : "(none)");
    }
    cJSON_Delete(old);
    return st;
}

static kve_status write_fields(const char *path, const kve_manifest_field *fields, size_t n_fields)
{
    kve_str text = {0};
    kve_jw w = {.out = &text};
    kve_jw_begin(&w, '{');
    for (size_t i = 0; i < n_fields; i++) {
        kve_jw_key(&w, fields[i].key);
        kve_jw_str(&w, fields[i].value);
    }
    kve_jw_end(&w, '}');
    kve_status st = w.status;
    if (st == KVE_OK)
        st = kve_str_puts(&text, "\n");
    if (st == KVE_OK)
        st = kve_file_write(path, text.p, text.len);
    kve_str_free(&text);
    return st;
}

kve_status kve_manifest_update(const char *dir, const kve_manifest_field *fields, size_t n_fields)
{
    kve_str path = {0};
    kve_status st = kve_mkdirs(dir);
    if (st == KVE_OK)
        st = kve_path_join(&path, dir, "manifest.json");
    if (st == KVE_OK && kve_path_exists(path.p))
        st = check(path.p, fields, n_fields);
    if (st == KVE_OK)
        st = write_fields(path.p, fields, n_fields);
    kve_str_free(&path);
    return st;
}
