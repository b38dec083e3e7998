/* GGUF files: a good one read back, and bad ones of every kind, each a clear error. */
#include "tests/model/build.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A copy of exactly `size` bytes, so that the sanitizer sees a read behind the end. */
static unsigned char *exact(const void *data, size_t size)
{
    unsigned char *p = malloc(size ? size : 1);
    assert_non_null(p);
    if (size)
        memcpy(p, data, size);
    return p;
}

static void same_rows(const kve_checkpoint *ck, const char *name, const char *source, int64_t rows, int64_t cols)
{
    int64_t r = 0, c = 0;
    float *x = calloc((size_t)(rows * cols), sizeof *x);
    assert_non_null(x);
    assert_int_equal(kve_checkpoint_dims(ck, name, &r, &c), KVE_OK);
    assert_int_equal(r, rows);
    assert_int_equal(c, cols);
    assert_int_equal(kve_checkpoint_read(ck, name, 0, rows, x), KVE_OK);
    for (int64_t i = 0; i < rows * cols; i++)
        if (x[i] != tiny_value(source, i / cols, i % cols))
            fail_msg("%s[%ld][%ld] is %g", name, (long)(i / cols), (long)(i % cols), (double)x[i]);
    if (rows > 2) { /* a range in the middle */
        assert_int_equal(kve_checkpoint_read(ck, name, 1, 2, x), KVE_OK);
        assert_true(x[cols + 1] == tiny_value(source, 2, 1));
    }
    assert_int_not_equal(kve_checkpoint_read(ck, name, rows, 1, x), KVE_OK);
    free(x);
}

static void check_tensors(const kve_checkpoint *ck)
{
    static const struct {
        const char *name, *source;
        int64_t rows, cols;
    } all[] = {{"embed", "token_embd.weight", TINY_V, TINY_E},
               {"final_norm", "output_norm.weight", 1, TINY_E},
               {"0.attn_norm", "blk.0.attn_norm.weight", 1, TINY_E},
               {"0.q", "blk.0.attn_q.weight", TINY_HQ * TINY_D, TINY_E},
               {"0.k", "blk.0.attn_k.weight", TINY_HKV * TINY_D, TINY_E},
               {"0.v", "blk.0.attn_v.weight", TINY_HKV * TINY_D, TINY_E},
               {"0.o", "blk.0.attn_output.weight", TINY_E, TINY_HQ * TINY_D},
               {"0.ffn_norm", "blk.0.ffn_norm.weight", 1, TINY_E},
               {"0.gate", "blk.0.ffn_gate.weight", TINY_F, TINY_E},
               {"0.up", "blk.0.ffn_up.weight", TINY_F, TINY_E},
               {"0.down", "blk.0.ffn_down.weight", TINY_E, TINY_F}};
    kve_tensor_info info;
    size_t n = 0;
    while (kve_checkpoint_tensor(ck, n, &info))
        n++;
    assert_int_equal(n, sizeof all / sizeof *all);
    for (size_t i = 0; i < n; i++)
        same_rows(ck, all[i].name, all[i].source, all[i].rows, all[i].cols);
}

static void test_round_trip(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        kve_str file = {0};
        kve_checkpoint *ck = NULL;
        tiny_gguf(&(tiny_faults){.version = version, .alignment = version == 2 ? 64 : 0}, &file);
        assert_int_equal(tiny_open(file.p, file.len, &ck), KVE_OK);
        const kve_config *c = kve_checkpoint_config(ck);
        const kve_shape want = {TINY_L, TINY_HQ, TINY_HKV, TINY_D, TINY_D, TINY_E, TINY_F, TINY_V};
        assert_memory_equal(&c->shape, &want, sizeof want);
        assert_string_equal(c->name, "tiny");
        assert_true(c->tied_head && !c->qkv_bias && !c->qk_norm && c->rope_theta == 5000 && c->max_context == 64);
        assert_int_equal(c->n_eos, 2); /* the named one, and the control token that ends texts elsewhere */
        assert_int_equal(c->eos[0], 4);
        assert_int_equal(c->eos[1], 6);
        assert_int_equal(c->bos, 3);
        assert_string_equal(kve_checkpoint_format(ck), version == 2 ? "gguf v2" : "gguf v3");
        assert_string_equal(kve_checkpoint_chat_template(ck), "<|im_start|>");
        const kve_vocab *v = kve_checkpoint_vocab(ck);
        assert_true(v->kind == KVE_VOCAB_BYTE_BPE && v->n_tokens == TINY_V && v->n_merges == 1 && !v->add_bos);
        assert_string_equal(v->tokens[2].text, "ab");
        assert_string_equal(v->merges[0].left, "a");
        assert_string_equal(v->merges[0].right, "b");
        check_tensors(ck);
        kve_checkpoint_close(ck);
        kve_str_free(&file);
    }
}

