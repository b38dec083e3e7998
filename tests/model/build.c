/* The GGUF writer of the tests. It shares no code with the reader. */
#include "tests/model/build.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { U32 = 4, I32 = 5, F32 = 6, TEXT = 8, ARRAY = 9 };

static void put(kve_str *s, const void *p, size_t n)
{
    assert_int_equal(kve_str_append(s, p, n), KVE_OK);
}

static void put_u32(kve_str *s, uint32_t v)
{
    put(s, &v, sizeof v);
}

static void put_u64(kve_str *s, uint64_t v)
{
    put(s, &v, sizeof v);
}

static void put_text(kve_str *s, const char *text)
{
    put_u64(s, strlen(text));
    put(s, text, strlen(text));
}

static bool is(const char *a, const char *b)
{
    return a && strcmp(a, b) == 0;
}

typedef struct section {
    const tiny_faults *f;
    kve_str bytes;
    uint64_t count;
} section;

/* True if the key is to be written; called again for a key that stands twice. */
static bool begin_key(section *s, const char *key, uint32_t type)
{
    if (is(s->f->skip_key, key))
        return false;
    put_text(&s->bytes, key);
    put_u32(&s->bytes, type);
    s->count++;
    return true;
}

static void kv_int(section *s, const char *key, int64_t value)
{
    for (int i = 0; i < (is(s->f->twice_key, key) ? 2 : 1); i++)
        if (begin_key(s, key, U32))
            put_u32(&s->bytes, (uint32_t)(is(s->f->int_key, key) ? s->f->int_value : value));
}

static void kv_num(section *s, const char *key, float value)
{
    if (begin_key(s, key, F32))
        put(&s->bytes, &value, sizeof value);
}

static void kv_text(section *s, const char *key, const char *value)
{
    if (begin_key(s, key, TEXT))
        put_text(&s->bytes, is(s->f->text_key, key) ? s->f->text_value : value);
}

static void kv_texts(section *s, const char *key, const char *const *values, size_t n)
{
    if (!begin_key(s, key, ARRAY))
        return;
    put_u32(&s->bytes, TEXT);
    put_u64(&s->bytes, n);
    for (size_t i = 0; i < n; i++)
        put_text(&s->bytes, values[i]);
}

static void kv_array(section *s, const char *key, uint32_t type, const void *values, size_t n)
{
    if (!begin_key(s, key, ARRAY))
        return;
    put_u32(&s->bytes, type);
    put_u64(&s->bytes, n);
    put(&s->bytes, values, n * 4);
}

static void metadata(section *s)
{
    static const char *const tokens[TINY_V] = {"a", "b", "ab", "<s>", "<|im_end|>", "c", "<|end_of_text|>"};
    static const char *const merges[] = {"a b"};
    static const int32_t types[TINY_V] = {1, 1, 1, 3, 3, 1, 3};
    static const float scores[TINY_V] = {0, -1, -2, 0, 0, -3, 0};
    kv_text(s, "general.architecture", s->f->arch ? s->f->arch : "llama");
    kv_text(s, "general.name", "tiny");
    if (s->f->alignment)
        kv_int(s, "general.alignment", (int64_t)s->f->alignment);
    kv_int(s, "llama.block_count", TINY_L);
    kv_int(s, "llama.context_length", 64);
    kv_int(s, "llama.embedding_length", TINY_E);
    kv_int(s, "llama.feed_forward_length", TINY_F);
    kv_int(s, "llama.attention.head_count", TINY_HQ);
    kv_int(s, "llama.attention.head_count_kv", TINY_HKV);
    kv_num(s, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    kv_num(s, "llama.rope.freq_base", 5000);
    if (s->f->int_key && strcmp(s->f->int_key, "split.count") == 0)
        kv_int(s, "split.count", 1);
    if (s->f->text_key && strcmp(s->f->text_key, "llama.rope.scaling.type") == 0) {
        kv_text(s, "llama.rope.scaling.type", "none");
        kv_num(s, "llama.rope.scaling.factor", 4);
    }
    kv_text(s, "tokenizer.ggml.model", s->f->spm ? "llama" : "gpt2");
    kv_texts(s, "tokenizer.ggml.tokens", tokens, TINY_V);
    kv_array(s, "tokenizer.ggml.token_type", I32, types, TINY_V);
    if (s->f->spm) {
        kv_array(s, "tokenizer.ggml.scores", F32, scores, TINY_V);
    } else {
        kv_text(s, "tokenizer.ggml.pre", "gpt-2");
        kv_texts(s, "tokenizer.ggml.merges", merges, 1);
    }
    kv_int(s, "tokenizer.ggml.bos_token_id", 3);
    kv_int(s, "tokenizer.ggml.eos_token_id", 4);
    kv_text(s, "tokenizer.chat_template", "<|im_start|>");
}

float tiny_value(const char *name, int64_t row, int64_t column)
{
    unsigned sum = 0;
    for (const char *p = name; *p; p++)
        sum = sum * 7 + (unsigned char)*p;
    return (float)(sum % 13) + (float)row * 4 + (float)column / 64;
}

typedef struct tensors {
    section infos;
    kve_str data;
    uint64_t alignment;
} tensors;

/* Row `row` of a file that keeps llama's Q and K with the halves of each head interleaved. */
static int64_t logical_row(const char *name, int64_t row)
{
    if (strcmp(name, "blk.0.attn_q.weight") != 0 && strcmp(name, "blk.0.attn_k.weight") != 0)
        return row;
    int64_t in_head = row % TINY_D;
    return row - in_head + in_head % 2 * (TINY_D / 2) + in_head / 2;
}

static void tensor(tensors *t, const char *name, int64_t rows, int64_t cols)
{
    const tiny_faults *f = t->infos.f;
    if (is(f->skip_tensor, name))
        return;
    if (is(f->narrow_tensor, name))
        rows--;
    for (int i = 0; i < (is(f->twice_tensor, name) ? 2 : 1); i++) {
        while (t->data.len % t->alignment)
            put(&t->data, "", 1);
        put_text(&t->infos.bytes, name);
        put_u32(&t->infos.bytes, rows == 1 ? 1 : 2);
        put_u64(&t->infos.bytes, (uint64_t)cols);
        if (rows != 1)
            put_u64(&t->infos.bytes, (uint64_t)rows);
        put_u32(&t->infos.bytes, is(f->wrong_type, name) ? 99 : 0);
        put_u64(&t->infos.bytes, is(f->far_tensor, name) ? 1 << 30 : is(f->overlap_tensor, name) ? 0 : t->data.len);
        t->infos.count++;
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = 0; c < cols; c++) {
                float v = tiny_value(name, logical_row(name, r), c);
                if (is(f->nan_tensor, name) && r == (rows > 1) && c == 3)
                    v = NAN;
                put(&t->data, &v, sizeof v);
            }
        }
    }
}

