/* Deterministic random numbers: xoshiro256** seeded through splitmix64 from a key of four numbers, so that each
 * (seed, sample, layer, head) has its own stream and the answer never depends on the order of the calls. */
#ifndef KVE_BASE_RNG_H
#define KVE_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

typedef struct kve_rng {
    uint64_t s[4];
} kve_rng;

void kve_rng_init(kve_rng *r, uint64_t seed, uint64_t a, uint64_t b, uint64_t c);
uint64_t kve_rng_u64(kve_rng *r);
uint64_t kve_rng_below(kve_rng *r, uint64_t n); /* uniform on [0, n), unbiased; n >= 1 */
double kve_rng_double(kve_rng *r);              /* uniform on [0, 1), 53 bits */
float kve_rng_float(kve_rng *r);                /* uniform on [0, 1), 24 bits */
void kve_rng_shuffle(kve_rng *r, int32_t *items, size_t n);
uint64_t kve_hash_text(const char *text, size_t len); /* FNV-1a, 64 bits: turns names into stream keys */

#endif
