/* A sample as token ids: what is prefilled and compressed, and what comes after the cut. Knows the tokenizer and the
 * chat template, no model. */
#ifndef KVE_EVAL_PROMPT_H
#define KVE_EVAL_PROMPT_H

#include "datasets/dataset.h"
#include "host/base/hash.h"
#include "host/text/chat.h"
#include "host/text/tokenizer.h"

typedef struct kve_prompt {
    kve_ids context;  /* prefilled; n = context.len >= 1 */
    kve_ids tail;     /* fed after the compression, at least one token; a window's scored part */
    kve_ids *choices; /* [n_choices] what goes on from the tail, at least one token each */
    size_t n_choices;
    size_t n_question; /* the last tokens of the context, from where the question begins; 0: it is not in there */
    char sha256[KVE_SHA256_HEX]; /* over all, little-endian int32, a -1 in front of each but the first */
} kve_prompt;

/* question_in: chat opening + context + question | chat closing + answer prefix;
 * otherwise    chat opening + context | question + chat closing + answer prefix.
 * A sample that says where its question goes is not asked. A plain sample is the text alone, encoded as a whole, as
 * log-likelihood tasks are defined: the cut is where the ids of the prefilled part end to agree with it, and one token
 * at least comes after it, so that every scored token is predicted from the compressed cache; white space at the text's
 * end belongs to the choices. A dialogue is cut where the text of its last turn begins. The user's text is encoded as
 * plain text: it cannot forge a chat turn. The caller: kve_prompt_free. */
kve_status kve_prompt_make(const kve_tokenizer *tk, const kve_chat *chat, const kve_sample *s, bool question_in,
                           kve_prompt *out);
void kve_prompt_free(kve_prompt *p);

/* What KVzip feeds to have the context repeated: an instruction, the chat template's turn to the answer, and context
 * tokens [from, to). The instruction of a later part ends with the 8 tokens before it. Appends to ids. */
kve_status kve_prompt_replay(const kve_tokenizer *tk, const kve_chat *chat, const kve_ids *context, size_t from,
                             size_t to, kve_ids *ids);

/* The tokenizer as datasets see it, and the tokens around one user turn: the chat template's, and BOS. */
kve_token_fns kve_prompt_token_fns(const kve_tokenizer *tk);
kve_status kve_prompt_overhead(const kve_tokenizer *tk, const kve_chat *chat, int64_t *n_tok);
/* The tokens around one further message of a dialogue. */
kve_status kve_prompt_turn_overhead(const kve_tokenizer *tk, const kve_chat *chat, int64_t *n_tok);

/* Whether the sample's question is prefilled; false where it has none. */
bool kve_question_in(const kve_sample *s, bool asked);

#endif
