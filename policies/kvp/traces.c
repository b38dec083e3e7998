/* Traces for training. Contract: traces.h. */
#include "policies/kvp/traces.h"

#include "host/base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 16 };

static kve_status check_tensor(const kve_safetensors *f, const char *name, const int64_t *dims, int32_t n_dims,
                               const unsigned char **out)
{
    const kve_st_tensor *t = kve_st_find(f, name);
    bool same = t && t->dtype == KVE_ST_F32 && t->n_dims == n_dims && t->count > 0;
    for (int32_t i = 0; same && i < n_dims; i++)
        same = t->dims[i] == dims[i];
    if (!same)
        return kve_fail(KVE_ERR_FILE,
                        "%s: '%s' is missing or not F32 of the shape that 'keys' demand; kveval trace "
                        "writes such files",
                        f->name, name);
    *out = t->data;
    return KVE_OK;
}

static kve_status check_model(kvp_traces *all, const kvp_trace *t, const int64_t *dims)
{
    const char *model = kve_st_meta_get(&t->file, "model"), *sha = kve_st_meta_get(&t->file, "model_sha256");
    if (!model || !sha)
        return kve_fail(KVE_ERR_FILE, "%s: no metadata 'model' and 'model_sha256'; kveval trace writes them",
                        t->file.name);
    if (!all->model) {
        all->model = model;
        all->model_sha256 = sha;
        all->L = (int32_t)dims[0];
        all->Hkv = (int32_t)dims[1];
        all->D = (int32_t)dims[3];
    }
    if (strcmp(sha, all->model_sha256) != 0 || dims[0] != all->L || dims[1] != all->Hkv || dims[3] != all->D)
        return kve_fail(KVE_ERR_FILE,
                        "%s: a trace of %s [%lld][%lld][n][%lld] (SHA-256 %s), but the first one is of %s [%d][%d][n]"
                        "[%d] (%s); train on one model's traces",
                        t->file.name, model, (long long)dims[0], (long long)dims[1], (long long)dims[3], sha,
                        all->model, all->L, all->Hkv, all->D, all->model_sha256);
    return KVE_OK;
}

static kve_status check_trace(kvp_traces *all, kvp_trace *t, int32_t least_n)
{
    const kve_st_tensor *keys = kve_st_find(&t->file, "keys");
    if (!keys || keys->n_dims != 4 || keys->dims[0] < 1 || keys->dims[0] > 4096 || keys->dims[1] < 1 ||
        keys->dims[1] > 4096 || keys->dims[2] > 1 << 24 || keys->dims[3] > 4096)
        return kve_fail(KVE_ERR_FILE,
                        "%s: no tensor 'keys' [layers][KV heads][tokens][dimensions]; kveval trace writes such files",
                        t->file.name);
    KVE_TRY(check_tensor(&t->file, "keys", keys->dims, 4, &t->keys));
    KVE_TRY(check_tensor(&t->file, "values", keys->dims, 4, &t->values));
    KVE_TRY(check_tensor(&t->file, "importance", keys->dims, 3, &t->importance));
    KVE_TRY(check_model(all, t, keys->dims));
    t->n = (int32_t)keys->dims[2];
    if (t->n <= least_n)
        return kve_fail(KVE_ERR_FILE, "%s: %d tokens; at least %d are due, so that some can be ranked", t->file.name,
                        t->n, least_n + 1);
    if (t->n > all->max_n)
        all->max_n = t->n;
    return KVE_OK;
}

/* Adds to `sums` what the data hash is taken over. */
static kve_status hash_trace(const kvp_traces *all, const kvp_trace *t, const char *name, kve_str *sums)
{
    const char *prompt = kve_st_meta_get(&t->file, "prompt_sha256");
    char hex[KVE_SHA256_HEX];
    KVE_TRY(kve_sha256(t->importance, (size_t)all->L * (size_t)all->Hkv * (size_t)t->n * sizeof(float), hex));
    return kve_str_printf(sums, "%s %s %s\n", name, prompt ? prompt : "-", hex);
}

typedef struct walk {
    kvp_traces *all;
    int32_t least_n;
    kve_str sums;
} walk;

static kve_status add_file(walk *w, const char *path, const char *name)
{
    kvp_traces *all = w->all;
    if (all->n == all->cap) {
        kvp_trace *grown = NULL;
        size_t cap = all->cap ? 2 * all->cap : 64;
        KVE_TRY(kve_alloc(cap, sizeof *grown, &grown));
        if (all->n)
            memcpy(grown, all->items, all->n * sizeof *grown);
        free(all->items);
        all->items = grown;
        all->cap = cap;
    }
    kvp_trace *t = &all->items[all->n++];
    *t = (kvp_trace){0};
    KVE_TRY(kve_safetensors_open(path, &t->file));
    KVE_TRY(check_trace(all, t, w->least_n));
    return hash_trace(all, t, name, &w->sums);
}

