/* Settings from the environment, the random numbers of the schedules, and the two ways to complain. */
#include "tests/simt/memory.h"
#include "tests/simt/runtime.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

namespace simt
{
static settings read_settings()
{
    settings s = {order::fifo, 1, false};
    const char *schedule = getenv("SIMT_ORDER"), *seed = getenv("SIMT_SEED"), *strict = getenv("SIMT_STRICT");
    if (schedule && strcmp(schedule, "reverse") == 0)
        s.schedule = order::reverse;
    else if (schedule && strcmp(schedule, "random") == 0)
        s.schedule = order::random;
    else if (schedule && strcmp(schedule, "fifo") != 0) {
        fprintf(stderr, "simt: SIMT_ORDER is '%s'; use fifo, reverse or random\n", schedule);
        exit(2);
    }
    if (seed) {
        char *end = nullptr;
        s.seed = strtoull(seed, &end, 10);
        if (end == seed || *end) {
            fprintf(stderr, "simt: SIMT_SEED is '%s'; use a whole number\n", seed);
            exit(2);
        }
    }
    s.strict = strict && strcmp(strict, "0") != 0;
    return s;
}

const settings &the_settings()
{
    static const settings s = read_settings();
    return s;
}

/* splitmix64 */
uint64_t random_number()
{
    static uint64_t state = the_settings().seed;
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

size_t pick(size_t n)
{
    switch (the_settings().schedule) {
    case order::fifo:
        return 0;
    case order::reverse:
        return n - 1;
    default:
        return static_cast<size_t>(random_number() % n);
    }
}

void fault(const char *format, ...)
{
    va_list args;
    fflush(stdout);
    fprintf(stderr, "simt: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    print_position(stderr);
    fflush(stderr);
    abort();
}

cudaError_t refuse(cudaError_t code, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "simt: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, " (%s)\n", cudaGetErrorName(code));
    return set_last_error(code);
}
} // namespace simt
