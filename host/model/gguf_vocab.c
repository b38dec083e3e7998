/* The vocabulary of a GGUF file: tokens, types, scores, merges, special ids, chat template. */
#include "host/model/internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { MAX_TOKEN_BYTES = 1 << 16 };

static bool text_is(kve_text t, const char *want)
{
    return t.len == strlen(want) && memcmp(t.p, want, t.len) == 0;
}

static kve_status read_kind(const kve_gguf *g, kve_vocab *v)
{
    kve_text model = {0};
    KVE_TRY(kve_gguf_text(g, "tokenizer.ggml.model", true, &model));
    if (text_is(model, "gpt2"))
        v->kind = KVE_VOCAB_BYTE_BPE;
    else if (text_is(model, "llama"))
        v->kind = KVE_VOCAB_SPM_BPE;
    else
        return kve_fail(KVE_ERR_FILE,
                        "%s: tokenizer model '%.*s' is not supported; 'gpt2' (byte-level BPE) and 'llama' "
                        "(SentencePiece) are",
                        g->name, model.len > 40 ? 40 : (int)model.len, model.p);
    return KVE_OK;
}

static kve_status need_count(const kve_gguf *g, const char *key, const kve_gguf_kv *kv, int32_t count)
{
    if (kv->count != (uint64_t)count)
        return kve_fail(KVE_ERR_FILE, "%s: '%s' has %" PRIu64 " elements for %d tokens; convert the model again",
                        g->name, key, kv->count, count);
    return KVE_OK;
}

static kve_status read_tokens(const kve_gguf *g, kve_vocab *v)
{
    const kve_gguf_kv *texts, *types, *scores;
    bool spm = v->kind == KVE_VOCAB_SPM_BPE;
    KVE_TRY(kve_gguf_array(g, "tokenizer.ggml.tokens", KVE_GGUF_STRING, true, &texts));
    KVE_TRY(kve_gguf_array(g, "tokenizer.ggml.token_type", KVE_GGUF_I32, true, &types));
    KVE_TRY(kve_gguf_array(g, "tokenizer.ggml.scores", KVE_GGUF_F32, spm, &scores));
    v->n_tokens = (int32_t)texts->count; /* the configuration's V: checked there */
    KVE_TRY(need_count(g, "tokenizer.ggml.token_type", types, v->n_tokens));
    if (spm)
        KVE_TRY(need_count(g, "tokenizer.ggml.scores", scores, v->n_tokens));
    KVE_TRY(kve_arena_alloc(&v->arena, (size_t)v->n_tokens, sizeof *v->tokens, &v->tokens));
    const unsigned char *at = texts->data;
    for (int32_t id = 0; id < v->n_tokens; id++) {
        kve_text t = kve_gguf_next_text(&at);
        int32_t type;
        char *copy;
        memcpy(&type, types->data + (size_t)id * sizeof type, sizeof type);
        if (type < KVE_TOKEN_NORMAL || type > KVE_TOKEN_BYTE || t.len > MAX_TOKEN_BYTES)
            return kve_fail(KVE_ERR_FILE,
                            "%s: token %d has type %d and %zu bytes; types 1 to 6 and at most %d bytes are due",
                            g->name, id, type, t.len, (int)MAX_TOKEN_BYTES);
        KVE_TRY(kve_arena_strndup(&v->arena, t.p, t.len, &copy));
        v->tokens[id] = (kve_vocab_token){.text = copy, .len = (uint32_t)t.len, .type = (kve_token_type)type};
        if (spm)
            memcpy(&v->tokens[id].score, scores->data + (size_t)id * sizeof(float), sizeof(float));
        if (!isfinite(v->tokens[id].score))
            return kve_fail(KVE_ERR_FILE, "%s: token %d has score %g; a finite number is due", g->name, id,
                            (double)v->tokens[id].score);
    }
    return KVE_OK;
}

/* "left right": the first space behind the first byte separates (byte-level BPE writes spaces as other letters). */
static kve_status read_merges(const kve_gguf *g, kve_vocab *v)
{
    const kve_gguf_kv *merges;
    KVE_TRY(kve_gguf_array(g, "tokenizer.ggml.merges", KVE_GGUF_STRING, true, &merges));
    if (merges->count == 0 || merges->count > INT32_MAX)
        return kve_fail(KVE_ERR_FILE, "%s: 'tokenizer.ggml.merges' has %" PRIu64 " entries; convert the model again",
                        g->name, merges->count);
    KVE_TRY(kve_arena_alloc(&v->arena, merges->count, sizeof *v->merges, &v->merges));
    v->n_merges = (int32_t)merges->count;
    const unsigned char *at = merges->data;
    for (int32_t i = 0; i < v->n_merges; i++) {
        kve_text t = kve_gguf_next_text(&at);
        char *copy;
        const char *space = t.len > 2 && t.len <= MAX_TOKEN_BYTES ? memchr(t.p + 1, ' ', t.len - 1) : NULL;
        size_t left = space ? (size_t)(space - t.p) : 0;
        if (!space || left + 1 == t.len)
            return kve_fail(KVE_ERR_FILE, "%s: merge %d ('%.*s') is not a pair of texts; convert the model again",
                            g->name, i, t.len > 40 ? 40 : (int)t.len, t.p);
        KVE_TRY(kve_arena_strndup(&v->arena, t.p, t.len, &copy));
        copy[left] = '\0';
        v->merges[i] = (kve_vocab_merge){copy, copy + left + 1, (uint32_t)left, (uint32_t)(t.len - left - 1)};
    }
    return KVE_OK;
}

