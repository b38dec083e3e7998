/* The base layer: diagnostics, memory, files, hashes, JSON, random numbers, statistics. */
#include "host/base/file.h"
#include "host/base/hash.h"
#include "host/base/json.h"
#include "host/base/rng.h"
#include "host/base/stats.h"
#include "host/base/text.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void test_diag(void **state)
{
    (void)state;
    assert_int_equal(kve_fail(KVE_ERR_FILE, "field %d", 7), KVE_ERR_FILE);
    assert_int_equal(kve_fail_context(KVE_ERR_FILE, "a.json"), KVE_ERR_FILE);
    assert_string_equal(kve_diag(), "a.json: field 7");
    for (int i = 0; i < 400; i++)
        kve_fail_context(KVE_ERR_FILE, "level %d", i);
    assert_int_equal(strncmp(kve_diag(), "level 399: level 398", 20), 0);
}

static void test_memory(void **state)
{
    (void)state;
    void *p = NULL;
    assert_int_equal(kve_alloc(SIZE_MAX / 2, 4, &p), KVE_ERR_MEMORY);
    assert_null(p);
    kve_alloc_fail_after(2);
    assert_int_equal(kve_alloc(8, 1, &p), KVE_OK);
    void *q = NULL;
    assert_int_equal(kve_alloc(8, 1, &q), KVE_ERR_MEMORY);
    assert_int_equal(kve_alloc(8, 1, &q), KVE_OK); /* one failure only */
    free(p);
    free(q);
    kve_arena a = {0};
    char *text[300];
    for (int i = 0; i < 300; i++) {
        assert_int_equal(kve_arena_strndup(&a, "0123456789", 10, &text[i]), KVE_OK);
        assert_int_equal((uintptr_t)text[i] % 16, 0);
    }
    assert_int_equal(kve_arena_alloc(&a, 1 << 20, 1, &p), KVE_OK); /* larger than a block */
    assert_string_equal(text[0], "0123456789");
    kve_arena_free(&a);
    kve_str s = {0};
    assert_int_equal(kve_str_printf(&s, "%s-%d", "b", 512), KVE_OK);
    assert_string_equal(s.p, "b-512");
    kve_str_free(&s);
}

static void test_files(void **state)
{
    (void)state;
    char dir[] = "/tmp/kveval-test-XXXXXX";
    kve_str path = {0};
    char *text = NULL, **names = NULL;
    size_t len = 0, n = 0;
    kve_arena a = {0};
    assert_non_null(mkdtemp(dir));
    assert_int_equal(kve_path_join(&path, dir, "x/y"), KVE_OK);
    assert_int_equal(kve_mkdirs(path.p), KVE_OK);
    assert_int_equal(kve_mkdirs(path.p), KVE_OK);
    assert_true(kve_path_is_dir(path.p));
    assert_int_equal(kve_path_join(&path, dir, "b.json"), KVE_OK);
    assert_int_equal(kve_file_write(path.p, "one", 3), KVE_OK);
    assert_int_equal(kve_file_write(path.p, "", 0), KVE_OK);
    assert_int_equal(kve_file_read(path.p, &text, &len), KVE_OK);
    assert_int_equal(len, 0);
    free(text);
    kve_map map = {0};
    kve_map_close(&map);
    assert_int_equal(kve_map_open(path.p, &map), KVE_OK);
    assert_int_equal(map.size, 0);
    assert_non_null(map.data); /* readers step over an empty file like over any other */
    kve_map_close(&map);
    assert_int_equal(kve_dir_list(dir, ".json", &a, &names, &n), KVE_OK);
    assert_int_equal(n, 1);
    assert_string_equal(names[0], "b.json");
    assert_int_equal(kve_file_read(dir, &text, &len), KVE_ERR_FILE); /* a folder is no file */
    assert_int_equal(kve_file_write("/proc/no/such", "x", 1), KVE_ERR_FILE);
    assert_non_null(strstr(kve_diag(), "/proc/no/such"));
    unlink(path.p);
    kve_path_join(&path, dir, "x/y");
    rmdir(path.p);
    kve_path_join(&path, dir, "x");
    rmdir(path.p);
    rmdir(dir);
    kve_arena_free(&a);
    kve_str_free(&path);
}

static void test_hashes(void **state)
{
    (void)state;
    char hex[KVE_SHA256_HEX];
    assert_int_equal(kve_sha256("abc", 3, hex), KVE_OK);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(kve_sha256(NULL, 0, hex), KVE_OK);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_int_equal(kve_crc32("123456789", 9), 0xcbf43926u);
}

