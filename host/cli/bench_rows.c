/* Measurements and rows of kveval bench. Contract: bench_rows.h. */
#include "host/cli/bench_rows.h"

#include "host/base/clock.h"
#include "host/base/json.h"
#include "host/base/processor.h"
#include "host/base/stats.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static void summarise(kve_bench_series *s)
{
    double sorted[KVE_BENCH_SAMPLES];
    memcpy(sorted, s->ms, s->n * sizeof *sorted);
    s->median = kve_median(sorted, s->n);
    s->min = sorted[0]; /* the median sorts */
    s->max = sorted[s->n - 1];
    for (size_t i = 0; i < s->n; i++)
        sorted[i] = fabs(s->ms[i] - s->median);
    s->noise_pct = 100 * 1.4826 * kve_median(sorted, s->n) / s->median;
}

kve_status kve_bench_measure(const kve_bench_rules *r, kve_bench_once once, void *ctx, size_t n_series,
                             kve_bench_result *out)
{
    int64_t start = kve_now_us();
    *out = (kve_bench_result){0};
    while (!out->stop) {
        double us[KVE_BENCH_SERIES] = {0};
        bool quiet = true;
        KVE_TRY(once(ctx, us));
        for (size_t k = 0; k < n_series; k++) {
            kve_bench_series *s = &out->series[k];
            s->ms[s->n++] = (us[k] > 0 ? us[k] : 1) / 1000;
            summarise(s);
            quiet = quiet && s->noise_pct <= r->max_noise_pct;
        }
        size_t n = out->series[0].n;
        double seconds = (double)(kve_now_us() - start) * 1e-6;
        if (quiet && n >= (size_t)r->min_samples && seconds >= r->min_time_s)
            out->stop = "noise";
        else if (seconds >= r->timeout_s)
            out->stop = "timeout";
        else if (n == KVE_BENCH_SAMPLES)
            out->stop = "samples";
    }
    return KVE_OK;
}

static kve_status flag_num(const kve_flag *f, double high, double *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtod(f->value, &end);
    if (end == f->value || *end || errno || !(*out >= 0 && *out <= high))
        return kve_fail(KVE_ERR_USAGE, "%s: '%s' is not a number from 0 to %g", f->name, f->value, high);
    return KVE_OK;
}

kve_status kve_bench_rules_parse(const kve_flag *min_samples, const kve_flag *max_noise, const kve_flag *min_time,
                                 const kve_flag *timeout, kve_bench_rules *out)
{
    KVE_TRY(kve_flag_int(min_samples, 1, KVE_BENCH_SAMPLES, &out->min_samples));
    KVE_TRY(flag_num(max_noise, 100, &out->max_noise_pct));
    KVE_TRY(flag_num(min_time, 86400, &out->min_time_s));
    return flag_num(timeout, 86400, &out->timeout_s);
}

kve_status kve_bench_format_parse(const kve_flag *f, kve_bench_format *out)
{
    static const char *const names[] = {"md", "csv", "json", "jsonl"};
    for (int i = 0; i < 4; i++)
        if (strcmp(f->value, names[i]) == 0) {
            *out = (kve_bench_format)i;
            return KVE_OK;
        }
    return kve_fail(KVE_ERR_USAGE, "%s: '%s' is unknown; use md, csv, json or jsonl", f->name, f->value);
}

static const char *commit(void)
{
    return KVEVAL_COMMIT[0] ? KVEVAL_COMMIT : NULL;
}

void kve_bench_table_open(kve_backend *be, kve_bench_format format, const char *dtype, int32_t threads,
                          kve_bench_table *out)
{
    *out = (kve_bench_table){.format = format,
                             .dtype = dtype,
                             .backend = be->vt->describe(be),
                             .threads = threads ? threads : kve_usable_cpus()};
    kve_processor_name(out->hardware, sizeof out->hardware);
}

kve_status kve_bench_table_model(kve_bench_table *t, kve_checkpoint *ck)
{
    t->model = kve_checkpoint_config(ck)->name;
    KVE_TRY(kve_checkpoint_sha256(ck, t->model_sha256));
    snprintf(t->subject, sizeof t->subject, "model %s (sha256 %.12s)", t->model, t->model_sha256);
    return KVE_OK;
}

void kve_bench_table_close(kve_bench_table *t)
{
    if (t->format == KVE_BENCH_JSON && t->n_rows)
        printf("\n]\n");
    *t = (kve_bench_table){0};
}

enum { MAX_FIELDS = 48 };

