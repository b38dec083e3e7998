/* Greedy decoding of all forks of a batch together, after the same tail of tokens was given to each; and the scoring of
 * tails. */
#ifndef KVE_ENGINE_DECODE_H
#define KVE_ENGINE_DECODE_H

#include "host/engine/session.h"

/* Extends every fork by tail[0 .. n_tail-1] (n_tail >= 1, X n_tail may exceed the chunk: forks then go in turns), then
 * decodes until every fork has produced an end token of the model or max_new tokens. out: host [X][max_new] and n_out
 * [X]; end tokens are not in it. capture: NULL, or (X == 1 only) receives the queries of every token that is fed. A
 * fork's tail needs n_tail + max_new rows, or the batch make_room. */
kve_status kve_decode_greedy(kve_session *s, const kve_model *m, kve_batch *b, const int32_t *tail, int32_t n_tail,
                             int32_t max_new, int32_t chunk, kve_capture *capture, int32_t *out, int32_t *n_out);

/* What one fork is fed: n >= 1 tokens; nll: host [n - 1] for -log p(ids[i + 1]) given everything before. */
typedef struct kve_tail {
    const int32_t *ids;
    int32_t n;
    float *nll;
} kve_tail;

/* Extends every fork x by tails[x] and scores it. Capture as above; a fork's tail needs n rows, or the batch make_room.
 */
kve_status kve_score_tails(kve_session *s, kve_batch *b, const kve_tail *tails, int32_t chunk, kve_capture *capture);

#endif
