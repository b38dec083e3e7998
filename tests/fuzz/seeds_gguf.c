/* Writes the seeds of fuzz_gguf: the tiny models of the tests, each in another variant. Usage: seeds_gguf DIR */
#include "tests/model/build.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    tiny_faults model;
} seeds[] = {
    {"plain", {0}},
    {"v2", {.version = 2}},
    {"spm", {.spm = true}},
    {"head", {.head = true}},
    {"freqs", {.rope_freqs = true}},
    {"aligned", {.alignment = 64}},
    {"unscaled", {.text_key = "llama.rope.scaling.type", .text_value = "linear"}},
    {"parts", {.int_key = "split.count", .int_value = 1}},
    {"pre", {.text_key = "tokenizer.ggml.pre", .text_value = "llama-bpe"}},
    {"qwen2", {.arch = "qwen2"}}, /* refused, but it shows the fuzzer the other names */
    {"twice", {.twice_tensor = "blk.0.attn_q.weight"}},
};

/* Gives matrices other types. The bytes stay: every other type needs fewer of them. */
static void set_types(kve_str *bytes)
{
    static const struct {
        const char *name;
        uint32_t type;
    } types[] = {{"blk.0.attn_q.weight", KVE_TYPE_Q5_1},   {"blk.0.attn_k.weight", KVE_TYPE_Q8_0},
                 {"blk.0.attn_v.weight", KVE_TYPE_F16},    {"blk.0.attn_output.weight", KVE_TYPE_BF16},
                 {"blk.0.ffn_gate.weight", KVE_TYPE_Q4_0}, {"blk.0.ffn_up.weight", KVE_TYPE_Q4_1},
                 {"blk.0.ffn_down.weight", KVE_TYPE_Q5_0}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        size_t len = strlen(types[i].name);
        char *at = memmem(bytes->p, bytes->len, types[i].name, len);
        if (at) /* behind the name: the number of dimensions, two dimensions, the type */
            memcpy(at + len + 4 + 2 * 8, &types[i].type, sizeof types[i].type);
    }
}

static kve_status write_seed(const char *dir, const char *name, const tiny_faults *model, bool types)
{
    kve_str bytes = {0}, path = {0};
    tiny_gguf(model, &bytes);
    if (types)
        set_types(&bytes);
    kve_status st = kve_str_printf(&path, "%s/%s.gguf", dir, name);
    if (st == KVE_OK)
        st = kve_file_write(path.p, bytes.p, bytes.len);
    kve_str_free(&bytes);
    kve_str_free(&path);
    return st;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    kve_status st = write_seed(argv[1], "types", &seeds[0].model, true);
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds && st == KVE_OK; i++)
        st = write_seed(argv[1], seeds[i].name, &seeds[i].model, false);
    if (st != KVE_OK)
        fprintf(stderr, "seeds_gguf: %s\n", kve_diag());
    return st == KVE_OK ? 0 : 1;
}
