/* Rows of a cache that stay, in order of position: gathered into a cache of their own, or moved together where they
 * are. Takes lists; knows nothing of the policy that made them. */
#ifndef KVE_ENGINE_KEEP_H
#define KVE_ENGINE_KEEP_H

#include "host/engine/kv.h"

/* Of every layer and head, rows keep[0 .. b - 1]; `b` is the same for all. */
typedef struct kve_keep {
    const int32_t *rows; /* host [L][Hkv][n]: ascending, each in [0, n); the rest of each list is not looked at */
    int32_t n, b;        /* 1 <= b <= n */
} kve_keep;

/* Into rows 0 .. b - 1 of `to`. Both read the lengths that the device used back: another one is KVE_ERR_INTERNAL. */
kve_status kve_keep_gather(const kve_model *m, const kve_kv *from, const kve_keep *keep, const kve_kv *to);
/* Within kv, which holds n rows: rows 0 .. b - 1 are those kept, rows b .. n - 1 cannot be read any more (NaN). */
kve_status kve_keep_in_place(const kve_model *m, const kve_kv *kv, const kve_keep *keep);

#endif
