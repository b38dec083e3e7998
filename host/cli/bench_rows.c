/* Measurements and rows of kveval bench. Contract: bench_rows.h. */
#include "host/cli/bench_rows.h"

#include "host/base/clock.h"
#include "host/base/json.h"
#include "host/base/stats.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

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
        int64_t us[KVE_BENCH_SERIES] = {0};
        bool quiet = true;
        KVE_TRY(once(ctx, us));
        for (size_t k = 0; k < n_series; k++) {
            kve_bench_series *s = &out->series[k];
            s->ms[s->n++] = (double)(us[k] > 0 ? us[k] : 1) / 1000; /* the clock's step */
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

static void find_hardware(char *out, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, size, "unknown processor");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (colon && strncmp(line, "model name", 10) == 0) {
            snprintf(out, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
            break;
        }
    }
    if (f)
        fclose(f);
}

static const char *commit(void)
{
    return KVEVAL_COMMIT[0] ? KVEVAL_COMMIT : NULL;
}

kve_status kve_bench_table_open(const kve_opened *o, kve_bench_format format, const char *dtype, int32_t threads,
                                kve_bench_table *out)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *out = (kve_bench_table){.format = format,
                             .model = kve_checkpoint_config(o->ck)->name,
                             .dtype = dtype,
                             .backend = o->be->vt->describe(o->be),
                             .threads = threads ? threads : (int32_t)cores};
    find_hardware(out->hardware, sizeof out->hardware);
    return kve_checkpoint_sha256(o->ck, out->model_sha256);
}

void kve_bench_table_close(kve_bench_table *t)
{
    if (t->format == KVE_BENCH_JSON && t->n_rows)
        printf("\n]\n");
    *t = (kve_bench_table){0};
}

typedef struct field {
    const char *name;
    enum { TEXT, INT, NUM } kind;
    const char *text;
    int64_t integer;
    double number;
} field;

enum { N_FIELDS = 20 };

static void make_fields(const kve_bench_table *t, const kve_bench_row *row, const kve_bench_series *s, const char *stop,
                        field out[N_FIELDS])
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    const field fields[N_FIELDS] = {
        {"name", TEXT, .text = row->name},
        {"length", INT, .integer = row->length},
        {"forks", INT, .integer = row->forks},
        {"value", NUM, .number = row->value},
        {"unit", TEXT, .text = row->unit},
        {"median_ms", NUM, .number = s->median},
        {"min_ms", NUM, .number = s->min},
        {"max_ms", NUM, .number = s->max},
        {"noise_pct", NUM, .number = s->noise_pct},
        {"repeats", INT, .integer = (int64_t)s->n},
        {"stop", TEXT, .text = stop},
        {"peak_memory_bytes", INT, .integer = (int64_t)use.ru_maxrss * 1024}, /* of the process until now */
        {"commit", TEXT, .text = commit()},
        {"version", TEXT, .text = KVEVAL_VERSION},
        {"hardware", TEXT, .text = t->hardware},
        {"backend", TEXT, .text = t->backend},
        {"threads", INT, .integer = t->threads},
        {"model", TEXT, .text = t->model},
        {"model_sha256", TEXT, .text = t->model_sha256},
        {"dtype", TEXT, .text = t->dtype},
    };
    memcpy(out, fields, sizeof fields);
}

static void print_md(const kve_bench_table *t, const kve_bench_row *row, const kve_bench_series *s, const field *f)
{
    if (t->n_rows == 0)
        printf("model %s (sha256 %.12s), %s, %s, %s, kveval %s %s\n\n"
               "| name                | length | forks |      value | unit    |  median ms |     min ms |     max ms | "
               "noise %% | repeats | stop    | peak MiB |\n"
               "| ------------------- | -----: | ----: | ---------: | ------- | ---------: | ---------: | ---------: | "
               "------: | ------: | ------- | -------: |\n",
               t->model, t->model_sha256, t->dtype, t->backend, t->hardware, KVEVAL_VERSION, commit() ? commit() : "");
    printf("| %-19s | %6d | %5d | %10.2f | %-7s | %10.3f | %10.3f | %10.3f | %7.2f | %7zu | %-7s | %8.0f |\n",
           row->name, row->length, row->forks, row->value, row->unit, s->median, s->min, s->max, s->noise_pct, s->n,
           f[10].text, (double)f[11].integer / (1 << 20));
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

static void print_csv(const kve_bench_table *t, const field *f)
{
    for (int i = 0; i < N_FIELDS && t->n_rows == 0; i++)
        printf("%s%s", f[i].name, i + 1 < N_FIELDS ? "," : "\n");
    for (int i = 0; i < N_FIELDS; i++) {
        if (f[i].kind == TEXT)
            print_csv_text(f[i].text);
        else if (f[i].kind == INT)
            printf("%lld", (long long)f[i].integer);
        else
            printf("%.6g", f[i].number);
        printf("%s", i + 1 < N_FIELDS ? "," : "\n");
    }
}

static kve_status print_json(const kve_bench_table *t, const field *f, const kve_bench_series *s)
{
    kve_str text = {0};
    kve_jw w = {.out = &text};
    kve_jw_begin(&w, '{');
    for (int i = 0; i < N_FIELDS; i++) {
        kve_jw_key(&w, f[i].name);
        if (f[i].kind == TEXT)
            kve_jw_str(&w, f[i].text);
        else if (f[i].kind == INT)
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

kve_status kve_bench_print(kve_bench_table *t, const kve_bench_row *row, const kve_bench_series *s, const char *stop)
{
    field f[N_FIELDS];
    kve_status st = KVE_OK;
    make_fields(t, row, s, stop, f);
    if (t->format == KVE_BENCH_MD)
        print_md(t, row, s, f);
    else if (t->format == KVE_BENCH_CSV)
        print_csv(t, f);
    else
        st = print_json(t, f, s);
    t->n_rows++;
    fflush(stdout);
    return st;
}
