/* Hugging Face folders: the golden models against the reference library's values, faults made in copies of them, and
 * how a path finds a model. */
#include "host/base/file.h"
#include "host/model/checkpoint.h"
#include "host/model/safetensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN KVE_SOURCE_DIR "/tests/golden/models/"

static char g_dir[64];

static int make_dir(void **state)
{
    (void)state;
    snprintf(g_dir, sizeof g_dir, "/tmp/kve_model_XXXXXX");
    return mkdtemp(g_dir) ? 0 : -1;
}

static void empty_dir(const char *dir)
{
    kve_arena arena = {0};
    char **names, path[512];
    size_t n = 0;
    assert_int_equal(kve_dir_list(dir, "", &arena, &names, &n), KVE_OK);
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (unlink(path) != 0) { /* a link to a folder goes as a link: what it points to is not ours */
            empty_dir(path);
            assert_int_equal(rmdir(path), 0);
        }
    }
    kve_arena_free(&arena);
}

static int remove_dir(void **state)
{
    (void)state;
    empty_dir(g_dir);
    return rmdir(g_dir);
}

static const char *in_dir(const char *file)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", g_dir, file);
    return path;
}

static void put(const char *file, const void *data, size_t len)
{
    assert_int_equal(kve_file_write(in_dir(file), data, len), KVE_OK);
}

/* A fresh copy of a golden model's folder in g_dir. */
static void copy_model(const char *model)
{
    kve_arena arena = {0};
    char **names, from[512], *text;
    size_t n = 0, len = 0;
    empty_dir(g_dir);
    snprintf(from, sizeof from, GOLDEN "%s", model);
    assert_int_equal(kve_dir_list(from, "", &arena, &names, &n), KVE_OK);
    for (size_t i = 0; i < n; i++) {
        snprintf(from, sizeof from, GOLDEN "%s/%s", model, names[i]);
        assert_int_equal(kve_file_read(from, &text, &len), KVE_OK);
        put(names[i], text, len);
        free(text);
    }
    kve_arena_free(&arena);
}

/* Replaces the first `old` in a file of g_dir. */
static void edit(const char *file, const char *old, const char *new_text)
{
    char *text = NULL;
    size_t len = 0;
    kve_str out = {0};
    assert_int_equal(kve_file_read(in_dir(file), &text, &len), KVE_OK);
    char *at = memmem(text, len, old, strlen(old));
    if (!at)
        fail_msg("%s holds no %s", file, old);
    assert_int_equal(kve_str_append(&out, text, (size_t)(at - text)), KVE_OK);
    assert_int_equal(kve_str_puts(&out, new_text), KVE_OK);
    at += strlen(old);
    assert_int_equal(kve_str_append(&out, at, len - (size_t)(at - text)), KVE_OK);
    put(file, out.p, out.len);
    kve_str_free(&out);
    free(text);
}

static void refused(const char *word)
{
    kve_checkpoint *ck = NULL;
    kve_status st = kve_checkpoint_open(g_dir, &ck);
    if (st == KVE_OK)
        fail_msg("accepted; '%s' was due", word);
    assert_int_equal(st, KVE_ERR_FILE);
    if (!strstr(kve_diag(), word) || !strstr(kve_diag(), g_dir))
        fail_msg("'%s' and the path are not in: %s", word, kve_diag());
}

static void accepted(void)
{
    kve_checkpoint *ck = NULL;
    if (kve_checkpoint_open(g_dir, &ck) != KVE_OK)
        fail_msg("%s", kve_diag());
    kve_checkpoint_close(ck);
}

static void check_tensor_line(const kve_checkpoint *ck, const char *line)
{
    char name[64];
    long row = 0, col = 0;
    double want = 0;
    int64_t rows = 0, cols = 0;
    assert_int_equal(sscanf(line, "tensor %63s %ld %ld %la", name, &row, &col, &want), 4);
    assert_int_equal(kve_checkpoint_dims(ck, name, &rows, &cols), KVE_OK);
    assert_true(row < rows && col < cols);
    float *x = calloc((size_t)cols, sizeof *x);
    assert_non_null(x);
    assert_int_equal(kve_checkpoint_read(ck, name, row, 1, x), KVE_OK);
    if ((double)x[col] != want)
        fail_msg("%s[%ld][%ld] is %a instead of %a", name, row, col, (double)x[col], want);
    free(x);
}

