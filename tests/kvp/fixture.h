/* What the tests of the learned policy share: a folder for each test, random networks, synthetic traces. */
#ifndef KVE_TESTS_KVP_FIXTURE_H
#define KVE_TESTS_KVP_FIXTURE_H

#include "host/base/rng.h"
#include "kernels/kvp.h"
#include "policies/kvp/net.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

const char *in_dir(const char *name, char path[512]);

void must(kve_status st);                                          /* fails the test with the diagnostic */
void must_fail(kve_status st, kve_status want, const char *words); /* and the diagnostic has these words */

double uniform(kve_rng *rng, double most); /* on [-most, most) */

/* A network as training leaves one: gains around 1, nothing zero. out [kve_kvp_count]. */
void random_weights(kve_kvp_shape s, kve_rng *rng, float *out);

enum { TRACE_L = 2, TRACE_HKV = 2, TRACE_D = 16 };
typedef struct trace_spec {
    uint64_t seed;                       /* same seed, same trace */
    int32_t n;                           /* 0: 90 */
    bool by_position;                    /* importance by the position instead: a wave of 8 tokens */
    const char *sha256;                  /* of the model; NULL: a default */
    const char *prompt;                  /* prompt_sha256; NULL: the file's name */
    float *spoil_key, *spoil_importance; /* put into layer 1, KV head 0, token 40; NULL: nothing */
} trace_spec;
/* Every head's importance is e^(3 x the token's key along a direction of that head): easy to learn from keys, and from
 * nothing else. Folders of the path are made. */
void write_trace(const char *path, const trace_spec *spec);

/* The bytes of a file; the caller frees them. */
char *bytes_of(const char *path, size_t *len);
void cut_file(const char *path, size_t len); /* to its first len bytes */

#endif
