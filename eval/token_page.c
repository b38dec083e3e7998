/* The page of coloured tokens. Contract: token_page.h. Its style and script: token_page_parts.c. */
#include "eval/token_page.h"

#include "eval/report_text.h"
#include "eval/token_page_parts.h"
#include "host/base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- texts ------------------------------------------------------------------------------------------------------ */

/* The token's own bytes. A SentencePiece text loses the space in front of its first token, so the bytes of a token are
 * what a second one adds to a first. */
static kve_status token_bytes(const kve_tokenizer *tk, int32_t id, kve_str *out)
{
    const int32_t twice[2] = {id, id};
    kve_str first = {0};
    kve_str_clear(out);
    kve_status st = kve_detokenize(tk, twice, 1, true, &first);
    if (st == KVE_OK)
        st = kve_detokenize(tk, twice, 2, true, out);
    if (st == KVE_OK && first.len) {
        out->len -= first.len;
        memmove(out->p, out->p + first.len, out->len + 1);
    }
    kve_str_free(&first);
    return st;
}

/* Bytes [0, len) that are one run: well-formed text without control characters. */
static size_t text_run(const char *s, size_t len)
{
    size_t good = len;
    if (kve_utf8_valid(s, len, &good))
        good = len;
    for (size_t i = 0; i < good; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            return i;
    return good;
}

/* Line ends and tabs are seen and kept; bytes that are no character alone stand in hexadecimal. */
static kve_status put_token(const kve_token_page *p, int32_t id, kve_str *bytes, kve_tw *w)
{
    KVE_TRY(token_bytes(p->tk, id, bytes));
    if (bytes->len == 0)
        kve_tw_printf(w, "\xe2\x9f\xa8%d\xe2\x9f\xa9", id); /* a hole in the vocabulary */
    for (size_t i = 0; i < bytes->len;) {
        size_t run = text_run(bytes->p + i, bytes->len - i);
        unsigned char c = (unsigned char)bytes->p[i + run];
        bytes->p[i + run] = 0; /* c is written below, unless this is the end */
        kve_tw_html(w, bytes->p + i);
        i += run;
        if (i == bytes->len)
            break;
        if (c == '\n')
            kve_tw_puts(w, "\xe2\x86\xb5\n");
        else if (c == '\t')
            kve_tw_puts(w, "\xe2\x87\xa5\t");
        else
            kve_tw_printf(w, "\xe2\x9f\xa8%02X\xe2\x9f\xa9", c);
        i++;
    }
    return w->status;
}

/* --- ranks ------------------------------------------------------------------------------------------------------ */

static size_t n_heads(const kve_token_page *p)
{
    return (size_t)p->L * (size_t)p->Hkv;
}

/* Equal steps of the logarithm: budgets are small beside the text, so the first ranks are those to tell apart. The
 * script has the same formula. */
static int level_of(int32_t rank, int32_t n)
{
    int level = (int)(KVE_TOKEN_LEVELS * log((double)rank) / log(n < 2 ? 2 : (double)n));
    return level < KVE_TOKEN_LEVELS ? level : KVE_TOKEN_LEVELS - 1;
}

static int32_t first_budget(const kve_token_page *p)
{
    return p->n < 4 ? 1 : p->n / 4;
}

static void put_base64(const unsigned char *data, size_t len, kve_tw *w)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    enum { GROUPS = 1024 };
    char text[4 * GROUPS + 1];
    size_t at = 0;
    for (size_t i = 0; i < len; i += 3) {
        size_t left = len - i < 3 ? len - i : 3;
        uint32_t bits = (uint32_t)data[i] << 16;
        bits |= left > 1 ? (uint32_t)data[i + 1] << 8 : 0;
        bits |= left > 2 ? (uint32_t)data[i + 2] : 0;
        for (size_t k = 0; k < 4; k++)
            text[at++] = k <= left ? digits[bits >> (18 - 6 * k) & 63] : '=';
        if (at == 4 * GROUPS || i + 3 >= len) {
            text[at] = 0;
            kve_tw_puts(w, text);
            at = 0;
        }
    }
}

/* rank - 1 of every token of every head, two bytes each. */
static void pack_ranks(const kve_token_page *p, const int32_t *order, unsigned char *out)
{
    size_t n = (size_t)p->n;
    for (size_t h = 0; h < n_heads(p); h++)
        for (size_t i = 0; i < n; i++) {
            size_t at = 2 * (h * n + (size_t)order[h * n + i]);
            out[at] = (unsigned char)(i & 255);
            out[at + 1] = (unsigned char)(i >> 8);
        }
}

static int32_t unpack_rank(const unsigned char *ranks, size_t j)
{
    return ranks[2 * j] + (ranks[2 * j + 1] << 8) + 1;
}

/* --- parts of the page ------------------------------------------------------------------------------------------ */

static void numbers(const char *id, const char *label, int32_t n, kve_tw *w)
{
    kve_tw_printf(w, "<label>%s <select id='%s'>", label, id);
    for (int32_t i = 0; i < n; i++)
        kve_tw_printf(w, "<option>%d</option>", i);
    kve_tw_puts(w, "</select></label>\n");
}

static void put_controls(const kve_token_page *p, kve_tw *w)
{
    int32_t budget = first_budget(p);
    kve_tw_printf(w,
                  "<noscript><p>Without JavaScript the page shows layer 0, KV head 0 and what a budget of %d tokens "
                  "keeps; point at a token for its rank.</p></noscript>\n<form id='controls' hidden>\n",
                  budget);
    numbers("layer", "layer", p->L, w);
    numbers("head", "KV head", p->Hkv, w);
    kve_tw_printf(w,
                  "<label>budget <input id='slider' type='range' min='1' max='%d' value='%d'> <input id='budget' "
                  "type='number' min='1' max='%d' value='%d'></label> of %d tokens\n</form>\n",
                  p->n, budget, p->n, budget, p->n);
}

