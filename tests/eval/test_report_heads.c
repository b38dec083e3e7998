/* Lost attention by layer and head: means that can be worked out by hand, one colour scale for a budget, and records
 * that do not belong in a grid. All values are sums of powers of two, so that texts compare exactly. */
#include "eval/report.h"

#include "host/base/file.h"
#include "host/base/log.h"
#include "tests/eval/report_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { L = 2, HKV = 3, HEADS = L * HKV };
static const char PALEST[] = "fill='#fff7d6'><title>", DARKEST[] = "fill='#6b0f1a'><title>";
static const char HEADER[] = "suite,policy,info,budget,layer,kv_head,n,mean_lost,compressed\n";

/* Head h loses base + h / 64; reward_lost is their mean. */
static kve_record with_heads(const char *task, const char *sample, const char *policy, int64_t budget, double base,
                             double heads[HEADS])
{
    kve_record r = a_record(task, sample, policy, budget, 0.5);
    for (int h = 0; h < HEADS; h++)
        heads[h] = base + h / 64.0;
    r.reward_heads = heads;
    r.n_reward_heads = HEADS;
    r.reward_lost = base + 2.5 / 64;
    return r;
}

static void put(run_folder *f, const char *task, const char *sample, const char *policy, int64_t budget, double base)
{
    double heads[HEADS];
    kve_record r = with_heads(task, sample, policy, budget, base, heads);
    add_record(f, &r);
}

static void put_manifest(const run_folder *f, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/manifest.json", f->path);
    assert_int_equal(kve_file_write(path, text, strlen(text)), KVE_OK);
}

static void put_shape(const run_folder *f)
{
    put_manifest(f, "{\"layers\":\"2\",\"kv_heads\":\"3\"}");
}

/* The report's Markdown, CSV of heads and page; the caller frees. */
typedef struct texts {
    char *said, *csv, *html;
} texts;

static texts run(const run_folder *f)
{
    texts t = {0};
    size_t len = 0;
    FILE *out = open_memstream(&t.said, &len);
    assert_int_equal(
        kve_report_run(&(kve_report_options){.dir = f->path, .gnuplot = "/nonexistent/gnuplot", .out = out}), KVE_OK);
    fclose(out);
    t.csv = read_back(f, "report/reward_heads.csv");
    t.html = read_back(f, "report/index.html");
    return t;
}

