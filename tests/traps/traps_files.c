/* Traps around files: shards, sizes that wrap or do not fit, and what a JSON library lets through. */
#include "tests/traps/traps.h"

#include "host/base/file.h"
#include "host/base/json.h"
#include "host/model/safetensors.h"
#include "tests/model/build.h"
#include "tests/traps/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define SHARD(i) "model-0000" #i "-of-00003.safetensors"

static void refuse_folder(const char *word)
{
    kve_checkpoint *ck = NULL;
    trap_refused(kve_checkpoint_open(trap_dir, &ck), word);
    assert_non_null(strstr(kve_diag(), trap_dir));
}

static void shard_missing(void **state)
{
    (void)state;
    trap_copy_model("qwen2");
    assert_int_equal(unlink(trap_path(SHARD(2))), 0);
    refuse_folder(SHARD(2));
}

static void shard_too_many(void **state)
{
    (void)state;
    char *text = NULL;
    size_t len = 0;
    trap_copy_model("qwen2");
    trap_must(kve_file_read(trap_path(SHARD(2)), &text, &len));
    trap_put("model-00004-of-00004.safetensors", text, len);
    refuse_folder("model-00004-of-00004.safetensors");
    free(text);
}

static void tensor_in_two_shards(void **state)
{
    (void)state;
    char *text = NULL;
    size_t len = 0;
    trap_copy_model("qwen2");
    trap_must(kve_file_read(trap_path(SHARD(2)), &text, &len));
    trap_put(SHARD(3), text, len);
    refuse_folder("puts it into");
    free(text);
}

/* A safetensors file in memory: the given header, then n_data bytes. */
static kve_status parse(const char *header, size_t n_data, kve_safetensors *out)
{
    static unsigned char file[1024];
    uint64_t len = strlen(header);
    assert_true(8 + len + n_data <= sizeof file);
    memset(file, 0, sizeof file);
    memcpy(file, &len, 8);
    memcpy(file + 8, header, len);
    return kve_safetensors_parse(file, 8 + len + n_data, "x.safetensors", out);
}

static void refuse_header(const char *header, size_t n_data, const char *word)
{
    kve_safetensors st;
    trap_refused(parse(header, n_data, &st), word);
    kve_safetensors_close(&st);
}

static void sizes_that_wrap(void **state)
{
    (void)state;
    kve_safetensors st;
    unsigned char file[16] = {0};
    for (int bit = 63; bit > 7; bit--) { /* a header that is longer than the file */
        uint64_t len = (uint64_t)1 << bit;
        memcpy(file, &len, 8);
        file[8] = '{';
        trap_refused(kve_safetensors_parse(file, sizeof file, "x.safetensors", &st), "16 bytes");
        kve_safetensors_close(&st);
    }
    /* 2^31 x 2^31 x 4 = 2^64: wraps to 0 in 64 bits */
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2147483648,2147483648],\"data_offsets\":[0,0]}}", 0,
                  "too large");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
                  "too large");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "whole number");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[18446744073709551612,4]}}", 4, "offsets");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "offsets");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "[4, 0)");
    kve_str gguf = {0};
    kve_checkpoint *ck = NULL;
    tiny_gguf(&(tiny_faults){0}, &gguf);
    for (size_t at = 8; at <= 16; at += 8) { /* GGUF: the numbers of tensors and of keys */
        uint64_t was, huge = UINT64_MAX / 8;
        memcpy(&was, gguf.p + at, 8);
        memcpy(gguf.p + at, &huge, 8);
        trap_refused(tiny_open(gguf.p, gguf.len, &ck), "cannot fit");
        memcpy(gguf.p + at, &was, 8);
    }
    kve_str_free(&gguf);
}

static void data_behind_the_end(void **state)
{
    (void)state;
    kve_str gguf = {0};
    kve_checkpoint *ck = NULL;
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 15, "of 15 bytes");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[20,20]}}", 16, "of 16 bytes");
    tiny_gguf(&(tiny_faults){.far_tensor = "blk.0.attn_v.weight"}, &gguf);
    trap_refused(tiny_open(gguf.p, gguf.len, &ck), "outside the file");
    kve_str_clear(&gguf);
    tiny_gguf(&(tiny_faults){0}, &gguf);
    trap_refused(tiny_open(gguf.p, gguf.len - 1, &ck), "outside the file");
    kve_str_free(&gguf);
}

