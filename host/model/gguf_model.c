/* A model from a GGUF file: architecture keys to kve_config, tensors to entries. Knows no words of the tokenizer. */
#include "host/model/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { KEY_BYTES = 96 };

typedef struct source {
    const kve_gguf *g;
    const char *arch;
    char key[KEY_BYTES];
} source;

static const char *key(source *s, const char *suffix)
{
    snprintf(s->key, sizeof s->key, "%s.%s", s->arch, suffix);
    return s->key;
}

static kve_status get_int(source *s, const char *suffix, bool required, int32_t *out)
{
    int64_t v = *out;
    KVE_TRY(kve_gguf_int(s->g, key(s, suffix), required, 0, INT32_MAX, &v));
    *out = (int32_t)v;
    return KVE_OK;
}

static kve_status read_arch(const kve_gguf *g, kve_arch *out)
{
    static const kve_arch known[] = {KVE_ARCH_LLAMA, KVE_ARCH_QWEN2, KVE_ARCH_QWEN3, KVE_ARCH_PHI3};
    kve_text t = {0};
    KVE_TRY(kve_gguf_text(g, "general.architecture", true, &t));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *name = kve_arch_name(known[i]);
        if (t.len == strlen(name) && memcmp(t.p, name, t.len) == 0) {
            *out = known[i];
            return KVE_OK;
        }
    }
    return kve_fail(KVE_ERR_FILE, "%s: architecture '%.*s' is not supported; use a llama, qwen2, qwen3 or phi3 model",
                    g->name, t.len > 40 ? 40 : (int)t.len, t.p);
}

/* general.name as printable text, else the file's name. */
static kve_status read_name(const kve_gguf *g, char *out, size_t cap)
{
    const char *base = kve_path_base(g->name);
    kve_text t = {base, strlen(base)};
    KVE_TRY(kve_gguf_text(g, "general.name", false, &t));
    size_t n = t.len < cap ? t.len : cap - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)t.p[i] < 32 || (unsigned char)t.p[i] > 126 ? '?' : t.p[i];
    out[n] = '\0';
    return KVE_OK;
}

static kve_status read_shape(source *s, kve_config *c)
{
    kve_shape *z = &c->shape;
    const kve_gguf_kv *tokens;
    int32_t value_length = 0, experts = 0;
    KVE_TRY(get_int(s, "block_count", true, &z->L));
    KVE_TRY(get_int(s, "embedding_length", true, &z->E));
    KVE_TRY(get_int(s, "feed_forward_length", true, &z->F));
    KVE_TRY(get_int(s, "attention.head_count", true, &z->Hq));
    z->Hkv = z->Hq;
    KVE_TRY(get_int(s, "attention.head_count_kv", false, &z->Hkv));
    if (z->Hq < 1)
        return kve_fail(KVE_ERR_FILE, "%s: '%s' is %d; a positive number is due", s->g->name,
                        key(s, "attention.head_count"), z->Hq);
    z->D = z->E / z->Hq;
    KVE_TRY(get_int(s, "attention.key_length", false, &z->D));
    value_length = z->D;
    KVE_TRY(get_int(s, "attention.value_length", false, &value_length));
    if (value_length != z->D)
        return kve_fail(KVE_ERR_FILE, "%s: keys have %d dimensions and values %d; this model is not supported",
                        s->g->name, z->D, value_length);
    KVE_TRY(get_int(s, "expert_count", false, &experts));
    if (experts > 0)
        return kve_fail(KVE_ERR_FILE, "%s: a mixture of %d experts is not supported; use a dense model", s->g->name,
                        experts);
    z->R = z->D;
    KVE_TRY(get_int(s, "rope.dimension_count", false, &z->R));
    KVE_TRY(kve_gguf_array(s->g, "tokenizer.ggml.tokens", KVE_GGUF_STRING, true, &tokens));
    if (tokens->count > INT32_MAX)
        return kve_fail(KVE_ERR_FILE, "%s: %" PRIu64 " tokens are too many", s->g->name, tokens->count);
    z->V = (int32_t)tokens->count;
    return KVE_OK;
}

