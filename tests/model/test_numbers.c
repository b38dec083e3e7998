/* Stored number formats against golden blocks, and rotary tables. */
#include "host/base/file.h"
#include "host/model/config.h"
#include "host/model/dequant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_BYTES = 4096 };

static size_t unhex(const char *text, unsigned char *out)
{
    size_t n = strlen(text) / 2;
    assert_true(n <= MAX_BYTES);
    for (size_t i = 0; i < n; i++) {
        unsigned v = 0;
        assert_int_equal(sscanf(text + 2 * i, "%2x", &v), 1);
        out[i] = (unsigned char)v;
    }
    return n;
}

/* Each line: type, block, values. Equality is of bits. */
static void test_blocks(void **state)
{
    (void)state;
    char *text = NULL, *save = NULL;
    size_t len = 0;
    int seen = 0;
    assert_int_equal(kve_file_read(KVE_SOURCE_DIR "/tests/golden/models/dequant.txt", &text, &len), KVE_OK);
    for (char *name = strtok_r(text, " \n", &save); name; name = strtok_r(NULL, " \n", &save), seen++) {
        unsigned char block[MAX_BYTES], want[MAX_BYTES];
        float got[MAX_BYTES / 4];
        size_t size = unhex(strtok_r(NULL, " \n", &save), block);
        size_t n = unhex(strtok_r(NULL, " \n", &save), want) / sizeof *got;
        int64_t values = 0, bytes = 0;
        uint32_t type = 0;
        while (type < 64 && strcmp(kve_type_name(type), name) != 0)
            type++;
        assert_true(kve_type_block(type, &values, &bytes));
        assert_int_equal((int64_t)size / bytes * values, n);
        kve_dequant((kve_tensor_type)type, block, (int64_t)n, got);
        if (memcmp(got, want, n * sizeof *got) != 0)
            fail_msg("%s differs", name);
    }
    assert_int_equal(seen, 13);
    free(text);
}

static float from_half(uint16_t h)
{
    float x;
    kve_dequant(KVE_TYPE_F16, (const unsigned char *)&h, 1, &x);
    return x;
}

static void test_halves(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 0x7c00; h++) { /* every finite half, by its definition */
        unsigned e = h >> 10;
        double want = e ? ldexp(1024 + (h & 1023), (int)e - 25) : ldexp(h, -24);
        assert_true((double)from_half((uint16_t)h) == want);
        assert_true((double)from_half((uint16_t)(h | 0x8000)) == -want);
    }
    assert_true(isinf(from_half(0x7c00)) && isnan(from_half(0x7c01)) && signbit(from_half(0x8000)));
}

static void test_not_finite(void **state)
{
    (void)state;
    float x[37] = {0};
    assert_int_equal(kve_first_not_finite(x, 37), -1);
    x[36] = -INFINITY;
    assert_int_equal(kve_first_not_finite(x, 37), 36);
    x[5] = NAN;
    assert_int_equal(kve_first_not_finite(x, 37), 5);
    assert_int_equal(kve_first_not_finite(x, 5), -1);
    assert_false(kve_type_block(23, &(int64_t){0}, &(int64_t){0}));
    assert_string_equal(kve_type_name(23), "IQ4_XS");
    assert_string_equal(kve_type_name(UINT32_MAX), "?");
}

/* The tables at one position: cos and sin of each frequency. */
static void tables(const kve_config *c, int32_t total, float cos_out[4], float sin_out[4])
{
    float cos_all[8 * 4], sin_all[8 * 4];
    assert_int_equal(kve_rope_tables(c, 8, total, cos_all, sin_all), KVE_OK);
    assert_true(cos_all[0] == (float)(c->rope_attn_factor > 0 ? c->rope_attn_factor : 1) && sin_all[0] == 0);
    memcpy(cos_out, cos_all + 7 * 4, 4 * sizeof *cos_out);
    memcpy(sin_out, sin_all + 7 * 4, 4 * sizeof *sin_out);
}

static void expect(const kve_config *c, int32_t total, const double divisor[4], double scale)
{
    float cos_out[4], sin_out[4];
    tables(c, total, cos_out, sin_out);
    for (int i = 0; i < 4; i++) {
        double angle = 7 * pow(100, -i / 4.0) / divisor[i];
        assert_true(fabs((double)cos_out[i] - scale * cos(angle)) < 1e-6);
        assert_true(fabs((double)sin_out[i] - scale * sin(angle)) < 1e-6);
    }
}

