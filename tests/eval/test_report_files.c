/* What the report writes: CSV that reads back, a page that no name can break, the same bytes twice, and its errors. */
#include "eval/report.h"

#include "host/base/file.h"
#include "host/base/log.h"
#include "tests/eval/report_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FULL KVE_NO_INT
static const char HOSTILE[] = "<script>alert(\"x\")</script>&'|\n\x1b[2J,y";
static const char NO_GNUPLOT[] = "/nonexistent/gnuplot";

static kve_status run_mix(const run_folder *f, const char *gnuplot, bool mix, char **markdown)
{
    size_t len = 0;
    FILE *out = markdown ? open_memstream(markdown, &len) : NULL;
    kve_status st = kve_report_run(&(kve_report_options){.dir = f->path, .gnuplot = gnuplot, .out = out, .mix = mix});
    if (out)
        fclose(out);
    return st;
}

static kve_status run(const run_folder *f, const char *gnuplot, char **markdown)
{
    return run_mix(f, gnuplot, false, markdown);
}

static void put(run_folder *f, const char *task, const char *sample, const char *policy, int64_t budget, double score)
{
    kve_record r = a_record(task, sample, policy, budget, score);
    r.reward_lost = budget == FULL ? NAN : 1 - score;
    r.prompt_sha256 = sample;
    add_record(f, &r);
}

