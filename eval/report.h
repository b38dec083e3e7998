/* From the records of a run to tables, a CSV file and a page: the one entry. It reads records.jsonl and manifest.json,
 * never a model or the engine. */
#ifndef KVE_EVAL_REPORT_H
#define KVE_EVAL_REPORT_H

#include "host/base/status.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct kve_report_options {
    const char *dir; /* holds records.jsonl; gets report/: summary.csv, differences.csv, reward_heads.csv, index.html */
    const char *gnuplot; /* the program; NULL: "gnuplot" on the PATH. Missing: the page is written without plots */
    FILE *out;           /* Markdown tables; NULL: none. Not closed */
    bool brief;          /* on `out` only what one screen holds: each suite's score and lost attention */
    bool mix;            /* cells of unlike protocols may stand in one table, marked; otherwise they are refused */
} kve_report_options;

/* KVE_ERR_FILE: records.jsonl is missing, empty or malformed (the message names file:line), or report/ cannot be
 * written. KVE_ERR_USAGE: unlike protocols, each named. The same records give the same bytes. */
kve_status kve_report_run(const kve_report_options *options);

/* Two runs: cells joined by (task, sample, policy, budget), paired differences B - A with intervals, as Markdown on
 * `out`. KVE_ERR_USAGE when the folders share no task, or when their manifests or prompts show unlike protocols and
 * `mix` is not given; KVE_ERR_FILE as above. */
kve_status kve_report_compare(const char *dir_a, const char *dir_b, bool mix, FILE *out);

#endif
