/* Levenshtein distance over short names. Contract: text.h. */
#include "host/base/text.h"

#include <string.h>

enum { MAX_NAME = 48 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Only the first MAX_NAME characters count: no known name is longer. */
static size_t distance(const char *a, const char *b)
{
    size_t row[MAX_NAME + 1], la = strnlen(a, MAX_NAME), lb = strnlen(b, MAX_NAME);
    for (size_t j = 0; j <= lb; j++)
        row[j] = j;
    for (size_t i = 0; i < la; i++) {
        size_t corner = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < lb; j++) {
            size_t change = corner + (a[i] != b[j]);
            corner = row[j + 1];
            row[j + 1] = least(change, least(row[j], row[j + 1]) + 1);
        }
    }
    return row[lb];
}

static size_t common_prefix(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] && a[n] == b[n])
        n++;
    return n;
}

const char *kve_nearest(const char *name, const char *const *known, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++) {
        size_t d = distance(name, known[i]), least_yet = distance(name, known[best]);
        if (d < least_yet || (d == least_yet && common_prefix(name, known[i]) > common_prefix(name, known[best])))
            best = i;
    }
    return known[best];
}

bool kve_same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b))
            return false;
    return *a == *b;
}
