/* What test_invariance.c asks of a subject: an op whose rows can be run in any selection. Knows the op table's helpers.
 */
#ifndef KVE_TESTS_OPS_INVARIANCE_H
#define KVE_TESTS_OPS_INVARIANCE_H

#include "tests/ops/optable.h"

typedef struct subject subject;
struct subject {
    const char *name;
    /* Host data of the whole batch of T rows, in the memory of `data`. */
    void *(*prepare)(op_env *data, const subject *s);
    /* Runs the rows rows[0 .. count - 1] of the batch in one call, in that order; returns their outputs [count][width]
     * in e's memory. */
    float *(*run)(op_env *e, const subject *s, const void *batch, const int32_t *rows, int32_t count);
    int32_t T;
    size_t width;
    bool contiguous; /* only runs of neighbouring rows make a call (prefill) */
    kve_dtype dtype;
    int variant; /* the subject's own */
};

extern const subject g_row_subjects[], g_cache_subjects[];
extern const size_t g_n_row_subjects, g_n_cache_subjects;

/* Rows of a [T][width] array, picked. */
float *pick_rows(op_env *e, const float *from, size_t width, const int32_t *rows, int32_t count);

#endif
