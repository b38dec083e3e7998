/* Synthetic runs for the report's tests: a folder in TMPDIR, records written into it, and files read back. */
#ifndef KVE_TESTS_REPORT_FIXTURE_H
#define KVE_TESTS_REPORT_FIXTURE_H

#include "eval/record.h"

#include <stdio.h>

typedef struct run_folder {
    char path[256];
    kve_str records; /* records.jsonl, not yet written */
} run_folder;

/* Setup and teardown of cmocka: *state is a run_folder. The teardown removes the files a report makes. */
int folder_setup(void **state);
int folder_teardown(void **state);

/* An ok record: metric "ruler_all", n_context 1000, kept = budget, KV bytes 100 per token, no rewards, no times. */
kve_record a_record(const char *task, const char *sample, const char *policy, int64_t budget, double score);

void add_record(run_folder *f, const kve_record *r);
void add_text(run_folder *f, const char *text);
void write_records(run_folder *f);

/* The file as text; the caller frees. Asserts that it is there. */
char *read_back(const run_folder *f, const char *name);

#endif
