/* See report_fixture.h. */
#include "tests/eval/report_fixture.h"

#include "host/base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

int folder_setup(void **state)
{
    const char *temp = getenv("TMPDIR");
    run_folder *f = calloc(1, sizeof *f);
    if (!f)
        return -1;
    snprintf(f->path, sizeof f->path, "%s/kveval-report-test-XXXXXX", temp && *temp ? temp : "/tmp");
    *state = f;
    return mkdtemp(f->path) ? 0 : -1;
}

int folder_teardown(void **state)
{
    static const char *const files[] = {
        "records.jsonl",     "manifest.json", "report/summary.csv", "report/differences.csv", "report/reward_heads.csv",
        "report/index.html", "report"};
    run_folder *f = *state;
    char path[512];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", f->path, files[i]);
        if (unlink(path) != 0)
            rmdir(path);
    }
    int rc = rmdir(f->path); /* fails if the report left anything else behind */
    kve_str_free(&f->records);
    free(f);
    return rc;
}

kve_record a_record(const char *task, const char *sample, const char *policy, int64_t budget, double score)
{
    kve_record r;
    kve_record_clear(&r);
    r.task = task;
    r.sample_id = sample;
    r.policy = policy;
    r.budget = budget;
    r.score = score;
    r.status = "ok";
    r.info = budget == KVE_NO_INT ? "none" : "attention-free";
    r.metric = "ruler_all";
    r.n_context = 1000;
    r.kept_min = r.kept_max = budget == KVE_NO_INT ? 1000 : budget;
    r.kv_bytes = r.kept_max * 100;
    r.attempt = 1;
    return r;
}

void add_record(run_folder *f, const kve_record *r)
{
    assert_int_equal(kve_record_write(r, &f->records), KVE_OK);
    add_text(f, "\n");
}

void add_text(run_folder *f, const char *text)
{
    assert_int_equal(kve_str_puts(&f->records, text), KVE_OK);
}

void write_records(run_folder *f)
{
    char path[512];
    snprintf(path, sizeof path, "%s/records.jsonl", f->path);
    assert_int_equal(kve_file_write(path, f->records.p ? f->records.p : "", f->records.len), KVE_OK);
    kve_str_clear(&f->records);
}

char *read_back(const run_folder *f, const char *name)
{
    char path[512], *text = NULL;
    size_t len = 0;
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    assert_int_equal(kve_file_read(path, &text, &len), KVE_OK);
    assert_int_equal(strlen(text), len);
    return text;
}
