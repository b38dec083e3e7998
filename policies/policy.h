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
    KVE_NEED_WINDOW = 1 << 2,   /* queries of the last W context tokens: prefill attention */
    KVE_NEED_FUTURE = 1 << 3,   /* future importance I: only an upper bound may use it */
    KVE_NEED_UNKNOWN = 1 << 4,  /* made elsewhere, from who knows what */
    KVE_NEED_QUERIES = 1 << 5,  /* queries of all context tokens: prefill attention */
    KVE_NEED_ROTATION = 1 << 6, /* RoPE's tables: no data of the sample */
    KVE_NEED_OUTPUT = 1 << 7,   /* the output projection: weights, no data of the sample */
    KVE_NEED_REPLAY = 1 << 8,   /* attention of a second pass that repeats the context */
    KVE_NEED_QUESTION = 1 << 9, /* where in the prefill the question begins */
} kve_need;

enum { KVE_FUTURE_POSITIONS = 512 }; /* positions beyond the context that the RoPE tables of a view go on for */

/* One layer of one sample. Pointers are device pointers; NULL where the policy does not need them. */
typedef struct kve_policy_view {
    kve_backend *be;
    const kve_shape *shape;
    kve_kv kv;             /* rows 0 .. n - 1 of layer i_layer; .k and .v are NULL unless needed */
    const float *q_window; /* [W][Hq][D] */
    const float *q;        /* [n][Hq][D] */
    const float *future;   /* [Hkv][n] */
    const float *replay;   /* [Hkv][n]: the most attention that any token of the replay gives, over the group's heads */
    const float *cos, *sin;   /* HOST [n + KVE_FUTURE_POSITIONS][R/2] */
    const kve_weight *output; /* [E][Hq D] */
    float *scratch;           /* [Hq][n], always there */
    float scale;              /* of attention, 1 / sqrt(D) */
    int32_t n, W, i_layer;
    int32_t n_question; /* the last tokens of the prefill, from the question on; 0: not needed, or none */
    int32_t budget;     /* tokens per layer and KV head, for policies `by_budget`; else 0 */
    kve_dtype kv_dtype;
    const char *sample_name; /* task/sample_id: for policies that were computed elsewhere */
    uint64_t seed, sample;   /* keys of the random streams; sample is a hash of the name */
} kve_policy_view;

/* All heads of one sample, ranked, to be given their shares of a budget. Host pointers. */
typedef struct kve_allocation {
    const kve_shape *shape;
    const float *scores;  /* [L][Hkv][n] */
    const int32_t *order; /* [L][Hkv][n]: the rankings, protected tokens first */
    int32_t n, budget;    /* budget < n */
    int32_t protected;    /* tokens at the front of every ranking that stand there whatever their score */
} kve_allocation;

typedef struct kve_policy kve_policy;
struct kve_policy {
    const char *name, *summary;
    unsigned needs;     /* kve_need bits */
    bool by_budget;     /* scores depend on the budget: a ranking for each */
    int32_t own_recent; /* last tokens that the policy keeps by definition: the ranking uses the larger of this and the
                           run's */
    bool keeps_all;     /* full: budgets do not apply */
    /* Scores any cache from its keys, its values and the order of its rows, so it can evict while decoding, too: then
     * row j is the j-th row that is still there, not position j, and `seed` differs from one eviction to the next. */
    bool while_decoding;
    /* scores: device [Hkv][n]. A policy with state embeds this struct as its first member. */
    kve_status (*score)(const kve_policy *p, const kve_policy_view *v, float *scores);
    /* lengths [L][Hkv]: how much of its ranking every layer and head keeps, each in [0, n], L Hkv budget in all. NULL:
     * the budget each. */
    kve_status (*allocate)(const kve_policy *p, const kve_allocation *a, int32_t *lengths);
    /* over what a budget is shared: "layers", "heads" (of a layer), "all heads"; NULL: nothing */
    const char *allocation;
    /* Of score() for one layer, as kernels/cost.h counts; NULL: not counted. */
    double (*flops)(const kve_policy *p, const kve_shape *s, int32_t n);
    /* KVE_ERR_FILE where the policy was made for another model; NULL: it fits any. model_sha256 NULL: not known. */
    kve_status (*fits)(const kve_policy *p, const kve_shape *shape, const char *model_sha256);
    /* Takes back what score() keeps on the backend, before that closes; NULL: nothing. */
    void (*close)(const kve_policy *p);
};

/* "none" (full), "attention-free", "prefill-attention", "second-pass", "future-attention": derived from the needs; NULL
 * if they are not known. */
const char *kve_policy_info(const kve_policy *p);

/* All policies in table order: index 0 .. kve_policy_count() - 1. */
size_t kve_policy_count(void);
const kve_policy *kve_policy_at(size_t i);
/* KVE_ERR_USAGE names the nearest policy and lists all; '-' equals '_'. */
kve_status kve_policy_find(const char *name, const kve_policy **out);

/* Copies of `full_view` without what `p` does not need: the only way a view reaches a policy. */
kve_status kve_policy_score(const kve_policy *p, const kve_policy_view *full_view, float *scores);

extern const kve_policy kve_policy_full, kve_policy_random, kve_policy_streaming_llm, kve_policy_knorm,
    kve_policy_keydiff, kve_policy_lagkv, kve_policy_cur, kve_policy_leverage, kve_policy_snapkv, kve_policy_tova,
    kve_policy_h2o, kve_policy_finch, kve_policy_noncausal_attn, kve_policy_compactor, kve_policy_expected_attention,
    kve_policy_criticalkv, kve_policy_pyramidkv, kve_policy_adakv, kve_policy_kvzip, kve_policy_oracle;

#endif
