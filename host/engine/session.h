/* The forward pass at work: prefill a context once, then extend and decode any number of forks as one batch. All
 * scratch is allocated when the session opens; a step allocates nothing. Knows nothing of policies or tasks. */
#ifndef KVE_ENGINE_SESSION_H
#define KVE_ENGINE_SESSION_H

#include "host/engine/kv.h"

typedef struct kve_session kve_session;

typedef struct kve_session_options {
    int32_t chunk;         /* rows of one forward at the most; the prefill's chunk size */
    int32_t max_forks;     /* X at the most, <= chunk */
    int32_t max_positions; /* n + question + answer at the most, <= the model's context */
} kve_session_options;

/* Opening computes the RoPE tables for max_positions (longrope: chosen by it, so open one session per sample length
 * class). KVE_ERR_USAGE when max_positions exceeds the model's context or its sliding window. */
kve_status kve_session_open(const kve_model *m, const kve_session_options *opt, kve_session **out);
void kve_session_close(kve_session *s);
/* The device memory that an open session takes. */
size_t kve_session_bytes(const kve_shape *d, const kve_session_options *opt);

/* Fills ctx (allocated with cap >= n) with the keys and values of ids[0 .. n-1]; exact causal attention. The last
 * KVE_WINDOW tokens are a chunk of their own, so that their queries land in ctx->q_window without a copy. n >= 1. */
kve_status kve_prefill(kve_session *s, const int32_t *ids, int32_t n, kve_context *ctx);
int64_t kve_session_prefills(const kve_session *s); /* how many prefills this session has run */

/* X forks that advance together. */
typedef struct kve_batch {
    kve_fork_slot *slots;  /* device [X] */
    int32_t *tail_len;     /* host [X]: rows in each tail */
    int32_t *n_context;    /* host [X]: RoPE positions of a tail start here (the ORIGINAL length) */
    int32_t *tail_cap;     /* host [X] */
    int32_t X, max_prefix; /* no fork's prefix has more rows */
    /* Eviction while decoding: called for fork x where its tail is full and more is to come. Takes rows out of the
     * tail; tail_len shrinks and n_context grows by as many, so that positions go on. NULL: a full tail is an error. */
    kve_status (*make_room)(void *ctx, struct kve_batch *b, int32_t x);
    void *room_ctx;
} kve_batch;

kve_status kve_batch_alloc(const kve_model *m, const kve_fork_slot *host_slots, const int32_t *n_context, int32_t X,
                           kve_batch *out);
void kve_batch_free(const kve_model *m, kve_batch *b);
/* With make_room: lowers *most to the tokens that fit fork x's tail, at least one, and sets *made where room had to be
 * made first. Without it nothing happens. */
kve_status kve_batch_room(kve_batch *b, int32_t x, int32_t *most, bool *made);

/* Appends q_len[x] tokens to every fork x (ids concatenated in fork order; 0 = the fork rests) and leaves the final
 * hidden rows in the session, in the same order. T = sum of q_len <= chunk. q_capture: NULL, or a device buffer
 * [L][capture_cap][Hq][D] that receives this call's queries from row capture_at on (the future queries of the reward).
 */
typedef struct kve_capture {
    float *q;
    int32_t cap, at;
} kve_capture;
kve_status kve_extend(kve_session *s, kve_batch *b, const int32_t *ids, const int32_t *q_len,
                      const kve_capture *capture);

/* On the T hidden rows of the last kve_prefill chunk or kve_extend: row r of the call. Slices the logits internally.
 * next[i] = argmax for rows[i]; nll[i] = -log p(target[i]) for rows[i]. Host arrays. */
kve_status kve_next_tokens(kve_session *s, const int32_t *rows, int32_t n_rows, int32_t *next);
kve_status kve_row_nll(kve_session *s, const int32_t *rows, const int32_t *target, int32_t n_rows, float *nll);
/* The logits themselves, host [n_rows][V]. */
kve_status kve_row_logits(kve_session *s, const int32_t *rows, int32_t n_rows, float *logits);

#endif
