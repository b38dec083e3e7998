/* Inside the reader of ready-made rows: one line of JSON Lines into a sample. Not for use outside datasets/. */
#ifndef KVE_DATASETS_ROW_H
#define KVE_DATASETS_ROW_H

#include "datasets/ruler/ruler.h"

/* Where a row stands and what it is about. */
typedef struct kve_row {
    size_t offset, len, line; /* bytes in the file; lines count from 1 */
    int64_t index;            /* the row's own number, -1 if it has none */
    const kve_ruler_task *task;
} kve_row;

/* Parses text[r->offset .. + r->len) into *s (whose arena owns everything) and sets the row's task and index. A row
 * that names no task is one of `unnamed`; NULL = it must name one. Errors begin with "path:line". */
kve_status kve_row_read(const char *text, const char *path, const kve_ruler_task *unnamed, kve_row *r, kve_sample *s);

#endif
