/* What the user wrote after --model to a file or folder: paths, the default model, and the Hugging Face cache. Opens no
 * model. */
#include "host/model/internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_NAME "smollm2"
#define DEFAULT_FILE "SmolLM2-135M-Instruct.Q4_1.gguf"

/* The value of an environment variable; NULL when unset or empty. */
static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static kve_status below_home(const char *rest, kve_str *out)
{
    const char *home = env("HOME");
    if (!home)
        return kve_fail(KVE_ERR_USAGE, "HOME is not set, so ~/%s cannot be found; give --model a path", rest);
    return kve_path_join(out, home, rest);
}

static kve_status default_model(kve_str *out)
{
    const char *cache = env("KVEVAL_CACHE");
    if (cache)
        KVE_TRY(kve_path_join(out, cache, DEFAULT_FILE));
    else
        KVE_TRY(below_home(".cache/kveval/" DEFAULT_FILE, out));
    if (!kve_path_exists(out->p))
        return kve_fail(KVE_ERR_FILE,
                        "%s: the default model is not there; run `bash bench/fetch_model.sh`, or give "
                        "--model a .gguf file or a folder",
                        out->p);
    return KVE_OK;
}

static kve_status hub_folder(kve_str *out)
{
    if (env("HF_HUB_CACHE"))
        return kve_path_join(out, env("HF_HUB_CACHE"), "");
    if (env("HF_HOME"))
        return kve_path_join(out, env("HF_HOME"), "hub");
    return below_home(".cache/huggingface/hub", out);
}

typedef struct hub_id {
    kve_text org, name;
    const char *rev; /* "main" unless given */
} hub_id;

static bool is_id_part(kve_text t)
{
    for (size_t i = 0; i < t.len; i++)
        if (!isalnum((unsigned char)t.p[i]) && !strchr("-_.", t.p[i]))
            return false;
    return t.len > 0 && t.p[0] != '.';
}

/* False if the text is not of the form org/name[@rev]. A revision becomes part of a path, so ".." is refused. */
static bool parse_id(const char *text, hub_id *id)
{
    size_t len = strcspn(text, "@"), org = strcspn(text, "/");
    if (org >= len)
        return false;
    id->org = (kve_text){text, org};
    id->name = (kve_text){text + org + 1, len - org - 1};
    id->rev = text[len] ? text + len + 1 : "main";
    return is_id_part(id->org) && is_id_part(id->name) && *id->rev && !strstr(id->rev, "..");
}

/* A revision's snapshot: refs/REV holds the commit; a commit may be given itself. */
static kve_status snapshot_of(const char *repo, const char *rev, kve_str *out)
{
    kve_str ref = {0};
    char *text = NULL;
    size_t len = 0;
    kve_status st = kve_str_printf(&ref, "%s/refs/%s", repo, rev);
    const char *commit = rev;
    if (st == KVE_OK && kve_path_exists(ref.p)) {
        st = kve_file_read(ref.p, &text, &len);
        if (st == KVE_OK) {
            text[strcspn(text, " \t\r\n")] = '\0';
            commit = text;
        }
    }
    kve_str_clear(out);
    if (st == KVE_OK)
        st = kve_str_printf(out, "%s/snapshots/%s", repo, commit);
    kve_str_free(&ref);
    free(text);
    return st;
}

static kve_status hub_model(const char *text, const hub_id *id, kve_str *out)
{
    int org = (int)id->org.len, name = (int)id->name.len;
    kve_str hub = {0}, repo = {0}, folder = {0};
    kve_status st = hub_folder(&hub);
    if (st == KVE_OK)
        st = kve_str_printf(&folder, "models--%.*s--%.*s", org, id->org.p, name, id->name.p);
    if (st == KVE_OK)
        st = kve_path_join(&repo, hub.p, folder.p);
    if (st == KVE_OK)
        st = snapshot_of(repo.p, id->rev, out);
    if (st == KVE_OK && !kve_path_is_dir(out->p)) {
        bool is_main = strcmp(id->rev, "main") == 0;
        st = kve_fail(KVE_ERR_FILE,
                      "%s: is neither a path nor in the Hugging Face cache (%s); to get it: hf download %.*s/%.*s%s%s",
                      text, repo.p, org, id->org.p, name, id->name.p, is_main ? "" : " --revision ",
                      is_main ? "" : id->rev);
    }
    kve_str_free(&hub);
    kve_str_free(&repo);
    kve_str_free(&folder);
    return st;
}

static kve_status has_config(const char *folder, bool *yes)
{
    kve_str path = {0};
    kve_status st = kve_path_join(&path, folder, "config.json");
    *yes = st == KVE_OK && kve_path_exists(path.p);
    kve_str_free(&path);
    return st;
}

