/* RULER's string match. Knows texts only: no samples, no files, no engine. */
#ifndef KVE_EVAL_METRIC_RULER_H
#define KVE_EVAL_METRIC_RULER_H

#include "host/base/mem.h"
#include "host/base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Replaces the content of *out by the answer as it is scored: every control character (0x00 to 0x1f) becomes a newline
 * (deleting them instead would glue words together), then white space is trimmed at both ends. */
kve_status kve_metric_ruler_clean(const char *answer, size_t len, kve_str *out);

/* *score in [0,1]: with any = false the share of references that are substrings of the cleaned answer, with any = true
 * 1 if at least one is. Upper and lower case are the same (ASCII, Latin, Greek and Cyrillic letters). An empty answer
 * scores 0. No reference at all, or an empty one (it would match everything), is an error. */
kve_status kve_metric_ruler(const char *answer, size_t len, const char *const *references, size_t n_references,
                            bool any, double *score);

#endif
