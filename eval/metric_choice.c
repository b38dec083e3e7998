/* Accuracy over choices. Contract: metric_choice.h. */
#include "eval/metric_choice.h"

size_t kve_count_chars(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

size_t kve_choice_best(const double *loglik, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        best = loglik[i] > loglik[best] ? i : best;
    return best;
}

static double per_char(double loglik, const char *choice)
{
    size_t n = kve_count_chars(choice + (*choice == ' '));
    return loglik / (double)(n ? n : 1);
}

size_t kve_choice_best_norm(const double *loglik, const char *const *choices, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        best = per_char(loglik[i], choices[i]) > per_char(loglik[best], choices[best]) ? i : best;
    return best;
}