static void all_tensors(tensors *t)
{
    const int64_t q = TINY_HQ * TINY_D, kv = TINY_HKV * TINY_D;
    tensor(t, "token_embd.weight", TINY_V, TINY_E);
    if (t->infos.f->head)
        tensor(t, "output.weight", TINY_V, TINY_E);
    tensor(t, "output_norm.weight", 1, TINY_E);
    tensor(t, "blk.0.attn_norm.weight", 1, TINY_E);
    tensor(t, "blk.0.attn_q.weight", q, TINY_E);
    tensor(t, "blk.0.attn_k.weight", kv, TINY_E);
    tensor(t, "blk.0.attn_v.weight", kv, TINY_E);
    tensor(t, "blk.0.attn_output.weight", TINY_E, q);
    tensor(t, "blk.0.ffn_norm.weight", 1, TINY_E);
    tensor(t, "blk.0.ffn_gate.weight", TINY_F, TINY_E);
    tensor(t, "blk.0.ffn_up.weight", TINY_F, TINY_E);
    tensor(t, "blk.0.ffn_down.weight", TINY_E, TINY_F);
    if (t->infos.f->rope_freqs)
        tensor(t, "rope_freqs.weight", 1, TINY_D / 2);
    if (t->infos.f->extra_tensor)
        tensor(t, t->infos.f->extra_tensor, 1, TINY_E);
}

void tiny_gguf(const tiny_faults *f, kve_str *out)
{
    section kv = {.f = f};
    tensors t = {.infos = {.f = f}, .alignment = f->alignment && f->alignment % 32 == 0 ? f->alignment : 32};
    metadata(&kv);
    all_tensors(&t);
    put(out, "GGUF", 4);
    put_u32(out, f->version ? f->version : 3);
    put_u64(out, t.infos.count);
    put_u64(out, kv.count);
    put(out, kv.bytes.p, kv.bytes.len);
    put(out, t.infos.bytes.p, t.infos.bytes.len);
    while (out->len % t.alignment)
        put(out, "", 1);
    put(out, t.data.p, t.data.len);
    kve_str_free(&kv.bytes);
    kve_str_free(&t.infos.bytes);
    kve_str_free(&t.data);
}

kve_status tiny_open(const void *data, size_t size, kve_checkpoint **out)
{
    kve_checkpoint *ck = NULL;
    KVE_TRY(kve_alloc(1, sizeof *ck, &ck));
    ck->path = "tiny.gguf";
    kve_status st = kve_gguf_load(ck, data, size, ck->path);
    if (st != KVE_OK)
        kve_checkpoint_close(ck);
    else
        *out = ck;
    return st;
}

kve_status tiny_read_all(const kve_checkpoint *ck)
{
    kve_tensor_info info;
    kve_status st = KVE_OK;
    for (size_t i = 0; st == KVE_OK && kve_checkpoint_tensor(ck, i, &info); i++) {
        float *x = NULL;
        st = kve_alloc((size_t)info.rows * (size_t)info.cols, sizeof *x, &x);
        if (st == KVE_OK)
            st = kve_checkpoint_read(ck, info.name, 0, info.rows, x);
        free(x);
    }
    return st;
}
