/* What the engine's tests share: a model on the CPU backend, forks with their owners, and comparisons that no NaN
 * passes. A failure of the engine ends the running cmocka test. */
#ifndef KVE_TESTS_ENGINE_FIXTURE_H
#define KVE_TESTS_ENGINE_FIXTURE_H

#include "host/engine/decode.h"
#include "host/engine/ranked.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define MUST(expr)                                                                                                     \
    do {                                                                                                               \
        if ((expr) != KVE_OK)                                                                                          \
            fail_msg("%s: %s", #expr, kve_diag());                                                                     \
    } while (0)

typedef struct fixture {
    kve_checkpoint *ck;
    kve_backend *be;
    kve_model *m;
} fixture;

void fixture_open(const char *path, kve_dtype dtype, int32_t threads, fixture *out);
void fixture_close(fixture *f);

kve_session *open_session(const kve_model *m, int32_t chunk, int32_t max_forks, int32_t max_positions);

void *must_alloc(size_t n, size_t size); /* the caller frees */

/* max |a - b| / max |b|; infinity when anything is not finite or b is all zeros. */
double relative_error(const float *a, const float *b, size_t n);

double worst_row(const float *a, const float *b, int32_t rows, size_t n); /* the largest such error of a row of n */

/* The same bits, and no NaN. */
bool same_bits(const float *a, const float *b, size_t n);

/* Ranked by device scores [L][Hkv][n], the first b rows of every head gathered. Freed with kve_ranked_free. */
kve_ranked ranked_make(const kve_model *m, const kve_context *ctx, const float *scores, int32_t b, int32_t sink,
                       int32_t recent);

/* Forks of one batch with all they own. Zero-initialise, add, begin, end. */
enum { MOST_FORKS = 32 };
typedef struct forks {
    const kve_model *m;
    kve_fork_slot slots[MOST_FORKS];
    int32_t *lengths[MOST_FORKS]; /* device */
    int32_t n_context[MOST_FORKS];
    int32_t X;
    kve_batch batch;
} forks;

/* A fork over the first `kept` rows of prefix (not owned), whose tail starts at position n_context. */
void forks_add(forks *f, kve_kv prefix, int32_t kept, int32_t n_context, int32_t tail_cap);
void forks_begin(forks *f);
void forks_end(forks *f);

/* Feeds ids[0 .. n-1] to fork x alone, `chunk` at a time; logits [n][V], or NULL. */
void extend_fork(kve_session *s, forks *f, int32_t x, const int32_t *ids, int32_t n, int32_t chunk, float *logits);

#endif
