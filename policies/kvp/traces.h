/* A folder of traces (kveval trace, eval/trace.h) for training: every file mapped and checked once, of the tensors only
 * keys, values and importance. Values are read where they are used. */
#ifndef KVE_POLICIES_KVP_TRACES_H
#define KVE_POLICIES_KVP_TRACES_H

#include "host/base/hash.h"
#include "host/model/safetensors.h"

typedef struct kvp_trace {
    kve_safetensors file;
    const unsigned char *keys, *values, *importance; /* F32 [L][Hkv][n][D], and [L][Hkv][n]; not aligned */
    int32_t n;
} kvp_trace;

typedef struct kvp_traces {
    kvp_trace *items; /* [n], by their path below the folder */
    size_t n, cap;
    int32_t L, Hkv, D, max_n;
    const char *model, *model_sha256; /* of the first trace; all agree */
    char sha256[KVE_SHA256_HEX];      /* over names, prompts and importances */
} kvp_traces;

/* Every .safetensors file below dir, folders in folders included. All must be of one model and have more than
 * least_n tokens. The caller: kvp_traces_close, also after a failure. */
kve_status kvp_traces_open(const char *dir, int32_t least_n, kvp_traces *out);
void kvp_traces_close(kvp_traces *t);

/* Both of one model, and no file in both: held-out means held out. */
kve_status kvp_traces_disjoint(const kvp_traces *a, const kvp_traces *b);

/* Importance of a head: out [n]. KVE_ERR_FILE where a value is negative or not finite. */
kve_status kvp_trace_importance(const kvp_traces *t, size_t i, int32_t head, float *out);
/* Rows of a head's keys (or values) from row `first` on. */
const unsigned char *kvp_trace_rows(const kvp_traces *t, size_t i, int32_t head, bool values, int32_t first);
/* KVE_ERR_FILE names the first key or value of the head that is not finite; KVE_OK where there is none. */
kve_status kvp_trace_check(const kvp_traces *t, size_t i, int32_t head);

#endif