/* name: of the folder below the first one, "" or with a '/' at its end. */
static kve_status add_folder(walk *w, const char *dir, const char *name, int depth)
{
    static const char SUFFIX[] = ".safetensors";
    kve_arena arena = {0};
    char **names = NULL;
    size_t n = 0;
    kve_str path = {0}, below = {0};
    kve_status st = depth < MAX_DEPTH ? kve_dir_list(dir, "", &arena, &names, &n)
                                      : kve_fail(KVE_ERR_FILE, "%s: folders more than %d deep", dir, MAX_DEPTH);
    for (size_t i = 0; i < n && st == KVE_OK; i++) {
        size_t len = strlen(names[i]), tail = sizeof SUFFIX - 1;
        bool is_file = len > tail && strcmp(names[i] + len - tail, SUFFIX) == 0;
        kve_str_clear(&below);
        st = kve_path_join(&path, dir, names[i]);
        if (st == KVE_OK)
            st = kve_str_printf(&below, "%s%s%s", name, names[i], is_file ? "" : "/");
        if (st == KVE_OK && is_file)
            st = add_file(w, path.p, below.p);
        else if (st == KVE_OK && kve_path_is_dir(path.p))
            st = add_folder(w, path.p, below.p, depth + 1);
    }
    kve_str_free(&path);
    kve_str_free(&below);
    kve_arena_free(&arena);
    return st;
}

kve_status kvp_traces_open(const char *dir, int32_t least_n, kvp_traces *out)
{
    walk w = {.all = out, .least_n = least_n};
    *out = (kvp_traces){0};
    kve_status st = add_folder(&w, dir, "", 0);
    if (st == KVE_OK && out->n == 0)
        st = kve_fail(KVE_ERR_FILE, "%s: no .safetensors file in it; kveval trace --task ... --out %s makes traces",
                      dir, dir);
    if (st == KVE_OK)
        st = kve_sha256(w.sums.p, w.sums.len, out->sha256);
    kve_str_free(&w.sums);
    return st;
}

void kvp_traces_close(kvp_traces *t)
{
    for (size_t i = 0; i < t->n; i++)
        kve_safetensors_close(&t->items[i].file);
    free(t->items);
    *t = (kvp_traces){0};
}

kve_status kvp_traces_disjoint(const kvp_traces *a, const kvp_traces *b)
{
    if (strcmp(a->model_sha256, b->model_sha256) != 0 || a->L != b->L || a->Hkv != b->Hkv || a->D != b->D)
        return kve_fail(KVE_ERR_FILE, "%s is of another model than %s", b->items[0].file.name, a->items[0].file.name);
    for (size_t i = 0; i < b->n; i++)
        for (size_t j = 0; j < a->n; j++) {
            const char *mine = kve_st_meta_get(&b->items[i].file, "prompt_sha256");
            const char *other = kve_st_meta_get(&a->items[j].file, "prompt_sha256");
            if (mine && other && strcmp(mine, other) == 0)
                return kve_fail(KVE_ERR_USAGE,
                                "%s and %s are traces of one prompt: what is held out may not be trained on",
                                b->items[i].file.name, a->items[j].file.name);
        }
    return KVE_OK;
}

kve_status kvp_trace_importance(const kvp_traces *t, size_t i, int32_t head, float *out)
{
    const kvp_trace *trace = &t->items[i];
    size_t n = (size_t)trace->n;
    memcpy(out, trace->importance + (size_t)head * n * sizeof *out, n * sizeof *out);
    for (size_t j = 0; j < n; j++)
        if (!isfinite(out[j]) || out[j] < 0)
            return kve_fail(KVE_ERR_FILE, "%s: 'importance', layer %d, KV head %d, token %zu is %g; 0 or more is due",
                            trace->file.name, head / t->Hkv, head % t->Hkv, j, (double)out[j]);
    return KVE_OK;
}

const unsigned char *kvp_trace_rows(const kvp_traces *t, size_t i, int32_t head, bool values, int32_t first)
{
    const kvp_trace *trace = &t->items[i];
    size_t row = (size_t)head * (size_t)trace->n + (size_t)first;
    return (values ? trace->values : trace->keys) + row * (size_t)t->D * sizeof(float);
}

kve_status kvp_trace_check(const kvp_traces *t, size_t i, int32_t head)
{
    for (int values = 0; values < 2; values++) {
        const unsigned char *rows = kvp_trace_rows(t, i, head, values, 0);
        for (size_t j = 0; j < (size_t)t->items[i].n * (size_t)t->D; j++) {
            float x;
            memcpy(&x, rows + j * sizeof x, sizeof x);
            if (!isfinite(x))
                return kve_fail(KVE_ERR_FILE, "%s: '%s', layer %d, KV head %d, token %zu: %g; trace the text again",
                                t->items[i].file.name, values ? "values" : "keys", head / t->Hkv, head % t->Hkv,
                                j / (size_t)t->D, (double)x);
        }
    }
    return KVE_OK;
}
