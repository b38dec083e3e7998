/* Block formats to f32. Each product is formed in the order (block scale x sub-scale) x quant - (minimum scale x
 * sub-minimum), in f32, so that the values equal those of the reference converter bit for bit. */
#include "host/model/dequant.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "model files are little-endian and are read in place"
#endif

enum { BLOCK = 32, SUPER = 256 };

typedef struct format {
    const char *name;
    int values, bytes; /* 0: a type that is known by name only */
} format;

static const format formats[] = {
    [KVE_TYPE_F32] = {"F32", 1, 4},
    [KVE_TYPE_F16] = {"F16", 1, 2},
    [KVE_TYPE_Q4_0] = {"Q4_0", BLOCK, 18},
    [KVE_TYPE_Q4_1] = {"Q4_1", BLOCK, 20},
    [KVE_TYPE_Q5_0] = {"Q5_0", BLOCK, 22},
    [KVE_TYPE_Q5_1] = {"Q5_1", BLOCK, 24},
    [KVE_TYPE_Q8_0] = {"Q8_0", BLOCK, 34},
    [9] = {"Q8_1", 0, 0},
    [KVE_TYPE_Q2_K] = {"Q2_K", SUPER, 84},
    [KVE_TYPE_Q3_K] = {"Q3_K", SUPER, 110},
    [KVE_TYPE_Q4_K] = {"Q4_K", SUPER, 144},
    [KVE_TYPE_Q5_K] = {"Q5_K", SUPER, 176},
    [KVE_TYPE_Q6_K] = {"Q6_K", SUPER, 210},
    [15] = {"Q8_K", 0, 0},
    [16] = {"IQ2_XXS", 0, 0},
    [17] = {"IQ2_XS", 0, 0},
    [18] = {"IQ3_XXS", 0, 0},
    [19] = {"IQ1_S", 0, 0},
    [20] = {"IQ4_NL", 0, 0},
    [21] = {"IQ3_S", 0, 0},
    [22] = {"IQ2_S", 0, 0},
    [23] = {"IQ4_XS", 0, 0},
    [24] = {"I8", 0, 0},
    [25] = {"I16", 0, 0},
    [26] = {"I32", 0, 0},
    [27] = {"I64", 0, 0},
    [28] = {"F64", 0, 0},
    [29] = {"IQ1_M", 0, 0},
    [KVE_TYPE_BF16] = {"BF16", 1, 2},
    [34] = {"TQ1_0", 0, 0},
    [35] = {"TQ2_0", 0, 0},
    [39] = {"MXFP4", 0, 0},
};

static const format *format_of(uint32_t type)
{
    return type < sizeof formats / sizeof *formats && formats[type].name ? &formats[type] : NULL;
}

const char *kve_type_name(uint32_t type)
{
    const format *f = format_of(type);
    return f ? f->name : "?";
}