static void check_rope_line(const kve_checkpoint *ck, const char *line)
{
    const kve_config *c = kve_checkpoint_config(ck);
    int total = 0, pos = 0, i = 0, half = c->shape.R / 2;
    double want_cos = 0, want_sin = 0;
    assert_int_equal(sscanf(line, "rope %d %d %d %lf %lf", &total, &pos, &i, &want_cos, &want_sin), 5);
    assert_true(i < half && pos < total);
    float *cos_out = calloc((size_t)(2 * total * half), sizeof *cos_out), *sin_out = cos_out + total * half;
    assert_non_null(cos_out);
    assert_int_equal(kve_rope_tables(c, total, total, cos_out, sin_out), KVE_OK);
    double off =
        fmax(fabs((double)cos_out[pos * half + i] - want_cos), fabs((double)sin_out[pos * half + i] - want_sin));
    if (off > 1e-5) /* the reference computes angles in f32 */
        fail_msg("%s: off by %g", line, off);
    free(cos_out);
}

static int check_values(const char *model, const kve_checkpoint *ck)
{
    char path[512], *text = NULL, *save = NULL;
    size_t len = 0;
    int n = 0;
    snprintf(path, sizeof path, GOLDEN "%s/values.txt", model);
    assert_int_equal(kve_file_read(path, &text, &len), KVE_OK);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++) {
        if (line[0] == 't')
            check_tensor_line(ck, line);
        else
            check_rope_line(ck, line);
    }
    free(text);
    return n;
}

static void test_golden(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        kve_shape shape;
        kve_rope_scaling scaling;
        int n_eos, n_tensors;
        bool tied, bias, norm;
    } all[] = {
        {"llama", {2, 4, 2, 16, 16, 40, 56, 272}, KVE_ROPE_LLAMA3, 2, 21, false, false, false},
        {"llama_tied", {2, 3, 1, 16, 16, 40, 56, 272}, KVE_ROPE_NONE, 1, 20, true, false, false},
        {"qwen2", {2, 4, 2, 16, 16, 40, 56, 272}, KVE_ROPE_NONE, 1, 27, false, true, false},
        {"qwen3", {2, 4, 1, 32, 32, 40, 56, 272}, KVE_ROPE_LINEAR, 1, 24, true, false, true},
        {"phi3", {2, 2, 1, 32, 24, 64, 32, 272}, KVE_ROPE_LONGROPE, 2, 21, false, false, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char path[512];
        kve_checkpoint *ck = NULL;
        kve_tensor_info info;
        int n = 0;
        snprintf(path, sizeof path, GOLDEN "%s", all[i].model);
        if (kve_checkpoint_open(path, &ck) != KVE_OK)
            fail_msg("%s", kve_diag());
        const kve_config *c = kve_checkpoint_config(ck);
        assert_memory_equal(&c->shape, &all[i].shape, sizeof c->shape);
        assert_string_equal(c->name, all[i].model);
        assert_true(c->rope_scaling == all[i].scaling && c->tied_head == all[i].tied);
        assert_true(c->qkv_bias == all[i].bias && c->qk_norm == all[i].norm && c->n_eos == all[i].n_eos);
        assert_true(c->bos == -1 && c->sliding_window == 0);
        while (kve_checkpoint_tensor(ck, (size_t)n, &info))
            n++;
        assert_int_equal(n, all[i].n_tensors);
        assert_true(check_values(all[i].model, ck) > 15);
        const kve_vocab *v = kve_checkpoint_vocab(ck);
        assert_true(v->n_tokens == 272 && v->n_merges == 8 && v->tokens[271].type == KVE_TOKEN_UNUSED);
        assert_non_null(strstr(kve_checkpoint_chat_template(ck), "<|im_start|>"));
        kve_checkpoint_close(ck);
    }
}

