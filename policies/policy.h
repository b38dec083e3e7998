/* What an eviction policy is: a name, the things it needs to see, and a score per cached token (larger = keep).
 * The view holds ONLY what `needs` names; everything else in it is NULL, so an attention-free policy cannot see a query
 * even by mistake, and the information class in every table follows from the bits. Definitions: kvpress names in each
 * file; the total order (ties, NaN, sinks, recent window) is the ranking's business, kernels/ops.h rank. */
#ifndef KVE_POLICIES_POLICY_H
#define KVE_POLICIES_POLICY_H

#include "host/shape.h"
#include "kernels/backend.h"

typedef enum kve_need {
    KVE_NEED_KEYS = 1 << 0,
    KVE_NEED_VALUES = 1 << 1,
    KVE_NEED_WINDOW = 1 << 2,  /* queries of the last W context tokens: prefill attention */
    KVE_NEED_FUTURE = 1 << 3,  /* future importance I: only an upper bound may use it */
    KVE_NEED_UNKNOWN = 1 << 4, /* made elsewhere, from who knows what */
} kve_need;

/* One layer of one sample. Pointers are device pointers; NULL where the policy does not need them. */
typedef struct kve_policy_view {
    kve_backend *be;
    const kve_shape *shape;
    kve_kv kv;             /* rows 0 .. n - 1 of layer i_layer; .k and .v are NULL unless needed */
    const float *q_window; /* [W][Hq][D] */
    const float *future;   /* [Hkv][n] */
    float *scratch;        /* [Hq][n], always there */
    float scale;           /* of attention, 1 / sqrt(D) */
    int32_t n, W, i_layer;
    kve_dtype kv_dtype;
    const char *sample_name; /* task/sample_id: for policies that were computed elsewhere */
    uint64_t seed, sample;   /* keys of the random streams; sample is a hash of the name */
} kve_policy_view;

typedef struct kve_policy kve_policy;
struct kve_policy {
    const char *name, *summary;
    unsigned needs;     /* kve_need bits */
    int32_t own_recent; /* last tokens that the policy keeps by definition: the ranking uses the larger of this and the
                           run's */
    bool keeps_all;     /* full: budgets do not apply */
    /* scores: device [Hkv][n]. A policy with state embeds this struct as its first member. */
    kve_status (*score)(const kve_policy *p, const kve_policy_view *v, float *scores);
    /* KVE_ERR_FILE where the policy was made for another model; NULL: it fits any. model_sha256 NULL: not known. */
    kve_status (*fits)(const kve_policy *p, const kve_shape *shape, const char *model_sha256);
    /* Takes back what score() keeps on the backend, before that closes; NULL: nothing. */
    void (*close)(const kve_policy *p);
};

/* "none" (full), "attention-free", "prefill-attention", "future-attention": derived from the needs; NULL if they are
 * not known. */
const char *kve_policy_info(const kve_policy *p);

/* All policies in table order: index 0 .. kve_policy_count() - 1. */
size_t kve_policy_count(void);
const kve_policy *kve_policy_at(size_t i);
/* KVE_ERR_USAGE names the nearest policy and lists all; '-' equals '_'. */
kve_status kve_policy_find(const char *name, const kve_policy **out);

/* Copies of `full_view` without what `p` does not need: the only way a view reaches a policy. */
kve_status kve_policy_score(const kve_policy *p, const kve_policy_view *full_view, float *scores);

extern const kve_policy kve_policy_full, kve_policy_random, kve_policy_streaming_llm, kve_policy_knorm,
    kve_policy_keydiff, kve_policy_lagkv, kve_policy_snapkv, kve_policy_tova, kve_policy_oracle;

#endif
