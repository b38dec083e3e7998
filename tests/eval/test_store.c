/* The store of records: segments and their checksums, torn and flipped bytes, several writers, duplicates, killed
 * processes. What is "expected" here is worked out without the store. */
#include "tests/eval/store_fixture.h"

#include "host/base/file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static kve_found find(const kve_store *s, const char *sample, int64_t budget)
{
    return kve_store_find(s, "ruler-4k/vt", sample, "knorm", budget);
}

/* One record by a store of its own. */
static void add(const kve_record *r)
{
    kve_store *s = NULL;
    must(kve_store_open(g_dir, &s));
    must(kve_store_append(s, r, 1));
    kve_store_close(s);
}

static void segments_and_checksums(void **state)
{
    (void)state;
    const kve_record all[] = {cell("s-10", 4, "ok", 1, 100), cell("s-9", 4, "failed", 1, 100),
                              cell("s-9", KVE_NO_INT, "ok", 1, 100)};
    kve_store *s = NULL;
    must(kve_store_open(g_dir, &s));
    assert_int_equal(count_segments(""), 0); /* no segment before the first record */
    must(kve_store_append(s, all, 2));
    must(kve_store_append(s, all + 2, 1));
    assert_int_equal(count_segments(".jsonl.open"), 1);
    assert_false(find(s, "s-10", 4).any); /* what was there when it was opened */
    kve_store_close(s);
    assert_int_equal(count_segments(".jsonl"), 1);
    assert_int_equal(count_segments(""), 1);

    kve_arena arena = {0};
    char **names = NULL, *text = NULL, *save = NULL, path[600];
    size_t n = 0, len = 0, n_lines = 0;
    must(kve_dir_list(in_dir("seg"), "", &arena, &names, &n));
    snprintf(path, sizeof path, "%s/seg/%s", g_dir, names[0]);
    must(kve_file_read(path, &text, &len));
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n_lines++) {
        char sum[16];
        snprintf(sum, sizeof sum, "%08x ", slow_crc(line + 9, strlen(line) - 9));
        assert_memory_equal(line, sum, 9);
    }
    assert_int_equal(n_lines, 3);
    free(text);

    expect_merge(3, 0, 0, 1);
    kve_record got[3];
    assert_int_equal(merged(&arena, got, 3), 3);
    assert_true(got[0].budget == KVE_NO_INT && got[1].budget == 4); /* s-9 before s-10, no budget first */
    assert_string_equal(got[1].sample_id, "s-9");
    assert_string_equal(got[2].sample_id, "s-10");
    kve_arena_free(&arena);
}

static void finds_cells(void **state)
{
    (void)state;
    kve_record all[] = {cell("s-1", 4, "ok", 1, 1), cell("s-1", 8, "failed", 2, 1),
                        cell("s-2", KVE_NO_INT, "ok", 1, 1)};
    kve_store *s = NULL;
    all[0].prompt_sha256 = "the prompt";
    must(kve_store_open(g_dir, &s));
    assert_false(find(s, "s-1", 4).any);
    must(kve_store_append(s, all, 3));
    must(kve_store_append(s, all, 0)); /* of nothing, nothing */
    kve_store_close(s);
    must(kve_store_open(g_dir, &s));
    kve_found f = find(s, "s-1", 4);
    assert_true(f.any && f.ok && f.attempt == 1);
    assert_string_equal(f.prompt_sha256, "the prompt");
    f = find(s, "s-1", 8);
    assert_true(f.any && !f.ok && f.attempt == 2 && !f.prompt_sha256);
    assert_true(find(s, "s-2", KVE_NO_INT).ok);
    assert_false(find(s, "s-1", 5).any || find(s, "s-1", KVE_NO_INT).any || find(s, "s-3", 4).any);
    assert_false(find(s, "s-01", 4).any); /* another sample, though the same number */
    assert_false(kve_store_find(s, "ruler-04k/vt", "s-1", "knorm", 4).any);
    assert_false(kve_store_find(s, "ruler-4k/vt", "s-1", "keydiff", 4).any);
    kve_store_close(s);
}

