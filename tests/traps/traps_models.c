/* Traps around weights: RoPE's many spellings, output heads, tensors too many and too few, row orders. */
#include "tests/traps/traps.h"

#include "host/model/safetensors.h"
#include "tests/model/build.h"
#include "tests/traps/folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN KVE_SOURCE_DIR "/tests/golden/models/"

/* The angle of frequency i at position 1 of a sample of total_len tokens. */
static double angle(const kve_config *c, int32_t i, int32_t total_len)
{
    enum { MOST = 64 };
    float cos_out[2 * MOST], sin_out[2 * MOST];
    assert_true(c->shape.R / 2 <= MOST);
    trap_must(kve_rope_tables(c, 2, total_len, cos_out, sin_out));
    int32_t at = c->shape.R / 2 + i;
    return atan2((double)sin_out[at], (double)cos_out[at]);
}

static void expect_angle(const kve_config *c, int32_t i, int32_t total_len, double want)
{
    double got = angle(c, i, total_len);
    if (fabs(got - want) > 1e-6 * want)
        fail_msg("frequency %d of %d tokens turns by %.9g instead of %.9g", i, total_len, got, want);
}

static void open_tiny(const tiny_faults *f, kve_str *file, kve_checkpoint **ck)
{
    tiny_gguf(f, file);
    trap_must(tiny_open(file->p, file->len, ck));
}

/* GGUF keeps Llama 3.1's factors as a tensor of divisors; no metadata key mentions it. */
static void rope_factors_as_a_tensor(void **state)
{
    (void)state;
    for (int with = 0; with < 2; with++) {
        kve_str file = {0};
        kve_checkpoint *ck = NULL;
        open_tiny(&(tiny_faults){.rope_freqs = with}, &file, &ck);
        const kve_config *c = kve_checkpoint_config(ck);
        for (int32_t i = 0; i < TINY_D / 2; i++) {
            double divisor = with ? (double)tiny_value("rope_freqs.weight", 0, i) : 1;
            expect_angle(c, i, 8, pow(5000, -2.0 * i / TINY_D) / divisor);
        }
        kve_checkpoint_close(ck);
        kve_str_free(&file);
    }
}

/* config.json of the smallest kind with the given RoPE fields. */
static void read_config(const char *rope_fields, kve_config *c)
{
    kve_str text = {0};
    cJSON *root = NULL;
    trap_must(kve_str_printf(&text,
                             "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"num_attention_heads\":4,"
                             "\"hidden_size\":64,\"intermediate_size\":8,\"vocab_size\":16,\"rms_norm_eps\":1e-5,"
                             "\"max_position_embeddings\":4096%s}",
                             rope_fields));
    trap_must(kve_json_parse(text.p, text.len, "config.json", &root));
    trap_must(kve_config_from_json(root, NULL, "config.json", c));
    cJSON_Delete(root);
    kve_str_free(&text);
}

static void theta_at_every_place(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        double theta;
    } cases[] = {
        {"", 10000},
        {",\"rope_theta\":500000.0", 500000},
        {",\"rope_theta\":500000.0,\"rope_scaling\":null", 500000},
        {",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000.0}", 500000},
        {",\"rope_theta\":7.0,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000.0}", 500000},
        {",\"rope_theta\":500000.0,\"rope_parameters\":{\"rope_type\":\"default\"}", 500000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kve_config c;
        read_config(cases[i].fields, &c);
        if (c.rope_theta != cases[i].theta)
            fail_msg("case %zu: theta %g", i, c.rope_theta);
        expect_angle(&c, 5, 100, pow(cases[i].theta, -10.0 / 16));
    }
}

/* Llama 3.1's rule: long waves are stretched, short ones stay, and the two names of the field mean the same. */
static void llama3_scaling_under_both_names(void **state)
{
    (void)state;
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    for (int k = 0; k < 2; k++) {
        char fields[300];
        kve_config c;
        snprintf(fields, sizeof fields,
                 ",\"rope_theta\":500000.0,\"%s\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
                 "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64}",
                 names[k]);
        read_config(fields, &c);
        for (int32_t i = 0; i < 8; i++) {
            double freq = pow(500000, -2.0 * i / 16), wave = 2 * M_PI / freq, want = freq;
            if (wave > 64) /* longer than the original context */
                want = freq / 8;
            else if (wave > 16) /* between a quarter of it and all of it */
                want = freq / 8 + (freq - freq / 8) * (64 / wave - 1) / 3;
            expect_angle(&c, i, 100, want);
        }
    }
}

