/* A folder in TMPDIR for the rows that need files: copies of golden models, small edits, small tokenizers. */
#ifndef KVE_TESTS_TRAPS_FOLDER_H
#define KVE_TESTS_TRAPS_FOLDER_H

#include "host/base/mem.h"

extern char trap_dir[256]; /* empty before every row */

int trap_dir_make(void **state); /* setup and teardown of cmocka */
int trap_dir_remove(void **state);

void trap_put(const char *file, const void *data, size_t len);
/* Copies tests/golden/models/MODEL into the folder. */
void trap_copy_model(const char *model);
/* Replaces the first `old`, which must be there. */
void trap_edit(const char *file, const char *old, const char *new_text);
const char *trap_path(const char *file); /* until the next call */

/* A byte-level BPE tokenizer.json with the tokens a, b, aa, aaaa, aaaaaaaa and the given JSON text as its merges; NULL
 * leaves the field out. Returns its path. */
const char *trap_tokenizer(const char *merges);

#endif