static void put_legend(const kve_token_page *p, kve_tw *w)
{
    kve_tw_puts(w, "<p class='legend'>rank 1 (most important) ");
    for (int i = 0; i < KVE_TOKEN_LEVELS; i++)
        kve_tw_printf(w, "<i class='r%d'>&#8199;</i>", i);
    kve_tw_printf(w,
                  " %d, logarithmic: the middle is rank %.0f. <i class='k'>Underlined</i>: kept at this "
                  "budget.</p>\n<p id='seen' hidden>Point at a token.</p>\n",
                  p->n, sqrt((double)p->n));
}

static void put_header(const kve_token_page *p, kve_tw *w)
{
    kve_tw_puts(w, "<header>\n<h1>");
    kve_tw_html(w, p->sample);
    kve_tw_printf(w, "</h1>\n<p class='sub'>%d tokens of ", p->n);
    kve_tw_html(w, p->model);
    kve_tw_printf(w,
                  ", %d layers with %d KV heads each. Each column colours the text by the ranks that one policy gives. "
                  "The first %d and the last %d tokens are protected: they are ranked ahead of all others.</p>\n",
                  p->L, p->Hkv, p->sink, p->recent);
    put_controls(p, w);
    put_legend(p, w);
    kve_tw_puts(w, "</header>\n");
}

static kve_status put_column(const kve_token_page *p, const kve_token_column *c, const unsigned char *ranks, kve_tw *w)
{
    const kve_vocab *v = kve_tokenizer_vocab(p->tk);
    kve_str bytes = {0};
    kve_status st = KVE_OK;
    kve_tw_puts(w, "<section>\n<h2>");
    kve_tw_html(w, c->name);
    kve_tw_puts(w, "</h2>\n<p class='sub'>");
    kve_tw_html(w, c->info ? c->info : "what it may see is not known");
    if (c->shared)
        kve_tw_printf(w, "; its budget is shared over %s, underlined is an even share", c->shared);
    kve_tw_puts(w, "</p>\n<div class='text'>");
    for (size_t j = 0; j < (size_t)p->n && st == KVE_OK; j++) {
        int32_t rank = unpack_rank(ranks, j), id = p->tokens[j];
        kve_tw_printf(w, "<i class='r%d%s'%s title='position %zu, id %d, rank %d'>", level_of(rank, p->n),
                      rank <= first_budget(p) ? " k" : "", v->tokens[id].type == KVE_TOKEN_CONTROL ? " data-s" : "", j,
                      id, rank);
        st = put_token(p, id, &bytes, w);
        kve_tw_puts(w, "</i>");
    }
    kve_tw_puts(w, "</div>\n</section>\n");
    kve_str_free(&bytes);
    return st;
}

static void put_data(const char *id, const unsigned char *data, size_t len, kve_tw *w)
{
    kve_tw_printf(w, "<script type='text/plain' id='%s'>", id);
    put_base64(data, len, w);
    kve_tw_puts(w, "</script>\n");
}

/* Columns first, so that a browser has a page to show before it reads the numbers. */
static kve_status put_columns(const kve_token_page *p, unsigned char *ranks, kve_tw *w)
{
    size_t n = (size_t)p->n, bytes = 2 * n_heads(p) * n;
    kve_tw_printf(w, "<main data-heads='%d'>\n", p->Hkv);
    for (size_t i = 0; i < p->n_columns; i++) {
        pack_ranks(p, p->columns[i].order, ranks);
        KVE_TRY(put_column(p, &p->columns[i], ranks, w));
    }
    kve_tw_puts(w, "</main>\n");
    for (size_t i = 0; i < p->n_columns; i++) {
        char id[32];
        pack_ranks(p, p->columns[i].order, ranks);
        snprintf(id, sizeof id, "ranks%zu", i);
        put_data(id, ranks, bytes, w);
    }
    return w->status;
}

static kve_status put_ids(const kve_token_page *p, kve_tw *w)
{
    unsigned char *ids = NULL;
    KVE_TRY(kve_alloc((size_t)p->n, 4, &ids));
    for (size_t j = 0; j < (size_t)p->n; j++)
        for (size_t k = 0; k < 4; k++)
            ids[4 * j + k] = (unsigned char)((uint32_t)p->tokens[j] >> 8 * k);
    put_data("ids", ids, 4 * (size_t)p->n, w);
    free(ids);
    return w->status;
}

kve_status kve_token_page_html(const kve_token_page *p, kve_str *out)
{
    unsigned char *ranks = NULL;
    kve_tw w = {.out = out};
    KVE_TRY(kve_alloc(n_heads(p) * (size_t)p->n, 2, &ranks));
    kve_tw_puts(&w, "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n<meta name='viewport' "
                    "content='width=device-width,initial-scale=1'>\n<meta http-equiv='Content-Security-Policy' "
                    "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n<title>");
    kve_tw_html(&w, p->sample);
    kve_tw_puts(&w, "</title>\n<style>\n");
    kve_token_page_style(&w);
    kve_tw_puts(&w, "</style>\n</head>\n<body>\n");
    put_header(p, &w);
    kve_status st = put_columns(p, ranks, &w);
    if (st == KVE_OK)
        st = put_ids(p, &w);
    free(ranks);
    KVE_TRY(st);
    kve_tw_puts(&w, "<script>\n");
    kve_tw_puts(&w, kve_token_page_script);
    kve_tw_puts(&w, "</script>\n</body>\n</html>\n");
    return w.status;
}
