/* See store_fixture.h. */
#include "tests/eval/store_fixture.h"

#include "host/base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

void must(kve_status st)
{
    if (st != KVE_OK)
        fail_msg("%s", kve_diag());
}

const char *in_dir(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", g_dir, name);
    return path;
}

kve_record cell(const char *sample, int64_t budget, const char *status, int64_t attempt, int64_t time)
{
    kve_record r;
    kve_record_clear(&r);
    r.task = "ruler-4k/vt";
    r.sample_id = sample;
    r.policy = "knorm";
    r.budget = budget;
    r.status = status;
    r.attempt = attempt;
    r.unix_time = time;
    return r;
}

unsigned slow_crc(const char *p, size_t len)
{
    unsigned crc = 0xffffffffu;
    for (size_t i = 0; i < len; i++) {
        crc ^= (unsigned char)p[i];
        for (int k = 0; k < 8; k++)
            crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    return ~crc;
}

void hand_made(int n_lines, kve_str *out)
{
    for (int i = 0; i < n_lines; i++) {
        char json[160];
        int len = snprintf(json, sizeof json,
                           "{\"sample_id\":\"s-%d\",\"task\":\"ruler-4k/vt\",\"policy\":\"knorm\",\"budget\":4,"
                           "\"status\":\"ok\",\"attempt\":1}",
                           i);
        must(kve_str_printf(out, "%08x %s\n", slow_crc(json, (size_t)len), json));
    }
}

void put_segment(const char *name, const char *data, size_t len)
{
    FILE *f = NULL;
    char path[512];
    must(kve_mkdirs(in_dir("seg")));
    snprintf(path, sizeof path, "%s/seg/%s", g_dir, name);
    assert_non_null(f = fopen(path, "wb"));
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

size_t count_segments(const char *suffix)
{
    kve_arena arena = {0};
    char **names = NULL;
    size_t n = 0;
    must(kve_dir_list(in_dir("seg"), suffix, &arena, &names, &n));
    kve_arena_free(&arena);
    return n;
}

void expect_merge(size_t records, size_t duplicates, size_t damaged, size_t failed)
{
    kve_merge m;
    must(kve_store_merge(g_dir, &m));
    if (m.n_records != records || m.n_duplicates != duplicates || m.n_damaged != damaged || m.n_failed != failed)
        fail_msg("%zu records, %zu duplicates, %zu damaged, %zu failed", m.n_records, m.n_duplicates, m.n_damaged,
                 m.n_failed);
}

size_t merged(kve_arena *arena, kve_record *out, size_t most)
{
    char *text = NULL, *save = NULL;
    size_t len = 0, n = 0;
    must(kve_file_read(in_dir("records.jsonl"), &text, &len));
    assert_true(len == 0 || text[len - 1] == '\n');
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++) {
        assert_true(n < most);
        must(kve_record_parse(line, strlen(line), "records.jsonl", arena, &out[n]));
    }
    free(text);
    return n;
}
