/* The manifest as texts. Contract: report_manifest.h. */
#include "eval/report_manifest.h"

#include "eval/report_text.h"
#include "host/base/file.h"
#include "host/base/json.h"
#include "host/base/log.h"

/* A text as it is, a list of texts (a command) joined by blanks, anything else as JSON. */
static kve_status value_text(const cJSON *v, kve_arena *arena, const char **out)
{
    const cJSON *e = NULL;
    bool texts = cJSON_IsArray(v);
    cJSON_ArrayForEach(e, v) texts = texts && cJSON_IsString(e);
    if (cJSON_IsNull(v))
        return KVE_OK;
    if (cJSON_IsString(v))
        return kve_report_text(arena, out, "%s", v->valuestring);
    if (!texts) {
        char *json = cJSON_PrintUnformatted(v);
        if (!json)
            return kve_fail(KVE_ERR_MEMORY, "out of memory: a field of manifest.json cannot be printed");
        kve_status st = kve_report_text(arena, out, "%s", json);
        cJSON_free(json);
        return st;
    }
    *out = "";
    cJSON_ArrayForEach(e, v) KVE_TRY(kve_report_text(arena, out, "%s%s%s", *out, **out ? " " : "", e->valuestring));
    return KVE_OK;
}

kve_status kve_report_manifest(const char *dir, const char *const *keys, size_t n, kve_arena *arena,
                               const char **values, bool *found)
{
    kve_str path = {0};
    cJSON *manifest = NULL;
    kve_status st = kve_path_join(&path, dir, "manifest.json");
    if (st == KVE_OK && kve_path_exists(path.p)) {
        if (kve_json_parse_file(path.p, &manifest) != KVE_OK)
            kve_warn("%s; the report goes without its provenance", kve_diag());
        else if (!cJSON_IsObject(manifest))
            kve_warn("%s: is not a JSON object; the report goes without its provenance", path.p);
    }
    *found = cJSON_IsObject(manifest);
    for (size_t i = 0; i < n; i++) {
        const cJSON *v = *found ? kve_json_get(manifest, keys[i]) : NULL;
        values[i] = NULL;
        if (v && st == KVE_OK)
            st = value_text(v, arena, &values[i]);
    }
    cJSON_Delete(manifest);
    kve_str_free(&path);
    return st;
}
