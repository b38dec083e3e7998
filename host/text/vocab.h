/* A vocabulary as data: what a tokenizer needs to know, whether it came from GGUF metadata or tokenizer.json. */
#ifndef KVE_TEXT_VOCAB_H
#define KVE_TEXT_VOCAB_H

#include "host/base/hash.h"
#include "host/base/mem.h"
#include "host/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum kve_vocab_kind {
    KVE_VOCAB_BYTE_BPE, /* GPT-2 style: bytes as printable characters, merges, a pre-tokenizer pattern */
    KVE_VOCAB_SPM_BPE,  /* SentencePiece style: U+2581 for spaces, byte fallback <0xNN>, merges by score or rank */
} kve_vocab_kind;

typedef enum kve_token_type {
    KVE_TOKEN_NORMAL = 1,
    KVE_TOKEN_UNKNOWN = 2,
    KVE_TOKEN_CONTROL = 3, /* special: matched whole in text when specials are allowed, never printed by decode */
    KVE_TOKEN_USER = 4,    /* added token that is ordinary text: always matched whole, printed */
    KVE_TOKEN_UNUSED = 5,
    KVE_TOKEN_BYTE = 6,
} kve_token_type; /* the numbers are GGUF's */

typedef struct kve_vocab_token {
    const char *text; /* as in the file: byte-BPE characters or SPM pieces; added tokens are plain text */
    uint32_t len;
    kve_token_type type;
    float score;                                  /* SPM: GGUF's score; 0 elsewhere */
    bool lstrip, rstrip, normalized, single_word; /* of added tokens in tokenizer.json */
} kve_vocab_token;

typedef struct kve_vocab_merge {
    const char *left, *right;
    uint32_t left_len, right_len;
} kve_vocab_merge;

typedef struct kve_vocab {
    kve_arena arena; /* owns every text below */
    kve_vocab_kind kind;
    kve_vocab_token *tokens; /* [n_tokens], by id; holes have len 0 and type UNUSED */
    int32_t n_tokens;
    kve_vocab_merge *merges; /* best first; SPM from GGUF has none and goes by score */
    int32_t n_merges;
    const char *pre_name; /* GGUF tokenizer.ggml.pre ("smollm", "qwen2", "llama-bpe", ...), or NULL */
    /* tokenizer.json: the pre-tokenizer as a sequence of steps, in order (digits split, regex split, byte-level); the
     * text module turns both forms into one list of patterns. */
    const char **pre_patterns; /* regexes of Split steps / "" for none */
    int32_t n_pre_patterns;
    bool individual_digits; /* a Digits pre-tokenizer step, individual_digits = true */
    bool use_gpt2_regex;    /* ByteLevel use_regex = true */
    bool ignore_merges;     /* Llama 3: a whole pre-token that is a vocabulary entry is taken as it is */
    bool nfc;               /* the normalizer is NFC (Qwen) */
    bool add_space_prefix;  /* SPM: a space in front of the text */
    bool spm_strip_extra;   /* Phi-3 / Llama: prefix only before the first piece (legacy = false) */
    bool byte_fallback;
    int32_t bos, eos, unk; /* -1 = none */
    bool add_bos, add_eos; /* the tokenizer's own rule for plain text */
} kve_vocab;

/* Reads tokenizer.json (and tokenizer_config.json for bos/eos and add_bos when config_path exists; NULL = none).
 * Implemented by host/text/tokenizer_json.c. chat_template (may be NULL) receives the template found in
 * tokenizer_config.json or chat_template.jinja, in the vocab's arena, or NULL. */
kve_status kve_vocab_from_json(const char *tokenizer_path, const char *config_path, kve_vocab *out,
                               const char **chat_template);
void kve_vocab_free(kve_vocab *v);

/* SHA-256 over everything that decides how a text becomes ids: tokens with their types and scores, merges, rules. */
kve_status kve_vocab_sha256(const kve_vocab *v, char hex[KVE_SHA256_HEX]);

#endif
