/* Fuzzes the JSON reader: what it takes is well-formed, and reads back equal after the writer has written it. */
#include "host/base/json.h"

#include "tests/fuzz/fuzz.h"

static void write_value(kve_jw *w, const cJSON *v)
{
    if (v->string) {
        must(kve_utf8_valid(v->string, strlen(v->string), NULL));
        kve_jw_key(w, v->string);
    }
    if (cJSON_IsObject(v) || cJSON_IsArray(v)) {
        kve_jw_begin(w, cJSON_IsObject(v) ? '{' : '[');
        for (const cJSON *c = v->child; c; c = c->next)
            write_value(w, c);
        kve_jw_end(w, cJSON_IsObject(v) ? '}' : ']');
    } else if (cJSON_IsString(v)) {
        must(kve_utf8_valid(v->valuestring, strlen(v->valuestring), NULL));
        kve_jw_str(w, v->valuestring);
    } else if (cJSON_IsNumber(v)) {
        kve_jw_num(w, v->valuedouble);
    } else if (cJSON_IsBool(v)) {
        kve_jw_bool(w, cJSON_IsTrue(v));
    } else {
        must(cJSON_IsNull(v));
        kve_jw_null(w);
    }
}

/* Every typed look-up of every field of the outermost value. */
static void look_up(const cJSON *root)
{
    for (const cJSON *c = cJSON_IsObject(root) ? root->child : NULL; c; c = c->next) {
        int64_t i = 0;
        double x = 0;
        bool b = false;
        const char *s = NULL;
        must(kve_json_get(root, c->string) == c);
        must(accepted(kve_json_num(root, c->string, "t", &x)) == cJSON_IsNumber(c));
        must(accepted(kve_json_str(root, c->string, "t", &s)) == cJSON_IsString(c));
        must(accepted(kve_json_bool(root, c->string, "t", &b)) == cJSON_IsBool(c));
        if (accepted(kve_json_int(root, c->string, "t", &i)))
            must((double)i == x);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cJSON *v = NULL, *back = NULL;
    kve_str text = {0};
    if (!accepted(kve_json_parse((const char *)data, size, "fuzz.json", &v)))
        return 0;
    kve_jw w = {.out = &text};
    look_up(v);
    write_value(&w, v);
    must(w.status == KVE_OK);
    must(kve_json_parse(text.p, text.len, "again.json", &back) == KVE_OK);
    must(cJSON_Compare(v, back, true));
    cJSON_Delete(v);
    cJSON_Delete(back);
    kve_str_free(&text);
    return 0;
}
