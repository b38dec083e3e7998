/* A sample as token ids: what is prefilled and compressed, and what comes after the cut. Knows the tokenizer and the
 * chat template, no model. */
#ifndef KVE_EVAL_PROMPT_H
#define KVE_EVAL_PROMPT_H

#include "datasets/dataset.h"
#include "host/base/hash.h"
#include "host/text/chat.h"
#include "host/text/tokenizer.h"

typedef struct kve_prompt {
    kve_ids context;             /* prefilled; n = context.len >= 1 */
    kve_ids tail;                /* fed after the compression, at least one token; a window's scored part */
    char sha256[KVE_SHA256_HEX]; /* over both, little-endian int32, a -1 between them */
} kve_prompt;

/* question_in: chat opening + context + question | chat closing + answer prefix;
 * otherwise    chat opening + context | question + chat closing + answer prefix.
 * The user's text is encoded as plain text: it cannot forge a chat turn. The caller: kve_prompt_free. */
kve_status kve_prompt_make(const kve_tokenizer *tk, const kve_chat *chat, const kve_sample *s, bool question_in,
                           kve_prompt *out);
void kve_prompt_free(kve_prompt *p);

/* The tokenizer as datasets see it, and the tokens around one user turn: the chat template's, and BOS. */
kve_token_fns kve_prompt_token_fns(const kve_tokenizer *tk);
kve_status kve_prompt_overhead(const kve_tokenizer *tk, const kve_chat *chat, int64_t *n_tok);

#endif