/* A segment that ends anywhere: whole lines count, the torn one is dropped, and nothing else happens. */
static void torn_at_every_byte(void **state)
{
    (void)state;
    enum { LINES = 3 };
    kve_str text = {0};
    hand_made(LINES, &text);
    for (size_t cut = 0; cut <= text.len; cut++) {
        kve_store *s = NULL;
        char id[16];
        size_t whole = 0;
        for (size_t i = 0; i < cut; i++)
            whole += text.p[i] == '\n';
        put_segment("host.1.2.0.jsonl.open", text.p, cut);
        must(kve_store_open(g_dir, &s));
        for (size_t i = 0; i < LINES; i++) {
            snprintf(id, sizeof id, "s-%zu", i);
            if (find(s, id, 4).any != (i < whole))
                fail_msg("cut at %zu of %zu: line %zu", cut, text.len, i);
        }
        kve_store_close(s);
        bool at_end = cut > 0 && (text.p[cut - 1] == '\n' || text.p[cut] == '\n');
        if (at_end || cut % 11 == 0) /* a merge waits for the disk: not every time */
            expect_merge(whole, 0, cut > 0 && text.p[cut - 1] != '\n', 0);
    }
    kve_str_free(&text);
}

/* One bit anywhere: the line is lost (with the next one, if its end was hit), never changed. */
static void one_flipped_bit(void **state)
{
    (void)state;
    enum { LINES = 3 };
    kve_str text = {0};
    hand_made(LINES, &text);
    size_t line = 0;
    for (size_t at = 0; at < text.len; at++) {
        bool is_end = text.p[at] == '\n';
        for (int k = 0; k < 2; k++) {
            kve_store *s = NULL;
            char id[16];
            int bit = (int)(at + 3 * (size_t)k) % 8;
            text.p[at] = (char)(text.p[at] ^ 1 << bit);
            put_segment("host.1.2.0.jsonl", text.p, text.len);
            text.p[at] = (char)(text.p[at] ^ 1 << bit);
            must(kve_store_open(g_dir, &s));
            for (size_t i = 0; i < LINES; i++) {
                bool lost = i == line || (is_end && i == line + 1);
                snprintf(id, sizeof id, "s-%zu", i);
                if (find(s, id, 4).any == lost)
                    fail_msg("bit %d of byte %zu: line %zu", bit, at, i);
            }
            kve_store_close(s);
        }
        line += is_end;
    }
    put_segment("host.1.2.0.jsonl", text.p + 1, text.len - 1);
    expect_merge(LINES - 1, 0, 1, 0);
    kve_str_free(&text);
}

static void two_writers(void **state)
{
    (void)state;
    kve_store *a = NULL, *b = NULL;
    must(kve_store_open(g_dir, &a));
    must(kve_store_open(g_dir, &b));
    for (int i = 0; i < 20; i++) {
        char id[16];
        snprintf(id, sizeof id, "s-%d", i);
        kve_record r = cell(id, 4, "ok", 1, i);
        must(kve_store_append(i % 2 ? a : b, &r, 1));
        if (i % 5 == 0) { /* both computed it */
            r.unix_time = i + 1;
            must(kve_store_append(i % 2 ? b : a, &r, 1));
        }
    }
    assert_int_equal(count_segments(".open"), 2);
    expect_merge(20, 4, 0, 0); /* also while both run */
    kve_store_close(a);
    expect_merge(20, 4, 0, 0);
    kve_store_close(b);
    assert_int_equal(count_segments(".jsonl"), 2);
    expect_merge(20, 4, 0, 0);
}

/* Stores of one process within one second: no segment replaces another. */
static void segments_never_replace_each_other(void **state)
{
    (void)state;
    enum { N = 12 };
    for (int i = 0; i < N; i++) {
        char id[16];
        snprintf(id, sizeof id, "s-%d", i);
        kve_record r = cell(id, 4, "ok", 1, 1);
        add(&r);
    }
    assert_int_equal(count_segments(""), N);
    expect_merge(N, 0, 0, 0);
}

