/* One record of a CSV file: commas, quotes that may hold commas, line breaks and doubled quotes. Knows no columns. */
#ifndef KVE_DATASETS_CSV_H
#define KVE_DATASETS_CSV_H

#include "host/base/mem.h"

#include <stdbool.h>

typedef struct kve_csv {
    const char *text;
    size_t len, at; /* the next record begins at `at`; at == len: there is none */
    size_t line;    /* that it begins on, from 1 */
} kve_csv;

enum { KVE_CSV_MOST = 16 };

/* Reads the next record: *n <= KVE_CSV_MOST fields, each a text of its own in the arena. `name` stands in messages,
 * which add the line. KVE_ERR_FILE: a quote that is never closed or stands in the wrong place, too many fields, a NUL.
 * The record is passed over in either case. */
kve_status kve_csv_next(kve_csv *c, const char *name, kve_arena *arena, const char *fields[KVE_CSV_MOST], size_t *n);

#endif
