/* A model from a Hugging Face folder: config.json, safetensors (one or shards with an index), tokenizer.json. */
#include "host/model/internal.h"
#include "host/model/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

static kve_status join(const kve_checkpoint *ck, const char *file, kve_str *out)
{
    return kve_path_join(out, ck->path, file);
}

/* The folder's name; for a snapshot of the Hugging Face cache org/name. */
static void set_name(kve_checkpoint *ck)
{
    const char *snapshots = strstr(ck->path, "/snapshots/"), *from = NULL;
    size_t len = strlen(ck->path), n = 0;
    for (const char *p = ck->path; snapshots && (p = strstr(p, "/models--")) && p < snapshots; p++)
        from = p + strlen("/models--");
    if (from) {
        len = (size_t)(snapshots - from);
    } else {
        while (len > 1 && ck->path[len - 1] == '/')
            len--;
        from = ck->path + len;
        while (from > ck->path && from[-1] != '/')
            from--;
        len -= (size_t)(from - ck->path);
    }
    for (size_t i = 0; i < len && n + 1 < sizeof ck->cfg.name; i++) {
        bool dashes = snapshots && i + 1 < len && from[i] == '-' && from[i + 1] == '-';
        ck->cfg.name[n++] = dashes ? '/' : from[i];
        i += dashes;
    }
    ck->cfg.name[n] = '\0';
}

static kve_status read_config(kve_checkpoint *ck)
{
    kve_str path = {0}, other = {0};
    cJSON *root = NULL, *generation = NULL;
    kve_status st = join(ck, "config.json", &path);
    if (st == KVE_OK)
        st = kve_json_parse_file(path.p, &root);
    if (st == KVE_OK)
        st = join(ck, "generation_config.json", &other);
    if (st == KVE_OK && kve_path_exists(other.p))
        st = kve_json_parse_file(other.p, &generation);
    if (st == KVE_OK)
        st = kve_config_from_json(root, generation, path.p, &ck->cfg);
    cJSON_Delete(root);
    cJSON_Delete(generation);
    kve_str_free(&path);
    kve_str_free(&other);
    return st;
}

/* Buffers that old exports stored among the weights; they follow from the configuration. */
static bool is_buffer(const char *name)
{
    static const char tail[] = ".rotary_emb.inv_freq";
    size_t len = strlen(name), n = sizeof tail - 1;
    return len > n && strcmp(name + len - n, tail) == 0;
}

static kve_status add_tensor(kve_checkpoint *ck, const char *file, const kve_st_tensor *t)
{
    static const int types[] = {
        [KVE_ST_F32] = KVE_TYPE_F32, [KVE_ST_F16] = KVE_TYPE_F16, [KVE_ST_BF16] = KVE_TYPE_BF16};
    if (is_buffer(t->name))
        return KVE_OK;
    if (t->dtype == KVE_ST_I32 || t->dtype == KVE_ST_I64)
        return kve_fail(KVE_ERR_FILE, "%s: tensor '%s' is %s; weights in F32, F16 or BF16 are due", file, t->name,
                        kve_st_dtype_name(t->dtype));
    if (t->n_dims < 1 || t->n_dims > 2 || t->count == 0)
        return kve_fail(KVE_ERR_FILE,
                        "%s: tensor '%s' has %d dimensions and %" PRId64 " values; a vector or a matrix is due", file,
                        t->name, t->n_dims, t->count);
    char *source;
    KVE_TRY(kve_arena_strndup(&ck->arena, t->name, strlen(t->name), &source));
    kve_entry e = {.source = source,
                   .file = file,
                   .type = (kve_tensor_type)types[t->dtype],
                   .rows = t->n_dims == 2 ? t->dims[0] : 1,
                   .cols = t->dims[t->n_dims - 1],
                   .data = t->data};
    e.row_bytes = t->bytes / (size_t)e.rows;
    return kve_entries_add(ck, KVE_NAMES_HF, &e);
}

