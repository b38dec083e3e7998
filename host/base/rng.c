/* xoshiro256** (Blackman and Vigna, public domain algorithm) with splitmix64 seeding. */
#include "host/base/rng.h"

static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void kve_rng_init(kve_rng *r, uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t key[4] = {seed, a, b, c}, x = 0;
    for (int i = 0; i < 4; i++) {
        x ^= key[i];
        x = splitmix(&x);
    }
    for (int i = 0; i < 4; i++)
        r->s[i] = splitmix(&x);
}

static uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

uint64_t kve_rng_u64(kve_rng *r)
{
    uint64_t *s = r->s, result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t kve_rng_below(kve_rng *r, uint64_t n)
{
    uint64_t reject_below = (0 - n) % n, x;
    do
        x = kve_rng_u64(r);
    while (x < reject_below);
    return x % n;
}

double kve_rng_double(kve_rng *r)
{
    return (double)(kve_rng_u64(r) >> 11) * 0x1p-53;
}

float kve_rng_float(kve_rng *r)
{
    return (float)(kve_rng_u64(r) >> 40) * 0x1p-24f;
}

void kve_rng_shuffle(kve_rng *r, int32_t *items, size_t n)
{
    for (size_t i = n; i > 1; i--) {
        size_t j = kve_rng_below(r, i);
        int32_t t = items[i - 1];
        items[i - 1] = items[j];
        items[j] = t;
    }
}

uint64_t kve_hash_text(const char *text, size_t len)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    return h;
}
