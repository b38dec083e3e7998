/* Greedy decoding of all forks of a batch together, after the same tail of tokens was given to each. */
#ifndef KVE_ENGINE_DECODE_H
#define KVE_ENGINE_DECODE_H

#include "host/engine/session.h"

/* Extends every fork by tail[0 .. n_tail-1] (n_tail >= 1, X n_tail may exceed the chunk: forks then go in turns), then
 * decodes until every fork has produced an end token of the model or max_new tokens. out: host [X][max_new] and n_out
 * [X]; end tokens are not in it. capture: NULL, or (X == 1 only) receives the queries of every token that is fed. A
 * fork's tail needs n_tail + max_new rows. */
kve_status kve_decode_greedy(kve_session *s, const kve_model *m, kve_batch *b, const int32_t *tail, int32_t n_tail,
                             int32_t max_new, int32_t chunk, kve_capture *capture, int32_t *out, int32_t *n_out);

/* Extends every fork by the same tail[0 .. n_tail-1] and scores it: nll[x][i] = -log p(tail[i + 1]) given everything
 * before, host [X][n_tail - 1]. n_tail >= 1; the rest as above, without the max_new rows. */
kve_status kve_teacher_force(kve_session *s, kve_batch *b, const int32_t *tail, int32_t n_tail, int32_t chunk,
                             kve_capture *capture, float *nll);

#endif
