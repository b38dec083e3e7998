/* A GGUF file (v2, v3) as checked tables over its bytes: metadata and tensor places. Knows no architecture. */
#ifndef KVE_MODEL_GGUF_H
#define KVE_MODEL_GGUF_H

#include "host/base/mem.h"
#include "host/model/dequant.h"

typedef struct kve_text {
    const char *p; /* bytes of the file, not NUL-terminated */
    size_t len;
} kve_text;

typedef enum kve_gguf_type {
    KVE_GGUF_U8,
    KVE_GGUF_I8,
    KVE_GGUF_U16,
    KVE_GGUF_I16,
    KVE_GGUF_U32,
    KVE_GGUF_I32,
    KVE_GGUF_F32,
    KVE_GGUF_BOOL,
    KVE_GGUF_STRING,
    KVE_GGUF_ARRAY,
    KVE_GGUF_U64,
    KVE_GGUF_I64,
    KVE_GGUF_F64,
} kve_gguf_type;

typedef struct kve_gguf_kv {
    kve_text key;
    kve_gguf_type type; /* of the value, or of the elements when is_array */
    bool is_array;
    uint64_t count; /* elements; 1 for a single value */
    const unsigned char *data;
} kve_gguf_kv;

typedef struct kve_gguf_tensor {
    const char *name; /* NUL-terminated, in the arena */
    kve_tensor_type type;
    int64_t rows, cols; /* dimensions 1 and 0 of the file; higher ones must be 1 */
    size_t bytes;
    const unsigned char *data;
} kve_gguf_tensor;

typedef struct kve_gguf {
    const char *name; /* for messages; not owned */
    uint32_t version;
    kve_arena arena;
    kve_gguf_kv *kv; /* [n_kv], sorted by key */
    size_t n_kv;
    kve_gguf_tensor *tensors; /* [n_tensors], in the file's order */
    size_t n_tensors;
} kve_gguf;

/* Parses size bytes that must outlive *out; free with kve_gguf_free, also after a failure. Checked: every length and
 * offset, key and tensor names for duplicates, tensor extents for overlap, alignment and the end of the data. */
kve_status kve_gguf_parse(const unsigned char *data, size_t size, const char *name, kve_gguf *out);
void kve_gguf_free(kve_gguf *g);

const kve_gguf_kv *kve_gguf_find(const kve_gguf *g, const char *key); /* NULL if absent */

/* Single values. An absent key leaves *out as it is and is not an error unless `required`; a wrong type, a value
 * outside [min, max] and a number that is not finite are. Any integer type serves as an integer. */
kve_status kve_gguf_int(const kve_gguf *g, const char *key, bool required, int64_t min, int64_t max, int64_t *out);
kve_status kve_gguf_num(const kve_gguf *g, const char *key, bool required, double *out);
kve_status kve_gguf_bool(const kve_gguf *g, const char *key, bool *out);
kve_status kve_gguf_text(const kve_gguf *g, const char *key, bool required, kve_text *out);

/* An array of the given element type: *out NULL if absent and not required. */
kve_status kve_gguf_array(const kve_gguf *g, const char *key, kve_gguf_type type, bool required,
                          const kve_gguf_kv **out);
/* Walks an array of strings: *at starts as the array's data and moves behind the string. */
kve_text kve_gguf_next_text(const unsigned char **at);

#endif