static void test_sha256(void **state)
{
    (void)state;
    char one[KVE_SHA256_HEX], two[KVE_SHA256_HEX], file[KVE_SHA256_HEX], each[3][KVE_SHA256_HEX];
    kve_checkpoint *ck = NULL;
    assert_int_equal(kve_checkpoint_open(GOLDEN "llama", &ck), KVE_OK);
    assert_int_equal(kve_checkpoint_sha256(ck, one), KVE_OK);
    assert_int_equal(kve_checkpoint_sha256(ck, two), KVE_OK);
    assert_int_equal(kve_sha256_file(GOLDEN "llama/model.safetensors", file), KVE_OK);
    assert_string_equal(one, file);
    assert_string_equal(one, two);
    kve_checkpoint_close(ck);
    copy_model("qwen2");
    assert_int_equal(kve_checkpoint_open(g_dir, &ck), KVE_OK);
    assert_int_equal(kve_checkpoint_sha256(ck, one), KVE_OK);
    kve_checkpoint_close(ck);
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "model-0000%d-of-00003.safetensors", i + 1);
        assert_int_equal(kve_sha256_file(in_dir(name), each[i]), KVE_OK);
    }
    qsort(each, 3, sizeof *each, (int (*)(const void *, const void *))strcmp);
    kve_str joined = {0};
    for (int i = 0; i < 3; i++)
        assert_int_equal(kve_str_printf(&joined, "%s\n", each[i]), KVE_OK);
    assert_int_equal(kve_sha256(joined.p, joined.len, two), KVE_OK);
    assert_string_equal(one, two);
    kve_str_free(&joined);
}

#define SHARD1 "model-00001-of-00003.safetensors"
#define SHARD3 "model-00003-of-00003.safetensors"
#define INDEX "model.safetensors.index.json"

static void test_shards(void **state)
{
    (void)state;
    char *text = NULL;
    size_t len = 0;
    copy_model("qwen2");
    accepted();
    assert_int_equal(unlink(in_dir(SHARD3)), 0);
    refused("the shard is missing");
    copy_model("qwen2");
    assert_int_equal(kve_file_read(in_dir(SHARD1), &text, &len), KVE_OK);
    put("model-00009-of-00009.safetensors", text, len);
    refused("not part of this model");
    copy_model("qwen2");
    put("consolidated.safetensors", text, len); /* another export beside it */
    accepted();
    put(SHARD3, text, len); /* its tensors are in two shards now */
    refused("puts it into");
    copy_model("qwen2");
    edit(INDEX, "\"lm_head.weight\"", "\"lm_tail.weight\"");
    refused("lm_head.weight' is in this shard, but");
    copy_model("qwen2");
    edit(INDEX, "\"weight_map\": {", "\"weight_map\": {\n \"extra.weight\": \"" SHARD1 "\",");
    refused("'extra.weight' is missing");
    copy_model("qwen2");
    edit(INDEX, SHARD1, "../" SHARD1);
    refused("not the name of a file");
    copy_model("qwen2");
    edit(INDEX, "weight_map", "weights_map");
    refused("weight_map");
    free(text);
}

