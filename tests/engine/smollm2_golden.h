/* Reads tests/golden/smollm2/logits.txt; its format stands in tests/golden/make_smollm2.py. */
#ifndef KVE_TESTS_ENGINE_SMOLLM2_GOLDEN_H
#define KVE_TESTS_ENGINE_SMOLLM2_GOLDEN_H

#include "host/base/hash.h"
#include "host/base/mem.h"

#include <stdint.h>

enum { MOST_PROMPTS = 24, MOST_ROWS = 5, MOST_NEW = 32, TOP = 32, ROW_LOGITS = 96 };

typedef struct golden_row {
    int32_t position;
    double lse;             /* log of the sum of exp of the whole row */
    int32_t id[ROW_LOGITS]; /* the TOP largest, largest first, then others */
    float value[ROW_LOGITS];
} golden_row;

typedef struct golden_prompt {
    char name[32];
    char *text;
    size_t text_len;
    int32_t *ids, n;
    int32_t next[MOST_NEW], n_next; /* the greedy answer */
    golden_row rows[MOST_ROWS];     /* by position; the last one is row n - 1 */
    int n_rows;
} golden_prompt;

typedef struct golden {
    kve_arena arena; /* owns texts and ids */
    char sha256[KVE_SHA256_HEX];
    golden_prompt prompts[MOST_PROMPTS];
    int n;
} golden;

kve_status golden_read(const char *path, golden *g); /* the caller frees g->arena, also after a failure */

#endif
