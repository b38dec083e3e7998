/* The operations of the forward pass, of scoring and of eviction: one params struct per op, shapes on every field.
 *
 * All data pointers are DEVICE pointers of the backend that runs the op (kernels/backend.h); scalars travel by value.
 * Arithmetic is fp32 with fp32 accumulation unless a line says otherwise; K and V are stored in the cache dtype.
 * A row's result depends on that row's inputs alone: not on T, on other rows, on chunking, or on the thread count.
 * T = 0, X = 0, n = 0 are legal and do nothing. Letters: host/shape.h. */
#ifndef KVE_KERNELS_OPS_H
#define KVE_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum kve_dtype { KVE_F32 = 0, KVE_BF16 = 1 } kve_dtype;

static inline size_t kve_dtype_bytes(kve_dtype t)
{
    return t == KVE_F32 ? 4 : 2;
}

/* A weight matrix [N][K] in whatever packing the backend likes best; made by kve_backend_vt.weight_create. */
typedef struct kve_weight kve_weight;

/* Keys and values of all layers: element (i_layer, h, j, d) of either is at
 * ((i_layer * Hkv + h) * cap + j) * D + d, in the cache dtype. Keys carry RoPE.
 *
 * A ragged cache (every layer and head has a length of its own) says in `first` at which row each of them begins:
 * element (first[i_layer * Hkv + h] + j) * D + d. Only a fork's prefix and the target of a gather may be ragged. */
typedef struct kve_kv {
    void *k, *v;          /* [L][Hkv][cap][D] */
    int32_t cap;          /* rows per layer and head; ragged: of the longest */
    const int64_t *first; /* [L][Hkv], or NULL: not ragged */
} kve_kv;

/* One continuation of a (possibly evicted) context: attention sees the first prefix_len[i_layer][h] rows of the
 * prefix, in any order, then the tail. Many forks may share one prefix. */
typedef struct kve_fork_slot {
    kve_kv prefix;
    const int32_t *prefix_len; /* [L][Hkv] */
    kve_kv tail;               /* private; rows in order of arrival */
} kve_fork_slot;

/* out[t][:] = table[ids[t]][:] */
typedef struct kve_embed_params {
    const int32_t *ids;      /* [T], each in [0, V) */
    const kve_weight *table; /* [V][E] */
    float *out;              /* [T][E] */
    int32_t T, E;
} kve_embed_params;

/* out = x / sqrt(mean(x^2) + eps) * gain, per row; the sum in fp32 or better. out may be x. */
typedef struct kve_rmsnorm_params {
    const float *x;    /* [T][E] */
    const float *gain; /* [E] */
    float *out;        /* [T][E] */
    float eps;
    int32_t T, E;
} kve_rmsnorm_params;

/* y = x W^T (+ bias), or y += the same when `accumulate` (the residual stream). With a BF16 weight, x is rounded to
 * bf16 (nearest even) on the way in; products accumulate in fp32. */
typedef struct kve_matmul_params {
    const float *x;      /* [T][K], row stride K */
    const kve_weight *w; /* [N][K] */
    const float *bias;   /* [N] or NULL */
    float *y;            /* [T][N], row stride N */
    int32_t T;
    bool accumulate;
} kve_matmul_params;

/* Splits fused projections, normalises heads where the model asks for it, rotates (rotate-half pairing d, d + R/2
 * over the first R dimensions), stores the queries and appends keys and values to the row's slot.
 * Row t goes to slots[slot_of[t]].tail row index_of[t] and is rotated by position pos_of[t]. */
typedef struct kve_rope_append_params {
    const float *qkv;           /* [T][(Hq + 2 Hkv) D]: queries, then keys, then values */
    const float *q_norm;        /* [D] RMSNorm gain over each query head before RoPE (qwen3), or NULL */
    const float *k_norm;        /* [D] likewise for keys, or NULL */
    const float *cos, *sin;     /* [n_positions][R/2], scaling factors applied */
    const int32_t *pos_of;      /* [T], each in [0, n_positions) */
    const int32_t *slot_of;     /* [T] */
    const int32_t *index_of;    /* [T], each below the slot's tail.cap */
    const kve_fork_slot *slots; /* device array; only .tail is used */
    float *q;                   /* [T][Hq][D] out, rotated */
    float norm_eps;
    int32_t T, Hq, Hkv, D, R, i_layer;
    kve_dtype kv_dtype;
} kve_rope_append_params;

/* Exact causal attention of T new tokens over the context cache: token t of the call sits at position start + t and
 * sees rows 0 .. start + t. softmax(q.k / sqrt(D)) V, online softmax over key blocks at FIXED absolute boundaries, so
 * that the chunk size does not change a row's result. With a BF16 cache a backend may round (nearest even) the queries
 * and the probabilities to bf16 for the two products; these accumulate in fp32, the softmax is fp32, and the sum it
 * divides by is that of the rounded probabilities. The cpu backend rounds neither. */
