/* What the tests of the store share: a folder for each test, records, segments made without the store. */
#ifndef KVE_TESTS_STORE_FIXTURE_H
#define KVE_TESTS_STORE_FIXTURE_H

#include "eval/store.h"
#include "tests/scratch.h"

const char *in_dir(const char *name); /* a path in the test's folder, until the next call */

void must(kve_status st); /* fails the test with the diagnostic */

/* A record of task "ruler-4k/vt" and policy "knorm". */
kve_record cell(const char *sample, int64_t budget, const char *status, int64_t attempt, int64_t time);

/* CRC-32 bit by bit: x^32 + x^26 + ... + 1, reflected. */
unsigned slow_crc(const char *p, size_t len);

/* Appends n_lines lines of a segment as another program would write it: ok records "s-0", "s-1", ... at budget 4. */
void hand_made(int n_lines, kve_str *out);
void put_segment(const char *name, const char *data, size_t len); /* seg/NAME */
size_t count_segments(const char *suffix);

/* Merges and compares the counts. */
void expect_merge(size_t records, size_t duplicates, size_t damaged, size_t failed);
/* The number of records in records.jsonl, parsed into out [most]; texts in the arena. */
size_t merged(kve_arena *arena, kve_record *out, size_t most);

#endif
