/* Which of several choices a model finds likeliest. Knows numbers and texts only. */
#ifndef KVE_EVAL_METRIC_CHOICE_H
#define KVE_EVAL_METRIC_CHOICE_H

#include <stddef.h>

/* acc: the choice of the greatest log-likelihood. Of equals the first, as everywhere in the field. n >= 1. */
size_t kve_choice_best(const double *loglik, size_t n);

/* acc_norm: the choice of the greatest log-likelihood per character of its text, without the space in front. */
size_t kve_choice_best_norm(const double *loglik, const char *const *choices, size_t n);

/* Characters (code points) of a text. */
size_t kve_count_chars(const char *text);

#endif