/* LongRoPE: the sample's whole length chooses, for all of its positions alike. */
static void longrope_by_length(void **state)
{
    (void)state;
    kve_checkpoint *ck = NULL;
    trap_must(kve_checkpoint_open(GOLDEN "phi3", &ck));
    const kve_config *c = kve_checkpoint_config(ck);
    double plain = pow(10000, -2.0 * 11 / 24);
    expect_angle(c, 11, 32, plain / 1.5); /* the original context is 32 */
    expect_angle(c, 11, 33, plain / 6);
    float small[2][40 * 12], large[2][40 * 12];
    trap_must(kve_rope_tables(c, 32, 32, small[0], small[1]));
    trap_must(kve_rope_tables(c, 32, 40, large[0], large[1]));
    for (int32_t pos = 1; pos < 32; pos++) /* also where both samples have this position */
        assert_true(small[1][pos * 12 + 11] != large[1][pos * 12 + 11]);
    kve_checkpoint_close(ck);
}

static void tied_and_absent(void **state)
{
    (void)state;
    kve_str file = {0};
    kve_checkpoint *ck = NULL;
    open_tiny(&(tiny_faults){0}, &file, &ck);
    assert_true(kve_checkpoint_config(ck)->tied_head && !kve_checkpoint_has(ck, "head"));
    kve_checkpoint_close(ck);
    kve_str_clear(&file);
    open_tiny(&(tiny_faults){.head = true}, &file, &ck);
    assert_true(!kve_checkpoint_config(ck)->tied_head && kve_checkpoint_has(ck, "head"));
    kve_checkpoint_close(ck);
    kve_str_free(&file);
    trap_must(kve_checkpoint_open(GOLDEN "llama_tied", &ck));
    assert_true(kve_checkpoint_config(ck)->tied_head && !kve_checkpoint_has(ck, "head"));
    kve_checkpoint_close(ck);
}

/* The tied model's weights with a stored head: a copy of the embedding whose first value is changed, or not. */
static void add_head(bool change)
{
    kve_safetensors in;
    kve_st_tensor out[32];
    kve_st_writer *w = NULL;
    trap_must(kve_safetensors_open(GOLDEN "llama_tied/model.safetensors", &in));
    size_t n = in.n_tensors;
    assert_true(n < 32);
    memcpy(out, in.tensors, n * sizeof *out);
    out[n] = *kve_st_find(&in, "model.embed_tokens.weight");
    out[n].name = "lm_head.weight";
    trap_must(kve_st_create(trap_path("model.safetensors"), out, n + 1, NULL, 0, &w));
    for (size_t i = 0; i < n; i++)
        trap_must(kve_st_write(w, out[i].data, out[i].bytes));
    unsigned char *copy = malloc(out[n].bytes);
    assert_non_null(copy);
    memcpy(copy, out[n].data, out[n].bytes);
    copy[1] = (unsigned char)(copy[1] ^ (change ? 1 : 0));
    trap_must(kve_st_write(w, copy, out[n].bytes));
    trap_must(kve_st_finish(w));
    free(copy);
    kve_safetensors_close(&in);
}

static void tied_and_present(void **state)
{
    (void)state;
    kve_checkpoint *ck = NULL;
    trap_copy_model("llama_tied");
    add_head(false);
    trap_must(kve_checkpoint_open(trap_dir, &ck));
    assert_true(kve_checkpoint_config(ck)->tied_head && !kve_checkpoint_has(ck, "head"));
    kve_checkpoint_close(ck);
    add_head(true);
    trap_refused(kve_checkpoint_open(trap_dir, &ck), "'lm_head.weight' differs");
}

