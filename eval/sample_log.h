/* What a sample looked like to the model: one JSON file per sample below DIR/samples, so that processes that share DIR
 * need no lock. Knows prompts, no model. */
#ifndef KVE_EVAL_SAMPLE_LOG_H
#define KVE_EVAL_SAMPLE_LOG_H

#include "eval/prompt.h"

typedef struct kve_sample_log {
    const char *dir; /* the run's */
    const kve_tokenizer *tk;
    const kve_chat *chat;
    bool question_in;
} kve_sample_log;

/* DIR/samples/TASK/ID.json: task, sample_id, prompt_sha256 (as in the records), chat_template_sha256, the two token id
 * lists before and after the cut, and their text with special tokens shown. Replaces the file. */
kve_status kve_sample_log_write(const kve_sample_log *log, const kve_sample *s);

/* The two texts alone, one after the other; "" between them is the cut. The caller frees both. */
kve_status kve_sample_texts(const kve_tokenizer *tk, const kve_prompt *p, kve_str *context, kve_str *tail);

#endif
