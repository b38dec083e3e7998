/* SentencePiece-style text: spaces as U+2581, a space in front, byte tokens <0xNN>. Merging itself is in bpe.c. */
#include "host/text/internal.h"

#include <string.h>

static const char bar[] = "\xe2\x96\x81"; /* U+2581 */

/* One stretch of text between added tokens. `first`: it is the first piece of the whole text. */
kve_status kve_spm_segment(const kve_tokenizer *tk, const char *text, size_t len, bool first, kve_ids *out)
{
    const kve_vocab *v = tk->vocab;
    kve_str s = {0};
    kve_status st = KVE_OK;
    if (len == 0)
        return KVE_OK;
    if (v->add_space_prefix && (first || !v->spm_strip_extra))
        KVE_TRY_GOTO(st, kve_str_puts(&s, bar), done);
    for (size_t i = 0; i < len; i++) {
        if (text[i] == ' ')
            KVE_TRY_GOTO(st, kve_str_puts(&s, bar), done);
        else
            KVE_TRY_GOTO(st, kve_str_append(&s, text + i, 1), done);
    }
    st = kve_bpe_piece(tk, s.p, s.len, out);
done:
    kve_str_free(&s);
    return st;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

static bool byte_token(const kve_vocab_token *t, char *byte)
{
    if (t->len != 6 || memcmp(t->text, "<0x", 3) != 0 || t->text[5] != '>')
        return false;
    int hi = hex_digit(t->text[3]), lo = hex_digit(t->text[4]);
    *byte = (char)(hi * 16 + lo);
    return hi >= 0 && lo >= 0;
}

static kve_status append_unbarred(const kve_vocab_token *t, kve_str *out)
{
    for (uint32_t i = 0; i < t->len;) {
        bool is_bar = t->len - i >= 3 && memcmp(t->text + i, bar, 3) == 0;
        KVE_TRY(kve_str_append(out, is_bar ? " " : t->text + i, 1));
        i += is_bar ? 3 : 1;
    }
    return KVE_OK;
}

kve_status kve_spm_detokenize(const kve_tokenizer *tk, const int32_t *ids, size_t n, bool specials, kve_str *out)
{
    const kve_vocab *v = tk->vocab;
    bool at_start = v->add_space_prefix; /* the space that tokenizing put in front is not part of the text */
    for (size_t i = 0; i < n; i++) {
        const kve_vocab_token *t = &v->tokens[ids[i]];
        char byte;
        bool control = t->type == KVE_TOKEN_CONTROL || t->type == KVE_TOKEN_UNKNOWN;
        if (t->type == KVE_TOKEN_UNUSED || (control && !specials))
            continue;
        if (control || t->type == KVE_TOKEN_USER) {
            KVE_TRY(kve_str_append(out, t->text, t->len));
        } else if (v->byte_fallback && byte_token(t, &byte)) {
            KVE_TRY(kve_str_append(out, &byte, 1));
        } else {
            kve_vocab_token cut = *t;
            if (at_start && t->len >= 3 && memcmp(t->text, bar, 3) == 0) {
                cut.text += 3;
                cut.len -= 3;
            }
            KVE_TRY(append_unbarred(&cut, out));
        }
        at_start = false;
    }
    return KVE_OK;
}
