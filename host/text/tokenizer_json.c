/* Reads tokenizer.json and tokenizer_config.json into a kve_vocab. A step that this tokenizer cannot do is an error,
 * not a silent difference. */
#include "host/base/file.h"
#include "host/base/json.h"
#include "host/text/vocab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 24, MAX_HOLES = 1 << 16, MAX_STEPS = 16 };

typedef struct reader {
    kve_vocab *v;
    const char *name;
} reader;

static kve_status unsupported(const reader *r, const char *what, const char *type)
{
    return kve_fail(KVE_ERR_FILE, "%s: %s '%s' is not supported; use a byte-level or SentencePiece-style BPE model",
                    r->name, what, type);
}

static bool text_is(const cJSON *obj, const char *key, const char *want)
{
    const cJSON *f = kve_json_get(obj, key);
    return cJSON_IsString(f) && strcmp(f->valuestring, want) == 0;
}

static kve_status set_token(const reader *r, int64_t id, const char *text, kve_token_type type)
{
    if (id < 0 || id >= r->v->n_tokens)
        return kve_fail(KVE_ERR_FILE, "%s: token '%s' has id %lld outside [0, %d)", r->name, text, (long long)id,
                        r->v->n_tokens);
    kve_vocab_token *t = &r->v->tokens[id];
    char *copy;
    KVE_TRY(kve_arena_strndup(&r->v->arena, text, strlen(text), &copy));
    *t = (kve_vocab_token){.text = copy, .len = (uint32_t)strlen(text), .type = type};
    return KVE_OK;
}

static kve_status count_tokens(const reader *r, const cJSON *vocab, const cJSON *added)
{
    int64_t most = -1, named = 0;
    const cJSON *e;
    cJSON_ArrayForEach(e, vocab)
    {
        named++;
        if (!cJSON_IsNumber(e) || !(e->valuedouble >= 0 && e->valuedouble < MAX_TOKENS) ||
            e->valuedouble != floor(e->valuedouble))
            return kve_fail(KVE_ERR_FILE, "%s: model.vocab: '%s' has no id in [0, %d)", r->name, e->string,
                            (int)MAX_TOKENS);
        most = (int64_t)e->valuedouble > most ? (int64_t)e->valuedouble : most;
    }
    cJSON_ArrayForEach(e, added)
    {
        int64_t id;
        named++;
        KVE_TRY(kve_json_int(e, "id", r->name, &id));
        if (id < 0 || id >= MAX_TOKENS)
            return kve_fail(KVE_ERR_FILE, "%s: added_tokens: id %lld is outside [0, %d)", r->name, (long long)id,
                            (int)MAX_TOKENS);
        most = id > most ? id : most;
    }
    if (most >= named + MAX_HOLES) /* memory goes by the highest id, and a short file must not ask for much */
        return kve_fail(KVE_ERR_FILE, "%s: the highest id is %lld, but only %lld tokens are named; correct the ids",
                        r->name, (long long)most, (long long)named);
    r->v->n_tokens = (int32_t)(most + 1);
    KVE_TRY(kve_arena_alloc(&r->v->arena, (size_t)most + 1, sizeof *r->v->tokens, &r->v->tokens));
    for (int32_t i = 0; i < r->v->n_tokens; i++)
        r->v->tokens[i] = (kve_vocab_token){.text = "", .type = KVE_TOKEN_UNUSED};
    return KVE_OK;
}

static kve_status read_tokens(const reader *r, const cJSON *vocab, const cJSON *added)
{
    if (!cJSON_IsObject(vocab))
        return kve_fail(KVE_ERR_FILE, "%s: model.vocab is not an object of texts and ids; export the tokenizer again",
                        r->name);
    KVE_TRY(count_tokens(r, vocab, added));
    const cJSON *e;
    cJSON_ArrayForEach(e, vocab) KVE_TRY(set_token(r, (int64_t)e->valuedouble, e->string, KVE_TOKEN_NORMAL));
    cJSON_ArrayForEach(e, added)
    {
        int64_t id;
        const char *text;
        bool special;
        KVE_TRY(kve_json_int(e, "id", r->name, &id));
        KVE_TRY(kve_json_str(e, "content", r->name, &text));
        KVE_TRY(kve_json_bool_or(e, "special", r->name, false, &special));
        KVE_TRY(set_token(r, id, text, special ? KVE_TOKEN_CONTROL : KVE_TOKEN_USER));
        kve_vocab_token *t = &r->v->tokens[id];
        KVE_TRY(kve_json_bool_or(e, "lstrip", r->name, false, &t->lstrip));
        KVE_TRY(kve_json_bool_or(e, "rstrip", r->name, false, &t->rstrip));
        KVE_TRY(kve_json_bool_or(e, "normalized", r->name, !special, &t->normalized));
        KVE_TRY(kve_json_bool_or(e, "single_word", r->name, false, &t->single_word));
    }
    return KVE_OK;
}

