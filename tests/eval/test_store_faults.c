/* The store of records when something fails under it: folders, foreign lines, a full disk, memory. */
#include "tests/eval/store_fixture.h"

#include "host/base/file.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void fails_on(kve_status st, const char *word)
{
    assert_int_equal(st, KVE_ERR_FILE);
    if (!strstr(kve_diag(), g_dir) || !strstr(kve_diag(), word))
        fail_msg("'%s' or the folder is not in: %s", word, kve_diag());
}

static void folders_that_cannot_be_used(void **state)
{
    (void)state;
    kve_store *s = NULL;
    kve_merge m;
    kve_record r = cell("s", 4, "ok", 1, 1);
    char below[600];
    fails_on(kve_store_merge(g_dir, &m), "seg"); /* no run was ever there */
    must(kve_file_write(in_dir("file"), "x", 1));
    snprintf(below, sizeof below, "%s/file/out", g_dir);
    fails_on(kve_store_open(below, &s), "file");
    must(kve_store_open(g_dir, &s)); /* and one that vanishes under the run */
    remove_tree(in_dir("seg"));
    fails_on(kve_store_append(s, &r, 1), "--out");
    must(kve_mkdirs(in_dir("seg")));
    must(kve_store_append(s, &r, 1)); /* it is back */
    kve_store_close(s);
    must(kve_mkdirs(in_dir("records.jsonl")));
    fails_on(kve_store_merge(g_dir, &m), "records.jsonl");
    rmdir(in_dir("records.jsonl"));
    expect_merge(1, 0, 0, 0);
    if (geteuid() == 0) {
        print_message("skipped: a folder without write permission stops nobody who is root\n");
        return;
    }
    assert_int_equal(chmod(in_dir("seg"), 0555), 0);
    must(kve_store_open(g_dir, &s));
    fails_on(kve_store_append(s, &r, 1), "seg");
    kve_store_close(s);
    assert_int_equal(chmod(in_dir("seg"), 0755), 0);
}

/* A line under a good checksum that is no record was written by something else: an error, not a lost line. */
static void foreign_lines(void **state)
{
    (void)state;
    kve_store *s = NULL;
    kve_str line = {0};
    must(kve_str_printf(&line, "%08x %s\n", slow_crc("{\"task\":1}", 10), "{\"task\":1}"));
    put_segment("other.jsonl", line.p, line.len);
    fails_on(kve_store_open(g_dir, &s), "other.jsonl");
    put_segment("other.jsonl", "", 0);
    put_segment("notes.txt", line.p, line.len); /* no segment */
    static const char *const junk[] = {"\n", "\n\n\n", "12345678", "12345678 \n", "zzzzzzzz {}\n", "\0\0\0\0\n"};
    for (size_t i = 0; i < sizeof junk / sizeof *junk; i++) {
        put_segment("other.jsonl", junk[i], i == 5 ? 5 : strlen(junk[i]));
        must(kve_store_open(g_dir, &s));
        kve_store_close(s);
    }
    expect_merge(0, 0, 1, 0);
    char *text = NULL;
    size_t len = 1;
    must(kve_file_read(in_dir("records.jsonl"), &text, &len));
    assert_int_equal(len, 0);
    free(text);
    kve_str_free(&line);
}

/* A limit on the size of files stands in for a full disk: the failed write leaves nothing, the store goes on after. */
static void full_disk(void **state)
{
    (void)state;
    struct rlimit before, small;
    kve_store *s = NULL;
    kve_record r = cell("s-1", 4, "ok", 1, 1);
    must(kve_store_open(g_dir, &s));
    must(kve_store_append(s, &r, 1));
    kve_str one = {0};
    must(kve_record_write(&r, &one));
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (size_t room = 0; room < one.len; room += 97) {
        small = before;
        small.rlim_cur = one.len + 10 + room;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        r = cell("s-2", 4, "ok", 1, 1);
        kve_status st = kve_store_append(s, &r, 1);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        fails_on(st, "make room");
    }
    signal(SIGXFSZ, SIG_DFL);
    expect_merge(1, 0, 0, 0);
    must(kve_store_append(s, &r, 1));
    kve_store_close(s);
    expect_merge(2, 0, 0, 0);
    kve_str_free(&one);
}

static kve_status append_one(kve_store *s)
{
    kve_record r = cell("s-new", 4, "ok", 1, 1);
    return kve_store_append(s, &r, 1);
}

/* Every allocation of opening, appending and merging fails once; nothing that was there is lost. */
static void no_memory(void **state)
{
    (void)state;
    kve_store *s = NULL;
    kve_merge m;
    kve_str text = {0};
    long n = 1;
    hand_made(300, &text); /* more than the first table of entries holds */
    put_segment("host.1.2.0.jsonl", text.p, text.len);
    expect_merge(300, 0, 0, 0);
    for (kve_status st = KVE_ERR_MEMORY; st != KVE_OK; n++) {
        kve_alloc_fail_after(n);
        st = kve_store_open(g_dir, &s);
        kve_alloc_fail_after(0);
        assert_true(st == KVE_OK || st == KVE_ERR_MEMORY);
    }
    assert_true(n > 300);
    n = 1;
    for (kve_status st = KVE_ERR_MEMORY; st != KVE_OK; n++) {
        kve_alloc_fail_after(n);
        st = append_one(s);
        kve_alloc_fail_after(0);
        assert_true(st == KVE_OK || st == KVE_ERR_MEMORY);
    }
    assert_true(n > 3);
    kve_alloc_fail_after(1); /* closing cannot fail: the segment keeps its name, and is read all the same */
    kve_store_close(s);
    kve_alloc_fail_after(0);
    assert_int_equal(count_segments(".open"), 1);
    n = 1;
    for (kve_status st = KVE_ERR_MEMORY; st != KVE_OK; n++) {
        kve_alloc_fail_after(n);
        st = kve_store_merge(g_dir, &m);
        kve_alloc_fail_after(0);
        assert_true(st == KVE_OK || st == KVE_ERR_MEMORY);
        kve_arena arena = {0};
        kve_record *got = calloc(400, sizeof *got);
        assert_non_null(got);
        if (n % 64 == 1 || st == KVE_OK) /* the old file stands until the new one is whole */
            assert_int_equal(merged(&arena, got, 400), st == KVE_OK ? 301 : 300);
        free(got);
        kve_arena_free(&arena);
    }
    assert_true(m.n_records == 301 && m.n_damaged == 0);
    kve_str_free(&text);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(folders_that_cannot_be_used),
        TEST(foreign_lines),
        TEST(full_disk),
        TEST(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
