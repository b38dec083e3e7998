/* safetensors files: written and read back, and bad headers of every kind. */
#include "host/model/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char g_path[64];

static int make_path(void **state)
{
    (void)state;
    snprintf(g_path, sizeof g_path, "/tmp/kve_st_XXXXXX");
    int fd = mkstemp(g_path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(g_path);
}

static const kve_st_tensor declared[] = {
    {.name = "scores", .dtype = KVE_ST_F32, .n_dims = 2, .dims = {2, 3}},
    {.name = "ids", .dtype = KVE_ST_I32, .n_dims = 1, .dims = {3}},
    {.name = "none", .dtype = KVE_ST_F32, .n_dims = 2, .dims = {0, 4}},
    {.name = "big \"one\"", .dtype = KVE_ST_I64, .n_dims = 0},
};
static const kve_st_meta meta[] = {{"format", "kveval"}, {"note", "two\nlines"}};
static const float scores[6] = {0, -1.5f, 2, 3, 4, 1e-30f};
static const int32_t ids[3] = {7, -8, INT32_MAX};
static const int64_t big = INT64_MIN + 1;

static void write_file(void)
{
    kve_st_writer *w = NULL;
    assert_int_equal(kve_st_create(g_path, declared, 4, meta, 2, &w), KVE_OK);
    assert_int_equal(kve_st_write(w, scores, 10), KVE_OK); /* in pieces that cut a value */
    assert_int_equal(kve_st_write(w, (const char *)scores + 10, sizeof scores - 10), KVE_OK);
    assert_int_equal(kve_st_write(w, ids, sizeof ids), KVE_OK);
    assert_int_equal(kve_st_write(w, &big, sizeof big), KVE_OK);
    assert_int_equal(kve_st_finish(w), KVE_OK);
}

static void test_round_trip(void **state)
{
    (void)state;
    kve_safetensors st;
    float x[6];
    int32_t i[3];
    int64_t b;
    write_file();
    assert_int_equal(kve_safetensors_open(g_path, &st), KVE_OK);
    assert_int_equal(st.n_tensors, 4);
    assert_string_equal(st.tensors[0].name, "big \"one\""); /* sorted by name */
    assert_string_equal(kve_st_meta_get(&st, "note"), "two\nlines");
    assert_null(kve_st_meta_get(&st, "absent"));
    assert_int_equal(kve_st_copy(&st, "scores", KVE_ST_F32, 6, x), KVE_OK);
    assert_memory_equal(x, scores, sizeof x);
    assert_int_equal(kve_st_copy(&st, "ids", KVE_ST_I32, 3, i), KVE_OK);
    assert_memory_equal(i, ids, sizeof i);
    assert_int_equal(kve_st_copy(&st, "big \"one\"", KVE_ST_I64, 1, &b), KVE_OK);
    assert_true(b == big);
    const kve_st_tensor *t = kve_st_find(&st, "scores");
    assert_true(t && t->n_dims == 2 && t->dims[0] == 2 && t->dims[1] == 3 && t->count == 6);
    assert_int_equal((size_t)(t->data - st.map.data) % 64, 0);
    t = kve_st_find(&st, "none");
    assert_true(t && t->count == 0 && t->bytes == 0);
    assert_null(kve_st_find(&st, "score"));
    assert_int_equal(kve_st_copy(&st, "ids", KVE_ST_F32, 3, x), KVE_ERR_FILE);
    assert_int_equal(kve_st_copy(&st, "ids", KVE_ST_I32, 2, i), KVE_ERR_FILE);
    assert_int_equal(kve_st_copy(&st, "absent", KVE_ST_I32, 3, i), KVE_ERR_FILE);
    kve_safetensors_close(&st);
}

static void test_writer_faults(void **state)
{
    (void)state;
    const kve_st_tensor bad = {.name = "x", .dtype = KVE_ST_F32, .n_dims = 2, .dims = {INT64_MAX, 2}};
    kve_st_writer *w = NULL;
    kve_safetensors st;
    write_file();
    assert_int_equal(kve_st_create(g_path, declared, 4, NULL, 0, &w), KVE_OK);
    assert_int_equal(kve_st_write(w, scores, sizeof scores), KVE_OK);
    assert_int_equal(kve_st_finish(w), KVE_ERR_INTERNAL); /* too little: the old file stays */
    assert_int_equal(kve_st_create(g_path, declared, 1, NULL, 0, &w), KVE_OK);
    assert_int_equal(kve_st_write(w, scores, sizeof scores), KVE_OK);
    assert_int_equal(kve_st_write(w, scores, 1), KVE_ERR_INTERNAL);
    kve_st_abort(w);
    assert_int_equal(kve_st_create(g_path, &bad, 1, NULL, 0, &w), KVE_ERR_INTERNAL);
    assert_int_equal(kve_st_create("/nonexistent/x", declared, 1, NULL, 0, &w), KVE_ERR_FILE);
    assert_int_equal(kve_safetensors_open(g_path, &st), KVE_OK);
    assert_int_equal(st.n_tensors, 4);
    kve_safetensors_close(&st);
}

/* A file of exactly this header and `body` bytes of data, on the heap at its exact size. */
static unsigned char *build(const char *header, size_t body, size_t *size)
{
    uint64_t len = strlen(header);
    *size = 8 + len + body;
    unsigned char *p = calloc(1, *size);
    assert_non_null(p);
    memcpy(p, &len, 8);
    memcpy(p + 8, header, len);
    return p;
}

static kve_status parse(const unsigned char *data, size_t size)
{
    kve_safetensors st;
    kve_status status = kve_safetensors_parse(data, size, "x.safetensors", &st);
    for (size_t i = 0; status == KVE_OK && i < st.n_tensors; i++) /* every byte of every tensor can be read */
        for (size_t k = 0; k < st.tensors[i].bytes; k++)
            *(volatile unsigned char *)&(unsigned char){0} = st.tensors[i].data[k];
    kve_safetensors_close(&st);
    if (status != KVE_OK)
        assert_true(kve_diag()[0] != '\0');
    return status;
}

#define T(name, dtype, shape, from, to)                                                                                \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #from "," #to "]}"

static void test_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t body;
        const char *word; /* NULL: good */
    } cases[] = {
        {"{}", 0, NULL},
        {"{" T("a", "F32", "2", 0, 8) "}  ", 8, NULL},
        {"{" T("b", "F16", "1", 8, 10) "," T("a", "F32", "2,1", 0, 8) "}", 10, NULL},
        {"{" T("a", "F32", "0", 0, 0) "," T("b", "F32", "1", 0, 4) "}", 4, NULL},
        {"{" T("a", "F32", "2", 0, 8) "} x", 8, "after the JSON"},
        {"{" T("a", "F32", "2", 0, 8) "," T("a", "F32", "2", 8, 16) "}", 16, "twice"},
        {"{" T("a", "F32", "2", 0, 8) "," T("b", "F32", "2", 4, 12) "}", 12, "overlap"},
        {"{" T("a", "F32", "2", 0, 8) "," T("b", "F32", "2", 9, 17) "}", 17, "gap"},
        {"{" T("a", "F32", "2", 4, 12) "}", 12, "gap"},
        {"{" T("a", "F32", "2", 0, 8) "}", 9, "follow the last"},
        {"{" T("a", "F32", "2", 0, 8) "}", 7, "incomplete"},
        {"{" T("a", "F32", "2", 8, 0) "}", 8, "lies at"},
        {"{" T("a", "F32", "3", 0, 8) "}", 8, "need 12"},
        {"{" T("a", "F32", "4611686018427387904,4", 0, 0) "}", 0, "shape"},
        {"{" T("a", "F32", "3037000500,3037000500", 0, 0) "}", 0, "shape"},
        {"{" T("a", "F32", "2147483648,2147483648", 0, 0) "}", 0, "too large"},
        {"{" T("a", "F32", "-2", 0, 8) "}", 8, "shape"},
        {"{" T("a", "F32", "1.5", 0, 6) "}", 6, "shape"},
        {"{" T("a", "F32", "1e400", 0, 6) "}", 6, "too large"},
        {"{" T("a", "F32", "1,1,1,1,1,1,1,1,1", 0, 4) "}", 4, "at most 8"},
        {"{" T("a", "F32", "1", 0, 18446744073709551620) "}", 4, "pair of whole"},
        {"{" T("a", "F8_E4M3", "4", 0, 4) "}", 4, "'F8_E4M3'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
        {"{\"a\":7}", 0, "not an object"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "not a text"},
        {"{\"__metadata__\":[]}", 0, "not an object"},
        {"[]", 0, "begins with"},
        {"{\"a\":", 0, "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t size;
        unsigned char *file = build(cases[i].header, cases[i].body, &size);
        kve_status st = parse(file, size);
        free(file);
        if (!cases[i].word && st != KVE_OK)
            fail_msg("%s: %s", cases[i].header, kve_diag());
        if (cases[i].word && (st != KVE_ERR_FILE || !strstr(kve_diag(), cases[i].word)))
            fail_msg("%s: '%s' is not in: %s", cases[i].header, cases[i].word, st ? kve_diag() : "(accepted)");
    }
}

static void test_damage(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {0, 1, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63, UINT32_MAX, 5000};
    size_t size;
    unsigned char *file = build("{" T("b", "BF16", "3", 8, 14) "," T("a", "F32", "2,1", 0, 8) "}", 14, &size);
    assert_int_equal(parse(file, size), KVE_OK);
    for (size_t n = 0; n < size; n++) {
        unsigned char *cut = malloc(n ? n : 1);
        assert_non_null(cut);
        memcpy(cut, file, n);
        assert_int_equal(parse(cut, n), KVE_ERR_FILE);
        free(cut);
    }
    for (size_t bit = 0; bit < (size - 14) * 8; bit++) {
        file[bit / 8] ^= (unsigned char)(1u << bit % 8);
        parse(file, size);
        file[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(file, &lengths[i], 8);
        assert_int_equal(parse(file, size), KVE_ERR_FILE);
    }
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_writer_faults),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
