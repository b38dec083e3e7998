/* safetensors files: a checked reader over the file's bytes and a streaming writer. Knows tensors by name, dtype and
 * shape; no models. */
#ifndef KVE_MODEL_SAFETENSORS_H
#define KVE_MODEL_SAFETENSORS_H

#include "host/base/file.h"
#include "host/base/mem.h"

#include <stdint.h>

typedef enum kve_st_dtype { KVE_ST_F32, KVE_ST_F16, KVE_ST_BF16, KVE_ST_I32, KVE_ST_I64 } kve_st_dtype;

enum { KVE_ST_MAX_DIMS = 8 };

typedef struct kve_st_tensor {
    const char *name;
    kve_st_dtype dtype;
    int32_t n_dims; /* 0 = a single number */
    int64_t dims[KVE_ST_MAX_DIMS];
    int64_t count;             /* product of dims */
    const unsigned char *data; /* count values, NOT aligned: see kve_st_copy */
    size_t bytes;
} kve_st_tensor;

typedef struct kve_st_meta {
    const char *key, *value;
} kve_st_meta;

typedef struct kve_safetensors {
    const char *name; /* of the file, for messages; arena */
    kve_arena arena;
    kve_map map;            /* empty when parsed from memory */
    kve_st_tensor *tensors; /* [n_tensors], sorted by name */
    size_t n_tensors;
    kve_st_meta *meta; /* [n_meta], in the file's order */
    size_t n_meta;
} kve_safetensors;

/* Maps the file and checks all of it: header length, strict JSON, dtype x shape against offsets, no gap, no overlap,
 * nothing behind the last tensor. Free with kve_safetensors_close, also after a failure. */
kve_status kve_safetensors_open(const char *path, kve_safetensors *out);
/* The same over bytes that must outlive *out. */
kve_status kve_safetensors_parse(const unsigned char *data, size_t size, const char *name, kve_safetensors *out);
void kve_safetensors_close(kve_safetensors *st);

const kve_st_tensor *kve_st_find(const kve_safetensors *st, const char *name); /* NULL if absent */
const char *kve_st_meta_get(const kve_safetensors *st, const char *key);       /* NULL if absent */
const char *kve_st_dtype_name(kve_st_dtype dtype);                             /* "F32" ... */
size_t kve_st_dtype_bytes(kve_st_dtype dtype);

/* Copies the values of a tensor that must be there with this dtype and count to out [count]. */
kve_status kve_st_copy(const kve_safetensors *st, const char *name, kve_st_dtype dtype, int64_t count, void *out);

/* Writing: all tensors are declared first, then their data come in the same order, in pieces of any size.
 *   kve_st_create(path, tensors, n, meta, n_meta, &w); kve_st_write(w, data, bytes) ...; kve_st_finish(w)
 * Of each tensor name, dtype, n_dims and dims count. The file appears under its name in kve_st_finish only, which
 * fails if the bytes written are not those declared. kve_st_finish and kve_st_abort both free the writer. */
typedef struct kve_st_writer kve_st_writer;
kve_status kve_st_create(const char *path, const kve_st_tensor *tensors, size_t n_tensors, const kve_st_meta *meta,
                         size_t n_meta, kve_st_writer **out);
kve_status kve_st_write(kve_st_writer *w, const void *data, size_t bytes);
kve_status kve_st_finish(kve_st_writer *w);
void kve_st_abort(kve_st_writer *w); /* NULL is fine */

#endif