bool kve_type_block(uint32_t type, int64_t *values, int64_t *bytes)
{
    const format *f = format_of(type);
    if (!f || !f->values)
        return false;
    *values = f->values;
    *bytes = f->bytes;
    return true;
}

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float half_at(const unsigned char *p)
{
    uint32_t h = (uint32_t)(p[0] | p[1] << 8);
    uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ffu;
    if (exponent == 0) { /* zero and subnormals: mantissa x 2^-24, exact in f32 */
        float v = (float)mantissa * 0x1p-24f;
        return sign ? -v : v;
    }
    if (exponent == 31)
        return from_bits(sign | 0x7f800000u | mantissa << 13);
    return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

static void f16_row(const unsigned char *p, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = half_at(p + 2 * i);
}

static void bf16_row(const unsigned char *p, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = from_bits((uint32_t)(p[2 * i] | p[2 * i + 1] << 8) << 16);
}

static void q8_0_block(const unsigned char *p, float *out)
{
    float d = half_at(p);
    for (int i = 0; i < BLOCK; i++)
        out[i] = d * (float)(int8_t)p[2 + i];
}

/* Q4_0, Q4_1: byte i holds value i (low nibble) and value i + 16 (high nibble). */
static void q4_0_block(const unsigned char *p, float *out)
{
    float d = half_at(p);
    for (int i = 0; i < BLOCK / 2; i++) {
        out[i] = d * (float)((p[2 + i] & 15) - 8);
        out[i + BLOCK / 2] = d * (float)((p[2 + i] >> 4) - 8);
    }
}

static void q4_1_block(const unsigned char *p, float *out)
{
    float d = half_at(p), least = half_at(p + 2);
    for (int i = 0; i < BLOCK / 2; i++) {
        out[i] = d * (float)(p[4 + i] & 15) + least;
        out[i + BLOCK / 2] = d * (float)(p[4 + i] >> 4) + least;
    }
}

/* Q5_0, Q5_1: as Q4, and bit i of a 32-bit word is the fifth bit of value i. */
static int fifth_bit(const unsigned char *word, int i)
{
    return (word[i / 8] >> (i % 8) & 1) << 4;
}

static void q5_0_block(const unsigned char *p, float *out)
{
    float d = half_at(p);
    for (int i = 0; i < BLOCK / 2; i++) {
        out[i] = d * (float)(((p[6 + i] & 15) | fifth_bit(p + 2, i)) - 16);
        out[i + BLOCK / 2] = d * (float)(((p[6 + i] >> 4) | fifth_bit(p + 2, i + BLOCK / 2)) - 16);
    }
}

static void q5_1_block(const unsigned char *p, float *out)
{
    float d = half_at(p), least = half_at(p + 2);
    for (int i = 0; i < BLOCK / 2; i++) {
        out[i] = d * (float)((p[8 + i] & 15) | fifth_bit(p + 4, i)) + least;
        out[i + BLOCK / 2] = d * (float)((p[8 + i] >> 4) | fifth_bit(p + 4, i + BLOCK / 2)) + least;
    }
}

/* Q2_K and Q3_K store 2-bit values in two halves of 128; in a half, byte i holds values i, i + 32, i + 64, i + 96 at
 * shifts 0, 2, 4, 6. Groups of 16 values share a sub-scale. */
static int two_bits(const unsigned char *quants, int i)
{
    int in_half = i % 128;
    return quants[i / 128 * 32 + in_half % 32] >> (in_half / 32 * 2) & 3;
}

static void q2_k_block(const unsigned char *p, float *out)
{
    const unsigned char *quants = p + 16;
    float d = half_at(p + 80), dmin = half_at(p + 82);
    for (int group = 0; group < SUPER / 16; group++) {
        float scale = d * (float)(p[group] & 15), least = dmin * (float)(p[group] >> 4);
        for (int i = group * 16; i < group * 16 + 16; i++)
            out[i] = scale * (float)two_bits(quants, i) - least;
    }
}

/* The third bit is stored inverted in hmask: bit k of byte i belongs to value 32 k + i. Sub-scales are 6 bits wide,
 * four low bits in nibbles of bytes 0..7, two high bits in bytes 8..11. */
static void q3_k_block(const unsigned char *p, float *out)
{
    const unsigned char *hmask = p, *quants = p + 32, *scales = p + 96;
    float d = half_at(p + 108);
    for (int group = 0; group < SUPER / 16; group++) {
        int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
        int high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
        float scale = d * (float)((low | high << 4) - 32);
        for (int i = group * 16; i < group * 16 + 16; i++) {
            int third = hmask[i % 32] >> (i / 32) & 1;
            out[i] = scale * (float)(two_bits(quants, i) - (third ? 0 : 4));
        }
    }
}

/* Q4_K, Q5_K: eight groups of 32 with 6-bit scale and minimum, packed into 12 bytes. */
static void k_scale(const unsigned char *packed, int group, int *scale, int *least)
{
    if (group < 4) {
        *scale = packed[group] & 63;
        *least = packed[group + 4] & 63;
    } else {
        *scale = (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
        *least = packed[group + 4] >> 4 | packed[group] >> 6 << 4;
    }
}

/* Group g of 32 values: nibbles g % 2 of bytes 32 (g / 2) ...; the fifth bit (Q5_K) is bit g of byte i of `fifth`. */
static void k_nibble_block(const unsigned char *p, const unsigned char *fifth, const unsigned char *quants, float *out)
{
    float d = half_at(p), dmin = half_at(p + 2);
    for (int group = 0; group < SUPER / 32; group++) {
        int s, m;
        k_scale(p + 4, group, &s, &m);
        float scale = d * (float)s, least = dmin * (float)m;
        const unsigned char *q = quants + group / 2 * 32;
        for (int i = 0; i < 32; i++) {
            int v = q[i] >> (group % 2 * 4) & 15;
            if (fifth)
                v |= (fifth[i] >> group & 1) << 4;
            out[group * 32 + i] = scale * (float)v - least;
        }
    }
}

static void q4_k_block(const unsigned char *p, float *out)
{
    k_nibble_block(p, NULL, p + 16, out);
}

static void q5_k_block(const unsigned char *p, float *out)
{
    k_nibble_block(p, p + 16, p + 48, out);
}

/* Two halves of 128: value 32 k + i takes nibble k / 2 of low byte 32 (k % 2) + i and two bits at 2 k of high byte i.
 */
static void q6_k_block(const unsigned char *p, float *out)
{
    float d = half_at(p + 208);
    for (int i = 0; i < SUPER; i++) {
        int half = i / 128, k = i % 128 / 32, at = i % 32;
        int low = p[half * 64 + k % 2 * 32 + at] >> (k / 2 * 4) & 15;
        int high = p[128 + half * 32 + at] >> (2 * k) & 3;
        out[i] = d * (float)(int8_t)p[192 + i / 16] * (float)((low | high << 4) - 32);
    }
}

static void blocks(void (*block)(const unsigned char *, float *), const format *f, const unsigned char *p, int64_t n,
                   float *out)
{
    for (int64_t i = 0; i < n; i += f->values, p += f->bytes)
        block(p, out + i);
}

void kve_dequant(kve_tensor_type type, const unsigned char *data, int64_t n, float *out)
{
    static void (*const block[])(const unsigned char *, float *) = {
        [KVE_TYPE_Q4_0] = q4_0_block, [KVE_TYPE_Q4_1] = q4_1_block, [KVE_TYPE_Q5_0] = q5_0_block,
        [KVE_TYPE_Q5_1] = q5_1_block, [KVE_TYPE_Q8_0] = q8_0_block, [KVE_TYPE_Q2_K] = q2_k_block,
        [KVE_TYPE_Q3_K] = q3_k_block, [KVE_TYPE_Q4_K] = q4_k_block, [KVE_TYPE_Q5_K] = q5_k_block,
        [KVE_TYPE_Q6_K] = q6_k_block,
    };
    if (type == KVE_TYPE_F32)
        memcpy(out, data, (size_t)n * sizeof *out);
    else if (type == KVE_TYPE_F16)
        f16_row(data, n, out);
    else if (type == KVE_TYPE_BF16)
        bf16_row(data, n, out);
    else
        blocks(block[type], &formats[type], data, n, out);
}

int64_t kve_first_not_finite(const float *x, int64_t n)
{
    uint32_t bad = 0, bits;
    for (int64_t i = 0; i < n; i++) { /* no early exit: the loop vectorises, and a bad value is rare */
        memcpy(&bits, x + i, sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    for (int64_t i = 0; bad && i < n; i++) {
        memcpy(&bits, x + i, sizeof bits);
        if ((bits & 0x7f800000u) == 0x7f800000u)
            return i;
    }
    return -1;
}
