/* Greedy steps of a batch whose state lives on the device: tokens, positions, lengths. Where the backend can record
 * ops (kernels/backend.h graph_begin), a step is recorded once per batch shape and repeated without the host. */
#ifndef KVE_ENGINE_STEP_H
#define KVE_ENGINE_STEP_H

#include "host/engine/session.h"

/* The forks that still run. Zero-initialise; kve_steps_end. */
typedef struct kve_steps {
    kve_session *s;
    kve_batch *batch;
    int32_t T;        /* rows: forks that run */
    kve_graph *graph; /* of one step, once it is recorded */
    bool started;
    int32_t *host; /* staging and results */
} kve_steps;

/* Row t is fork fork_of[t], whose next token is ids[t] (not fed yet); the other forks rest. */
kve_status kve_steps_begin(kve_session *s, kve_batch *b, const int32_t *fork_of, const int32_t *ids, int32_t T,
                           kve_steps *out);
/* How many steps are worth running between two looks at the tokens: 1 where the host drives every step anyway. */
int32_t kve_steps_at_once(const kve_session *s, const kve_capture *capture);
/* Feeds every fork's next token and finds the one after it, n times (n <= kve_steps_at_once): out, host [n][T]. An
 * arg-max of -1 (NaN) is given as -1 and fed as token 0. capture as in kve_extend; T must be 1 with it. Every tail
 * needs n more rows. */
kve_status kve_steps_run(kve_steps *w, int32_t n, kve_capture *capture, int32_t *out);
void kve_steps_end(kve_steps *w);

#endif
