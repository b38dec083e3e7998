/* The plain scores, one function each: exact match and perplexity. (ROUGE-L is in metric_rouge.h, the reward in
 * reward.h.) Knows numbers and texts only. */
#ifndef KVE_EVAL_METRIC_BASIC_H
#define KVE_EVAL_METRIC_BASIC_H

#include "host/base/mem.h"
#include "host/base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* exact match: the two texts are the same, byte by byte. What counts as the same beyond that is the task's own
 * normalisation, which comes first. */
bool kve_exact_match(const char *answer, const char *reference);

/* The normalisation of generated choices: *out becomes the first word of the text (letters, digits, and every character
 * beyond ASCII), A to Z in lower case: "b" of " (B) because", "yes" of "Yes.". A single letter with a blank and another
 * word behind it ("A cat sat") is an article, no choice: it gives "", as a text without a word does. */
kve_status kve_choice_word(const char *text, kve_str *out);

/* perplexity: exp of the mean negative log-likelihood, exp(-(1/N) sum log p). nll_sum in nats over n >= 1 tokens. */
double kve_perplexity(double nll_sum, int64_t n);

#endif