typedef struct kve_attention_prefill_params {
    const float *q; /* [T][Hq][D] */
    kve_kv kv;      /* rows 0 .. start + T - 1 filled */
    float *out;     /* [T][Hq][D] */
    float scale;    /* 1 / sqrt(D) as a rule */
    int32_t T, start, Hq, Hkv, D, i_layer;
    kve_dtype kv_dtype;
} kve_attention_prefill_params;

/* Attention of the rows of X forks, each over its own prefix and tail. Fork x owns rows row_of[x] .. row_of[x] +
 * q_len[x] - 1 of the call, in order; its i-th row sees the whole prefix and the first tail_len[x] + i + 1 tail rows
 * (the rows of this call are already appended; tail_len counts those before it). Prefix rows first, then tail rows,
 * merged in a fixed order: a fork's result does not depend on its neighbours. A prefix length of 0 is legal.
 * max_prefix lets a backend size its launch, since the lengths live on the device; it does not change a result. */
typedef struct kve_attention_fork_params {
    const float *q;             /* [T][Hq][D] */
    const kve_fork_slot *slots; /* [X] */
    const int32_t *row_of;      /* [X] */
    const int32_t *q_len;       /* [X], 0 allowed: the fork rests */
    const int32_t *tail_len;    /* [X] */
    float *out;                 /* [T][Hq][D] */
    float scale;
    int32_t T, X, Hq, Hkv, D, i_layer;
    int32_t max_prefix; /* no prefix_len of the slots is above it (the largest prefix.cap, say); 0 = not known */
    kve_dtype kv_dtype;
} kve_attention_fork_params;

/* out = act(gate) * up. */
typedef enum kve_activation { KVE_SILU = 0, KVE_GELU_TANH = 1 } kve_activation;
typedef struct kve_glu_params {
    const float *gate_up; /* [T][2F]: gate, then up */
    float *out;           /* [T][F] */
    kve_activation act;
    int32_t T, F;
} kve_glu_params;

/* nll[t] = logsumexp(logits[t]) - logits[t][target[t]]; a NaN among the logits gives NaN. */
typedef struct kve_nll_params {
    const float *logits;   /* [T][V] */
    const int32_t *target; /* [T] */
    float *nll;            /* [T] */
    int32_t T, V;
} kve_nll_params;

/* ids[t] = the lowest index of the largest logit (NaN never wins; all NaN gives -1). */
typedef struct kve_argmax_params {
    const float *logits; /* [T][V] */
    int32_t *ids;        /* [T] */
    int32_t T, V;
} kve_argmax_params;

/* Ends a greedy step on the device: row t's fork takes the token next[t] (-1, found among NaN, is fed as 0), one place
 * further on; column *n_logged of the log keeps what was found, and *n_logged grows by one. */
typedef struct kve_advance_params {
    const int32_t *next;              /* [T] arg-maxes */
    const int32_t *slot_of;           /* [T] */
    int32_t *ids, *pos_of, *index_of; /* [T]: the next step's tokens; positions and tail rows + 1 */
    int32_t *tail_len;                /* [X]: of the rows' slots, + 1 */
    int32_t *log;                     /* [log_cap][T] */
    int32_t *n_logged;                /* [1], below log_cap */
    int32_t T, log_cap;
} kve_advance_params;

/* What SnapKV and TOVA look at. For each query head: the mean over the W window queries of softmax(q.k * scale) with
 * the causal mask (window query w sits at position n - W + w), fp32 throughout. */
typedef struct kve_attention_window_params {
    const float *q; /* [W][Hq][D], the last W queries of the context */
    kve_kv kv;
    float *out; /* [Hq][n] */
    float scale;
    int32_t n, W, Hq, Hkv, D, i_layer;
    kve_dtype kv_dtype;
} kve_attention_window_params;

/* out[h][j] = mean over the query heads of group h of avgpool_{width}(in[head])[j]: zero padding, always divided by
 * width (torch avg_pool1d, count_include_pad). Columns n_valid .. n - 1 are cut off BEFORE the pooling (SnapKV pools
 * without its window) and come out as +inf. `all_heads`: the group is all Hq heads, for every KV head (TOVA). */
typedef struct kve_pool_group_params {
    const float *in;                    /* [Hq][n] */
    float *out;                         /* [Hkv][n] */
    int32_t n, n_valid, Hq, Hkv, width; /* width odd; 1 = no pooling */
    bool all_heads;
} kve_pool_group_params;

/* I of the KVP paper: out[h][j] = sum over f future tokens of max over the group of softmax_j(q.k * scale), where
 * future token i sees all n context rows and future rows 0 .. i (its own included). fp32, fixed order. With `maximum`
 * the largest instead of the sum (KVzip's importance of a replay). */
