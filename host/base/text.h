/* Names as people type them: the known name that looks most like a misspelt one, for messages. Knows texts only. */
#ifndef KVE_BASE_TEXT_H
#define KVE_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* The one of known[0..n), n >= 1, with the fewest insertions, deletions and changes away from `name`; among equals the
 * one that begins like it. */
const char *kve_nearest(const char *name, const char *const *known, size_t n);

bool kve_same_name(const char *a, const char *b); /* '-' equals '_' */

#endif
