/* A loop over independent items on several threads. */
#ifndef KVE_POLICIES_KVP_PARALLEL_H
#define KVE_POLICIES_KVP_PARALLEL_H

#include "host/base/status.h"

#include <stdint.h>

/* f(ctx, item, worker) for item = 0 .. n - 1, each on whichever of the threads is free; worker < threads. Returns the
 * failure of the lowest item that failed, with its message; items that have not begun by then are left out. */
typedef kve_status (*kvp_item)(void *ctx, int32_t item, int32_t worker);
kve_status kvp_parallel(int32_t threads, int32_t n, kvp_item f, void *ctx);

#endif