static void test_config_faults(void **state)
{
    (void)state;
    static const struct {
        const char *model, *file, *old, *new_text, *word;
    } cases[] = {
        {"llama", "config.json", "\"model_type\": \"llama\"", "\"model_type\": \"gpt2\"", "'gpt2'"},
        {"llama", "config.json", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "'gelu'"},
        {"llama", "config.json", "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias"},
        {"llama", "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", "is not part"},
        {"llama", "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", "is missing"},
        {"llama", "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2.5", "num_hidden_layers"},
        {"llama", "config.json", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 1", "asks for"},
        {"llama", "config.json", "\"intermediate_size\": 56", "\"intermediate_size\": 57", "asks for"},
        {"llama", "config.json", "\"rms_norm_eps\"", "\"norm_eps\"", "rms_norm_eps"},
        {"llama", "config.json", "\"rope_type\": \"llama3\"", "\"rope_type\": \"dynamic\"", "'dynamic'"},
        {"llama", "config.json", "\"rope_type\": \"llama3\"", "\"rope_type\": \"yarn\"", "'yarn'"},
        {"llama", "config.json", "\"low_freq_factor\": 1.0", "\"low_freq_factor\": 5.0", "low < high"},
        {"llama", "config.json", "256,", "999,", "eos_token_id"},
        {"llama", "config.json", "\"vocab_size\"", "\"quantization_config\": {}, \"vocab_size\"", "quantised"},
        {"llama", "config.json", "\"vocab_size\": 272", "\"vocab_size\": 270", "asks for"},
        {"llama", "config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", "differs"},
        {"llama_tied", "config.json", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", "not tied"},
        {"phi3", "config.json", "1.455,", "", "list of 12"},
        {"phi3", "config.json", "1.455,", "-1.455,", "factor 1 is -1.455"},
        {"phi3", "config.json", "\"partial_rotary_factor\": 0.75,\n    \"rope",
         "\"partial_rotary_factor\": 2,\n    \"rope", "partial_rotary_factor"},
        {"llama", "model.safetensors", "model.norm.weight", "model.morn.weight", "'model.morn.weight' is not part"},
        {"llama", "generation_config.json", "256", "9256", "eos_token_id"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        copy_model(cases[i].model);
        edit(cases[i].file, cases[i].old, cases[i].new_text);
        refused(cases[i].word);
    }
    copy_model("llama");
    assert_int_equal(unlink(in_dir("tokenizer.json")), 0);
    refused("tokenizer.json");
    copy_model("llama");
    assert_int_equal(unlink(in_dir("model.safetensors")), 0);
    refused("neither");
}

/* Windows by architecture: a switch, an absent field, a list of layer types, a window as long as the context. */
static void test_windows(void **state)
{
    (void)state;
    static const struct {
        const char *model, *text;
        int32_t window;
    } cases[] = {
        {"llama", "\"sliding_window\": 32,", 32},
        {"llama", "\"sliding_window\": 128,", 0},
        {"llama", "\"sliding_window\": 32, \"layer_types\": [\"full_attention\"],", 0},
        {"llama", "\"sliding_window\": 32, \"layer_types\": [\"full_attention\", \"sliding_attention\"],", 32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kve_checkpoint *ck = NULL;
        char text[256];
        copy_model(cases[i].model);
        snprintf(text, sizeof text, "%s \"vocab_size\"", cases[i].text);
        edit("config.json", "\"vocab_size\"", text);
        assert_int_equal(kve_checkpoint_open(g_dir, &ck), KVE_OK);
        assert_int_equal(kve_checkpoint_config(ck)->sliding_window, cases[i].window);
        kve_checkpoint_close(ck);
    }
}

/* A tied model that stores its head: an equal copy is dropped, another one is an error. */
static void test_stored_tied_head(void **state)
{
    (void)state;
    for (int differ = 0; differ < 2; differ++) {
        kve_safetensors in;
        kve_st_tensor out[32];
        kve_st_writer *w = NULL;
        copy_model("llama_tied");
        assert_int_equal(kve_safetensors_open(GOLDEN "llama_tied/model.safetensors", &in), KVE_OK);
        size_t n = in.n_tensors;
        assert_true(n < 32);
        memcpy(out, in.tensors, n * sizeof *out);
        out[n] = *kve_st_find(&in, "model.embed_tokens.weight");
        out[n].name = "lm_head.weight";
        assert_int_equal(kve_st_create(in_dir("model.safetensors"), out, n + 1, NULL, 0, &w), KVE_OK);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(kve_st_write(w, out[i].data, out[i].bytes), KVE_OK);
        const float other = 0.5f;
        assert_int_equal(kve_st_write(w, differ ? (const void *)&other : out[n].data, sizeof other), KVE_OK);
        assert_int_equal(kve_st_write(w, out[n].data + 4, out[n].bytes - 4), KVE_OK);
        assert_int_equal(kve_st_finish(w), KVE_OK);
        kve_safetensors_close(&in);
        if (differ) {
            refused("differs");
            continue;
        }
        kve_checkpoint *ck = NULL;
        assert_int_equal(kve_checkpoint_open(g_dir, &ck), KVE_OK);
        assert_true(kve_checkpoint_config(ck)->tied_head && !kve_checkpoint_has(ck, "head"));
        assert_true(kve_checkpoint_has(ck, "embed") && kve_checkpoint_has(ck, "1.v"));
        kve_checkpoint_close(ck);
    }
}

static void test_allocation_failures(void **state)
{
    (void)state;
    kve_checkpoint *ck = NULL;
    long n = 1;
    for (;; n++) {
        kve_alloc_fail_after(n);
        kve_status st = kve_checkpoint_open(GOLDEN "qwen2", &ck);
        kve_alloc_fail_after(0);
        if (st == KVE_OK)
            break;
        assert_int_equal(st, KVE_ERR_MEMORY);
    }
    assert_true(n > 50);
    kve_checkpoint_close(ck);
}

static void opens_as(const char *path, const char *name)
{
    kve_checkpoint *ck = NULL;
    if (kve_checkpoint_open(path, &ck) != KVE_OK)
        fail_msg("%s: %s", path, kve_diag());
    assert_string_equal(kve_checkpoint_config(ck)->name, name);
    kve_checkpoint_close(ck);
}

static void fails_with(const char *path, const char *word)
{
    kve_checkpoint *ck = NULL;
    assert_int_equal(kve_checkpoint_open(path, &ck), KVE_ERR_FILE);
    if (!strstr(kve_diag(), word))
        fail_msg("'%s' is not in: %s", word, kve_diag());
}

static void test_paths(void **state)
{
    (void)state;
    char snapshot[512], link[600];
    empty_dir(g_dir);
    assert_int_equal(setenv("HOME", g_dir, 1), 0);
    unsetenv("HF_HUB_CACHE");
    unsetenv("HF_HOME");
    unsetenv("KVEVAL_CACHE");
    opens_as(GOLDEN "llama/", "llama");
    opens_as(GOLDEN "llama/config.json", "llama");
    opens_as(GOLDEN "llama/model.safetensors", "llama");
    fails_with(GOLDEN "dequant.txt", "no config.json lies beside it");
    fails_with(GOLDEN, "0 .gguf files");
    fails_with("smollm2", "bash bench/fetch_model.sh");
    fails_with("smollm2", "/.cache/kveval/SmolLM2-135M-Instruct.Q4_1.gguf");
    setenv("KVEVAL_CACHE", g_dir, 1);
    fails_with("smollm2", in_dir("SmolLM2-135M-Instruct.Q4_1.gguf"));
    fails_with("no-such-file", "no such file or folder");
    fails_with("../up/one", "no such file or folder");
    fails_with("org/name@../x", "no such file or folder");
    fails_with("org/name", "hf download org/name");
    fails_with("org/name@v1", "hf download org/name --revision v1");
    snprintf(snapshot, sizeof snapshot, "%s/hub/models--org--tiny-x/snapshots", g_dir);
    assert_int_equal(kve_mkdirs(snapshot), KVE_OK);
    assert_int_equal(kve_mkdirs(in_dir("hub/models--org--tiny-x/refs")), KVE_OK);
    snprintf(link, sizeof link, "%s/abc123", snapshot);
    assert_int_equal(symlink(GOLDEN "llama", link), 0);
    put("hub/models--org--tiny-x/refs/main", "abc123\n", 7);
    setenv("HF_HOME", g_dir, 1);
    opens_as("org/tiny-x", "org/tiny-x");
    opens_as("org/tiny-x@abc123", "org/tiny-x");
    fails_with("org/tiny-x@def", "--revision def");
    unsetenv("HF_HOME");
    setenv("HF_HUB_CACHE", in_dir("hub"), 1);
    opens_as("org/tiny-x@main", "org/tiny-x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_sha256),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_config_faults),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_stored_tied_head),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