static void test_variants(void **state)
{
    (void)state;
    kve_str file = {0};
    kve_checkpoint *ck = NULL;
    tiny_gguf(&(tiny_faults){.spm = true, .head = true, .rope_freqs = true}, &file);
    assert_int_equal(tiny_open(file.p, file.len, &ck), KVE_OK);
    const kve_config *c = kve_checkpoint_config(ck);
    const kve_vocab *v = kve_checkpoint_vocab(ck);
    assert_true(!c->tied_head && kve_checkpoint_has(ck, "head"));
    assert_int_equal(c->n_freq_factor, TINY_D / 2);
    assert_true(c->rope_freq_factor[2] == tiny_value("rope_freqs.weight", 0, 2));
    assert_true(v->kind == KVE_VOCAB_SPM_BPE && v->add_bos && v->add_space_prefix && v->tokens[5].score == -3);
    kve_checkpoint_close(ck);
    kve_str_free(&file);
}

static void refuse(const tiny_faults *f, const char *word)
{
    kve_str file = {0};
    kve_checkpoint *ck = NULL;
    tiny_gguf(f, &file);
    kve_status st = tiny_open(file.p, file.len, &ck);
    if (st == KVE_OK) {
        st = tiny_read_all(ck);
        kve_checkpoint_close(ck);
    }
    assert_int_equal(st, KVE_ERR_FILE);
    if (!strstr(kve_diag(), word) || !strstr(kve_diag(), "tiny.gguf"))
        fail_msg("'%s' and the file's name are not in: %s", word, kve_diag());
    kve_str_free(&file);
}

static void test_faults(void **state)
{
    (void)state;
    refuse(&(tiny_faults){.version = 1}, "version 1");
    refuse(&(tiny_faults){.version = 0x03000000}, "little-endian");
    refuse(&(tiny_faults){.arch = "mamba"}, "'mamba'");
    refuse(&(tiny_faults){.skip_key = "llama.block_count"}, "'llama.block_count' is missing");
    refuse(&(tiny_faults){.skip_key = "tokenizer.ggml.pre"}, "'tokenizer.ggml.pre' is missing");
    refuse(&(tiny_faults){.skip_key = "tokenizer.ggml.token_type"}, "token_type");
    refuse(&(tiny_faults){.skip_key = "tokenizer.ggml.merges"}, "merges");
    refuse(&(tiny_faults){.spm = true, .skip_key = "tokenizer.ggml.scores"}, "scores");
    refuse(&(tiny_faults){.twice_key = "llama.block_count"}, "stands twice");
    refuse(&(tiny_faults){.skip_tensor = "blk.0.ffn_up.weight"}, "'0.up'");
    refuse(&(tiny_faults){.twice_tensor = "blk.0.ffn_up.weight"}, "stands twice");
    refuse(&(tiny_faults){.extra_tensor = "blk.0.attn_q.bias"}, "'blk.0.attn_q.bias' is not part");
    refuse(&(tiny_faults){.extra_tensor = "blk.1.attn_norm.weight"}, "'blk.1.attn_norm.weight' is not part");
    refuse(&(tiny_faults){.extra_tensor = "blk.00.attn_norm.weight"}, "is not part");
    refuse(&(tiny_faults){.narrow_tensor = "blk.0.attn_k.weight"}, "[15][32]");
    refuse(&(tiny_faults){.nan_tensor = "blk.0.attn_v.weight"}, "row 1, column 3");
    refuse(&(tiny_faults){.nan_tensor = "output_norm.weight"}, "'output_norm.weight'");
    refuse(&(tiny_faults){.wrong_type = "blk.0.attn_v.weight"}, "type 99");
    refuse(&(tiny_faults){.far_tensor = "blk.0.attn_v.weight"}, "outside the file");
    refuse(&(tiny_faults){.overlap_tensor = "blk.0.attn_v.weight"}, "overlap");
    refuse(&(tiny_faults){.alignment = 48}, "power of two");
    refuse(&(tiny_faults){.int_key = "llama.attention.head_count_kv", .int_value = 3}, "no multiple");
    refuse(&(tiny_faults){.int_key = "llama.attention.head_count", .int_value = 0}, "head_count");
    refuse(&(tiny_faults){.int_key = "llama.block_count", .int_value = 4000000000}, "4000000000");
    refuse(&(tiny_faults){.int_key = "llama.block_count", .int_value = 0}, "layers is 0");
    refuse(&(tiny_faults){.int_key = "tokenizer.ggml.eos_token_id", .int_value = TINY_V}, "eos_token_id");
    refuse(&(tiny_faults){.int_key = "split.count", .int_value = 3}, "merge");
    refuse(&(tiny_faults){.text_key = "llama.rope.scaling.type", .text_value = "yarn"}, "'yarn'");
    refuse(&(tiny_faults){.text_key = "llama.rope.scaling.type", .text_value = "odd"}, "'odd'");
    refuse(&(tiny_faults){.text_key = "tokenizer.ggml.model", .text_value = "bert"}, "'bert'");
}