static void test_rope(void **state)
{
    (void)state;
    kve_config c = {.shape = {.D = 8, .R = 8}, .rope_theta = 100, .rope_factor = 3, .max_context = 64};
    expect(&c, 8, (const double[]){1, 1, 1, 1}, 1);
    c.rope_scaling = KVE_ROPE_LINEAR;
    expect(&c, 8, (const double[]){3, 3, 3, 3}, 1);
    c.rope_scaling = KVE_ROPE_NONE;
    c.n_freq_factor = 4;
    memcpy(c.rope_freq_factor, (float[]){1, 2, 4, 8}, 4 * sizeof(float));
    expect(&c, 8, (const double[]){1, 2, 4, 8}, 1);
    memcpy(c.rope_freq_factor_long, (float[]){2, 3, 5, 7}, 4 * sizeof(float));
    c.rope_scaling = KVE_ROPE_LONGROPE;
    c.rope_original_context = 16;
    c.rope_attn_factor = 1.25;
    expect(&c, 16, (const double[]){1, 2, 4, 8}, 1.25);
    expect(&c, 17, (const double[]){2, 3, 5, 7}, 1.25);
    /* llama3: turns in the original context are 20 / (2 pi) x {1, .316, .1, .0316} = 3.18, 1.007, .318, .101 */
    c = (kve_config){.shape = {.D = 8, .R = 8}, .rope_theta = 100, .rope_factor = 3, .rope_scaling = KVE_ROPE_LLAMA3};
    c.rope_original_context = 20;
    c.rope_low_freq = 0.5;
    c.rope_high_freq = 2;
    double keep = (20 / (2 * M_PI) * pow(100, -0.25) - 0.5) / 1.5;
    expect(&c, 8, (const double[]){1, 1 / ((1 - keep) / 3 + keep), 3, 3}, 1);
    assert_int_not_equal(kve_rope_tables(&c, -1, 8, NULL, NULL), KVE_OK);
}

static kve_config good_config(void)
{
    return (kve_config){.shape = {.L = 1, .Hq = 4, .Hkv = 2, .D = 8, .R = 8, .E = 32, .F = 32, .V = 10},
                        .max_context = 64,
                        .norm_eps = 1e-5f,
                        .rope_theta = 1e4,
                        .rope_factor = 1,
                        .bos = -1};
}

#define BAD(field, value, word)                                                                                        \
    do {                                                                                                               \
        kve_config bad = good_config();                                                                                \
        bad.field = value;                                                                                             \
        assert_int_equal(kve_config_check(&bad, "config.json"), KVE_ERR_FILE);                                         \
        assert_non_null(strstr(kve_diag(), word));                                                                     \
        assert_non_null(strstr(kve_diag(), "config.json"));                                                            \
    } while (0)

static void test_config_check(void **state)
{
    (void)state;
    kve_config c = good_config();
    assert_int_equal(kve_config_check(&c, "config.json"), KVE_OK);
    BAD(shape.L, 0, "layers");
    BAD(shape.Hkv, 3, "no multiple");
    BAD(shape.D, 513, "head dimension");
    BAD(shape.R, 10, "rotary");
    BAD(shape.R, 7, "rotary");
    BAD(shape.E, -1, "width");
    BAD(shape.V, 1 << 30, "vocabulary");
    BAD(max_context, 0, "context");
    BAD(norm_eps, NAN, "epsilon");
    BAD(rope_theta, INFINITY, "theta");
    BAD(rope_theta, 0, "theta");
    BAD(rope_factor, 0, "factor");
    BAD(rope_factor, 1e-7, "1e-6 to 1e6"); /* else cos and sin would not be finite somewhere */
    BAD(rope_attn_factor, 1e300, "1e-6 to 1e6");
    BAD(n_freq_factor, 3, "4 are due");
    BAD(n_freq_factor, 4, "factor 0 is 0");
    BAD(bos, 10, "BOS");
    BAD(rope_scaling, KVE_ROPE_LLAMA3, "original context");
    c.rope_scaling = KVE_ROPE_LLAMA3;
    c.rope_low_freq = 1;
    c.rope_high_freq = 4;
    c.rope_original_context = 1; /* its logarithm divides */
    assert_int_equal(kve_config_check(&c, "config.json"), KVE_ERR_FILE);
    c.rope_original_context = 2;
    assert_int_equal(kve_config_check(&c, "config.json"), KVE_OK);
    c.rope_scaling = KVE_ROPE_YARN;
    assert_int_equal(kve_config_check(&c, "config.json"), KVE_OK); /* factor 1: nothing to scale */
    c.rope_factor = 4;
    assert_int_equal(kve_config_check(&c, "config.json"), KVE_ERR_FILE);
    assert_non_null(strstr(kve_diag(), "yarn"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks), cmocka_unit_test(test_halves),       cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_rope),   cmocka_unit_test(test_config_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