static void test_json_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"{} garbage", "after the JSON value"},
        {"{\"a\":1e999}", "too large"},
        {"{\"a\":1,\"a\":2}", "twice"},
        {"{\"a\":\"\xff\"}", "UTF-8"},
        {"{\"a\":", "not valid JSON"},
        {"", "not valid JSON"},
        {"{\"a\":\"\xed\xa0\x80\"}", "UTF-8"},
        {"{\"a\":\"\xc0\x80\"}", "UTF-8"},
        {"[1,2", "not valid JSON"},
        {"[\"a\\u0000b\"]", "byte 3: a string holds \\u0000"},
        {"{\"a\\u0000\":1}", "byte 3: a string holds \\u0000"},
        {"[\"\\u0041\\u0000\"]", "byte 8: a string holds \\u0000"},
        {"[\"a\tb\"]", "byte 3: a string holds the control character 0x09"},
        {"[1,\v2]", "byte 3 (0x0b)"},
        {"[\"a", "string at byte 1 has no end"},
        {"[\"a\\", "string at byte 1 has no end"},
        {"{\"a\":1,", "1 brackets still open"},
        {"[\"\\ud800\"]", "not valid JSON"},
        {"[01]", "'01' at byte 1 is no number"},
        {"[1.]", "'1.' at byte 1 is no number"},
        {"[1e]", "'1e' at byte 1 is no number"},
        {"[-]", "'-' at byte 1 is no number"},
        {"[1-2]", "'1-2' at byte 1 is no number"},
        {"[NaN]", "not valid JSON"},
        {"[1,]", "not valid JSON"},
        {"{\"a\":1,}", "not valid JSON"},
        {"[1]]", "after the JSON value"},
        {"{'a':1}", "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cJSON *v = NULL;
        assert_int_equal(kve_json_parse(bad[i].text, strlen(bad[i].text), "t.json", &v), KVE_ERR_FILE);
        assert_non_null(strstr(kve_diag(), bad[i].words));
        assert_non_null(strstr(kve_diag(), "t.json"));
    }
    char deep[2001];
    memset(deep, '[', 1000);
    memset(deep + 1000, ']', 1000);
    cJSON *v = NULL;
    assert_int_equal(kve_json_parse(deep, 2000, "deep", &v), KVE_ERR_FILE);
    assert_int_equal(kve_json_parse("[\"a\0b\"]", 7, "nul", &v), KVE_ERR_FILE);
}

static void test_json_fields(void **state)
{
    (void)state;
    const char *text =
        " {\"n\": 4294967296, \"x\": 0.5, \"s\": \"t\", \"b\": true, \"z\": null, \"big\": 9007199254740994} ";
    cJSON *v = NULL;
    int64_t i;
    double x;
    bool b;
    const char *s;
    assert_int_equal(kve_json_parse(text, strlen(text), "t", &v), KVE_OK);
    assert_int_equal(kve_json_int(v, "n", "t", &i), KVE_OK);
    assert_true(i == 4294967296); /* cJSON's valueint would saturate */
    assert_int_equal(kve_json_int(v, "x", "t", &i), KVE_ERR_FILE);
    assert_int_equal(kve_json_int(v, "big", "t", &i), KVE_ERR_FILE);
    assert_int_equal(kve_json_int(v, "N", "t", &i), KVE_ERR_FILE); /* names are exact */
    assert_int_equal(kve_json_int_or(v, "z", "t", 9, &i), KVE_OK);
    assert_true(i == 9);
    assert_int_equal(kve_json_num(v, "x", "t", &x), KVE_OK);
    assert_int_equal(kve_json_str(v, "s", "t", &s), KVE_OK);
    assert_int_equal(kve_json_str(v, "x", "t", &s), KVE_ERR_FILE);
    assert_int_equal(kve_json_bool(v, "b", "t", &b), KVE_OK);
    cJSON_Delete(v);
}

static void test_json_writer(void **state)
{
    (void)state;
    kve_str s = {0};
    kve_jw w = {.out = &s};
    kve_jw_begin(&w, '{');
    kve_jw_key(&w, "a\n");
    kve_jw_begin(&w, '[');
    kve_jw_int(&w, INT64_MAX);
    kve_jw_num(&w, 1.0000000000000002);
    kve_jw_num(&w, 0.1);
    kve_jw_num(&w, NAN);
    kve_jw_strn(&w, "x\xffy\"\0", 5);
    kve_jw_end(&w, ']');
    kve_jw_key(&w, "b");
    kve_jw_bool(&w, false);
    kve_jw_end(&w, '}');
    assert_int_equal(w.status, KVE_OK);
    assert_string_equal(s.p, "{\"a\\u000a\":[9223372036854775807,1.0000000000000002,0.1,null,"
                             "\"x\xef\xbf\xbdy\\\"\xef\xbf\xbd\"],\"b\":false}");
    kve_str_free(&s);
}

