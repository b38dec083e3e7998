/* kveval bench's measurements and rows: repeats until the evidence is good enough, then prints one flat row per
 * measured thing. Knows statistics, formats and provenance; not what is measured. */
#ifndef KVE_CLI_BENCH_ROWS_H
#define KVE_CLI_BENCH_ROWS_H

#include "host/cli/cli.h"

typedef enum kve_bench_format { KVE_BENCH_MD, KVE_BENCH_CSV, KVE_BENCH_JSON, KVE_BENCH_JSONL } kve_bench_format;

/* When a measurement ends (nvbench's names). Noise: the median's distance from the samples, 1.4826 times the median
 * absolute deviation, in percent of the median: one disturbed sample does not spoil it. */
typedef struct kve_bench_rules {
    int32_t min_samples;
    double max_noise_pct, min_time_s, timeout_s;
} kve_bench_rules;

enum { KVE_BENCH_SAMPLES = 200, KVE_BENCH_SERIES = 3 };

/* The times of one thing. */
typedef struct kve_bench_series {
    double ms[KVE_BENCH_SAMPLES]; /* in order of measurement */
    size_t n;
    double median, min, max, noise_pct;
} kve_bench_series;

/* One measurement: up to KVE_BENCH_SERIES things that are timed together. */
typedef struct kve_bench_result {
    kve_bench_series series[KVE_BENCH_SERIES];
    const char *stop; /* "noise" (every series is quiet enough), "timeout", "samples" (KVE_BENCH_SAMPLES were taken) */
} kve_bench_result;

/* --min-samples, --max-noise, --min-time and --timeout. */
kve_status kve_bench_rules_parse(const kve_flag *min_samples, const kve_flag *max_noise, const kve_flag *min_time,
                                 const kve_flag *timeout, kve_bench_rules *out);

/* Does the work once and gives the microseconds of each series; 0 becomes 1, the step of the host's clock. */
typedef kve_status (*kve_bench_once)(void *ctx, double *us);
kve_status kve_bench_measure(const kve_bench_rules *r, kve_bench_once once, void *ctx, size_t n_series,
                             kve_bench_result *out);

/* A column of a row. One without a name is in Markdown only, one without a title is in the other formats only. */
typedef struct kve_bench_field {
    const char *name;
    enum { KVE_BENCH_TEXT, KVE_BENCH_INT, KVE_BENCH_NUM } kind;
    const char *text; /* of its kind, one of these three */
    int64_t integer;
    double number;
    const char *title;
    int width, decimals; /* in Markdown; decimals < 0: four significant digits */
} kve_bench_field;

/* What every row of a run says. */
typedef struct kve_bench_table {
    kve_bench_format format;
    char subject[288]; /* what is measured, for the line above a Markdown table */
    bool brief;        /* Markdown leaves out min, max, why it stopped and the peak of memory */
    const char *model; /* NULL: without one */
    const char *dtype, *backend;
    char model_sha256[KVE_SHA256_HEX], hardware[128];
    int32_t threads;
    size_t n_rows;
} kve_bench_table;

kve_status kve_bench_format_parse(const kve_flag *f, kve_bench_format *out);
void kve_bench_table_open(kve_backend *be, kve_bench_format format, const char *dtype, int32_t threads,
                          kve_bench_table *out);
/* Says which model the rows are of. */
kve_status kve_bench_table_model(kve_bench_table *t, kve_checkpoint *ck);

/* Prints a row: its own fields, then the statistics and what the run was made with. */
kve_status kve_bench_print(kve_bench_table *t, const kve_bench_field *own, size_t n_own, const kve_bench_series *s,
                           const char *stop);
void kve_bench_table_close(kve_bench_table *t); /* ends what is printed; also after a failure */

#endif
