/* The tokenizer's calls: added tokens are cut out first, the rest is pre-tokenized and merged; and the way back.
 * The vocab's `nfc` is not applied (it needs Unicode's composition tables): text that is not NFC already is tokenized
 * as it stands, which for such text differs from the reference library. */
#include "host/text/tokenizer.h"

#include "host/text/internal.h"

#include <stdlib.h>
#include <string.h>

kve_status kve_tokenizer_create(const kve_vocab *vocab, kve_tokenizer **out)
{
    kve_tokenizer *tk;
    KVE_TRY(kve_alloc(1, sizeof *tk, &tk));
    tk->vocab = vocab;
    kve_status st = kve_tables_build(tk);
    if (st == KVE_OK)
        st = kve_patterns_compile(tk);
    if (st != KVE_OK) {
        kve_tokenizer_free(tk);
        return st;
    }
    *out = tk;
    return KVE_OK;
}

void kve_tokenizer_free(kve_tokenizer *tk)
{
    if (!tk)
        return;
    for (int i = 0; i < tk->n_patterns; i++)
        pcre2_code_free(tk->patterns[i]);
    free(tk->text_slots);
    free(tk->pairs);
    free(tk->added);
    free(tk);
}

kve_status kve_ids_push(kve_ids *ids, int32_t id)
{
    KVE_TRY(kve_grow(&ids->p, &ids->cap, ids->len + 1, sizeof *ids->p));
    ids->p[ids->len++] = id;
    return KVE_OK;
}

void kve_ids_free(kve_ids *ids)
{
    free(ids->p);
    *ids = (kve_ids){0};
}

static kve_status check_utf8(const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        uint32_t c;
        size_t n = kve_utf8_get(text + i, len - i, &c);
        if (n == 0)
            return kve_fail(KVE_ERR_FILE, "text is not valid UTF-8: byte 0x%02x at offset %zu; convert it to UTF-8",
                            (unsigned)(unsigned char)text[i], i);
        i += n;
    }
    return KVE_OK;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Bytes of multi-byte characters count as letters: a word token next to them is left alone. */
static bool is_word(char c)
{
    unsigned char u = (unsigned char)c;
    return u >= 0x80 || u == '_' || (u >= '0' && u <= '9') || ((u | 32) >= 'a' && (u | 32) <= 'z');
}

typedef struct call {
    const kve_tokenizer *tk;
    const char *begin; /* of the whole text */
    const kve_text_rules *rules;
    kve_pieces pieces; /* reused from stretch to stretch */
    kve_ids *out;
} call;

/* The longest added token of this pass at text[at], -1 if none. */
static int32_t added_at(const call *c, const char *text, size_t at, size_t len, int pass)
{
    const kve_tokenizer *tk = c->tk;
    size_t place = (size_t)(text - c->begin) + at;
    unsigned char b = (unsigned char)text[at];
    for (uint32_t i = tk->added_from[b]; i < tk->added_from[b + 1]; i++) {
        const kve_vocab_token *t = &tk->vocab->tokens[tk->added[i]];
        bool special = place >= c->rules->special_from && place + t->len <= c->rules->special_to;
        if (t->normalized != (pass == 1) || (t->type == KVE_TOKEN_CONTROL && !special))
            continue;
        if (t->len > len - at || memcmp(t->text, text + at, t->len) != 0)
            continue;
        bool inside = (at > 0 && is_word(text[at - 1])) || (at + t->len < len && is_word(text[at + t->len]));
        if (!(t->single_word && inside))
            return tk->added[i];
    }
    return -1;
}

static kve_status plain_stretch(call *c, const char *text, size_t len)
{
    if (len == 0)
        return KVE_OK;
    if (c->tk->vocab->kind == KVE_VOCAB_SPM_BPE)
        return kve_spm_segment(c->tk, text, len, text == c->begin && !c->rules->continues, c->out);
    KVE_TRY(kve_pretokenize(c->tk, text, len, &c->pieces));
    for (size_t i = 0; i < c->pieces.len; i++)
        KVE_TRY(kve_bpe_piece(c->tk, c->pieces.p[i].p, c->pieces.p[i].len, c->out));
    return KVE_OK;
}