typedef struct kve_future_importance_params {
    const float *q; /* [f][Hq][D] for this layer */
    kve_kv ctx;     /* n rows */
    kve_kv tail;    /* f rows: the future tokens' own keys */
    float *out;     /* [Hkv][n] */
    float scale;
    int32_t n, f, Hq, Hkv, D, i_layer;
    kve_dtype kv_dtype;
    bool maximum;
} kve_future_importance_params;

/* Row statistics of the cached keys/values, one op with a mode each. out[h][j], larger = keep. */
typedef enum kve_row_stat {
    KVE_STAT_NEG_NORM,   /* -norm2(k_j)                                                (knorm)   */
    KVE_STAT_NEG_COSINE, /* -cos(k_j, a), a = mean_j k_j / max(norm2(k_j), 1e-12)      (keydiff) */
    KVE_STAT_LAG,        /* lag statistics over partitions, policies.md                (lagkv)   */
} kve_row_stat;
typedef struct kve_row_stat_params {
    kve_kv kv;
    float *out; /* [Hkv][n] */
    kve_row_stat stat;
    int32_t n, Hkv, D, i_layer;
    int32_t n_sink, lag; /* KVE_STAT_LAG only: 4 and 128 */
    kve_dtype kv_dtype;
} kve_row_stat_params;

/* The learned policy's scores (KVP, arXiv 2602.10238; weights and their layout: kernels/kvp.h), one network per layer
 * and KV head, for layers i_layer .. i_layer + n_layers - 1 in one call:
 *
 *   LN(x) = (x - mean) / sqrt(var + 1e-5) * gain + shift             torch's LayerNorm, biased variance
 *   x_j = [ LN(Wk k_j + bk), LN(Wv v_j + bv), LN(table[min(j, n_positions - 1)]) ]             [2H + P]
 *   h_j = silu(LN(W_mix x_j + b_mix))                                                          [H]
 *   out[..][j] = w_out . silu(LN(W_deep h_j + b_deep)) + b_out
 *
 * A row's position is its index j, so the cache must hold the whole context. An input whose bit is not in `inputs` is
 * zeros in x_j; kv.k, kv.v or table are not read then and may be NULL. A NaN in a row makes that row's score NaN.
 *
 * With a BF16 cache the inputs of the four matrix products (the matrices, x_j, h_j) are rounded to bf16, nearest even;
 * they accumulate in fp32, and biases, LN, silu and the last dot product stay fp32. With F32 nothing is rounded.
 * A shape that is not kve_kvp_is_legal is KVE_ERR_USAGE. */
typedef enum kve_kvp_input { KVE_KVP_K = 1 << 0, KVE_KVP_V = 1 << 1, KVE_KVP_POS = 1 << 2 } kve_kvp_input;
typedef struct kve_kvp_score_params {
    kve_kv kv;            /* rows 0 .. n - 1 of each head */
    const float *weights; /* [n_layers][Hkv][kve_kvp_count]: those of layer i_layer first; at a multiple of 16 bytes */
    const float *table;   /* [n_tables][n_positions][P]; likewise */
    float *out;           /* [n_layers][Hkv][n] */
    int32_t n, Hkv, D, H, P, i_layer, n_layers;
    int32_t n_tables; /* 1 (all heads share it) or n_layers * Hkv */
    int32_t n_positions;
    unsigned inputs; /* kve_kvp_input bits */
    kve_dtype kv_dtype;
} kve_kvp_score_params;

/* The total order: the first `sink` rows in position order, then the last `recent` rows newest first, then the rest by
 * score descending, position ascending; NaN counts as -inf, -0 as +0. Where sink + recent > n, sinks win. order[r][0 ..
 * n_out - 1] are the first n_out positions of that order. */
typedef struct kve_rank_params {
    const float *scores; /* [rows][n] */
    int32_t *order;      /* [rows][n_out] */
    int32_t rows, n, n_out, sink, recent;
} kve_rank_params;

/* Compaction out of place, of layers i_layer .. i_layer + n_layers - 1 in one call: row r of (layer, head) in `to` is
 * row order[layer - i_layer][h][r] of `from`, for r < count (and r < counts[..][h], where there are counts). */
typedef struct kve_gather_params {
    kve_kv from, to;
    const int32_t *order;  /* [n_layers][Hkv][order_stride], each in [0, from.cap) */
    const int32_t *counts; /* [n_layers][Hkv], none above count; or NULL */
    int32_t count, order_stride, Hkv, D, i_layer, n_layers;
    kve_dtype kv_dtype;
} kve_gather_params;

/* Compaction in place, for eviction during decoding: keep[h][0 .. keep_len[h] - 1] ascend strictly; row r of head h
 * becomes the old row keep[h][r]. Rows from keep_len[h] on are filled with NaN up to n (evicted data must not be
 * readable by mistake). */
typedef struct kve_compact_params {
    kve_kv kv;
    const int32_t *keep;     /* [Hkv][keep_stride] */
    const int32_t *keep_len; /* [Hkv] */
    int32_t keep_stride, n, Hkv, D, i_layer;
    kve_dtype kv_dtype;
} kve_compact_params;

#endif