/* weight_map NULL: a single file. Each tensor must be in the shard that the index names, and the other way round. */
static kve_status check_index(const kve_safetensors *st, const char *shard, const cJSON *weight_map)
{
    const cJSON *e;
    for (size_t i = 0; weight_map && i < st->n_tensors; i++) {
        e = kve_json_get(weight_map, st->tensors[i].name);
        if (!e || strcmp(e->valuestring, shard) != 0)
            return kve_fail(KVE_ERR_FILE,
                            "%s: tensor '%s' is in this shard, but " INDEX " puts it %s%s; download again", st->name,
                            st->tensors[i].name, e ? "into " : "nowhere", e ? e->valuestring : "");
    }
    cJSON_ArrayForEach(e, weight_map)
    {
        if (strcmp(e->valuestring, shard) == 0 && !kve_st_find(st, e->string))
            return kve_fail(KVE_ERR_FILE, "%s: tensor '%s' is missing, which " INDEX " puts here; download again",
                            st->name, e->string);
    }
    return KVE_OK;
}

static kve_status grow_entries(kve_checkpoint *ck, size_t n)
{
    const kve_entry *old = ck->entries;
    size_t had = ck->n_entries, cap = ck->cap_entries;
    KVE_TRY(kve_entries_reserve(ck, cap / 3 + n));
    if (had)
        memcpy(ck->entries, old, had * sizeof *old);
    ck->n_entries = had;
    return KVE_OK;
}

static kve_status load_shard(kve_checkpoint *ck, const char *shard, const cJSON *weight_map)
{
    kve_str path = {0};
    kve_map map = {0};
    kve_safetensors file = {0};
    kve_status st = join(ck, shard, &path);
    if (st == KVE_OK && !kve_path_exists(path.p))
        st = kve_fail(KVE_ERR_FILE, "%s: the shard is missing; download the model again", path.p);
    if (st == KVE_OK)
        st = kve_checkpoint_map(ck, path.p, &map);
    if (st == KVE_OK)
        st = kve_safetensors_parse(map.data, map.size, path.p, &file);
    if (st == KVE_OK)
        st = check_index(&file, shard, weight_map);
    if (st == KVE_OK)
        st = grow_entries(ck, file.n_tensors);
    for (size_t i = 0; i < file.n_tensors && st == KVE_OK; i++)
        st = add_tensor(ck, ck->map_paths[ck->n_maps - 1], &file.tensors[i]);
    kve_safetensors_close(&file);
    kve_str_free(&path);
    return st;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct shard names of the index, sorted. */
static kve_status list_shards(kve_checkpoint *ck, const cJSON *weight_map, const char *name, const char ***out,
                              size_t *n)
{
    const cJSON *e;
    const char **all;
    size_t count = 0;
    if (!cJSON_IsObject(weight_map) || !weight_map->child)
        return kve_fail(KVE_ERR_FILE, "%s: has no object 'weight_map'; download it again", name);
    KVE_TRY(kve_arena_alloc(&ck->arena, (size_t)cJSON_GetArraySize(weight_map), sizeof *all, &all));
    cJSON_ArrayForEach(e, weight_map)
    {
        if (!cJSON_IsString(e) || strchr(e->valuestring, '/') || !*e->valuestring)
            return kve_fail(KVE_ERR_FILE, "%s: the shard of '%s' is not the name of a file in the folder", name,
                            e->string);
        all[count++] = e->valuestring;
    }
    qsort(all, count, sizeof *all, by_text);
    *n = 0;
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp(all[i], all[i - 1]) != 0)
            all[(*n)++] = all[i];
    *out = all;
    return KVE_OK;
}

/* A weight file that nothing names is a sign of a mixed-up folder. Other exports beside it (consolidated.*, adapters)
 * have other names. */
static kve_status check_strays(kve_checkpoint *ck, const char **shards, size_t n)
{
    char **names;
    size_t n_names = 0;
    KVE_TRY(kve_dir_list(ck->path, ".safetensors", &ck->arena, &names, &n_names));
    for (size_t i = 0; i < n_names; i++) {
        const char *name = names[i];
        if (strncmp(name, "model", 5) == 0 && !bsearch(&name, shards, n, sizeof *shards, by_text))
            return kve_fail(KVE_ERR_FILE,
                            "%s: the folder holds '%s', which is not part of this model (%zu weight files are); "
                            "remove it or download the model again",
                            ck->path, name, n);
    }
    return KVE_OK;
}