static void drop(texts *t)
{
    free(t->said);
    free(t->csv);
    free(t->html);
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

static void has(const char *text, const char *what)
{
    if (count(text, what) != 1)
        fail_msg("'%s' is there %zu times:\n%s", what, count(text, what), text);
}

/* Two samples of one task weigh together as much as one sample of another. */
static void test_means_by_hand(void **state)
{
    run_folder *f = *state;
    put(f, "s/a", "1", "knorm", 64, 0.125);
    put(f, "s/a", "2", "knorm", 64, 0.375);
    put(f, "s/b", "1", "knorm", 64, 0.5);
    put(f, "u", "1", "knorm", 128, 0.25);
    write_records(f);
    put_shape(f);
    texts t = run(f);
    assert_int_equal(count(t.csv, "\n"), 1 + 2 * HEADS);
    assert_memory_equal(t.csv, HEADER, sizeof HEADER - 1);
    has(t.csv, "\ns,knorm,attention-free,64,0,0,3,0.375,1\n"); /* (0.25 + 0.5) / 2 */
    has(t.csv, "\ns,knorm,attention-free,64,0,2,3,0.40625,1\n");
    has(t.csv, "\ns,knorm,attention-free,64,1,0,3,0.421875,1\n");
    has(t.csv, "\ns,knorm,attention-free,64,1,2,3,0.453125,1\n");
    has(t.csv, "\nu,knorm,attention-free,128,1,2,1,0.328125,1\n");
    has(t.html, "<title>layer 0, KV head 0: 0.375</title>");
    has(t.html, "<title>layer 1, KV head 2: 0.453125</title>");
    has(t.html, "<title>layer 1, KV head 2: 0.328125</title>");
    has(t.html, "<small>mean 0.4141</small>"); /* as the table of lost attention has it */
    assert_non_null(strstr(t.said, "| 0.4141"));
    assert_int_equal(count(t.html, "<title>layer"), 2 * HEADS);
    has(t.html, "<summary>budget 64</summary>");
    assert_null(strstr(t.said, "grids"));
    drop(&t);
}

static void test_subjects_are_pooled(void **state)
{
    run_folder *f = *state;
    static const char *const tasks[] = {"m/a", "m/a", "m/a", "m/b"};
    double heads[HEADS];
    for (int i = 0; i < 4; i++) {
        char sample[2] = {(char)('1' + i), 0};
        kve_record r = with_heads(tasks[i], sample, "knorm", 64, i == 3 ? 0.5 : 0.125 * i, heads);
        r.subject = tasks[i];
        add_record(f, &r);
    }
    write_records(f);
    put_shape(f);
    texts t = run(f);
    has(t.csv, "\nm,knorm,attention-free,64,0,0,4,0.21875,1\n"); /* (0 + 0.125 + 0.25 + 0.5) / 4, not / 2 / 3 */
    drop(&t);
}

/* The most that any policy loses is the darkest, in its budget alone. */
static void test_one_scale_per_budget(void **state)
{
    run_folder *f = *state;
    put(f, "s", "1", "knorm", 64, 0.5);
    put(f, "s", "1", "keydiff", 64, 0);
    put(f, "s", "1", "keydiff", 128, 0);
    write_records(f);
    put_shape(f);
    texts t = run(f);
    assert_int_equal(count(t.html, DARKEST), 2);
    assert_int_equal(count(t.html, PALEST), 2);
    char *split = strstr(t.html, "<summary>budget 128</summary>");
    assert_non_null(split);
    has(split, "fill='#6b0f1a'><title>layer 1, KV head 2: 0.078125</title>");
    has(split, "fill='#fff7d6'><title>layer 0, KV head 0: 0</title>");
    has(split, "</svg> 0.0781 of a head");
    *split = 0;
    has(t.html, "fill='#6b0f1a'><title>layer 1, KV head 2: 0.578125</title>");
    has(t.html, "fill='#fff7d6'><title>layer 0, KV head 0: 0</title>");
    assert_int_equal(count(t.html, "</svg> 0.5781 of a head"), 1);
    drop(&t);
}

/* Failed, unmeasured and odd records are in no mean; one that lost nothing is, without a list of zeros. */
static void test_records_that_do_not_count(void **state)
{
    run_folder *f = *state;
    double heads[HEADS + 1] = {0};
    kve_record r;
    put(f, "s", "1", "knorm", 64, 0.5);
    r = with_heads("s", "2", "knorm", 64, 0.25, heads);
    r.status = "failed";
    r.reason = "out of luck";
    add_record(f, &r);
    r = a_record("s", "3", "knorm", 64, 0.5); /* no reward */
    add_record(f, &r);
    r = a_record("s", "4", "knorm", 64, 0.5); /* a reward, but not of each head */
    r.reward_lost = 0.5;
    add_record(f, &r);
    r = a_record("s", "5", "knorm", 64, 0.5); /* shorter than the budget */
    r.n_context = r.kept_min = r.kept_max = 50;
    r.reward_lost = 0;
    add_record(f, &r);
    write_records(f);
    put_shape(f);
    texts t = run(f);
    has(t.csv, "\ns,knorm,attention-free,64,0,0,2,0.25,0.75\n"); /* 0.5 and 0; of four ok ones three were compressed */
    assert_null(strstr(t.said, "grids"));
    drop(&t);
    put(f, "s", "1", "knorm", 64, 0.5);
    r = with_heads("s", "2", "knorm", 64, 0, heads);
    r.n_reward_heads = HEADS - 1;
    add_record(f, &r);
    heads[3] = NAN;
    r.sample_id = "3";
    r.n_reward_heads = HEADS;
    add_record(f, &r);
    write_records(f);
    t = run(f);
    has(t.csv, "\ns,knorm,attention-free,64,0,0,1,0.5,1\n");
    has(t.said, "2 records are left out of the grids of layers and heads: their reward_heads are not 2 x 3 finite "
                "numbers");
    has(t.said, "first: records.jsonl, line 2, with 5 values");
    has(t.html, "first: records.jsonl, line 2, with 5 values");
    drop(&t);
}

/* A suite without one of its tasks has no mean; a policy with fewer samples says how many. */
static void test_missing_parts(void **state)
{
    run_folder *f = *state;
    put(f, "s/a", "1", "knorm", 64, 0.5);
    put(f, "s/a", "2", "knorm", 64, 0.5);
    put(f, "s/b", "1", "knorm", 64, 0.5);
    put(f, "s/a", "1", "keydiff", 64, 0.5);
    put(f, "s/a", "1", "lagkv", 64, 0.5);
    put(f, "s/b", "1", "lagkv", 64, 0.5);
    write_records(f);
    put_shape(f);
    texts t = run(f);
    assert_null(strstr(t.csv, "keydiff"));
    assert_int_equal(count(t.csv, "\ns,lagkv,attention-free,64,"), HEADS);
    has(t.html, "<small>mean 0.5391 (2)</small>");
    assert_int_equal(count(t.html, "<title>layer"), 2 * HEADS);
    drop(&t);
}

static void test_nothing_evicted(void **state)
{
    run_folder *f = *state;
    kve_record r = a_record("s", "1", "knorm", 2000, 0.5);
    r.kept_min = r.kept_max = 1000;
    r.reward_lost = 0;
    add_record(f, &r);
    put(f, "s", "1", "knorm", 64, 0.5);
    write_records(f);
    put_shape(f);
    texts t = run(f);
    assert_int_equal(count(t.html, "<title>layer"), HEADS);
    has(t.html, "<small>not compressed</small>");
    has(t.csv, "\ns,knorm,attention-free,2000,0,0,1,0,0\n"); /* the last column says the same */
    drop(&t);
}

/* Without the shape of the model there is one line instead of grids; without heads there is not even that. */
static void test_no_shape(void **state)
{
    static const char *const manifests[] = {"{}",
                                            "{\"layers\":\"2\"}",
                                            "{\"layers\":\"0\",\"kv_heads\":\"3\"}",
                                            "{\"layers\":\"2x\",\"kv_heads\":\"3\"}",
                                            "{\"layers\":\"2\",\"kv_heads\":\"-3\"}",
                                            "{\"layers\":\"2\",\"kv_heads\":\"99999999999999999999\"}"};
    run_folder *f = *state;
    put(f, "s", "1", "knorm", 64, 0.5);
    write_records(f);
    for (size_t i = 0; i < sizeof manifests / sizeof *manifests; i++) {
        put_manifest(f, manifests[i]);
        texts t = run(f);
        assert_string_equal(t.csv, HEADER);
        has(t.said, "manifest.json does not say layers and kv_heads");
        has(t.html, "manifest.json does not say layers and kv_heads");
        assert_null(strstr(t.html, "<title>layer"));
        drop(&t);
    }
    kve_record r = a_record("s", "1", "knorm", 64, 0.5);
    add_record(f, &r);
    write_records(f);
    texts t = run(f);
    assert_null(strstr(t.said, "kv_heads are"));
    assert_null(strstr(t.said, "does not say"));
    drop(&t);
}

static void test_every_allocation_may_fail(void **state)
{
    run_folder *f = *state;
    put(f, "s/a", "1", "knorm", 64, 0.5);
    put(f, "s/b", "1", "knorm", 64, 0.25);
    write_records(f);
    put_shape(f);
    kve_status st = KVE_ERR_MEMORY;
    for (long n = 1; st != KVE_OK && n < 100000; n += 1 + n / 32) {
        kve_alloc_fail_after(n);
        st = kve_report_run(&(kve_report_options){.dir = f->path, .gnuplot = "/nonexistent/gnuplot"});
        assert_true(st == KVE_OK || st == KVE_ERR_MEMORY);
    }
    kve_alloc_fail_after(0);
    assert_int_equal(st, KVE_OK);
}

#define TEST(NAME) cmocka_unit_test_setup_teardown(NAME, folder_setup, folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_means_by_hand),
        TEST(test_subjects_are_pooled),
        TEST(test_one_scale_per_budget),
        TEST(test_records_that_do_not_count),
        TEST(test_missing_parts),
        TEST(test_nothing_evicted),
        TEST(test_no_shape),
        TEST(test_every_allocation_may_fail),
    };
    kve_log_quiet(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