/* Opens and reads whatever the bytes are; the outcome must be success or an error with words. */
static kve_status attempt(const unsigned char *data, size_t size)
{
    kve_checkpoint *ck = NULL;
    kve_status st = tiny_open(data, size, &ck);
    if (st == KVE_OK) {
        st = tiny_read_all(ck);
        kve_checkpoint_close(ck);
    }
    if (st != KVE_OK)
        assert_true(kve_diag()[0] != '\0');
    return st;
}

static void test_truncation(void **state)
{
    (void)state;
    kve_str file = {0};
    tiny_gguf(&(tiny_faults){0}, &file);
    for (size_t size = 0; size < file.len; size++) {
        unsigned char *cut = exact(file.p, size);
        if (attempt(cut, size) != KVE_ERR_FILE)
            fail_msg("%zu of %zu bytes were accepted", size, file.len);
        free(cut);
    }
    kve_str_free(&file);
}

static size_t header_bytes(const kve_str *file)
{
    kve_gguf g;
    assert_int_equal(kve_gguf_parse((const unsigned char *)file->p, file->len, "tiny.gguf", &g), KVE_OK);
    size_t n = (size_t)(g.tensors[0].data - (const unsigned char *)file->p);
    kve_gguf_free(&g);
    return n;
}

static void test_bit_flips(void **state)
{
    (void)state;
    kve_str file = {0};
    tiny_gguf(&(tiny_faults){0}, &file);
    size_t n = header_bytes(&file), refused = 0;
    unsigned char *copy = exact(file.p, file.len);
    for (size_t bit = 0; bit < n * 8; bit++) {
        copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
        refused += attempt(copy, file.len) != KVE_OK;
        copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_true(refused > n * 4); /* most bits of a header matter */
    assert_int_equal(attempt(copy, file.len), KVE_OK);
    free(copy);
    kve_str_free(&file);
}

/* Sizes that wrap, at every place of the header. */
static void test_hostile_numbers(void **state)
{
    (void)state;
    static const uint64_t bad[] = {
        UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63, ((uint64_t)1 << 63) - 1, (uint64_t)1 << 61,
        UINT32_MAX, INT32_MAX,      (uint64_t)1 << 32, 0x2000000000000001ull,   0};
    kve_str file = {0};
    tiny_gguf(&(tiny_faults){0}, &file);
    size_t n = header_bytes(&file);
    unsigned char *copy = exact(file.p, file.len);
    for (size_t at = 4; at + 8 <= n; at++) {
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            memcpy(copy + at, &bad[k], 8);
            attempt(copy, file.len);
            memcpy(copy + at, file.p + at, 8);
        }
    }
    for (size_t at = 8; at <= 16; at += 8) { /* the two counts */
        memcpy(copy + at, &bad[0], 8);
        assert_int_equal(attempt(copy, file.len), KVE_ERR_FILE);
        assert_non_null(strstr(kve_diag(), "cannot fit"));
        memcpy(copy + at, file.p + at, 8);
    }
    free(copy);
    kve_str_free(&file);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    kve_str file = {0};
    tiny_gguf(&(tiny_faults){.head = true}, &file);
    long n = 1;
    for (;; n++) {
        kve_checkpoint *ck = NULL;
        kve_alloc_fail_after(n);
        kve_status st = tiny_open(file.p, file.len, &ck);
        kve_alloc_fail_after(0);
        if (st == KVE_OK) {
            kve_checkpoint_close(ck);
            break;
        }
        assert_int_equal(st, KVE_ERR_MEMORY);
    }
    assert_true(n > 4);
    kve_str_free(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_bit_flips),
        cmocka_unit_test(test_hostile_numbers),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