/* A merge is "left right" in older files and ["left", "right"] in newer ones. */
static kve_status read_merges(const reader *r, const cJSON *merges)
{
    kve_vocab *v = r->v;
    v->n_merges = cJSON_GetArraySize(merges);
    if (v->n_merges == 0) /* every text would become single bytes or characters, and no other error would follow */
        return kve_fail(KVE_ERR_FILE, "%s: 'model.merges' is missing or empty; save the tokenizer again", r->name);
    KVE_TRY(kve_arena_alloc(&v->arena, (size_t)v->n_merges, sizeof *v->merges, &v->merges));
    int32_t i = 0;
    const cJSON *e;
    cJSON_ArrayForEach(e, merges)
    {
        const char *left = NULL, *right = NULL;
        size_t left_len = 0;
        if (cJSON_IsString(e) && (right = strchr(e->valuestring, ' '))) {
            left = e->valuestring;
            left_len = (size_t)(right++ - left);
        } else if (cJSON_GetArraySize(e) == 2 && cJSON_IsString(e->child) && cJSON_IsString(e->child->next)) {
            left = e->child->valuestring;
            left_len = strlen(left);
            right = e->child->next->valuestring;
        }
        if (!left || !left_len || !*right)
            return kve_fail(KVE_ERR_FILE, "%s: model.merges[%d] is not a pair of texts", r->name, i);
        char *a, *b;
        KVE_TRY(kve_arena_strndup(&v->arena, left, left_len, &a));
        KVE_TRY(kve_arena_strndup(&v->arena, right, strlen(right), &b));
        v->merges[i++] = (kve_vocab_merge){a, b, (uint32_t)left_len, (uint32_t)strlen(right)};
    }
    return KVE_OK;
}

static kve_status read_normalizer(const reader *r, const cJSON *n)
{
    if (!n || cJSON_IsNull(n))
        return KVE_OK;
    const cJSON *e;
    if (text_is(n, "type", "Sequence")) {
        cJSON_ArrayForEach(e, kve_json_get(n, "normalizers")) KVE_TRY(read_normalizer(r, e));
    } else if (text_is(n, "type", "NFC")) {
        r->v->nfc = true;
    } else if (text_is(n, "type", "Prepend") && text_is(n, "prepend", "\xe2\x96\x81")) {
        r->v->add_space_prefix = true;
    } else if (!(text_is(n, "type", "Replace") && text_is(n, "content", "\xe2\x96\x81") &&
                 text_is(kve_json_get(n, "pattern"), "String", " "))) {
        const char *type;
        KVE_TRY(kve_json_str(n, "type", r->name, &type));
        return unsupported(r, "normalizer", type);
    }
    return KVE_OK;
}

static kve_status add_pattern(const reader *r, const char *pattern)
{
    kve_vocab *v = r->v;
    if (!v->pre_patterns)
        KVE_TRY(kve_arena_alloc(&v->arena, MAX_STEPS, sizeof *v->pre_patterns, &v->pre_patterns));
    if (v->n_pre_patterns == MAX_STEPS)
        return kve_fail(KVE_ERR_FILE, "%s: more than %d pre-tokenizer steps", r->name, (int)MAX_STEPS);
    char *copy;
    KVE_TRY(kve_arena_strndup(&v->arena, pattern, strlen(pattern), &copy));
    v->pre_patterns[v->n_pre_patterns++] = copy;
    return KVE_OK;
}