/* Two tasks, three policies (one with a hostile name), two budgets. */
static void small_run(run_folder *f, bool backwards)
{
    static const char *const tasks[] = {"s/a", "s/b"}, *const samples[] = {"1", "2", "3"};
    for (int k = 0; k < 6; k++) {
        int i = backwards ? 5 - k : k;
        const char *task = tasks[i / 3], *sample = samples[i % 3];
        put(f, task, sample, "full", FULL, 0.9);
        for (int64_t b = 64; b <= 128; b *= 2) {
            put(f, task, sample, "knorm", b, 0.1 * i + (double)b / 1000 / 3);
            put(f, task, sample, HOSTILE, b, 0.1 * i);
        }
    }
    write_records(f);
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

/* One field of RFC 4180; *p moves behind the field's comma or line end. */
static char *csv_field(const char **p)
{
    char *out = calloc(1, strlen(*p) + 1), *w = out;
    bool quoted = **p == '"';
    *p += quoted;
    while (**p && (quoted ? !(**p == '"' && (*p)[1] != '"') : **p != ',' && **p != '\n')) {
        *p += quoted && **p == '"';
        *w++ = *(*p)++;
    }
    *p += quoted;
    if (**p)
        ++*p;
    return out;
}

static void test_csv_reads_back(void **state)
{
    enum {
        N_COLS = 28,
        TASK = 2,
        POLICY = 3,
        BUDGET = 5,
        METRIC = 6,
        N = 8,
        MEAN = 9,
        LOW = 10,
        HIGH = 11,
        COMPRESSED = 26
    };
    run_folder *f = *state;
    small_run(f, false);
    assert_int_equal(run(f, NO_GNUPLOT, NULL), KVE_OK);
    char *text = read_back(f, "report/summary.csv"), *field[N_COLS];
    size_t n_rows = 0, n_hostile = 0;
    bool seen = false;
    for (const char *p = text; *p; n_rows++) {
        for (int c = 0; c < N_COLS; c++)
            field[c] = csv_field(&p);
        assert_true(p[-1] == '\n');
        n_hostile += strcmp(field[POLICY], HOSTILE) == 0;
        if (strcmp(field[TASK], "s/b") == 0 && strcmp(field[POLICY], "knorm") == 0 &&
            strcmp(field[BUDGET], "128") == 0 && strcmp(field[METRIC], "ruler_all") == 0) {
            double third = 128.0 / 1000 / 3, mean = strtod(field[MEAN], NULL);
            seen = true;
            assert_true(fabs(mean - (0.4 + third)) < 1e-15);
            assert_string_equal(field[N], "3");
            assert_string_equal(field[COMPRESSED], "1");
            assert_true(strtod(field[LOW], NULL) < mean && mean < strtod(field[HIGH], NULL));
        }
        for (int c = 0; c < N_COLS; c++)
            free(field[c]);
    }
    assert_true(seen);
    assert_int_equal(n_hostile, 3 * 2 * 2);                /* scopes x budgets x measures */
    assert_int_equal(n_rows, 1 + 3 * (2 + 2 * 2 + 2 * 2)); /* header; full has a row for each measure too */
    free(text);
}

/* The row of a table that begins with `name`, to its end. */
static const char *table_row(const char *markdown, const char *title, const char *name)
{
    static char line[512];
    const char *at = strstr(markdown, title);
    assert_non_null(at);
    at = strstr(at, name);
    assert_non_null(at);
    snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
    return line;
}

static void put_prompt(run_folder *f, const char *sample, const char *policy, int64_t budget, int64_t n_context,
                       double score)
{
    kve_record r = a_record("short", sample, policy, budget, score);
    r.n_context = n_context;
    r.kept_min = r.kept_max = budget == KVE_NO_INT || budget > n_context ? n_context : budget;
    r.metric = "acc_norm";
    r.acc = 1 - score;
    r.acc_norm = score;
    add_record(f, &r);
}

/* A budget that is above every prompt has no value; one that is above some says how many were compressed. */
static void test_short_prompts(void **state)
{
    run_folder *f = *state;
    static const int64_t budgets[] = {16, 64, 256};
    char *markdown = NULL;
    for (int i = 0; i < 4; i++) {
        char sample[16];
        snprintf(sample, sizeof sample, "%d", i);
        put_prompt(f, sample, "full", KVE_NO_INT, 40 + 20 * i, 1);
        for (size_t b = 0; b < 3; b++)
            put_prompt(f, sample, "knorm", budgets[b], 40 + 20 * i, i % 2);
    }
    write_records(f);
    assert_int_equal(run(f, NULL, &markdown), KVE_OK);
    const char *row = table_row(markdown, "short: Score (acc_norm)", "| knorm");
    assert_int_equal(count(row, "| 0.500"), 2);
    assert_int_equal(count(row, "not compressed"), 1);
    row = table_row(markdown, "short: Score (acc_norm)", "| (samples compressed)");
    assert_non_null(strstr(row, "| 100 %"));
    assert_non_null(strstr(row, "| 50 %"));
    assert_non_null(strstr(row, "| 0 %"));
    assert_int_equal(count(table_row(markdown, "short: Score (acc_norm)", "| full"), "not compressed"), 0);
    row = table_row(markdown, "paired difference to the full cache", "| knorm");
    assert_int_equal(count(row, "not compressed"), 1);
    row = table_row(markdown, "short: Accuracy", "| knorm"); /* the second metric has a table of its own */
    assert_int_equal(count(row, "| 0.500"), 2);
    free(markdown);
    char *html = read_back(f, "report/index.html");
    assert_int_equal(count(html, "(samples compressed)") > 0, 1);
    assert_true(count(html, "not compressed") >= 3);
    free(html);
}

static void test_nothing_short(void **state)
{
    run_folder *f = *state;
    char *markdown = NULL;
    small_run(f, false);
    assert_int_equal(run(f, NO_GNUPLOT, &markdown), KVE_OK);
    assert_int_equal(count(markdown, "(samples compressed)"), 0);
    free(markdown);
}

static void test_empty_name(void **state)
{
    run_folder *f = *state;
    char *markdown = NULL;
    put(f, "", "", "", 64, 0.5);
    write_records(f);
    assert_int_equal(run(f, NO_GNUPLOT, &markdown), KVE_OK);
    assert_non_null(strstr(markdown, "0.5"));
    free(markdown);
}

static void test_page_and_hostile_names(void **state)
{
    run_folder *f = *state;
    char *markdown = NULL;
    small_run(f, false);
    assert_int_equal(run(f, NULL, &markdown), KVE_OK);
    char *html = read_back(f, "report/index.html");
    assert_int_equal(count(html, "<script"), 0);
    assert_int_equal(count(html, "alert(\""), 0);
    assert_null(strchr(html, '\x1b'));
    assert_null(strchr(markdown, '\x1b'));
    assert_true(count(html, "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;&#39;|") > 3);
    assert_true(count(html, "knorm") > 3 && count(html, "</svg>full") > 1);
    assert_int_equal(count(html, "http"), count(html, "http://www.w3.org/")); /* names of SVG, nothing to fetch */
    assert_int_equal(count(html, "<td"), count(html, "</td>"));
    assert_int_equal(count(html, "<svg"), count(html, "</svg>"));
    assert_int_equal(count(html, "<figure"), count(html, "</figure>"));
    assert_true(strstr(markdown, "| knorm ") && strstr(markdown, "\\|")); /* the pipe cannot end a table's cell */
    free(html);
    free(markdown);
}

static void test_plots_or_a_reason(void **state)
{
    run_folder *f = *state;
    small_run(f, false);
    assert_int_equal(run(f, NULL, NULL), KVE_OK);
    char *html = read_back(f, "report/index.html");
    if (system("gnuplot --version >/dev/null 2>&1") != 0) {
        print_message("skipped: gnuplot is not installed\n");
    } else {
        assert_int_equal(count(html, "<figure"), 2 * (1 + 2)); /* score and reward: the suite and its two tasks */
        assert_int_equal(count(html, "id='k0gpPt6'"), 1);
        assert_int_equal(count(html, "id='k5gpPt6'"), 1);
        assert_int_equal(count(html, "id='gpPt"), 0);
        assert_true(count(html, "<title>knorm</title>") == 2 * 6);
    }
    free(html);
    assert_int_equal(run(f, NO_GNUPLOT, NULL), KVE_OK);
    html = read_back(f, "report/index.html");
    assert_int_equal(count(html, "<figure"), 0);
    assert_true(count(html, "apt-get install gnuplot-nox") == 1);
    assert_true(count(html, "<table>") > 3);
    free(html);
    assert_int_equal(run(f, "false", NULL), KVE_OK); /* it runs, and fails */
    html = read_back(f, "report/index.html");
    assert_true(count(html, "&#39;false&#39; failed") == 1);
    free(html);
}

static void test_same_bytes(void **state)
{
    run_folder *f = *state;
    static const char *const files[] = {"report/index.html", "report/summary.csv", "report/differences.csv"};
    char *first[3], *said[2] = {NULL, NULL};
    small_run(f, false);
    assert_int_equal(run(f, NULL, &said[0]), KVE_OK);
    for (int i = 0; i < 3; i++)
        first[i] = read_back(f, files[i]);
    small_run(f, true); /* the order of the lines does not matter either */
    assert_int_equal(run(f, NULL, &said[1]), KVE_OK);
    assert_string_equal(said[0], said[1]);
    for (int i = 0; i < 3; i++) {
        char *again = read_back(f, files[i]);
        assert_string_equal(first[i], again);
        free(again);
        free(first[i]);
    }
    free(said[0]);
    free(said[1]);
}

static void test_warnings(void **state)
{
    run_folder *f = *state;
    char *said = NULL;
    kve_record r = a_record("t", "1", "knorm", 64, 0.5);
    r.prompt_sha256 = "aa";
    add_record(f, &r);
    r.policy = "tova";
    r.info = "prefill-attention";
    r.prompt_sha256 = "bb";
    r.question_in_prefill = true;
    r.task_version = "2";
    r.kept_max = 70;
    r.note = "shorter answers";
    add_record(f, &r);
    r.sample_id = "2";
    r.status = "failed";
    r.reason = "out of luck";
    r.task_version = "3";
    add_record(f, &r);
    write_records(f);
    assert_int_equal(run_mix(f, NO_GNUPLOT, true, &said), KVE_OK);
    assert_non_null(strstr(said, "1 of 3 cells failed"));
    assert_non_null(strstr(said, "out of luck"));
    assert_non_null(strstr(said, "different prompts (prompt_sha256, lines 1 and 2"));
    assert_non_null(strstr(said, "1 of 2 cells had the question in the prefill"));
    assert_non_null(strstr(said, "MORE than allowed"));
    assert_non_null(strstr(said, "versions of the task '2' and '3'"));
    assert_non_null(strstr(said, "shorter answers"));
    assert_non_null(strstr(said, "| tova \xe2\x80\xa0"));
    free(said);
}

/* Question in and out, versions, metrics, prompts in one table: refused and named, or marked. */
static void test_mixed_folder(void **state)
{
    run_folder *f = *state;
    static const char *const words[] = {"1 of 2 cells had the question in the prefill",
                                        "versions of the task '1' and '2'", "metrics 'acc' and 'exact_match'",
                                        "run on different prompts"};
    for (int kind = 0; kind < 4; kind++) {
        char *said = NULL, *html;
        kve_record r = a_record("t", "1", "knorm", 64, 0.5);
        r.prompt_sha256 = "aa";
        r.task_version = "1";
        r.metric = "acc";
        add_record(f, &r);
        r.policy = "tova";
        r.question_in_prefill = kind == 0;
        r.task_version = kind == 1 ? "2" : "1";
        r.metric = kind == 2 ? "exact_match" : "acc";
        r.prompt_sha256 = kind == 3 ? "bb" : "aa";
        add_record(f, &r);
        write_records(f);
        assert_int_equal(run(f, NO_GNUPLOT, &said), KVE_ERR_USAGE);
        if (!strstr(kve_diag(), words[kind]) || !strstr(kve_diag(), "--mix") || *said)
            fail_msg("kind %d: '%s' was said, and '%s' printed", kind, kve_diag(), said);
        free(said);
        assert_int_equal(run_mix(f, NO_GNUPLOT, true, &said), KVE_OK);
        assert_int_equal(count(said, "**UNLIKE PROTOCOLS (--mix):**"), 1);
        assert_non_null(strstr(said, words[kind]));
        html = read_back(f, "report/index.html");
        assert_int_equal(count(html, "<li class='warn'>UNLIKE PROTOCOLS (--mix): "), 1);
        free(html);
        free(said);
    }
}

static void test_manifest(void **state)
{
    run_folder *f = *state;
    char path[512], *html, *said = NULL;
    static const char text[] = "{\"model\":\"a<b\",\"seed\":7,\"command\":[\"kveval\",\"eval\"],\"other\":1}";
    small_run(f, false);
    snprintf(path, sizeof path, "%s/manifest.json", f->path);
    assert_int_equal(kve_file_write(path, text, strlen(text)), KVE_OK);
    assert_int_equal(run(f, NO_GNUPLOT, &said), KVE_OK);
    html = read_back(f, "report/index.html");
    assert_non_null(strstr(html, "<dt>model</dt><dd>a&lt;b</dd>"));
    assert_non_null(strstr(html, "<dt>seed</dt><dd>7</dd>"));
    assert_non_null(strstr(said, "- command: kveval eval\n"));
    free(html);
    free(said);
    assert_int_equal(kve_file_write(path, "{", 1), KVE_OK); /* broken: a warning, and the report all the same */
    assert_int_equal(run(f, NO_GNUPLOT, NULL), KVE_OK);
}

static void expect_failure(run_folder *f, kve_status want, const char *words)
{
    assert_int_equal(run(f, NO_GNUPLOT, NULL), want);
    if (!strstr(kve_diag(), words))
        fail_msg("'%s' does not say '%s'", kve_diag(), words);
}

static void test_errors(void **state)
{
    run_folder *f = *state;
    char path[512];
    expect_failure(f, KVE_ERR_FILE, "records.jsonl");
    write_records(f);
    expect_failure(f, KVE_ERR_FILE, "records.jsonl: holds no record");
    add_text(f, "\n  \n");
    write_records(f);
    expect_failure(f, KVE_ERR_FILE, "holds no record");
    put(f, "t", "1", "knorm", 64, 1.0);
    add_text(f, "{\"task\":\n");
    write_records(f);
    expect_failure(f, KVE_ERR_FILE, "records.jsonl:2");
    put(f, "t", "1", "knorm", 64, 1.0);
    add_text(f, "\n{\"task\":\"t\",\"sample_id\":\"1\",\"policy\":\"p\",\"status\":\"maybe\"}");
    write_records(f);
    expect_failure(f, KVE_ERR_FILE, "records.jsonl:3: status is 'maybe'");
    put(f, "t", "1", "knorm", 0, 1.0);
    write_records(f);
    expect_failure(f, KVE_ERR_FILE, "records.jsonl:1: budget is 0");
    put(f, "t", "1", "knorm", 64, 1.0);
    write_records(f);
    snprintf(path, sizeof path, "%s/report", f->path);
    assert_int_equal(kve_file_write(path, "x", 1), KVE_OK); /* a file where the folder should be */
    expect_failure(f, KVE_ERR_FILE, "report");
}

static void test_full_alone_and_all_failed(void **state)
{
    run_folder *f = *state;
    char *said = NULL;
    put(f, "t", "1", "full", FULL, 1.0);
    write_records(f);
    assert_int_equal(run(f, NULL, &said), KVE_OK);
    assert_non_null(strstr(said, "| full   | 1   | 1.000"));
    free(said);
    kve_record r = a_record("t", "1", "knorm", 64, NAN);
    r.status = "failed";
    add_record(f, &r);
    write_records(f);
    assert_int_equal(run(f, NULL, NULL), KVE_OK);
}

static void test_every_allocation_may_fail(void **state)
{
    run_folder *f = *state;
    small_run(f, false);
    kve_status st = KVE_ERR_MEMORY;
    for (long n = 1; st != KVE_OK && n < 100000; n += 1 + n / 16) {
        kve_alloc_fail_after(n);
        st = run(f, NO_GNUPLOT, NULL);
        assert_true(st == KVE_OK || st == KVE_ERR_MEMORY);
    }
    kve_alloc_fail_after(0);
    assert_int_equal(st, KVE_OK);
}

static void test_two_runs(void **state)
{
    run_folder *a = *state, *b = NULL;
    void *other = NULL;
    char *said = NULL;
    size_t len = 0;
    assert_int_equal(folder_setup(&other), 0);
    b = other;
    for (int i = 0; i < 4; i++) {
        const char *sample = &"1\0002\0003\0004"[2 * i];
        put(a, "s/a", sample, "knorm", 64, 0.1 * i);
        put(b, "s/a", sample, "knorm", 64, 0.1 * i + 0.25);
        put(b, "s/only-b", sample, "knorm", 64, 0.0);
    }
    write_records(a);
    write_records(b);
    FILE *out = open_memstream(&said, &len);
    assert_int_equal(kve_report_compare(a->path, b->path, false, out), KVE_OK);
    fflush(out);
    assert_non_null(strstr(said, "| +0.250 \xc2\xb1"
                                 "0.000 *"));
    put(b, "u/x", "1", "knorm", 64, 1.0);
    write_records(b);
    assert_int_equal(kve_report_compare(a->path, b->path, false, out), KVE_ERR_USAGE);
    assert_non_null(strstr(kve_diag(), "share no task"));
    put(b, "s/a", "9", "knorm", 64, 1.0);
    write_records(b);
    assert_int_equal(kve_report_compare(a->path, b->path, false, out), KVE_ERR_USAGE);
    assert_non_null(strstr(kve_diag(), "no (task, sample, policy, budget)"));
    fclose(out);
    free(said);
    assert_int_equal(folder_teardown(&other), 0);
}

static void put_manifest(const run_folder *f, const char *settings)
{
    char path[512], text[512];
    snprintf(path, sizeof path, "%s/manifest.json", f->path);
    int n = snprintf(text, sizeof text, "{\"sink\":\"4\",\"dtype\":\"bf16\"%s}", settings);
    assert_int_equal(kve_file_write(path, text, (size_t)n), KVE_OK);
}

/* Each setting that differs is named with both values; --mix compares all the same, and says so. */
static void test_two_protocols(void **state)
{
    static const char *const differ[][2] = {
        {",\"recent\":\"16\",\"question\":\"in\"", "question is default in A and in in B"},
        {",\"shots\":\"5\"", "shots is default in A and 5 in B"},
        {",\"backend\":\"cuda\"", "backend is default in A and cuda in B"},
        {",\"chat_family\":\"plain\"", "chat_family is default in A and plain in B"},
        {",\"model_sha256\":\"0123456789abcdef\"", "model_sha256 is default in A and 0123456789ab in B"},
        {",\"answer\":\"generate\"", "answer is default in A and generate in B"},
        {",\"evict_every\":\"64\"", "evict_every is default in A and 64 in B"},
    };
    run_folder *a = *state, *b = NULL;
    void *other = NULL;
    assert_int_equal(folder_setup(&other), 0);
    b = other;
    put(a, "s/a", "1", "knorm", 64, 0.25);
    put(b, "s/a", "1", "knorm", 64, 0.5);
    write_records(a);
    write_records(b);
    put_manifest(a, "");
    for (size_t i = 0; i < sizeof differ / sizeof *differ; i++) {
        char *said = NULL;
        size_t len = 0;
        FILE *out = open_memstream(&said, &len);
        put_manifest(b, differ[i][0]);
        assert_int_equal(kve_report_compare(a->path, b->path, false, out), KVE_ERR_USAGE);
        if (!strstr(kve_diag(), differ[i][1]) || !strstr(kve_diag(), "--mix"))
            fail_msg("'%s' does not say '%s'", kve_diag(), differ[i][1]);
        assert_int_equal(fflush(out), 0);
        assert_int_equal(len, 0);
        assert_int_equal(kve_report_compare(a->path, b->path, true, out), KVE_OK);
        fclose(out);
        assert_true(count(said, "UNLIKE PROTOCOLS (--mix):") > 0 && strstr(said, differ[i][1]));
        assert_non_null(strstr(said, "| +0.250"));
        free(said);
    }
    put_manifest(b, "");
    char *said = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&said, &len);
    assert_int_equal(kve_report_compare(a->path, b->path, false, out), KVE_OK);
    fclose(out);
    assert_null(strstr(said, "UNLIKE"));
    assert_null(strstr(said, "Warning"));
    free(said);
    assert_int_equal(folder_teardown(&other), 0);
}

#define TEST(NAME) cmocka_unit_test_setup_teardown(NAME, folder_setup, folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_csv_reads_back),
        TEST(test_short_prompts),
        TEST(test_nothing_short),
        TEST(test_empty_name),
        TEST(test_page_and_hostile_names),
        TEST(test_plots_or_a_reason),
        TEST(test_same_bytes),
        TEST(test_warnings),
        TEST(test_mixed_folder),
        TEST(test_manifest),
        TEST(test_errors),
        TEST(test_full_alone_and_all_failed),
        TEST(test_every_allocation_may_fail),
        TEST(test_two_runs),
        TEST(test_two_protocols),
    };
    kve_log_quiet(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
