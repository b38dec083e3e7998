/* What a run's manifest.json says, for the report: texts by key. Knows no records. */
#ifndef KVE_EVAL_REPORT_MANIFEST_H
#define KVE_EVAL_REPORT_MANIFEST_H

#include "host/base/mem.h"
#include "host/base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* values[i] of keys[i], in the arena; NULL: null or not there. A missing manifest is no fault; a broken one is worth a
 * warning, not the report. *found: there is one that can be read. */
kve_status kve_report_manifest(const char *dir, const char *const *keys, size_t n, kve_arena *arena,
                               const char **values, bool *found);

#endif
