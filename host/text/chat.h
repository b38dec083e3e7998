/* Chat templates by family. A model's own Jinja text is recognised, not executed: its family, its default system
 * message and its quirks are found by the marks it contains. Unknown text is an error that names `--chat plain`. */
#ifndef KVE_TEXT_CHAT_H
#define KVE_TEXT_CHAT_H

#include "host/base/mem.h"
#include "host/base/status.h"

#include <stdbool.h>

typedef enum kve_chat_family {
    KVE_CHAT_PLAIN,   /* the text itself */
    KVE_CHAT_CHATML,  /* <|im_start|>user\n...<|im_end|>\n            (SmolLM2, Qwen2, Qwen3) */
    KVE_CHAT_LLAMA3,  /* <|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|> */
    KVE_CHAT_PHI3,    /* <|user|>\n...<|end|>\n<|assistant|>\n */
    KVE_CHAT_PHI4,    /* <|im_start|>user<|im_sep|>...<|im_end|> */
    KVE_CHAT_MISTRAL, /* [INST] ...[/INST] */
    KVE_CHAT_LLAMA2,  /* [INST] <<SYS>> ... [/INST] */
} kve_chat_family;

typedef struct kve_chat {
    kve_chat_family family;
    char *default_system; /* put in front when the dialogue has no system message; NULL = none. Owned */
    char *bos;            /* the BOS text that the template itself writes, "" if it writes none. Owned */
    char *
        system_prefix; /* what the template writes before every system message (Llama 3.1: dates), NULL = none. Owned */
    bool inst_space;   /* Mistral: a space before [/INST], as its older templates have */
    char sha256[65];   /* of the template text, for records; "" for plain */
} kve_chat;

/* jinja NULL = the model has no template: plain. forced: NULL, or a family's name from the command line ("plain",
 * "chatml", "llama3", "phi3", "phi4", "mistral", "llama2"). bos_text: the model's BOS token, "" if none. */
kve_status kve_chat_create(const char *jinja, const char *forced, const char *bos_text, kve_chat *out);
void kve_chat_free(kve_chat *c);
const char *kve_chat_family_name(kve_chat_family f);

/* The texts around one user turn and an answer: open + user text + close is the whole prompt up to where the answer
 * starts ("generation prompt" included in close). Both appended to the strings. */
kve_status kve_chat_single(const kve_chat *c, kve_str *open, kve_str *close);

typedef struct kve_chat_message {
    const char *role; /* "system" | "user" | "assistant" */
    const char *text;
} kve_chat_message;

/* A whole dialogue, with the generation prompt at the end when `generate`. Equals the model's own template. */
kve_status kve_chat_render(const kve_chat *c, const kve_chat_message *messages, size_t n, int generate, kve_str *out);

#endif
