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

/* Does the work once and gives the microseconds of each series. */
typedef kve_status (*kve_bench_once)(void *ctx, int64_t *us);
kve_status kve_bench_measure(const kve_bench_rules *r, kve_bench_once once, void *ctx, size_t n_series,
                             kve_bench_result *out);

/* What every row of a run says. */
typedef struct kve_bench_table {
    kve_bench_format format;
    const char *model, *dtype, *backend;
    char model_sha256[KVE_SHA256_HEX], hardware[128];
    int32_t threads;
    size_t n_rows;
} kve_bench_table;

kve_status kve_bench_format_parse(const kve_flag *f, kve_bench_format *out);
kve_status kve_bench_table_open(const kve_opened *o, kve_bench_format format, const char *dtype, int32_t threads,
                                kve_bench_table *out);

/* The row's key is name, length and forks; `value` is what one looks for, in `unit`. */
typedef struct kve_bench_row {
    const char *name, *unit;
    int32_t length, forks;
    double value;
} kve_bench_row;
kve_status kve_bench_print(kve_bench_table *t, const kve_bench_row *row, const kve_bench_series *s, const char *stop);
void kve_bench_table_close(kve_bench_table *t); /* ends what is printed; also after a failure */

#endif
