/* Policies as the command line names them: those of the table, and those that come from files. Contract: cli.h. */
#include "policies/kvp/kvp.h"
#include "policies/rankings.h"
#include "policies/wrappers.h"

#include "host/base/file.h"
#include "host/base/json.h"
#include "host/base/text.h"
#include "host/cli/cli.h"

#include <string.h>

static const char *after_prefix(const char *item, const char *prefix)
{
    size_t len = strlen(prefix);
    return strncmp(item, prefix, len) == 0 ? item + len : NULL;
}

static kve_status open_shipped(const char *name, const char *model_sha256, kve_arena *arena, const kve_policy **out)
{
    if (model_sha256)
        KVE_TRY(kve_open_shipped(name, model_sha256, arena, out));
    if (model_sha256 && *out)
        return KVE_OK;
    return kve_fail(
        KVE_ERR_USAGE,
        "--policy: '%s' is a trained network, and none of its files (policies/weights, or KVEVAL_WEIGHTS) is "
        "for the model of SHA-256 %s; bash bench/train_kvp.sh makes one, kvp:FILE takes it",
        name, model_sha256 ? model_sha256 : "(not known)");
}

kve_status kve_open_policy(const char *item, const char *model_sha256, kve_arena *arena, const kve_policy **out)
{
    const char *path = after_prefix(item, KVE_RANKINGS_PREFIX), *shipped;
    bool is_wrapped = false;
    if (path)
        return kve_rankings_policy(path, arena, out);
    path = after_prefix(item, KVE_KVP_PREFIX);
    if (path)
        return kve_kvp_policy(path, NULL, arena, out);
    for (size_t i = 0; (shipped = kve_shipped_name(i)) != NULL; i++)
        if (kve_same_name(item, shipped))
            return open_shipped(shipped, model_sha256, arena, out);
    KVE_TRY(kve_wrapped_policy(item, arena, &is_wrapped, out));
    return is_wrapped ? KVE_OK : kve_policy_find(item, out);
}

kve_status kve_policies_fit(const kve_policy *const *policies, size_t n, const kve_opened *o)
{
    char sha[KVE_SHA256_HEX];
    for (size_t i = 0; i < n; i++) {
        if (!policies[i]->fits)
            continue;
        KVE_TRY(kve_checkpoint_sha256(o->ck, sha));
        KVE_TRY(policies[i]->fits(policies[i], &kve_checkpoint_config(o->ck)->shape, sha));
    }
    return KVE_OK;
}

void kve_close_policy(const kve_policy *p)
{
    if (p && p->close)
        p->close(p);
}

/* The old hashes and the new ones; a name that is in both must have the same. */
static kve_status merge_hashes(const kve_policy *const *policies, size_t n, const char *path, cJSON *all)
{
    for (size_t i = 0; i < n; i++) {
        const char *sha = kve_kvp_policy_sha256(policies[i]), *was = NULL;
        if (!sha)
            continue;
        KVE_TRY(kve_json_str_or(all, policies[i]->name, path, NULL, &was));
        if (was && strcmp(was, sha) != 0)
            return kve_fail(KVE_ERR_USAGE,
                            "%s: this folder has results of another file named '%s' (SHA-256 %s, now %s): use another "
                            "--out, or rename the file",
                            path, policies[i]->name, was, sha);
        if (!was && !cJSON_AddStringToObject(all, policies[i]->name, sha))
            return kve_fail(KVE_ERR_MEMORY, "%s: out of memory", path);
    }
    return KVE_OK;
}

static kve_status write_hashes(const char *path, const cJSON *all)
{
    char *text = cJSON_Print(all);
    if (!text)
        return kve_fail(KVE_ERR_MEMORY, "%s: out of memory", path);
    kve_status st = kve_file_write(path, text, strlen(text));
    cJSON_free(text);
    return st;
}

kve_status kve_policies_pin(const kve_policy *const *policies, size_t n, const char *dir)
{
    kve_str path = {0};
    cJSON *all = NULL;
    size_t n_files = 0;
    for (size_t i = 0; i < n; i++)
        n_files += kve_kvp_policy_sha256(policies[i]) != NULL;
    if (n_files == 0)
        return KVE_OK;
    kve_status st = kve_mkdirs(dir);
    if (st == KVE_OK)
        st = kve_path_join(&path, dir, "policies.json");
    if (st == KVE_OK && kve_path_exists(path.p))
        st = kve_json_parse_file(path.p, &all);
    else if (st == KVE_OK && !(all = cJSON_CreateObject()))
        st = kve_fail(KVE_ERR_MEMORY, "%s: out of memory", path.p);
    if (st == KVE_OK)
        st = merge_hashes(policies, n, path.p, all);
    if (st == KVE_OK)
        st = write_hashes(path.p, all);
    cJSON_Delete(all);
    kve_str_free(&path);
    return st;
}
