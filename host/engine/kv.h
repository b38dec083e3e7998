/* Owners of cached keys and values: plain rows, the context of one sample, the forks of one batch. */
#ifndef KVE_ENGINE_KV_H
#define KVE_ENGINE_KV_H

#include "host/engine/model.h"

/* Allocates [L][Hkv][cap][D] twice. Freed with kve_kv_free. */
kve_status kve_kv_alloc(const kve_model *m, int32_t cap, kve_kv *out);
/* Room for rows[L * Hkv] (host) rows and no more: uniform where they are all the same, else ragged. *first is what the
 * ragged cache's heads begin at, the caller's to free with the backend; NULL where it is uniform. */
kve_status kve_kv_alloc_rows(const kve_model *m, const int32_t *rows, kve_kv *out, int64_t **first);
void kve_kv_free(const kve_model *m, kve_kv *kv);
size_t kve_kv_bytes(const kve_model *m, int64_t rows_all_heads); /* K and V bytes of that many (layer, head) rows */

/* What a prefill leaves behind. */
typedef struct kve_context {
    kve_kv kv; /* rows 0 .. n - 1 */
    int32_t n;
    float *q_window; /* [L][W][Hq][D]: queries of the last W tokens, after RoPE; the policies' attention window */
    int32_t W;       /* min(n, KVE_WINDOW) */
    float *q;        /* [L][cap][Hq][D]: queries of all tokens; NULL unless kve_context_queries asked for them */
} kve_context;

/* The device memory of a context of cap rows. */
size_t kve_context_bytes(const kve_shape *s, kve_dtype dtype, int32_t cap);

enum { KVE_WINDOW = 64 }; /* SnapKV's; TOVA takes the last of them */

kve_status kve_context_alloc(const kve_model *m, int32_t cap, kve_context *out);
/* Makes room for the queries of all tokens, for a prefill to come. */
kve_status kve_context_queries(const kve_model *m, kve_context *c);
size_t kve_context_queries_bytes(const kve_shape *s, int32_t cap);
void kve_context_free(const kve_model *m, kve_context *c);

#endif
