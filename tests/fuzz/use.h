/* What a program does with a vocabulary or a model that was opened, in small: for the targets that open one. */
#ifndef KVE_TESTS_FUZZ_USE_H
#define KVE_TESTS_FUZZ_USE_H

#include "host/model/checkpoint.h"

/* Tables, tokens of the text, and the text of the tokens. */
void use_vocab(const kve_vocab *v, const char *text, size_t len);

/* The first and last rows of every tensor, the vocabulary, the chat template and the rotary tables. */
void use_checkpoint(const kve_checkpoint *ck);

#endif