static kve_status load_index(kve_checkpoint *ck, const char *path)
{
    cJSON *root = NULL;
    const char **shards = NULL;
    size_t n = 0;
    KVE_TRY(kve_json_parse_file(path, &root));
    const cJSON *weight_map = kve_json_get(root, "weight_map");
    kve_status st = list_shards(ck, weight_map, path, &shards, &n);
    if (st == KVE_OK)
        st = check_strays(ck, shards, n);
    for (size_t i = 0; i < n && st == KVE_OK; i++)
        st = load_shard(ck, shards[i], weight_map);
    cJSON_Delete(root);
    return st;
}

static kve_status load_weights(kve_checkpoint *ck)
{
    const char *single[] = {SINGLE};
    kve_str index = {0}, file = {0};
    kve_status st = join(ck, INDEX, &index);
    if (st == KVE_OK)
        st = join(ck, SINGLE, &file);
    if (st == KVE_OK && kve_path_exists(index.p))
        st = load_index(ck, index.p);
    else if (st == KVE_OK && !kve_path_exists(file.p))
        st =
            kve_fail(KVE_ERR_FILE,
                     "%s: holds neither " SINGLE " nor " INDEX "; download the safetensors files, or convert the model",
                     ck->path);
    else if (st == KVE_OK && (st = check_strays(ck, single, 1)) == KVE_OK)
        st = load_shard(ck, SINGLE, NULL);
    kve_str_free(&index);
    kve_str_free(&file);
    return st;
}

/* A tied model may carry a copy of the embedding as its head. Only an equal one is a copy; it is dropped. */
static kve_status drop_tied_head(kve_checkpoint *ck)
{
    const kve_entry *embed = kve_entry_find(ck, "embed"), *head = kve_entry_find(ck, "head");
    if (!ck->cfg.tied_head || !head)
        return KVE_OK;
    size_t bytes = embed->row_bytes * (size_t)embed->rows, at = (size_t)(head - ck->entries);
    if (head->type != embed->type || memcmp(head->data, embed->data, bytes) != 0)
        return kve_fail(KVE_ERR_FILE,
                        "%s: 'tie_word_embeddings' is true, but '%s' differs from '%s'; correct config.json or the "
                        "weights",
                        ck->path, head->source, embed->source);
    ck->n_entries--;
    memmove(ck->entries + at, ck->entries + at + 1, (ck->n_entries - at) * sizeof *ck->entries);
    return KVE_OK;
}

static kve_status read_vocab(kve_checkpoint *ck)
{
    kve_str tokenizer = {0}, config = {0};
    kve_status st = join(ck, "tokenizer.json", &tokenizer);
    if (st == KVE_OK)
        st = join(ck, "tokenizer_config.json", &config);
    if (st == KVE_OK && !kve_path_exists(tokenizer.p))
        st = kve_fail(KVE_ERR_FILE, "%s: is missing; save the model with a fast tokenizer, or use a GGUF file",
                      tokenizer.p);
    if (st == KVE_OK)
        st = kve_vocab_from_json(tokenizer.p, kve_path_exists(config.p) ? config.p : NULL, &ck->vocab,
                                 &ck->chat_template);
    kve_str_free(&tokenizer);
    kve_str_free(&config);
    return st;
}

kve_status kve_hf_load(kve_checkpoint *ck)
{
    ck->format = "safetensors";
    KVE_TRY(read_config(ck));
    set_name(ck);
    KVE_TRY(load_weights(ck));
    KVE_TRY(kve_entries_check(ck, ck->path));
    KVE_TRY(drop_tied_head(ck));
    KVE_TRY(read_vocab(ck));
    kve_config_add_eos(&ck->cfg, ck->vocab.eos);
    return kve_vocab_pad(ck);
}
