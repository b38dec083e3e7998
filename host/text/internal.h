/* What the files of host/text share: the tokenizer's tables and the steps of one call. Not for other modules. */
#ifndef KVE_TEXT_INTERNAL_H
#define KVE_TEXT_INTERNAL_H

#include "host/text/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { KVE_MAX_PATTERNS = 16 };

typedef struct kve_pair_slot {
    uint64_t key; /* left id << 32 | right id, plus 1; 0 = free */
    int32_t rank, merged;
} kve_pair_slot;

typedef struct kve_piece {
    const char *p;
    size_t len;
} kve_piece;

typedef struct kve_pieces {
    kve_piece *p;
    size_t len, cap;
} kve_pieces;

struct kve_tokenizer {
    const kve_vocab *vocab;
    bool ignore_merges;
    int32_t *text_slots; /* ids by text: open addressing, -1 = free */
    size_t text_mask;
    kve_pair_slot *pairs;
    size_t pair_mask;
    int32_t byte_ids[256]; /* the token of one byte (byte-BPE character or <0xNN>), -1 = none */
    int32_t *added;        /* control and user tokens, sorted by first byte, then longest first */
    size_t n_added;
    uint32_t added_from[257]; /* the range of `added` that starts with a byte */
    pcre2_code *patterns[KVE_MAX_PATTERNS];
    int n_patterns;
};

/* vocab.c */
int32_t kve_find_text(const kve_tokenizer *tk, const char *text, size_t len);
const kve_pair_slot *kve_find_pair(const kve_tokenizer *tk, int32_t left, int32_t right);
kve_status kve_tables_build(kve_tokenizer *tk);
uint32_t kve_byte_char(unsigned byte);                       /* the printable character of a byte in byte-BPE */
int kve_char_byte(uint32_t c);                               /* its inverse, -1 if c stands for no byte */
size_t kve_utf8_put(uint32_t c, char out[4]);                /* returns the length */
size_t kve_utf8_get(const char *s, size_t len, uint32_t *c); /* 0 if malformed */
kve_status kve_grow(void *items_ptr, size_t *cap, size_t need, size_t size);

/* pretokenize.c */
kve_status kve_patterns_compile(kve_tokenizer *tk);
kve_status kve_pretokenize(const kve_tokenizer *tk, const char *text, size_t len, kve_pieces *out);

/* bpe.c: one pre-token (byte-BPE) or one escaped stretch (SPM) to ids */
kve_status kve_bpe_piece(const kve_tokenizer *tk, const char *text, size_t len, kve_ids *out);

/* spm.c */
kve_status kve_spm_segment(const kve_tokenizer *tk, const char *text, size_t len, bool first, kve_ids *out);
kve_status kve_spm_detokenize(const kve_tokenizer *tk, const int32_t *ids, size_t n, bool specials, kve_str *out);

#endif
