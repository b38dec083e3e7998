/* Where records live: DIR/seg/ holds private segments, one per process, every line with its CRC; DIR/records.jsonl is
 * the de-duplicated merge of all of them. A process appends to its own segment only, so that kill -9, a full disk or
 * two processes on one DIR tear nothing. Knows records; no engine. */
#ifndef KVE_EVAL_STORE_H
#define KVE_EVAL_STORE_H

#include "eval/record.h"

typedef struct kve_store kve_store;

/* Makes the folders and reads what all segments hold already, those of killed processes too. Two runs may share DIR. */
kve_status kve_store_open(const char *dir, kve_store **out);

/* Seals the own segment and frees. A segment that was never sealed loses nothing. */
void kve_store_close(kve_store *s);

/* What was there for this cell when the store was opened: a record at all, an ok one, the highest attempt, and the
 * prompt (NULL = unknown; lives as long as the store). */
typedef struct kve_found {
    bool any, ok;
    int64_t attempt;
    const char *prompt_sha256;
} kve_found;
kve_found kve_store_find(const kve_store *s, const char *task, const char *sample_id, const char *policy,
                         int64_t budget);

/* The records of one sample in one write, on the disk when this returns. After a failure (a full disk) what had been
 * written before is intact and the caller should stop. */
kve_status kve_store_append(kve_store *s, const kve_record *records, size_t n);

typedef struct kve_merge {
    size_t n_records, n_duplicates, n_damaged; /* lines in records.jsonl; dropped copies; dropped torn lines */
    size_t n_failed;                           /* of n_records */
} kve_merge;

/* Writes DIR/records.jsonl in one step, sorted by kve_record_compare. Of several records of a cell the one that is ok
 * wins, then the lowest attempt, then the oldest. Merges of several processes go one after the other, and the last
 * one holds everything that was appended before it began. */
kve_status kve_store_merge(const char *dir, kve_merge *out);

#endif