static kve_status read_metaspace(const reader *r, const cJSON *p)
{
    bool split;
    KVE_TRY(kve_json_bool_or(p, "split", r->name, true, &split));
    if (split)
        return unsupported(r, "pre-tokenizer", "Metaspace with split");
    r->v->add_space_prefix = !text_is(p, "prepend_scheme", "never");
    r->v->spm_strip_extra = text_is(p, "prepend_scheme", "first");
    return KVE_OK;
}

static kve_status read_pre(const reader *r, const cJSON *p, bool *byte_level)
{
    if (!p || cJSON_IsNull(p))
        return KVE_OK;
    const char *type;
    KVE_TRY(kve_json_str(p, "type", r->name, &type));
    bool flag;
    if (strcmp(type, "Sequence") == 0) {
        const cJSON *e;
        cJSON_ArrayForEach(e, kve_json_get(p, "pretokenizers")) KVE_TRY(read_pre(r, e, byte_level));
        return KVE_OK;
    }
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(r, p);
    if (strcmp(type, "Digits") == 0) {
        KVE_TRY(kve_json_bool_or(p, "individual_digits", r->name, false, &flag));
        if (flag && r->v->n_pre_patterns == 0) {
            r->v->individual_digits = true; /* runs before every pattern, so only a first step may use it */
            return KVE_OK;
        }
        return add_pattern(r, flag ? "\\p{N}" : "\\p{N}+");
    }
    if (strcmp(type, "Split") == 0) {
        const char *regex;
        KVE_TRY(kve_json_bool_or(p, "invert", r->name, false, &flag));
        if (!text_is(p, "behavior", "Isolated") && !(text_is(p, "behavior", "Removed") && flag))
            return unsupported(r, "pre-tokenizer", "Split that is not Isolated");
        KVE_TRY(kve_json_str(kve_json_get(p, "pattern"), "Regex", r->name, &regex));
        return add_pattern(r, regex);
    }
    if (strcmp(type, "ByteLevel") != 0)
        return unsupported(r, "pre-tokenizer", type);
    *byte_level = true;
    KVE_TRY(kve_json_bool_or(p, "add_prefix_space", r->name, true, &flag));
    if (flag)
        return unsupported(r, "pre-tokenizer", "ByteLevel with add_prefix_space");
    return kve_json_bool_or(p, "use_regex", r->name, true, &r->v->use_gpt2_regex);
}

static int32_t id_of(const kve_vocab *v, const char *text)
{
    size_t len = strlen(text);
    for (int32_t i = 0; len > 0 && i < v->n_tokens; i++)
        if (v->tokens[i].len == len && memcmp(v->tokens[i].text, text, len) == 0)
            return i;
    return -1;
}

/* The post-processor's template says whether plain text gets BOS and EOS. */
static void read_post(const reader *r, const cJSON *p)
{
    const cJSON *e;
    cJSON_ArrayForEach(e, kve_json_get(p, "processors")) read_post(r, e);
    bool before = true;
    const cJSON *single = text_is(p, "type", "TemplateProcessing") ? kve_json_get(p, "single") : NULL;
    cJSON_ArrayForEach(e, single)
    {
        const cJSON *token = kve_json_get(e, "SpecialToken");
        const cJSON *id = token ? kve_json_get(token, "id") : NULL;
        if (!cJSON_IsString(id)) {
            before = false;
        } else if (before) {
            r->v->bos = id_of(r->v, id->valuestring);
            r->v->add_bos = r->v->bos >= 0;
        } else {
            r->v->eos = id_of(r->v, id->valuestring);
            r->v->add_eos = r->v->eos >= 0;
        }
    }
}

