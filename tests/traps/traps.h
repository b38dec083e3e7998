/* The table's rows: one for each known way in which a model file or a tokenizer gave somebody a wrong result without a
 * word. Each is checked here on its own, whatever other tests say. */
#ifndef KVE_TESTS_TRAPS_H
#define KVE_TESTS_TRAPS_H

#include "host/base/status.h"

typedef struct trap_row {
    const char *name;
    void (*check)(void **state); /* NULL: kveval does not do it yet */
} trap_row;

typedef struct trap_rows {
    const trap_row *rows;
    unsigned n;
} trap_rows;

trap_rows traps_tokens(void); /* BOS, EOS, chat templates, tokenizers */
trap_rows traps_models(void); /* RoPE, heads, tensors, row orders */
trap_rows traps_files(void);  /* shards, sizes, JSON */

/* Ends the row as failed with the diagnostic if st is a failure. */
void trap_must(kve_status st);
/* The row fails unless st is a failure whose diagnostic contains `word`. */
void trap_refused(kve_status st, const char *word);

#endif