static kve_status read_scaling(source *s, kve_config *c)
{
    static const struct {
        const char *name;
        kve_rope_scaling value;
    } known[] = {
        {"none", KVE_ROPE_NONE}, {"linear", KVE_ROPE_LINEAR}, {"longrope", KVE_ROPE_LONGROPE}, {"yarn", KVE_ROPE_YARN}};
    double old_linear = 1;
    kve_text t = {0};
    KVE_TRY(kve_gguf_num(s->g, key(s, "rope.scaling.factor"), false, &c->rope_factor));
    KVE_TRY(kve_gguf_num(s->g, key(s, "rope.scaling.attn_factor"), false, &c->rope_attn_factor));
    KVE_TRY(get_int(s, "rope.scaling.original_context_length", false, &c->rope_original_context));
    KVE_TRY(kve_gguf_num(s->g, key(s, "rope.scale_linear"), false, &old_linear));
    KVE_TRY(kve_gguf_text(s->g, key(s, "rope.scaling.type"), false, &t));
    if (!t.p && old_linear != 1) {
        c->rope_scaling = KVE_ROPE_LINEAR;
        c->rope_factor = old_linear;
    }
    for (size_t i = 0; t.p && i < sizeof known / sizeof *known; i++) {
        if (t.len == strlen(known[i].name) && memcmp(t.p, known[i].name, t.len) == 0) {
            c->rope_scaling = known[i].value;
            return KVE_OK;
        }
    }
    return t.p ? kve_fail(KVE_ERR_FILE, "%s: RoPE scaling '%.*s' is not supported; linear, llama3 and longrope are",
                          s->g->name, t.len > 40 ? 40 : (int)t.len, t.p)
               : KVE_OK;
}

static kve_status read_config(const kve_gguf *g, kve_config *c)
{
    source s = {.g = g};
    double eps = 0;
    kve_config_init(c);
    KVE_TRY(read_arch(g, &c->arch));
    s.arch = kve_arch_name(c->arch);
    KVE_TRY(read_name(g, c->name, sizeof c->name));
    KVE_TRY(read_shape(&s, c));
    KVE_TRY(get_int(&s, "context_length", true, &c->max_context));
    KVE_TRY(get_int(&s, "attention.sliding_window", false, &c->sliding_window));
    if (c->sliding_window >= c->max_context)
        c->sliding_window = 0;
    KVE_TRY(kve_gguf_num(g, key(&s, "attention.layer_norm_rms_epsilon"), true, &eps));
    c->norm_eps = (float)eps;
    KVE_TRY(kve_gguf_num(g, key(&s, "rope.freq_base"), false, &c->rope_theta));
    KVE_TRY(read_scaling(&s, c));
    c->qkv_bias = c->arch == KVE_ARCH_QWEN2;
    c->qk_norm = c->arch == KVE_ARCH_QWEN3;
    return KVE_OK;
}

/* Frequency factors are stored as tensors. True if t was one. */
static kve_status take_factors(const kve_gguf *g, const kve_gguf_tensor *t, kve_config *c, bool *taken)
{
    float *to = NULL;
    if (strcmp(t->name, "rope_freqs.weight") == 0 || strcmp(t->name, "rope_factors_short.weight") == 0)
        to = c->rope_freq_factor;
    else if (strcmp(t->name, "rope_factors_long.weight") == 0)
        to = c->rope_freq_factor_long;
    *taken = to != NULL;
    if (!to)
        return KVE_OK;
    if (t->rows != 1 || t->cols != c->shape.R / 2 || t->cols > KVE_MAX_ROPE_DIMS / 2)
        return kve_fail(KVE_ERR_FILE,
                        "%s: tensor '%s' is [%" PRId64 "][%" PRId64 "]; one factor for each of %d frequencies is due",
                        g->name, t->name, t->rows, t->cols, c->shape.R / 2);
    kve_dequant(t->type, t->data, t->cols, to);
    c->n_freq_factor = (int32_t)t->cols;
    return KVE_OK;
}