/* The copies of one cell in every order and spread over segments: the same one wins. */
static void the_winner(void **state)
{
    (void)state;
    enum { N = 5 };
    kve_record copies[N] = {cell("s", 4, "ok", 2, 50), /* wins: ok, the lowest attempt of those, the oldest */
                            cell("s", 4, "ok", 2, 60), cell("s", 4, "ok", 3, 10), cell("s", 4, "failed", 1, 5),
                            cell("s", 4, "failed", 7, 6)};
    int order[N] = {0, 1, 2, 3, 4};
    copies[0].prediction = "longer than the others: it is age that decides, not the line's length";
    for (int round = 0; round < 25; round++) {
        kve_store *a = NULL, *b = NULL;
        kve_arena arena = {0};
        kve_record got;
        remove_tree(in_dir("seg"));
        must(kve_store_open(g_dir, &a));
        must(kve_store_open(g_dir, &b));
        for (int i = 0; i < N; i++)
            must(kve_store_append((round >> i % 3) & 1 ? a : b, &copies[order[i]], 1));
        kve_store_close(a);
        kve_store_close(b);
        expect_merge(1, N - 1, 0, 0);
        assert_int_equal(merged(&arena, &got, 1), 1);
        assert_true(strcmp(got.status, "ok") == 0 && got.attempt == 2 && got.unix_time == 50);
        must(kve_store_open(g_dir, &a));
        kve_found f = find(a, "s", 4);
        assert_true(f.any && f.ok && f.attempt == 7); /* the next attempt is the eighth */
        kve_store_close(a);
        kve_arena_free(&arena);
        int first = order[round % (N - 1)]; /* another order */
        order[round % (N - 1)] = order[round % (N - 1) + 1];
        order[round % (N - 1) + 1] = first;
    }
}

/* kill -9: what had been appended is read by the next process, which leaves the file alone. */
static void killed_process(void **state)
{
    (void)state;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const kve_record two[] = {cell("s-1", 4, "ok", 1, 1), cell("s-2", 4, "failed", 1, 1)};
        kve_store *s = NULL;
        if (kve_store_open(g_dir, &s) == KVE_OK && kve_store_append(s, two, 2) == KVE_OK)
            raise(SIGKILL);
        _exit(1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(count_segments(".jsonl.open"), 1);
    kve_store *s = NULL;
    must(kve_store_open(g_dir, &s));
    assert_true(find(s, "s-1", 4).ok && find(s, "s-2", 4).any && !find(s, "s-2", 4).ok);
    kve_record again = cell("s-2", 4, "ok", 2, 2);
    must(kve_store_append(s, &again, 1));
    kve_store_close(s);
    assert_int_equal(count_segments(".jsonl.open"), 1);
    assert_int_equal(count_segments(".jsonl"), 1);
    expect_merge(2, 1, 0, 0);
}

/* A process that seals one segment after another, and one that reads all the while: it never fails, and it never loses
 * sight of a record that it has seen. */
static void read_while_others_seal(void **state)
{
    (void)state;
    enum { N = 100 };
    int status = 0;
    must(kve_mkdirs(in_dir("seg")));
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (int i = 0; i < N; i++) {
            char id[16];
            kve_store *s = NULL;
            snprintf(id, sizeof id, "s-%d", i);
            kve_record r = cell(id, 4, "ok", 1, 1);
            if (kve_store_open(g_dir, &s) != KVE_OK || kve_store_append(s, &r, 1) != KVE_OK)
                _exit(1);
            kve_store_close(s);
        }
        _exit(0);
    }
    int seen = 0;
    for (bool over = false; !over;) {
        over = waitpid(child, &status, WNOHANG) == child;
        kve_store *s = NULL;
        char id[16];
        int n = 0;
        must(kve_store_open(g_dir, &s));
        do
            snprintf(id, sizeof id, "s-%d", n);
        while (find(s, id, 4).any && ++n);
        kve_store_close(s);
        if (n < seen)
            fail_msg("%d records, then %d", seen, n);
        seen = n;
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(seen, N);
}

/* A merge that began to read earlier would replace a newer file: it waits until it can do both. */
static void one_merge_at_a_time(void **state)
{
    (void)state;
    kve_record first = cell("s-1", 4, "ok", 1, 1), second = cell("s-2", 4, "ok", 1, 1);
    int status = 0, other = open(g_dir, O_RDONLY | O_DIRECTORY);
    add(&first);
    if (flock(other, LOCK_EX) != 0) {
        print_message("skipped: this file system has no locks\n");
        skip();
    }
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kve_merge m;
        _exit(kve_store_merge(g_dir, &m) != KVE_OK || m.n_records != 2);
    }
    usleep(200000);
    assert_int_equal(waitpid(child, &status, WNOHANG), 0);
    assert_false(kve_path_exists(in_dir("records.jsonl")));
    add(&second);
    flock(other, LOCK_UN);
    close(other);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(segments_and_checksums),
        TEST(finds_cells),
        TEST(torn_at_every_byte),
        TEST(one_flipped_bit),
        TEST(two_writers),
        TEST(segments_never_replace_each_other),
        TEST(the_winner),
        TEST(killed_process),
        TEST(read_while_others_seal),
        TEST(one_merge_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