/* A folder: with config.json it is a model, else it must hold exactly one .gguf file. */
static kve_status settle_folder(kve_str *path, kve_path_kind *kind)
{
    kve_arena arena = {0};
    kve_str file = {0};
    char **names;
    size_t n = 0;
    bool config;
    KVE_TRY(has_config(path->p, &config));
    *kind = KVE_PATH_FOLDER;
    if (config)
        return KVE_OK;
    *kind = KVE_PATH_GGUF;
    kve_status st = kve_dir_list(path->p, ".gguf", &arena, &names, &n);
    if (st == KVE_OK && n != 1)
        st = kve_fail(KVE_ERR_FILE,
                      "%s: this folder has no config.json and %zu .gguf files; give a model folder or one .gguf file",
                      path->p, n);
    if (st == KVE_OK)
        st = kve_path_join(&file, path->p, names[0]);
    kve_arena_free(&arena);
    if (st != KVE_OK) {
        kve_str_free(&file);
        return st;
    }
    kve_str_free(path);
    *path = file;
    return KVE_OK;
}

/* A file: GGUF by its first bytes, else the folder around it. */
static kve_status settle_file(kve_str *path, kve_path_kind *kind)
{
    kve_map map = {0};
    KVE_TRY(kve_map_open(path->p, &map));
    bool gguf = map.size >= 4 && memcmp(map.data, "GGUF", 4) == 0;
    kve_map_close(&map);
    *kind = KVE_PATH_GGUF;
    if (gguf)
        return KVE_OK;
    size_t base = (size_t)(kve_path_base(path->p) - path->p);
    kve_str folder = {0};
    bool config = false;
    kve_status st = base ? kve_str_append(&folder, path->p, base > 1 ? base - 1 : 1) : kve_str_puts(&folder, ".");
    if (st == KVE_OK)
        st = has_config(folder.p, &config);
    if (st == KVE_OK && !config)
        st = kve_fail(KVE_ERR_FILE,
                      "%s: is no GGUF file, and no config.json lies beside it; give a .gguf file or a model folder",
                      path->p);
    if (st != KVE_OK) {
        kve_str_free(&folder);
        return st;
    }
    kve_str_free(path);
    *path = folder;
    *kind = KVE_PATH_FOLDER;
    return KVE_OK;
}

kve_status kve_model_resolve(const char *path, kve_str *out, kve_path_kind *kind)
{
    hub_id id;
    kve_str_clear(out);
    KVE_TRY(kve_str_puts(out, path));
    if (!kve_path_exists(path)) {
        if (strcmp(path, DEFAULT_NAME) == 0)
            KVE_TRY(default_model(out));
        else if (parse_id(path, &id))
            KVE_TRY(hub_model(path, &id, out));
        else
            return kve_fail(KVE_ERR_FILE,
                            "%s: no such file or folder; give --model a .gguf file, a folder with config.json, "
                            "org/name[@rev] or " DEFAULT_NAME,
                            path);
    }
    return kve_path_is_dir(out->p) ? settle_folder(out, kind) : settle_file(out, kind);
}

static kve_status add_found(kve_arena *arena, const char *name, size_t len, kve_found_model *m)
{
    kve_str path = {0};
    kve_path_kind kind;
    char *copy = NULL, *place = NULL;
    KVE_TRY(kve_arena_strndup(arena, name, len, &copy));
    kve_status st = kve_model_resolve(copy, &path, &kind);
    if (st == KVE_OK)
        st = kve_arena_strndup(arena, path.p, path.len, &place);
    kve_str_free(&path);
    *m = (kve_found_model){copy, place};
    return st;
}

/* A folder's name in the cache, "models--org--name", as a model's: "org/name". */
static kve_status add_cached(kve_arena *arena, const char *folder, kve_found_model *list, size_t *n)
{
    static const char PREFIX[] = "models--";
    const char *org = folder + sizeof PREFIX - 1, *name;
    kve_str id = {0};
    if (strncmp(folder, PREFIX, sizeof PREFIX - 1) != 0 || !(name = strstr(org, "--")))
        return KVE_OK;
    kve_status st = kve_str_printf(&id, "%.*s/%s", (int)(name - org), org, name + 2);
    if (st == KVE_OK && add_found(arena, id.p, id.len, &list[*n]) == KVE_OK) /* one without a snapshot is none */
        ++*n;
    kve_str_free(&id);
    return st;
}

kve_status kve_models_found(kve_arena *arena, kve_found_model **out, size_t *n_out)
{
    kve_str hub = {0};
    char **names = NULL;
    size_t n_names = 0;
    *n_out = 0;
    kve_status st = hub_folder(&hub);
    if (st == KVE_OK && kve_path_is_dir(hub.p))
        st = kve_dir_list(hub.p, "", arena, &names, &n_names);
    kve_str_free(&hub);
    KVE_TRY(st);
    KVE_TRY(kve_arena_alloc(arena, n_names + 1, sizeof **out, out));
    if (add_found(arena, DEFAULT_NAME, strlen(DEFAULT_NAME), &(*out)[0]) == KVE_OK)
        *n_out = 1;
    for (size_t i = 0; i < n_names; i++)
        KVE_TRY(add_cached(arena, names[i], *out, n_out));
    return KVE_OK;
}