static void shape_and_place_disagree(void **state)
{
    (void)state;
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,8]}}", 8, "need 16");
    refuse_header("{\"a\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", 16, "need 8");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                  "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
                  6, "overlap");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8, "4 bytes follow");
}

static cJSON *json(const char *text)
{
    cJSON *root = NULL;
    trap_must(kve_json_parse(text, strlen(text), "x.json", &root));
    return root;
}

static void refuse_json(const char *text, const char *word)
{
    cJSON *root = NULL;
    trap_refused(kve_json_parse(text, strlen(text), "x.json", &root), word);
}

/* The library's own integers stop at 2^31 - 1. */
static void integers_beyond_two_gigabytes(void **state)
{
    (void)state;
    int64_t v = 0;
    cJSON *root = json("{\"a\":2147483648,\"b\":4294967296,\"c\":9007199254740992,\"d\":9007199254740994,\"e\":1.5}");
    trap_must(kve_json_int(root, "a", "x.json", &v));
    assert_true(v == (int64_t)1 << 31);
    trap_must(kve_json_int(root, "b", "x.json", &v));
    assert_true(v == (int64_t)1 << 32);
    trap_must(kve_json_int(root, "c", "x.json", &v));
    assert_true(v == (int64_t)1 << 53);
    trap_refused(kve_json_int(root, "d", "x.json", &v), "2^53");
    trap_refused(kve_json_int(root, "e", "x.json", &v), "whole number");
    cJSON_Delete(root);

    /* A tensor that begins behind 2 GiB, in memory that is only reserved. */
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[536870928],\"data_offsets\":[0,2147483712]},"
                                 "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[2147483712,2147483720]}}";
    const float want[2] = {1.5f, -2};
    uint64_t len = sizeof header - 1;
    size_t size = 8 + (size_t)len + 2147483720u;
    unsigned char *file = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(file != MAP_FAILED);
    memcpy(file, &len, 8);
    memcpy(file + 8, header, len);
    memcpy(file + size - sizeof want, want, sizeof want);
    kve_safetensors st;
    float got[2] = {0};
    trap_must(kve_safetensors_parse(file, size, "x.safetensors", &st));
    trap_must(kve_st_copy(&st, "b", KVE_ST_F32, 2, got));
    assert_true(got[0] == want[0] && got[1] == want[1]);
    kve_safetensors_close(&st);
    munmap(file, size);
}

static void names_in_another_case(void **state)
{
    (void)state;
    int64_t v = 7;
    cJSON *root = json("{\"Vocab_Size\":1,\"vocab_size\":2}");
    trap_must(kve_json_int(root, "vocab_size", "x.json", &v));
    assert_int_equal(v, 2);
    trap_refused(kve_json_int(root, "VOCAB_SIZE", "x.json", &v), "'VOCAB_SIZE' is missing");
    assert_null(kve_json_get(root, "vocab_Size"));
    cJSON_Delete(root);
}

static void text_behind_the_value(void **state)
{
    (void)state;
    refuse_json("{} garbage", "after the JSON value");
    refuse_json("{}{}", "after the JSON value");
    refuse_json("7 8", "after the JSON value");
    cJSON_Delete(json(" {} \r\n\t"));
}

static void numbers_beyond_a_double(void **state)
{
    (void)state;
    refuse_json("{\"a\":1e999}", "'a'");
    refuse_json("[[-1e999]]", "too large");
    double v = 0;
    cJSON *root = json("{\"a\":1.7976931348623157e308}");
    trap_must(kve_json_num(root, "a", "x.json", &v));
    assert_true(v == 1.7976931348623157e308);
    cJSON_Delete(root);
}

trap_rows traps_files(void)
{
    static const trap_row rows[] = {
        {"a shard that is missing", shard_missing},
        {"a shard that does not belong", shard_too_many},
        {"a tensor in two shards", tensor_in_two_shards},
        {"lengths and offsets that wrap", sizes_that_wrap},
        {"data that lie behind the end of the file", data_behind_the_end},
        {"shape and number format against the bytes given", shape_and_place_disagree},
        {"JSON: integers beyond 2 GiB", integers_beyond_two_gigabytes},
        {"JSON: names that differ in case only", names_in_another_case},
        {"JSON: text behind the value", text_behind_the_value},
        {"JSON: numbers too large for a double", numbers_beyond_a_double},
    };
    return (trap_rows){rows, sizeof rows / sizeof *rows};
}
