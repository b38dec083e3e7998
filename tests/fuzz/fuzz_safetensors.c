/* Fuzzes safetensors files: as a file of its own, which is then written again and must come back equal, and as the
 * weights of a tiny model. */
#include "host/model/safetensors.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/use.h"

#include <sys/stat.h>

/* The shapes that seeds.py writes weights for. */
static const char config[] = "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"num_attention_heads\":2,"
                             "\"num_key_value_heads\":1,\"hidden_size\":4,\"intermediate_size\":3,\"vocab_size\":3,"
                             "\"max_position_embeddings\":16,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true}";
static const char tokenizer[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},"
                                "\"merges\":[[\"a\",\"b\"]]},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                                "\"add_prefix_space\":false,\"use_regex\":true}}";

static void use_tensors(const kve_safetensors *st)
{
    for (size_t i = 0; i < st->n_tensors; i++) {
        const kve_st_tensor *t = &st->tensors[i];
        unsigned char *copy = malloc(t->bytes + 1);
        must(copy && kve_st_find(st, t->name) == t && t->n_dims <= KVE_ST_MAX_DIMS);
        must(t->bytes == (size_t)t->count * kve_st_dtype_bytes(t->dtype));
        must(kve_st_copy(st, t->name, t->dtype, t->count, copy) == KVE_OK);
        free(copy);
    }
    for (size_t i = 0; i < st->n_meta; i++)
        must(kve_st_meta_get(st, st->meta[i].key) == st->meta[i].value);
}

static void write_again(const kve_safetensors *st)
{
    char path[FUZZ_PATH];
    kve_safetensors back;
    kve_st_writer *w = NULL;
    if (!accepted(
            kve_st_create(fuzz_path("again.safetensors", path), st->tensors, st->n_tensors, st->meta, st->n_meta, &w)))
        return;
    for (size_t i = 0; i < st->n_tensors; i++)
        must(kve_st_write(w, st->tensors[i].data, st->tensors[i].bytes) == KVE_OK);
    must(kve_st_finish(w) == KVE_OK);
    must(kve_safetensors_open(path, &back) == KVE_OK);
    must(back.n_tensors == st->n_tensors && back.n_meta == st->n_meta);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const kve_st_tensor *a = &st->tensors[i], *b = &back.tensors[i];
        must(strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->n_dims == b->n_dims && a->bytes == b->bytes);
        must(a->bytes == 0 || memcmp(a->data, b->data, a->bytes) == 0);
    }
    kve_safetensors_close(&back);
}

static void as_model(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH];
    kve_checkpoint *ck = NULL;
    if (mkdir(fuzz_path("model", path), 0700) == 0) {
        fuzz_file("model/config.json", config, sizeof config - 1, path);
        fuzz_file("model/tokenizer.json", tokenizer, sizeof tokenizer - 1, path);
    }
    fuzz_file("model/model.safetensors", data, size, path);
    if (accepted(kve_checkpoint_open(fuzz_path("model", path), &ck)))
        use_checkpoint(ck);
    kve_checkpoint_close(ck);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kve_safetensors st;
    if (accepted(kve_safetensors_parse(data, size, "fuzz.safetensors", &st))) {
        use_tensors(&st);
        write_again(&st);
        as_model(data, size);
    }
    kve_safetensors_close(&st);
    return 0;
}