static bool has(const kve_gguf *g, const char *name)
{
    for (size_t i = 0; i < g->n_tensors; i++)
        if (strcmp(g->tensors[i].name, name) == 0)
            return true;
    return false;
}

/* rope_freqs holds divisors that are always on; the pair of short and long lists is LongRoPE, whatever the keys say. */
static kve_status settle_rope(const kve_gguf *g, kve_config *c)
{
    source s = {.g = g, .arch = kve_arch_name(c->arch)};
    bool short_list = has(g, "rope_factors_short.weight"), long_list = has(g, "rope_factors_long.weight");
    if (short_list != long_list || (short_list && has(g, "rope_freqs.weight")))
        return kve_fail(KVE_ERR_FILE,
                        "%s: RoPE factor tensors 'short' and 'long' must come as a pair and without "
                        "'rope_freqs'; convert the model again",
                        g->name);
    if (short_list)
        c->rope_scaling = KVE_ROPE_LONGROPE;
    else if (c->rope_scaling == KVE_ROPE_LONGROPE)
        return kve_fail(KVE_ERR_FILE, "%s: RoPE scaling 'longrope' without its factor tensors; convert the model again",
                        g->name);
    if (short_list && c->rope_original_context > 0 && !kve_gguf_find(g, key(&s, "rope.scaling.factor")))
        c->rope_factor = (double)c->max_context / c->rope_original_context;
    if (c->rope_scaling == KVE_ROPE_LINEAR && c->n_freq_factor)
        return kve_fail(KVE_ERR_FILE, "%s: linear RoPE scaling together with 'rope_freqs' is not supported", g->name);
    return KVE_OK;
}

static kve_status add_tensors(kve_checkpoint *ck, const kve_gguf *g)
{
    KVE_TRY(kve_entries_reserve(ck, g->n_tensors));
    for (size_t i = 0; i < g->n_tensors; i++) {
        const kve_gguf_tensor *t = &g->tensors[i];
        bool taken;
        KVE_TRY(take_factors(g, t, &ck->cfg, &taken));
        if (taken)
            continue;
        char *source_name;
        KVE_TRY(kve_arena_strndup(&ck->arena, t->name, strlen(t->name), &source_name));
        kve_entry e = {.source = source_name,
                       .file = g->name,
                       .type = t->type,
                       .rows = t->rows,
                       .cols = t->cols,
                       .data = t->data,
                       .row_bytes = t->bytes / (size_t)t->rows};
        KVE_TRY(kve_entries_add(ck, KVE_NAMES_GGUF, &e));
    }
    return KVE_OK;
}

static kve_status load(kve_checkpoint *ck, const kve_gguf *g)
{
    int64_t parts = 1;
    KVE_TRY(kve_gguf_int(g, "split.count", false, 0, INT32_MAX, &parts));
    if (parts > 1)
        return kve_fail(KVE_ERR_FILE,
                        "%s: is one of %" PRId64 " parts of a model; merge them into one file first "
                        "(llama-gguf-split --merge)",
                        g->name, parts);
    KVE_TRY(read_config(g, &ck->cfg));
    ck->cfg.tied_head = !has(g, "output.weight");
    KVE_TRY(kve_config_check_shape(&ck->cfg, g->name));
    KVE_TRY(add_tensors(ck, g));
    KVE_TRY(settle_rope(g, &ck->cfg));
    KVE_TRY(kve_entries_check(ck, g->name));
    KVE_TRY(kve_gguf_vocab(ck, g));
    return kve_config_check(&ck->cfg, g->name);
}

kve_status kve_gguf_load(kve_checkpoint *ck, const unsigned char *data, size_t size, const char *name)
{
    kve_gguf g;
    kve_status st = kve_gguf_parse(data, size, name, &g);
    if (st == KVE_OK)
        st = load(ck, &g);
    ck->format = g.version == 2 ? "gguf v2" : "gguf v3";
    kve_gguf_free(&g);
    return st;
}
