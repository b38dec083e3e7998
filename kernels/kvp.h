/* The learned policy's network (KVP, "Learning to Evict from Key-Value Cache", arXiv 2602.10238): the tensors of one
 * (layer, KV head) and where each stands in the flat f32 blob that kvp_score, the file reader and the trainer share.
 * The formula is in kernels/ops.h. Knows nothing but integers; C and C++ include it.
 *
 * A blob holds the tensors in the order of the enum without gaps, row-major as torch's Linear has them ([out][in]),
 * then zeros, which nothing reads, up to a multiple of 16 floats: so in an array of blobs every tensor is 64-byte
 * aligned. */
#ifndef KVE_KERNELS_KVP_H
#define KVE_KERNELS_KVP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KVE_KVP_MAX_D = 256, KVE_KVP_MAX_H = 256, KVE_KVP_MAX_P = 64, KVE_KVP_UNIT = 16 };

typedef struct kve_kvp_shape {
    int32_t D; /* head dimension of the cache */
    int32_t H; /* width of the network: 64 or 256 as a rule */
    int32_t P; /* width of the position feature: 32 as a rule */
} kve_kvp_shape;

/* *_GAIN and *_SHIFT are a LayerNorm's weight and bias. */
typedef enum kve_kvp_tensor {
    KVE_KVP_K_WEIGHT, /* [H][D] */
    KVE_KVP_K_BIAS,   /* [H] */
    KVE_KVP_K_GAIN,   /* [H] */
    KVE_KVP_K_SHIFT,  /* [H] */
    KVE_KVP_V_WEIGHT, /* the same for values */
    KVE_KVP_V_BIAS,
    KVE_KVP_V_GAIN,
    KVE_KVP_V_SHIFT,
    KVE_KVP_POS_GAIN,    /* [P] */
    KVE_KVP_POS_SHIFT,   /* [P] */
    KVE_KVP_MIX_WEIGHT,  /* [H][2H + P]: the first hidden layer; its inputs are key, value, position */
    KVE_KVP_MIX_BIAS,    /* [H] */
    KVE_KVP_MIX_GAIN,    /* [H] */
    KVE_KVP_MIX_SHIFT,   /* [H] */
    KVE_KVP_DEEP_WEIGHT, /* [H][H]: the second hidden layer */
    KVE_KVP_DEEP_BIAS,   /* [H] */
    KVE_KVP_DEEP_GAIN,   /* [H] */
    KVE_KVP_DEEP_SHIFT,  /* [H] */
    KVE_KVP_OUT_WEIGHT,  /* [H] */
    KVE_KVP_OUT_BIAS,    /* [1] */
    KVE_KVP_TENSORS      /* how many there are; as an offset, the end of the last */
} kve_kvp_tensor;

/* D, H and P are multiples of 16 within the limits above. */
static inline bool kve_kvp_is_legal(kve_kvp_shape s)
{
    return s.D > 0 && s.D <= KVE_KVP_MAX_D && s.D % KVE_KVP_UNIT == 0 && s.H > 0 && s.H <= KVE_KVP_MAX_H &&
           s.H % KVE_KVP_UNIT == 0 && s.P > 0 && s.P <= KVE_KVP_MAX_P && s.P % KVE_KVP_UNIT == 0;
}

/* Rows and columns of a tensor; a vector has one row. */
static inline int32_t kve_kvp_rows(kve_kvp_shape s, kve_kvp_tensor t)
{
    return t == KVE_KVP_K_WEIGHT || t == KVE_KVP_V_WEIGHT || t == KVE_KVP_MIX_WEIGHT || t == KVE_KVP_DEEP_WEIGHT ? s.H
                                                                                                                 : 1;
}

static inline int32_t kve_kvp_cols(kve_kvp_shape s, kve_kvp_tensor t)
{
    switch (t) {
    case KVE_KVP_K_WEIGHT:
    case KVE_KVP_V_WEIGHT:
        return s.D;
    case KVE_KVP_MIX_WEIGHT:
        return 2 * s.H + s.P;
    case KVE_KVP_POS_GAIN:
    case KVE_KVP_POS_SHIFT:
        return s.P;
    case KVE_KVP_OUT_BIAS:
        return 1;
    default:
        return s.H;
    }
}

/* Where tensor t starts in a blob, in floats. */
static inline size_t kve_kvp_offset(kve_kvp_shape s, kve_kvp_tensor t)
{
    size_t at = 0;
    for (int i = 0; i < (int)t; i++)
        at += (size_t)kve_kvp_rows(s, (kve_kvp_tensor)i) * (size_t)kve_kvp_cols(s, (kve_kvp_tensor)i);
    return at;
}

/* Floats of a blob, the zeros at its end included. */
static inline size_t kve_kvp_count(kve_kvp_shape s)
{
    return (kve_kvp_offset(s, KVE_KVP_TENSORS) + KVE_KVP_UNIT - 1) / KVE_KVP_UNIT * KVE_KVP_UNIT;
}

#endif
