/* DIR/manifest.json: what a run is. Written before the first record; a later run into the same DIR must agree with it
 * in every setting that a result depends on, while policies, budgets, tasks and samples may grow. */
#ifndef KVE_EVAL_MANIFEST_H
#define KVE_EVAL_MANIFEST_H

#include "host/base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct kve_manifest_field {
    const char *key, *value; /* value NULL = null */
    bool binding;            /* results depend on it: it may not change */
} kve_manifest_field;

/* Checks against an existing manifest (a difference is KVE_ERR_USAGE that names the setting and both values), then
 * writes it anew: the latest command stands in it. */
kve_status kve_manifest_update(const char *dir, const kve_manifest_field *fields, size_t n_fields);

#endif
