/* Opens and closes a checkpoint of any format and answers questions about it. */
#include "host/model/internal.h"

#include <stdlib.h>
#include <string.h>

kve_status kve_checkpoint_map(kve_checkpoint *ck, const char *path, kve_map *out)
{
    char *copy;
    if (!ck->maps) {
        KVE_TRY(kve_arena_alloc(&ck->arena, KVE_MAX_SHARDS, sizeof *ck->map_paths, &ck->map_paths));
        KVE_TRY(kve_arena_alloc(&ck->arena, KVE_MAX_SHARDS, sizeof *ck->maps, &ck->maps));
    }
    if (ck->n_maps == KVE_MAX_SHARDS)
        return kve_fail(KVE_ERR_FILE, "%s: more than %d weight files", path, (int)KVE_MAX_SHARDS);
    KVE_TRY(kve_arena_strndup(&ck->arena, path, strlen(path), &copy));
    KVE_TRY(kve_map_open(path, out));
    ck->map_paths[ck->n_maps] = copy;
    ck->maps[ck->n_maps++] = *out;
    return KVE_OK;
}

kve_status kve_vocab_pad(kve_checkpoint *ck)
{
    kve_vocab *v = &ck->vocab;
    int32_t full = ck->cfg.shape.V;
    kve_vocab_token *tokens;
    if (v->n_tokens > full)
        return kve_fail(KVE_ERR_FILE,
                        "%s: the tokenizer has %d tokens and the model only %d; they do not belong together", ck->path,
                        v->n_tokens, full);
    KVE_TRY(kve_arena_alloc(&v->arena, (size_t)full, sizeof *tokens, &tokens));
    if (v->n_tokens)
        memcpy(tokens, v->tokens, (size_t)v->n_tokens * sizeof *tokens);
    for (int32_t id = v->n_tokens; id < full; id++)
        tokens[id] = (kve_vocab_token){.text = "", .type = KVE_TOKEN_UNUSED};
    v->tokens = tokens;
    v->n_tokens = full;
    return KVE_OK;
}

static kve_status open_into(kve_checkpoint *ck, const char *path)
{
    kve_str resolved = {0};
    kve_path_kind kind;
    char *copy;
    kve_map map;
    kve_status st = kve_model_resolve(path, &resolved, &kind);
    if (st == KVE_OK)
        st = kve_arena_strndup(&ck->arena, resolved.p, resolved.len, &copy);
    kve_str_free(&resolved);
    KVE_TRY(st);
    ck->path = copy;
    if (kind == KVE_PATH_FOLDER)
        return kve_hf_load(ck);
    KVE_TRY(kve_checkpoint_map(ck, ck->path, &map));
    return kve_gguf_load(ck, map.data, map.size, ck->path);
}

kve_status kve_checkpoint_open(const char *path, kve_checkpoint **out)
{
    kve_checkpoint *ck = NULL;
    KVE_TRY(kve_alloc(1, sizeof *ck, &ck));
    kve_status st = open_into(ck, path);
    if (st != KVE_OK)
        kve_checkpoint_close(ck);
    else
        *out = ck;
    return st;
}

void kve_checkpoint_close(kve_checkpoint *ck)
{
    if (!ck)
        return;
    for (size_t i = 0; i < ck->n_maps; i++)
        kve_map_close(&ck->maps[i]);
    kve_vocab_free(&ck->vocab);
    kve_arena_free(&ck->arena);
    free(ck);
}

const kve_config *kve_checkpoint_config(const kve_checkpoint *ck)
{
    return &ck->cfg;
}

const char *kve_checkpoint_path(const kve_checkpoint *ck)
{
    return ck->path;
}

const char *kve_checkpoint_format(const kve_checkpoint *ck)
{
    return ck->format;
}

const kve_vocab *kve_checkpoint_vocab(const kve_checkpoint *ck)
{
    return &ck->vocab;
}

const char *kve_checkpoint_chat_template(const kve_checkpoint *ck)
{
    return ck->chat_template;
}

bool kve_checkpoint_has(const kve_checkpoint *ck, const char *name)
{
    return kve_entry_find(ck, name) != NULL;
}

static kve_status find(const kve_checkpoint *ck, const char *name, const kve_entry **out)
{
    *out = kve_entry_find(ck, name);
    return *out ? KVE_OK : kve_fail(KVE_ERR_INTERNAL, "%s: no tensor '%s' was opened", ck->path, name);
}

kve_status kve_checkpoint_read(const kve_checkpoint *ck, const char *name, int64_t row0, int64_t n_rows, float *out)
{
    const kve_entry *e;
    KVE_TRY(find(ck, name, &e));
    return kve_entry_read(e, row0, n_rows, out);
}

kve_status kve_checkpoint_dims(const kve_checkpoint *ck, const char *name, int64_t *rows, int64_t *cols)
{
    const kve_entry *e;
    KVE_TRY(find(ck, name, &e));
    *rows = e->rows;
    *cols = e->cols;
    return KVE_OK;
}

static int by_text(const void *a, const void *b)
{
    return memcmp(a, b, KVE_SHA256_HEX);
}

kve_status kve_checkpoint_sha256(kve_checkpoint *ck, char hex[KVE_SHA256_HEX])
{
    if (!ck->sha256[0] && ck->n_maps == 1) {
        KVE_TRY(kve_sha256(ck->maps[0].data, ck->maps[0].size, ck->sha256));
    } else if (!ck->sha256[0]) {
        char(*each)[KVE_SHA256_HEX];
        KVE_TRY(kve_arena_alloc(&ck->arena, ck->n_maps, sizeof *each, &each));
        for (size_t i = 0; i < ck->n_maps; i++)
            KVE_TRY(kve_sha256(ck->maps[i].data, ck->maps[i].size, each[i]));
        qsort(each, ck->n_maps, sizeof *each, by_text);
        for (size_t i = 0; i < ck->n_maps; i++)
            each[i][KVE_SHA256_HEX - 1] = '\n';
        KVE_TRY(kve_sha256(each, ck->n_maps * sizeof *each, ck->sha256));
    }
    memcpy(hex, ck->sha256, KVE_SHA256_HEX);
    return KVE_OK;
}

bool kve_checkpoint_tensor(const kve_checkpoint *ck, size_t i, kve_tensor_info *out)
{
    if (i >= ck->n_entries)
        return false;
    const kve_entry *e = &ck->entries[i];
    *out = (kve_tensor_info){.name = e->name,
                             .type = kve_type_name(e->type),
                             .rows = e->rows,
                             .cols = e->cols,
                             .bytes = e->rows * (int64_t)e->row_bytes};
    return true;
}