static void test_json_accepts(void **state)
{
    (void)state;
    static const char *const good[] = {"-0.5e+3", "[0, 10, 1E9, -0]", "\xef\xbb\xbf{}", " \t\r\n[\"\\\\u0000\", \"]\"]",
                                       "\"\\ud83d\\ude00\\\"\""};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cJSON *v = NULL;
        assert_int_equal(kve_json_parse(good[i], strlen(good[i]), "t.json", &v), KVE_OK);
        cJSON_Delete(v);
    }
    char number[66], deep[2 * 128 + 1];
    cJSON *v = NULL;
    memset(number, '1', sizeof number);
    number[0] = '[';
    number[64] = ']';
    assert_int_equal(kve_json_parse(number, 65, "63 digits", &v), KVE_OK);
    cJSON_Delete(v);
    number[64] = '1';
    number[65] = ']';
    assert_int_equal(kve_json_parse(number, 66, "64 digits", &v), KVE_ERR_FILE);
    memset(deep, '[', 128);
    memset(deep + 128, ']', 128);
    assert_int_equal(kve_json_parse(deep, 256, "128 levels", &v), KVE_OK);
    cJSON_Delete(v);
}

static void test_names(void **state)
{
    (void)state;
    static const char *const known[] = {"full", "knorm", "keydiff", "streaming_llm"};
    char endless[300];
    assert_string_equal(kve_nearest("knrom", known, 4), "knorm");
    assert_string_equal(kve_nearest("k", known, 4), "knorm");
    assert_string_equal(kve_nearest("streaming", known, 4), "streaming_llm");
    static const char *const mirrored[] = {"ab", "ba"};
    assert_string_equal(kve_nearest("b", mirrored, 2), "ba"); /* one step from both: the one that begins alike */
    assert_string_equal(kve_nearest("", known, 4), "full");
    memset(endless, 'k', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    assert_string_equal(kve_nearest(endless, known, 4), "knorm");
    assert_true(kve_same_name("streaming-llm", "streaming_llm"));
    assert_false(kve_same_name("streaming-llm", "streaming_ll"));
    assert_false(kve_same_name("Knorm", "knorm"));
}

static void test_rng(void **state)
{
    (void)state;
    kve_rng a, b;
    kve_rng_init(&a, 42, 1, 2, 3);
    kve_rng_init(&b, 42, 1, 2, 4);
    assert_true(kve_rng_u64(&a) != kve_rng_u64(&b));
    int seen[7] = {0};
    for (int i = 0; i < 7000; i++) {
        seen[kve_rng_below(&a, 7)]++;
        double u = kve_rng_double(&a);
        assert_true(u >= 0 && u < 1);
    }
    for (int i = 0; i < 7; i++)
        assert_in_range(seen[i], 850, 1150);
    int32_t items[100], sum = 0;
    for (int i = 0; i < 100; i++)
        items[i] = i;
    kve_rng_shuffle(&a, items, 100);
    for (int i = 0; i < 100; i++)
        sum += items[i];
    assert_int_equal(sum, 4950);
}

static void test_stats(void **state)
{
    (void)state;
    double x[] = {4, 1, 3, 2}, w[] = {7, 7, 7, 7}, tokens[] = {1, 1000000, 1, 1}, y[] = {0, 1, 0, 0};
    assert_true(kve_mean(x, 4) == 2.5);
    kve_interval i = kve_bootstrap(x, NULL, 4, 1), again = kve_bootstrap(x, NULL, 4, 1);
    assert_true(i.low == again.low && i.high == again.high && i.low < 2.5 && i.high > 2.5);
    kve_interval point = kve_bootstrap(x, NULL, 1, 1);
    assert_true(point.low == 4 && point.high == 4);
    kve_interval same = kve_bootstrap(x, w, 4, 1);
    assert_true(same.low == i.low && same.high == i.high);    /* equal weights are no weights */
    assert_true(kve_bootstrap(y, tokens, 4, 1).high > 0.999); /* a long sample counts for its tokens */
    assert_true(kve_median(x, 4) == 2.5);
    assert_true(kve_quantile(x, 4, 0.25) == 1.75); /* numpy's linear rule */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diag),        cmocka_unit_test(test_memory),       cmocka_unit_test(test_files),
        cmocka_unit_test(test_hashes),      cmocka_unit_test(test_json_refuses), cmocka_unit_test(test_json_fields),
        cmocka_unit_test(test_json_writer), cmocka_unit_test(test_json_accepts), cmocka_unit_test(test_names),
        cmocka_unit_test(test_rng),         cmocka_unit_test(test_stats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