static kve_status read_root(const reader *r, const cJSON *root)
{
    kve_vocab *v = r->v;
    const cJSON *model = kve_json_get(root, "model");
    const char *type, *unk;
    if (!cJSON_IsObject(model))
        return kve_fail(KVE_ERR_FILE, "%s: no object 'model'; is this a tokenizer.json?", r->name);
    KVE_TRY(kve_json_str_or(model, "type", r->name, "BPE", &type));
    if (strcmp(type, "BPE") != 0)
        return unsupported(r, "model type", type);
    KVE_TRY(read_tokens(r, kve_json_get(model, "vocab"), kve_json_get(root, "added_tokens")));
    KVE_TRY(read_merges(r, kve_json_get(model, "merges")));
    KVE_TRY(kve_json_bool_or(model, "byte_fallback", r->name, false, &v->byte_fallback));
    KVE_TRY(kve_json_bool_or(model, "ignore_merges", r->name, false, &v->ignore_merges));
    KVE_TRY(kve_json_str_or(model, "unk_token", r->name, "", &unk));
    v->unk = id_of(v, unk);
    KVE_TRY(read_normalizer(r, kve_json_get(root, "normalizer")));
    bool byte_level = false;
    KVE_TRY(read_pre(r, kve_json_get(root, "pre_tokenizer"), &byte_level));
    v->kind = byte_level ? KVE_VOCAB_BYTE_BPE : KVE_VOCAB_SPM_BPE;
    const cJSON *post = kve_json_get(root, "post_processor");
    if (cJSON_IsObject(post))
        read_post(r, post);
    return KVE_OK;
}

/* A token in tokenizer_config.json: its text, or an object with "content". */
static int32_t config_token(const kve_vocab *v, const cJSON *root, const char *key, int32_t fallback)
{
    const cJSON *t = kve_json_get(root, key);
    if (cJSON_IsObject(t))
        t = kve_json_get(t, "content");
    return cJSON_IsString(t) ? id_of(v, t->valuestring) : fallback;
}

static kve_status read_config(const char *path, kve_vocab *v, const char **chat_template)
{
    cJSON *root;
    KVE_TRY(kve_json_parse_file(path, &root));
    v->bos = config_token(v, root, "bos_token", v->bos);
    v->eos = config_token(v, root, "eos_token", v->eos);
    kve_status st = kve_json_bool_or(root, "add_bos_token", path, v->add_bos, &v->add_bos);
    if (st == KVE_OK)
        st = kve_json_bool_or(root, "add_eos_token", path, v->add_eos, &v->add_eos);
    const cJSON *t = kve_json_get(root, "chat_template");
    const cJSON *e;
    const cJSON *named = cJSON_IsArray(t) ? t : NULL;
    cJSON_ArrayForEach(e, named)
    {
        if (text_is(e, "name", "default")) {
            t = kve_json_get(e, "template");
            break;
        }
    }
    char *copy;
    if (st == KVE_OK && chat_template && cJSON_IsString(t)) {
        st = kve_arena_strndup(&v->arena, t->valuestring, strlen(t->valuestring), &copy);
        if (st == KVE_OK)
            *chat_template = copy;
    }
    cJSON_Delete(root);
    return st;
}

/* Newer models keep the template in a file of its own, beside tokenizer.json; it wins. */
static kve_status read_jinja(const char *tokenizer_path, kve_vocab *v, const char **chat_template)
{
    kve_str path = {0};
    char *text = NULL, *copy = NULL;
    size_t len = 0;
    const char *base = kve_path_base(tokenizer_path);
    kve_status st = kve_str_printf(&path, "%.*schat_template.jinja", (int)(base - tokenizer_path), tokenizer_path);
    if (st == KVE_OK && kve_path_exists(path.p)) {
        st = kve_file_read(path.p, &text, &len);
        if (st == KVE_OK)
            st = kve_arena_strndup(&v->arena, text, len, &copy);
        if (st == KVE_OK)
            *chat_template = copy;
        free(text);
    }
    kve_str_free(&path);
    return st;
}

kve_status kve_vocab_from_json(const char *tokenizer_path, const char *config_path, kve_vocab *out,
                               const char **chat_template)
{
    memset(out, 0, sizeof *out);
    out->bos = out->eos = out->unk = -1;
    if (chat_template)
        *chat_template = NULL;
    cJSON *root;
    KVE_TRY(kve_json_parse_file(tokenizer_path, &root));
    reader r = {out, tokenizer_path};
    kve_status st = read_root(&r, root);
    cJSON_Delete(root);
    if (st == KVE_OK && config_path && kve_path_exists(config_path))
        st = read_config(config_path, out, chat_template);
    if (st == KVE_OK && chat_template)
        st = read_jinja(tokenizer_path, out, chat_template);
    if (st != KVE_OK)
        kve_vocab_free(out);
    return st;
}