/* The row's own fields, the statistics, what the run was made with: how many. */
static size_t make_fields(const kve_bench_table *t, const kve_bench_field *own, size_t n_own, const kve_bench_series *s,
                          const char *stop, kve_bench_field out[MAX_FIELDS])
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    int64_t peak = (int64_t)use.ru_maxrss * 1024; /* of the process until now */
    bool all = !t->brief;
    const kve_bench_field rest[] = {
        {"median_ms", KVE_BENCH_NUM, .number = s->median, .title = all ? "median ms" : NULL, .width = 10,
         .decimals = 3},
        {"min_ms", KVE_BENCH_NUM, .number = s->min, .title = all ? "min ms" : NULL, .width = 10, .decimals = 3},
        {"max_ms", KVE_BENCH_NUM, .number = s->max, .title = all ? "max ms" : NULL, .width = 10, .decimals = 3},
        {"noise_pct", KVE_BENCH_NUM, .number = s->noise_pct, .title = "noise %", .width = 7, .decimals = 2},
        {"repeats", KVE_BENCH_INT, .integer = (int64_t)s->n, .title = "repeats", .width = 7},
        {"stop", KVE_BENCH_TEXT, .text = stop, .title = all ? "stop" : NULL, .width = 7},
        {NULL, KVE_BENCH_INT, .integer = peak >> 20, .title = all ? "peak MiB" : NULL, .width = 8},
        {"peak_memory_bytes", KVE_BENCH_INT, .integer = peak},
        {"commit", KVE_BENCH_TEXT, .text = commit()},
        {"version", KVE_BENCH_TEXT, .text = KVEVAL_VERSION},
        {"hardware", KVE_BENCH_TEXT, .text = t->hardware},
        {"backend", KVE_BENCH_TEXT, .text = t->backend},
        {"threads", KVE_BENCH_INT, .integer = t->threads},
        {"model", KVE_BENCH_TEXT, .text = t->model},
        {"model_sha256", KVE_BENCH_TEXT, .text = t->model ? t->model_sha256 : NULL},
        {"dtype", KVE_BENCH_TEXT, .text = t->dtype},
    };
    size_t n_rest = sizeof rest / sizeof *rest;
    assert(n_own + n_rest <= MAX_FIELDS);
    memcpy(out, own, n_own * sizeof *own);
    memcpy(out + n_own, rest, sizeof rest);
    return n_own + n_rest;
}

/* A cell of a Markdown table: numbers stand right, texts left. */
static void print_cell(const kve_bench_field *f)
{
    if (f->kind == KVE_BENCH_TEXT)
        printf(" %-*s |", f->width, f->text);
    else if (f->kind == KVE_BENCH_INT)
        printf(" %*lld |", f->width, (long long)f->integer);
    else if (f->decimals < 0)
        printf(" %*.4g |", f->width, f->number);
    else
        printf(" %*.*f |", f->width, f->decimals, f->number);
}

static void print_md(const kve_bench_table *t, const kve_bench_field *f, size_t n)
{
    if (t->n_rows == 0) {
        printf("%s, %s, %s, %s, kveval %s %s\n\n|", t->subject, t->dtype, t->backend, t->hardware, KVEVAL_VERSION,
               commit() ? commit() : "");
        for (size_t i = 0; i < n; i++)
            if (f[i].title)
                printf(f[i].kind == KVE_BENCH_TEXT ? " %-*s |" : " %*s |", f[i].width, f[i].title);
        printf("\n|");
        for (size_t i = 0; i < n; i++) {
            for (int k = 0; f[i].title && k < f[i].width; k++)
                putchar(k ? '-' : ' ');
            if (f[i].title)
                printf(f[i].kind == KVE_BENCH_TEXT ? "- |" : ": |");
        }
        printf("\n");
    }
    printf("|");
    for (size_t i = 0; i < n; i++)
        if (f[i].title)
            print_cell(&f[i]);
    printf("\n");
}

/* Quoted where a comma or a quote would break the line. */
static void print_csv_text(const char *text)
{
    bool plain = !text || !strpbrk(text, ",\"\n");
    printf("%s", plain ? "" : "\"");
    for (const char *p = text; p && *p; p++)
        printf(*p == '"' ? "\"\"" : "%c", *p);
    printf("%s", plain ? "" : "\"");
}

static void print_csv(const kve_bench_table *t, const kve_bench_field *f, size_t n)
{
    for (size_t i = 0; i < n && t->n_rows == 0; i++)
        if (f[i].name)
            printf("%s%s", i ? "," : "", f[i].name);
    if (t->n_rows == 0)
        printf("\n");
    for (size_t i = 0; i < n; i++) {
        if (!f[i].name)
            continue;
        printf("%s", i ? "," : "");
        if (f[i].kind == KVE_BENCH_TEXT)
            print_csv_text(f[i].text);
        else if (f[i].kind == KVE_BENCH_INT)
            printf("%lld", (long long)f[i].integer);
        else
            printf("%.6g", f[i].number);
    }
    printf("\n");
}

static kve_status print_json(const kve_bench_table *t, const kve_bench_field *f, size_t n, const kve_bench_series *s)
{
    kve_str text = {0};
    kve_jw w = {.out = &text};
    kve_jw_begin(&w, '{');
    for (size_t i = 0; i < n; i++) {
        if (!f[i].name)
            continue;
        kve_jw_key(&w, f[i].name);
        if (f[i].kind == KVE_BENCH_TEXT)
            kve_jw_str(&w, f[i].text);
        else if (f[i].kind == KVE_BENCH_INT)
            kve_jw_int(&w, f[i].integer);
        else
            kve_jw_num(&w, f[i].number);
    }
    kve_jw_key(&w, "samples_ms");
    kve_jw_begin(&w, '[');
    for (size_t i = 0; i < s->n; i++)
        kve_jw_num(&w, s->ms[i]);
    kve_jw_end(&w, ']');
    kve_jw_end(&w, '}');
    if (w.status == KVE_OK && t->format == KVE_BENCH_JSON)
        printf("%s\n%s", t->n_rows ? "," : "[", text.p);
    else if (w.status == KVE_OK)
        printf("%s\n", text.p);
    kve_str_free(&text);
    return w.status;
}

kve_status kve_bench_print(kve_bench_table *t, const kve_bench_field *own, size_t n_own, const kve_bench_series *s,
                           const char *stop)
{
    kve_bench_field f[MAX_FIELDS];
    size_t n = make_fields(t, own, n_own, s, stop, f);
    kve_status st = KVE_OK;
    if (t->format == KVE_BENCH_MD)
        print_md(t, f, n);
    else if (t->format == KVE_BENCH_CSV)
        print_csv(t, f, n);
    else
        st = print_json(t, f, n, s);
    t->n_rows++;
    fflush(stdout);
    return st;
}
