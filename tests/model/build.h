/* Builds a tiny llama as GGUF bytes in memory, with one fault at a time. For the tests of host/model only. */
#ifndef KVE_TESTS_MODEL_BUILD_H
#define KVE_TESTS_MODEL_BUILD_H

#include "host/model/internal.h"

enum { TINY_E = 32, TINY_F = 32, TINY_HQ = 4, TINY_HKV = 2, TINY_D = 8, TINY_V = 7, TINY_L = 1 };

typedef struct tiny_faults {
    uint32_t version;           /* 0 = 3 */
    const char *arch;           /* NULL = "llama" */
    const char *skip_key;       /* metadata left out */
    const char *twice_key;      /* metadata written twice */
    const char *skip_tensor;    /* tensor left out */
    const char *twice_tensor;   /* tensor written twice */
    const char *extra_tensor;   /* one more F32 vector [E] */
    const char *narrow_tensor;  /* tensor with one row too few */
    const char *nan_tensor;     /* tensor whose second row (or only row) holds a NaN */
    const char *wrong_type;     /* tensor that claims type 99 */
    const char *far_tensor;     /* tensor with an offset behind the file */
    const char *overlap_tensor; /* tensor that begins where the first one does */
    const char *int_key;        /* integer key with another value */
    int64_t int_value;
    const char *text_key; /* text key with another value, or one more */
    const char *text_value;
    uint64_t alignment; /* 0 = the default, not written */
    bool spm, head, rope_freqs;
} tiny_faults;

/* The value of element (row, column) of a tensor in Hugging Face's row order. */
float tiny_value(const char *name, int64_t row, int64_t column);

/* Appends the file's bytes to *out; fails the test when memory runs out. */
void tiny_gguf(const tiny_faults *f, kve_str *out);

/* Opens bytes as a checkpoint (kve_checkpoint_close); the bytes must outlive it. */
kve_status tiny_open(const void *data, size_t size, kve_checkpoint **out);

/* Reads all tensors; the first failure. */
kve_status tiny_read_all(const kve_checkpoint *ck);

#endif