/* Pass 0 finds the added tokens that are matched in the raw text, pass 1 the "normalized" ones in what is left. */
static kve_status stretch(call *c, const char *text, size_t len, int pass)
{
    if (pass == 2)
        return plain_stretch(c, text, len);
    size_t from = 0, at = 0;
    while (at < len) {
        int32_t id = added_at(c, text, at, len, pass);
        if (id < 0) {
            at++;
            continue;
        }
        const kve_vocab_token *t = &c->tk->vocab->tokens[id];
        size_t end = at, next = at + t->len;
        while (t->lstrip && end > from && is_space(text[end - 1]))
            end--;
        while (t->rstrip && next < len && is_space(text[next]))
            next++;
        KVE_TRY(stretch(c, text + from, end - from, pass + 1));
        KVE_TRY(kve_ids_push(c->out, id));
        from = at = next;
    }
    return stretch(c, text + from, len - from, pass + 1);
}

kve_status kve_tokenize(const kve_tokenizer *tk, const char *text, size_t len, bool specials, bool add_bos,
                        kve_ids *out)
{
    const kve_text_rules rules = {.special_to = specials ? len : 0, .add_bos = add_bos};
    return kve_tokenize_as(tk, text, len, &rules, out);
}

kve_status kve_tokenize_as(const kve_tokenizer *tk, const char *text, size_t len, const kve_text_rules *rules,
                           kve_ids *out)
{
    KVE_TRY(check_utf8(text, len));
    const kve_vocab *v = tk->vocab;
    size_t start = out->len;
    bool want_bos = rules->add_bos && v->add_bos && v->bos >= 0;
    if (want_bos)
        KVE_TRY(kve_ids_push(out, v->bos));
    call c = {.tk = tk, .begin = text, .rules = rules, .out = out};
    kve_status st = stretch(&c, text, len, 0);
    free(c.pieces.p);
    if (st != KVE_OK) {
        out->len = start;
        return st;
    }
    if (want_bos && out->len > start + 1 && out->p[start + 1] == v->bos) { /* the text brought its own */
        memmove(out->p + start, out->p + start + 1, (out->len - start - 1) * sizeof *out->p);
        out->len--;
    }
    return KVE_OK;
}

static kve_status append_byte_chars(const kve_vocab_token *t, kve_str *out)
{
    for (size_t i = 0; i < t->len;) {
        uint32_t c;
        size_t n = kve_utf8_get(t->text + i, t->len - i, &c);
        int byte = n ? kve_char_byte(c) : -1;
        char ch = (char)byte;
        if (byte >= 0)
            KVE_TRY(kve_str_append(out, &ch, 1));
        else /* not spelled in byte characters: ordinary text */
            KVE_TRY(kve_str_append(out, t->text + i, n ? n : 1));
        i += n ? n : 1;
    }
    return KVE_OK;
}

kve_status kve_detokenize(const kve_tokenizer *tk, const int32_t *ids, size_t n, bool specials, kve_str *out)
{
    const kve_vocab *v = tk->vocab;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= v->n_tokens)
            return kve_fail(KVE_ERR_INTERNAL, "token id %d at position %zu is outside the vocabulary of %d", ids[i], i,
                            v->n_tokens);
    if (v->kind == KVE_VOCAB_SPM_BPE)
        return kve_spm_detokenize(tk, ids, n, specials, out);
    for (size_t i = 0; i < n; i++) {
        const kve_vocab_token *t = &v->tokens[ids[i]];
        if (t->type == KVE_TOKEN_UNUSED || (t->type == KVE_TOKEN_CONTROL && !specials))
            continue;
        if (t->type == KVE_TOKEN_CONTROL || t->type == KVE_TOKEN_USER)
            KVE_TRY(kve_str_append(out, t->text, t->len));
        else
            KVE_TRY(append_byte_chars(t, out));
    }
    return KVE_OK;
}

size_t kve_utf8_complete_len(const char *s, size_t len)
{
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        unsigned char u = (unsigned char)s[len - back];
        if ((u & 0xc0) == 0x80)
            continue;
        size_t need = u >= 0xf0 ? 4 : u >= 0xe0 ? 3 : u >= 0xc0 ? 2 : 1;
        return need > back ? len - back : len;
    }
    return len;
}

int32_t kve_token_id(const kve_tokenizer *tk, const char *text)
{
    return kve_find_text(tk, text, strlen(text));
}

const kve_vocab *kve_tokenizer_vocab(const kve_tokenizer *tk)
{
    return tk->vocab;
}