static kve_status read_pre(const kve_gguf *g, kve_vocab *v)
{
    kve_text pre = {0};
    char *copy;
    KVE_TRY(kve_gguf_text(g, "tokenizer.ggml.pre", true, &pre));
    KVE_TRY(kve_arena_strndup(&v->arena, pre.p, pre.len, &copy));
    v->pre_name = copy;
    /* These write no add_bos key, but their rule is to begin with BOS. */
    v->add_bos = text_is(pre, "llama-bpe") || text_is(pre, "llama3") || text_is(pre, "llama-v3");
    return KVE_OK;
}

static kve_status read_id(const kve_gguf *g, const char *key, const kve_vocab *v, int32_t *out)
{
    int64_t id = *out;
    KVE_TRY(kve_gguf_int(g, key, false, 0, v->n_tokens - 1, &id));
    *out = (int32_t)id;
    return KVE_OK;
}

static kve_status read_specials(const kve_gguf *g, kve_vocab *v)
{
    KVE_TRY(read_id(g, "tokenizer.ggml.bos_token_id", v, &v->bos));
    KVE_TRY(read_id(g, "tokenizer.ggml.eos_token_id", v, &v->eos));
    KVE_TRY(read_id(g, "tokenizer.ggml.unknown_token_id", v, &v->unk));
    KVE_TRY(kve_gguf_bool(g, "tokenizer.ggml.add_bos_token", &v->add_bos));
    KVE_TRY(kve_gguf_bool(g, "tokenizer.ggml.add_eos_token", &v->add_eos));
    if ((v->add_bos && v->bos < 0) || (v->add_eos && v->eos < 0))
        return kve_fail(KVE_ERR_FILE,
                        "%s: the tokenizer adds a BOS or EOS token that it does not name; convert the model again",
                        g->name);
    return KVE_OK;
}

/* GGUF names one EOS; a chat model may end its turn with another. The usual end marks count when they are control
 * tokens, as they do in other readers of GGUF. */
static kve_status read_eos(const kve_gguf *g, const kve_vocab *v, kve_config *c)
{
    static const char *const keys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    static const char *const marks[] = {"<|eot_id|>", "<|im_end|>",      "<|end|>",
                                        "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>"};
    kve_config_add_eos(c, v->eos);
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        int32_t id = -1;
        KVE_TRY(read_id(g, keys[k], v, &id));
        kve_config_add_eos(c, id);
    }
    for (int32_t id = 0; id < v->n_tokens; id++) {
        const kve_vocab_token *t = &v->tokens[id];
        for (size_t k = 0; t->type == KVE_TOKEN_CONTROL && k < sizeof marks / sizeof *marks; k++)
            if (text_is((kve_text){t->text, t->len}, marks[k]))
                kve_config_add_eos(c, id);
    }
    return KVE_OK;
}

/* Phi-3's added tokens swallow the white space behind them; GGUF has no flag for it. */
static void set_phi3_rstrip(kve_vocab *v)
{
    static const char *const plain[] = {"<unk>", "<s>", "<|endoftext|>"};
    for (int32_t id = 0; id < v->n_tokens; id++) {
        kve_vocab_token *t = &v->tokens[id];
        t->rstrip = t->type == KVE_TOKEN_CONTROL || text_is((kve_text){t->text, t->len}, "</s>");
        for (size_t k = 0; k < sizeof plain / sizeof *plain; k++)
            if (text_is((kve_text){t->text, t->len}, plain[k]))
                t->rstrip = false;
    }
}

static kve_status read_template(const kve_gguf *g, kve_checkpoint *ck)
{
    kve_text t = {0};
    char *copy;
    KVE_TRY(kve_gguf_text(g, "tokenizer.chat_template", false, &t));
    if (!t.p)
        return KVE_OK;
    if (memchr(t.p, 0, t.len))
        return kve_fail(KVE_ERR_FILE, "%s: 'tokenizer.chat_template' contains a NUL byte; convert the model again",
                        g->name);
    KVE_TRY(kve_arena_strndup(&ck->vocab.arena, t.p, t.len, &copy));
    ck->chat_template = copy;
    return KVE_OK;
}

kve_status kve_gguf_vocab(kve_checkpoint *ck, const kve_gguf *g)
{
    kve_vocab *v = &ck->vocab;
    v->bos = v->eos = v->unk = -1;
    KVE_TRY(read_kind(g, v));
    KVE_TRY(read_tokens(g, v));
    if (v->kind == KVE_VOCAB_BYTE_BPE) {
        KVE_TRY(read_merges(g, v));
        KVE_TRY(read_pre(g, v));
    } else {
        v->add_space_prefix = v->byte_fallback = v->add_bos = true; /* what an absent key means for SentencePiece */
        KVE_TRY(kve_gguf_bool(g, "tokenizer.ggml.add_space_prefix", &v->add_space_prefix));
        if (ck->cfg.arch == KVE_ARCH_PHI3)
            set_phi3_rstrip(v);
    }
    KVE_TRY(read_specials(g, v));
    KVE_TRY(read_eos(g, v, &ck->cfg));
    ck->cfg.bos = v->bos;
    return read_template(g, ck);
}
