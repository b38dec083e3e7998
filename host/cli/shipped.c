/* The trained weights that come with the program: which file of theirs is for a model. Contract: cli.h. */
#include "host/base/file.h"
#include "host/cli/cli.h"
#include "host/model/safetensors.h"
#include "policies/kvp/kvp.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name, *summary;
} g_shipped[] = {{"kvp_r", "the learned policy, trained on RULER; comes with the program"},
                 {"kvp_r4k", "likewise, with contexts of 4k tokens and by regression: for more than 1k"},
                 {"kvp_s", "the learned policy, trained on dialogues and prose; likewise"}};
enum { N_SHIPPED = sizeof g_shipped / sizeof *g_shipped };

const char *kve_shipped_name(size_t i)
{
    return i < N_SHIPPED ? g_shipped[i].name : NULL;
}

const char *kve_shipped_summary(size_t i)
{
    return g_shipped[i].summary;
}

/* KVEVAL_WEIGHTS in the environment; share/kveval/weights beside the program's folder; where it was built. */
static kve_status weights_dir(kve_str *out)
{
    enum { LONGEST = 4096 };
    const char *asked = getenv("KVEVAL_WEIGHTS");
    char self[LONGEST];
    out->len = 0;
    if (asked && *asked)
        return kve_str_puts(out, asked);
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len > 0) {
        self[len] = '\0';
        *strrchr(self, '/') = '\0';
        KVE_TRY(kve_path_join(out, self, "../share/kveval/weights"));
        if (kve_path_is_dir(out->p))
            return KVE_OK;
        out->len = 0;
    }
    return kve_str_puts(out, KVEVAL_WEIGHTS_DIR);
}

/* *fits: the file says that it is for the model. */
static kve_status is_for(const char *path, const char *model_sha256, bool *fits)
{
    kve_safetensors f = {0};
    KVE_TRY(kve_safetensors_open(path, &f));
    const char *sha = kve_st_meta_get(&f, "model_sha256");
    *fits = sha && strcmp(sha, model_sha256) == 0;
    kve_safetensors_close(&f);
    return KVE_OK;
}

static kve_status search(const char *dir, const char *name, const char *model_sha256, kve_arena *arena, kve_str *path)
{
    char **names = NULL;
    size_t n = 0, len = strlen(name);
    bool fits = false;
    path->len = 0;
    if (!kve_path_is_dir(dir))
        return KVE_OK;
    KVE_TRY(kve_dir_list(dir, ".safetensors", arena, &names, &n));
    for (size_t i = 0; i < n; i++) {
        if (strncmp(names[i], name, len) != 0 || names[i][len] != '-')
            continue;
        KVE_TRY(kve_path_join(path, dir, names[i]));
        KVE_TRY(is_for(path->p, model_sha256, &fits));
        if (fits)
            return KVE_OK;
        path->len = 0;
    }
    return KVE_OK;
}

kve_status kve_open_shipped(const char *name, const char *model_sha256, kve_arena *arena, const kve_policy **out)
{
    kve_str dir = {0}, path = {0};
    *out = NULL;
    kve_status st = weights_dir(&dir);
    if (st == KVE_OK)
        st = search(dir.p, name, model_sha256, arena, &path);
    if (st == KVE_OK && path.len)
        st = kve_kvp_policy(path.p, name, arena, out);
    kve_str_free(&dir);
    kve_str_free(&path);
    return st;
}
