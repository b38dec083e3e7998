/* A trace: what policies may look at, of one sample, as a safetensors file that numpy, torch and kveval rank can read.
 * Knows contexts, no policies.
 *
 * Tensors, all in the order of the cache:
 *   keys, values  F32 [L][Hkv][n][D]  as cached: keys after RoPE
 *   positions     I32 [n]             RoPE position of every row
 *   tokens        I32 [n]             token ids
 *   importance    F32 [L][Hkv][n]     I of the KVP paper (arXiv 2602.10238): attention of the n_future tokens of the
 *                                     full cache's answer, summed over them, the maximum over a group's query heads
 *   queries       F32 [L][n][Hq][D]   after RoPE; only where asked for, as are
 *   cos, sin      F32 [n + 512][R/2]  RoPE's tables, on which the keys and queries were turned
 * Metadata: sample, prompt_sha256, n_future, model, model_sha256, dtype. */
#ifndef KVE_EVAL_TRACE_H
#define KVE_EVAL_TRACE_H

#include "eval/evaluator.h"
#include "host/model/safetensors.h"

typedef struct kve_trace_source {
    const char *model_name, *model_sha256;
    bool queries;
} kve_trace_source;

/* Writes what an evaluation saw; folders are made. */
kve_status kve_trace_write(const char *path, const kve_trace_source *source, const kve_observation *seen);

/* A trace on a backend, in a form that kve_rank_context takes: a model without weights, f32. */
typedef struct kve_trace {
    kve_model model;
    kve_context ctx;
    float *importance;       /* device [L][Hkv][n], or NULL: the file has none */
    float *cos, *sin;        /* host, or NULL: the file has none */
    const char *sample_name; /* metadata `sample`, or "trace" */
    kve_safetensors file;
} kve_trace;

/* keys and values must be there, the rest may be absent. Every value is checked to be finite. The caller:
 * kve_trace_close, also after a failure. */
kve_status kve_trace_open(kve_backend *be, const char *path, kve_trace *out);
void kve_trace_close(kve_trace *t);

#endif
