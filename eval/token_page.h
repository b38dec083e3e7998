/* A text with each token coloured by the rank that policies give it: one page, nothing fetched. Knows rankings and the
 * tokenizer; knows neither traces nor how a ranking is made. */
#ifndef KVE_EVAL_TOKEN_PAGE_H
#define KVE_EVAL_TOKEN_PAGE_H

#include "host/text/tokenizer.h"

enum { KVE_TOKEN_PAGE_MAX = 65535 }; /* tokens: a rank takes two bytes */

typedef struct kve_token_column {
    const char *name;
    const char *info;     /* what the policy may see; NULL: not known */
    const char *shared;   /* what shares a budget unevenly ("layers", ...); NULL: every head keeps the same count */
    const int32_t *order; /* [L][Hkv][n]: a permutation of the tokens, most important first */
} kve_token_column;

typedef struct kve_token_page {
    const kve_tokenizer *tk;
    const char *sample, *model;
    const int32_t *tokens; /* [n], each in the vocabulary; 1 <= n <= KVE_TOKEN_PAGE_MAX */
    int32_t L, Hkv, n;
    int32_t sink, recent; /* protected tokens of the rankings */
    const kve_token_column *columns;
    size_t n_columns;
} kve_token_page;

/* Appends the page: layer 0 and head 0 as plain HTML, all others as base64 behind it: of column i the element ranks<i>,
 * rank - 1 of every token, uint16 little-endian [L][Hkv][n]; ids: uint32 little-endian [n]. */
kve_status kve_token_page_html(const kve_token_page *p, kve_str *out);

#endif
