/* The tiny models of tests/golden/models: opening, their token sequences and the reference library's logits. */
#ifndef KVE_TESTS_ENGINE_TINY_H
#define KVE_TESTS_ENGINE_TINY_H

#include "tests/engine/fixture.h"

enum { MOST_IDS = 128, MOST_SEQUENCES = 4, N_TINY = 5 };
extern const char *const g_tiny[N_TINY]; /* names */

void tiny_open(const char *model, kve_dtype dtype, int32_t threads, fixture *f);

typedef struct sequence {
    int32_t ids[MOST_IDS], n;
    const float *logits; /* [n][V], inside golden.file; NULL for a random sequence */
} sequence;

typedef struct golden {
    sequence seq[MOST_SEQUENCES];
    int n;
    char *file; /* the bytes of logits.bin */
} golden;

void tiny_golden(const char *model, size_t V, golden *g); /* the caller frees g->file */

/* As long as the context (or MOST_IDS): reaches behind the first block of 64 keys, which no golden sequence does. */
sequence tiny_random(const kve_config *c);

#endif
