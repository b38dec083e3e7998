/* Inside OASST2: message trees as their best paths. Not for use outside datasets/. */
#ifndef KVE_DATASETS_OASST_H
#define KVE_DATASETS_OASST_H

#include "datasets/dataset.h"
#include "datasets/source.h"

/* What a tree gives: user, assistant, user, assistant, ...; the best-ranked reply of each message, and of follow-ups
 * the first that is answered. English, neither deleted nor refused by review, of a tree that is ready for export. */
typedef struct kve_oasst_path {
    kve_turn *turns; /* [n_turns], an even number from 2; texts are trimmed */
    size_t n_turns, line;
} kve_oasst_path;

typedef struct kve_oasst_paths {
    kve_oasst_path *items; /* in the order of the file */
    size_t n, n_trees;     /* n_trees: with those that give none */
} kve_oasst_paths;

/* Trees (one a line) or flat rows (one message a line). Everything lives in the arena. */
kve_status kve_oasst_read(const kve_source *s, const kve_format *f, kve_bad_rows *bad, kve_arena *arena,
                          kve_oasst_paths *out);
bool kve_oasst_knows_tree(const cJSON *row);
bool kve_oasst_knows_flat(const cJSON *row);

#endif