static void untied_and_absent(void **state)
{
    (void)state;
    kve_checkpoint *ck = NULL;
    trap_copy_model("llama_tied");
    trap_edit("config.json", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
    trap_refused(kve_checkpoint_open(trap_dir, &ck), "not tied");
}

static void refuse_gguf(const tiny_faults *f, const char *word)
{
    kve_str file = {0};
    kve_checkpoint *ck = NULL;
    tiny_gguf(f, &file);
    trap_refused(tiny_open(file.p, file.len, &ck), word);
    kve_str_free(&file);
}

static void a_tensor_too_many(void **state)
{
    (void)state;
    kve_checkpoint *ck = NULL;
    refuse_gguf(&(tiny_faults){.extra_tensor = "blk.0.attn_q_norm.weight"}, "'blk.0.attn_q_norm.weight' is not part");
    trap_copy_model("llama");
    trap_edit("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"); /* layer 1 is left over */
    trap_refused(kve_checkpoint_open(trap_dir, &ck), "model.layers.1.");
}

static void a_tensor_too_few(void **state)
{
    (void)state;
    kve_checkpoint *ck = NULL;
    refuse_gguf(&(tiny_faults){.skip_tensor = "blk.0.attn_norm.weight"}, "'0.attn_norm'");
    trap_copy_model("llama");
    trap_edit("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
    trap_refused(kve_checkpoint_open(trap_dir, &ck), "'2.");
}

static void qwen2_bias_without_a_key(void **state)
{
    (void)state;
    kve_checkpoint *ck = NULL;
    trap_must(kve_checkpoint_open(GOLDEN "qwen2", &ck));
    cJSON *root = NULL;
    trap_must(kve_json_parse_file(GOLDEN "qwen2/config.json", &root));
    assert_null(kve_json_get(root, "attention_bias"));
    assert_null(kve_json_get(root, "qkv_bias"));
    cJSON_Delete(root);
    assert_true(kve_checkpoint_config(ck)->qkv_bias);
    static const char *const names[] = {"0.q_bias", "0.k_bias", "0.v_bias", "1.q_bias", "1.k_bias", "1.v_bias"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(kve_checkpoint_has(ck, names[i]));
    int64_t rows = 0, cols = 0;
    trap_must(kve_checkpoint_dims(ck, "0.k_bias", &rows, &cols));
    assert_true(rows == 1 && cols == 32); /* two KV heads of 16: not the query's 64 */
    kve_checkpoint_close(ck);
    trap_copy_model("qwen2"); /* read as a model without biases, they would be left over */
    trap_edit("config.json", "\"model_type\": \"qwen2\"", "\"model_type\": \"llama\"");
    trap_refused(kve_checkpoint_open(trap_dir, &ck), "_proj.bias' is not part");
}

/* GGUF interleaves the halves of every head of Q and K. With grouped queries K has fewer heads of the same height, so
 * it must be undone per head, not per share of the query's heads. */
static void rows_of_grouped_keys(void **state)
{
    (void)state;
    kve_str file = {0};
    kve_checkpoint *ck = NULL;
    open_tiny(&(tiny_faults){0}, &file, &ck);
    static const struct {
        const char *name, *source;
        int64_t heads;
        bool interleaved;
    } all[] = {{"0.q", "blk.0.attn_q.weight", TINY_HQ, true},
               {"0.k", "blk.0.attn_k.weight", TINY_HKV, true},
               {"0.v", "blk.0.attn_v.weight", TINY_HKV, false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const kve_entry *e = kve_entry_find(ck, all[i].name);
        int64_t moved = 0;
        assert_non_null(e);
        assert_int_equal(e->rows, all[i].heads * TINY_D);
        for (int64_t r = 0; r < e->rows; r++) {
            float row[TINY_E], stored;
            trap_must(kve_checkpoint_read(ck, all[i].name, r, 1, row));
            assert_true(row[3] == tiny_value(all[i].source, r, 3));
            memcpy(&stored, e->data + (size_t)r * e->row_bytes + 3 * sizeof stored, sizeof stored);
            moved += stored != row[3];
        }
        assert_true(all[i].interleaved ? moved == e->rows * 3 / 4 : moved == 0); /* ends of a head stay */
    }
    kve_checkpoint_close(ck);
    kve_str_free(&file);
}

trap_rows traps_models(void)
{
    static const trap_row rows[] = {
        {"GGUF: RoPE factors as a tensor", rope_factors_as_a_tensor},
        {"RoPE theta at its old and its new place", theta_at_every_place},
        {"llama3 RoPE scaling under its old and its new name", llama3_scaling_under_both_names},
        {"LongRoPE's factors by the sample's length", longrope_by_length},
        {"which LongRoPE factors a sample used, in its record", NULL},
        {"tied output head, none stored", tied_and_absent},
        {"tied output head, one stored", tied_and_present},
        {"untied output head, none stored", untied_and_absent},
        {"a tensor that nothing uses", a_tensor_too_many},
        {"a tensor that is not there", a_tensor_too_few},
        {"Qwen2's biases, which no key announces", qwen2_bias_without_a_key},
        {"GGUF: row order of queries and of grouped keys", rows_of_grouped_keys},
    };
    return (trap_rows){rows, sizeof rows / sizeof *rows};
}
