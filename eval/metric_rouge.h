/* ROUGE-L in the two forms that are in use, which differ. Knows texts only: no samples, no files, no engine. */
#ifndef KVE_EVAL_METRIC_ROUGE_H
#define KVE_EVAL_METRIC_ROUGE_H

#include "host/base/status.h"

#include <stddef.h>

/* rouge_l, as the package rouge-score has it without a stemmer: lower case, words of [a-z0-9], F1 of the longest common
 * subsequence. 0 where either text has no word. */
kve_status kve_rouge_l(const char *answer, const char *reference, double *score);

/* rouge_l_longbench, as the package rouge has it: sentences end at ".", words between white space keep their case, and
 * F is 2PR / (P + R + 1e-8) over SETS of words: P and R count the union over all pairs of sentences of their longest
 * common subsequences. 0 where either text has no sentence. (That package gives up on sentences of about a thousand
 * words, and LongBench then counts 0; here they are scored.) */
kve_status kve_rouge_l_longbench(const char *answer, const char *reference, double *score);

/* The best over the references, n >= 1. */
typedef kve_status (*kve_rouge_fn)(const char *answer, const char *reference, double *score);
kve_status kve_rouge_best(kve_rouge_fn rouge, const char *answer, const char *const *references, size_t n,
                          double *score);

#endif
