/* Exact match and perplexity. Contract: metric_basic.h. */
#include "eval/metric_basic.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

bool kve_exact_match(const char *answer, const char *reference)
{
    return strcmp(answer, reference) == 0;
}

static bool in_word(unsigned char c)
{
    return c >= 0x80 || isalnum(c);
}

kve_status kve_choice_word(const char *text, kve_str *out)
{
    kve_str_clear(out);
    KVE_TRY(kve_str_puts(out, "")); /* a text also where no word is */
    while (*text && !in_word((unsigned char)*text))
        text++;
    size_t len = 0;
    while (in_word((unsigned char)text[len]))
        len++;
    size_t blank = strspn(text + len, " \t");
    if (len == 1 && blank && in_word((unsigned char)text[len + blank]))
        return KVE_OK;
    for (size_t i = 0; i < len; i++) {
        char c = (unsigned char)text[i] < 0x80 ? (char)tolower((unsigned char)text[i]) : text[i];
        KVE_TRY(kve_str_append(out, &c, 1));
    }
    return KVE_OK;
}

double kve_perplexity(double nll_sum, int64_t n)
{
    return exp(nll_sum / (double)n);
}
