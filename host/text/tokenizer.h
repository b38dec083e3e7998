/* Text to token ids and back. Byte-level BPE and SentencePiece-style BPE. Knows host/base and PCRE2 only. */
#ifndef KVE_TEXT_TOKENIZER_H
#define KVE_TEXT_TOKENIZER_H

#include "host/text/vocab.h"

typedef struct kve_tokenizer kve_tokenizer;

/* The vocab must outlive the tokenizer. An unknown pre-tokenizer name is an error that lists the known ones. */
kve_status kve_tokenizer_create(const kve_vocab *vocab, kve_tokenizer **out);
void kve_tokenizer_free(kve_tokenizer *tk);

typedef struct kve_ids {
    int32_t *p;
    size_t len, cap;
} kve_ids; /* growable; zero-initialise; kve_ids_free */

kve_status kve_ids_push(kve_ids *ids, int32_t id);
void kve_ids_free(kve_ids *ids);

/* Appends the ids of text to *out. specials: control tokens written in the text ("<|im_end|>") are matched whole;
 * without it they are ordinary characters (a user's text must not forge a chat turn). add_bos: put BOS first IF the
 * tokenizer's own rule says so and it is not already there. Invalid UTF-8 is an error with the byte's offset.
 * Linear time in the text up to a log factor, also for one megabyte of one letter. */
kve_status kve_tokenize(const kve_tokenizer *tk, const char *text, size_t len, bool specials, bool add_bos,
                        kve_ids *out);

/* The same for a text of several origins, tokenized as one: a template around a user's words. */
typedef struct kve_text_rules {
    size_t special_from, special_to; /* bytes: control tokens are matched inside this range only */
    bool add_bos;
    bool continues; /* other text came before: SentencePiece puts no space in front */
} kve_text_rules;
kve_status kve_tokenize_as(const kve_tokenizer *tk, const char *text, size_t len, const kve_text_rules *rules,
                           kve_ids *out);

/* Appends the text of the ids; control tokens are left out unless `specials`. The bytes are exact; a stream cut inside
 * a character leaves an incomplete UTF-8 tail (see kve_utf8_complete_len). */
kve_status kve_detokenize(const kve_tokenizer *tk, const int32_t *ids, size_t n, bool specials, kve_str *out);

/* The longest prefix of s[0..len) that does not end inside a UTF-8 sequence: print that much, keep the rest. */
size_t kve_utf8_complete_len(const char *s, size_t len);

/* The id of a token by its exact text, -1 if there is none. */
int32_t kve_token_id(const kve_tokenizer *tk, const char *text);
const kve_vocab *kve_tokenizer_vocab(const kve_tokenizer *tk);

#endif
