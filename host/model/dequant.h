/* Number formats of stored tensors and their conversion to f32. Knows blocks of bytes, no files and no tensors. */
#ifndef KVE_MODEL_DEQUANT_H
#define KVE_MODEL_DEQUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are GGUF's. Types that are listed in a file but not here are known by name only (kve_type_name). */
typedef enum kve_tensor_type {
    KVE_TYPE_F32 = 0,
    KVE_TYPE_F16 = 1,
    KVE_TYPE_Q4_0 = 2,
    KVE_TYPE_Q4_1 = 3,
    KVE_TYPE_Q5_0 = 6,
    KVE_TYPE_Q5_1 = 7,
    KVE_TYPE_Q8_0 = 8,
    KVE_TYPE_Q2_K = 10,
    KVE_TYPE_Q3_K = 11,
    KVE_TYPE_Q4_K = 12,
    KVE_TYPE_Q5_K = 13,
    KVE_TYPE_Q6_K = 14,
    KVE_TYPE_BF16 = 30,
} kve_tensor_type;

#define KVE_TYPES_SUPPORTED "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K"

/* "Q4_K"; for a type that can be named but not read its GGUF name too ("IQ4_XS"), else "?". Static. */
const char *kve_type_name(uint32_t type);

/* Values and bytes of one block; false if the type cannot be read. */
bool kve_type_block(uint32_t type, int64_t *values, int64_t *bytes);

/* n values from `data` (n a multiple of the block's values; no alignment needed) to out [n]. NaN and infinity pass. */
void kve_dequant(kve_tensor_type type, const unsigned char *data, int64_t n, float *out);

/* The index of the first NaN or infinity in x [n], or -1. */
int64_t kve_first_not_finite(const float *x, int64_t n);

#endif
