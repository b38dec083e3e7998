/* The settings of a training as text, and their comparison. Contract: state.h. */
#include "host/base/json.h"
#include "policies/kvp/net.h"
#include "policies/kvp/state.h"

#include <stdlib.h>
#include <string.h>

static void put_text(kve_jw *w, const char *key, const char *value)
{
    kve_jw_key(w, key);
    kve_jw_str(w, value);
}

static void put_int(kve_jw *w, const char *key, int64_t value)
{
    kve_jw_key(w, key);
    kve_jw_int(w, value);
}

kve_status kvp_recipe(const kve_kvp_train_options *o, const kvp_traces *train, const kvp_traces *held, kve_str *out)
{
    kve_jw w = {.out = out};
    kve_jw_begin(&w, '{');
    put_text(&w, "objective", kvp_objective_name(o->objective));
    put_text(&w, "inputs", kve_kvp_inputs_name(o->inputs));
    put_int(&w, "width", o->width);
    put_int(&w, "steps", o->steps);
    put_int(&w, "samples", o->samples);
    put_int(&w, "every", o->every);
    kve_jw_key(&w, "lr");
    kve_jw_num(&w, o->lr);
    put_int(&w, "seed", (int64_t)o->seed);
    put_int(&w, "sink", KVE_KVP_SINK);
    put_int(&w, "recent", KVE_KVP_RECENT);
    put_text(&w, "model", train->model);
    put_text(&w, "model_sha256", train->model_sha256);
    put_int(&w, "traces", (int64_t)train->n);
    put_text(&w, "data_sha256", train->sha256);
    put_int(&w, "held_out", (int64_t)held->n);
    put_text(&w, "held_out_sha256", held->n ? held->sha256 : NULL);
    kve_jw_end(&w, '}');
    return w.status;
}

static kve_status differ(const char *path, const char *key, const cJSON *was, const cJSON *is)
{
    char *a = was ? cJSON_PrintUnformatted(was) : NULL, *b = is ? cJSON_PrintUnformatted(is) : NULL;
    kve_status st = kve_fail(KVE_ERR_USAGE,
                             "%s was made with %s = %s, the command says %s: use another --out, the same setting, or "
                             "delete the file",
                             path, key, a ? a : "(none)", b ? b : "(none)");
    cJSON_free(a);
    cJSON_free(b);
    return st;
}

kve_status kvp_recipe_check(const char *path, const char *old, const char *recipe)
{
    cJSON *was = NULL, *is = NULL;
    kve_status st = kve_json_parse(old, strlen(old), path, &was);
    if (st == KVE_OK)
        st = kve_json_parse(recipe, strlen(recipe), "recipe", &is);
    for (const cJSON *item = st == KVE_OK ? is->child : NULL; item && st == KVE_OK; item = item->next)
        if (!cJSON_Compare(item, kve_json_get(was, item->string), true))
            st = differ(path, item->string, kve_json_get(was, item->string), item);
    cJSON_Delete(was);
    cJSON_Delete(is);
    return st;
}
