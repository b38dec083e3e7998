/* Monotonic time in microseconds. */
#ifndef KVE_BASE_CLOCK_H
#define KVE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t kve_now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

#endif
