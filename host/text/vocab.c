/* Look-up tables of a vocabulary: texts to ids, pairs to merges, bytes to ids, and the added tokens by first byte. */
#include "host/text/internal.h"

#include <stdlib.h>
#include <string.h>

void kve_vocab_free(kve_vocab *v)
{
    kve_arena_free(&v->arena);
    memset(v, 0, sizeof *v);
}

kve_status kve_grow(void *items_ptr, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap)
        return KVE_OK;
    size_t want = *cap ? *cap * 2 : 64;
    while (want < need)
        want *= 2;
    void *old;
    void *fresh;
    memcpy(&old, items_ptr, sizeof old);
    KVE_TRY(kve_alloc(want, size, &fresh));
    if (old)
        memcpy(fresh, old, *cap * size);
    free(old);
    memcpy(items_ptr, &fresh, sizeof fresh);
    *cap = want;
    return KVE_OK;
}

/* GPT-2's table: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up, in order. */
static bool byte_is_printable(unsigned b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

uint32_t kve_byte_char(unsigned byte)
{
    if (byte_is_printable(byte))
        return byte;
    uint32_t c = 0x100;
    for (unsigned b = 0; b < byte; b++)
        c += !byte_is_printable(b);
    return c;
}

int kve_char_byte(uint32_t c)
{
    if (c < 0x100)
        return byte_is_printable(c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)(c - 0x100);
    if (c <= 0x142)
        return c == 0x142 ? 0xa0 : (int)(c - 0x121 + 0x7f);
    return c == 0x143 ? 0xad : -1;
}

size_t kve_utf8_put(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    static const unsigned lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(lead[n] | c);
    return n;
}

size_t kve_utf8_get(const char *s, size_t len, uint32_t *c)
{
    const unsigned char *u = (const unsigned char *)s;
    if (len == 0)
        return 0;
    if (u[0] < 0x80) {
        *c = u[0];
        return 1;
    }
    size_t n = u[0] >= 0xf0 ? 4 : u[0] >= 0xe0 ? 3 : 2;
    if (u[0] < 0xc2 || u[0] > 0xf4 || len < n)
        return 0;
    uint32_t v = u[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((u[i] & 0xc0) != 0x80)
            return 0;
        v = v << 6 | (u[i] & 0x3fu);
    }
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (v < least[n] || v > 0x10ffff || (v >= 0xd800 && v < 0xe000))
        return 0;
    *c = v;
    return n;
}

static uint64_t hash_bytes(const char *s, size_t len)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

static uint64_t hash_pair(uint64_t key)
{
    key *= 0x9e3779b97f4a7c15u;
    return key ^ key >> 31;
}

/* The slot of the text, or the free slot where it belongs. */
static size_t text_slot(const kve_tokenizer *tk, const char *text, size_t len)
{
    size_t i = hash_bytes(text, len) & tk->text_mask;
    for (; tk->text_slots[i] >= 0; i = (i + 1) & tk->text_mask) {
        const kve_vocab_token *t = &tk->vocab->tokens[tk->text_slots[i]];
        if (t->len == len && memcmp(t->text, text, len) == 0)
            break;
    }
    return i;
}

int32_t kve_find_text(const kve_tokenizer *tk, const char *text, size_t len)
{
    return len ? tk->text_slots[text_slot(tk, text, len)] : -1;
}

static size_t pair_slot(const kve_tokenizer *tk, uint64_t key)
{
    size_t i = hash_pair(key) & tk->pair_mask;
    while (tk->pairs[i].key && tk->pairs[i].key != key)
        i = (i + 1) & tk->pair_mask;
    return i;
}

static uint64_t pair_key(int32_t left, int32_t right)
{
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
}

const kve_pair_slot *kve_find_pair(const kve_tokenizer *tk, int32_t left, int32_t right)
{
    if (left < 0 || right < 0)
        return NULL;
    const kve_pair_slot *s = &tk->pairs[pair_slot(tk, pair_key(left, right))];
    return s->key ? s : NULL;
}

static size_t table_size(int32_t n)
{
    size_t size = 16;
    while (size < (size_t)n * 2)
        size *= 2;
    return size;
}

static kve_status build_texts(kve_tokenizer *tk)
{
    const kve_vocab *v = tk->vocab;
    size_t size = table_size(v->n_tokens);
    KVE_TRY(kve_alloc(size, sizeof *tk->text_slots, &tk->text_slots));
    tk->text_mask = size - 1;
    for (size_t i = 0; i < size; i++)
        tk->text_slots[i] = -1;
    for (int32_t id = 0; id < v->n_tokens; id++) {
        const kve_vocab_token *t = &v->tokens[id];
        if (!t->len)
            continue;
        size_t i = text_slot(tk, t->text, t->len);
        if (tk->text_slots[i] < 0)
            tk->text_slots[i] = id;
    }
    return KVE_OK;
}

static kve_status build_pairs(kve_tokenizer *tk)
{
    const kve_vocab *v = tk->vocab;
    size_t size = table_size(v->n_merges);
    kve_str joined = {0};
    kve_status st = kve_alloc(size, sizeof *tk->pairs, &tk->pairs);
    tk->pair_mask = size - 1;
    for (int32_t r = 0; r < v->n_merges && st == KVE_OK; r++) {
        const kve_vocab_merge *m = &v->merges[r];
        kve_str_clear(&joined);
        KVE_TRY_GOTO(st, kve_str_append(&joined, m->left, m->left_len), done);
        KVE_TRY_GOTO(st, kve_str_append(&joined, m->right, m->right_len), done);
        int32_t a = kve_find_text(tk, m->left, m->left_len);
        int32_t b = kve_find_text(tk, m->right, m->right_len);
        int32_t c = kve_find_text(tk, joined.p, joined.len);
        if (a < 0 || b < 0 || c < 0) {
            st = kve_fail(KVE_ERR_FILE,
                          "tokenizer: merge %d ('%.*s' '%.*s') names a text that is not in the vocabulary; "
                          "the file is damaged, export it again",
                          r, (int)m->left_len, m->left, (int)m->right_len, m->right);
            break;
        }
        kve_pair_slot *s = &tk->pairs[pair_slot(tk, pair_key(a, b))];
        if (!s->key) /* the first of two equal merges is the better one */
            *s = (kve_pair_slot){pair_key(a, b), r, c};
    }
done:
    kve_str_free(&joined);
    return st;
}

static void build_bytes(kve_tokenizer *tk)
{
    static const char hex[] = "0123456789ABCDEF";
    for (unsigned b = 0; b < 256; b++) {
        char text[8] = {'<', '0', 'x', hex[b >> 4], hex[b & 15], '>', 0, 0};
        size_t len = 6;
        if (tk->vocab->kind == KVE_VOCAB_BYTE_BPE)
            len = kve_utf8_put(kve_byte_char(b), text);
        tk->byte_ids[b] = kve_find_text(tk, text, len);
    }
}

#define TOKEN(p) (&tokens[*(const int32_t *)(p)])
static int by_first_byte_longest(const void *x, const void *y, void *ctx)
{
    const kve_vocab_token *tokens = ctx;
    const kve_vocab_token *a = TOKEN(x), *b = TOKEN(y);
    if (a->text[0] != b->text[0])
        return (unsigned char)a->text[0] < (unsigned char)b->text[0] ? -1 : 1;
    return a->len != b->len ? (a->len > b->len ? -1 : 1) : 0;
}

static kve_status build_added(kve_tokenizer *tk)
{
    const kve_vocab *v = tk->vocab;
    KVE_TRY(kve_alloc((size_t)v->n_tokens, sizeof *tk->added, &tk->added));
    for (int32_t id = 0; id < v->n_tokens; id++) {
        const kve_vocab_token *t = &v->tokens[id];
        if (t->len && (t->type == KVE_TOKEN_CONTROL || t->type == KVE_TOKEN_USER))
            tk->added[tk->n_added++] = id;
    }
    qsort_r(tk->added, tk->n_added, sizeof *tk->added, by_first_byte_longest, v->tokens);
    size_t i = 0;
    for (unsigned b = 0; b < 256; b++) {
        tk->added_from[b] = (uint32_t)i;
        while (i < tk->n_added && (unsigned char)v->tokens[tk->added[i]].text[0] == b)
            i++;
    }
    tk->added_from[256] = (uint32_t)i;
    return KVE_OK;
}

kve_status kve_tables_build(kve_tokenizer *tk)
{
    KVE_TRY(build_texts(tk));
    KVE_TRY(build_pairs(tk));
    build_bytes(tk);
    return build_added(tk);
}

/* Lengths stand before texts, so that no two vocabularies write the same bytes. */
static kve_status put_text(kve_str *s, const char *text, size_t len)
{
    KVE_TRY(kve_str_printf(s, "%zu:", len));
    return kve_str_append(s, text, len);
}

static kve_status put_rules(kve_str *s, const kve_vocab *v)
{
    const char *pre = v->pre_name ? v->pre_name : "";
    KVE_TRY(kve_str_printf(s, "%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d;", (int)v->kind, v->individual_digits,
                           v->use_gpt2_regex, v->ignore_merges, v->nfc, v->add_space_prefix, v->spm_strip_extra,
                           v->byte_fallback, v->bos, v->eos, v->unk, v->add_bos, v->add_eos, v->n_pre_patterns));
    KVE_TRY(put_text(s, pre, strlen(pre)));
    for (int32_t i = 0; i < v->n_pre_patterns; i++)
        KVE_TRY(put_text(s, v->pre_patterns[i], strlen(v->pre_patterns[i])));
    return KVE_OK;
}

static kve_status put_vocab(kve_str *s, const kve_vocab *v)
{
    KVE_TRY(put_rules(s, v));
    for (int32_t i = 0; i < v->n_tokens; i++) {
        const kve_vocab_token *t = &v->tokens[i];
        KVE_TRY(kve_str_printf(s, "%d,%a,%d%d%d%d,", (int)t->type, (double)t->score, t->lstrip, t->rstrip,
                               t->normalized, t->single_word));
        KVE_TRY(put_text(s, t->text ? t->text : "", t->text ? t->len : 0));
    }
    for (int32_t i = 0; i < v->n_merges; i++) {
        KVE_TRY(put_text(s, v->merges[i].left, v->merges[i].left_len));
        KVE_TRY(put_text(s, v->merges[i].right, v->merges[i].right_len));
    }
    return KVE_OK;
}

kve_status kve_vocab_sha256(const kve_vocab *v, char hex[KVE_SHA256_HEX])
{
    kve_str text = {0};
    kve_status st = put_vocab(&text, v);
    if (st == KVE_OK)
        st = kve_sha256(text.p, text.len, hex);
    kve_str_free(&text);
    return st;
}
