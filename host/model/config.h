/* What a model is, read from GGUF metadata or config.json into one struct. Knows no tensors and no backend. */
#ifndef KVE_MODEL_CONFIG_H
#define KVE_MODEL_CONFIG_H

#include "host/base/json.h"
#include "host/base/status.h"
#include "host/shape.h"

#include <stdbool.h>

typedef enum kve_arch { KVE_ARCH_LLAMA, KVE_ARCH_QWEN2, KVE_ARCH_QWEN3, KVE_ARCH_PHI3 } kve_arch;

typedef enum kve_rope_scaling {
    KVE_ROPE_NONE,
    KVE_ROPE_LINEAR,   /* all frequencies / factor */
    KVE_ROPE_LLAMA3,   /* Llama 3.1: by wavelength */
    KVE_ROPE_LONGROPE, /* Phi: short/long factor lists, chosen once per sample by its total length */
    KVE_ROPE_YARN,     /* recognised so that it can be refused by name, unless the model does not need it */
} kve_rope_scaling;

enum { KVE_MAX_ROPE_DIMS = 512, KVE_MAX_EOS = 8 };

typedef struct kve_config {
    kve_arch arch;
    kve_shape shape;        /* L, Hq, Hkv, D, R, E, F, V */
    char name[128];         /* general.name, or the folder's name */
    int32_t max_context;    /* tokens the model was trained for */
    int32_t sliding_window; /* 0 = none; a context + answer beyond it is refused */
    float norm_eps;
    double rope_theta;
    kve_rope_scaling rope_scaling;
    double rope_factor; /* linear, llama3; longrope: trained context / original context */
    double rope_low_freq, rope_high_freq;
    double rope_attn_factor; /* multiplies cos and sin; 0 = derive */
    int32_t rope_original_context;
    float rope_freq_factor[KVE_MAX_ROPE_DIMS /
                           2]; /* divisors per frequency (GGUF rope_freqs / longrope short); n_freq_factor of them */
    float rope_freq_factor_long[KVE_MAX_ROPE_DIMS / 2]; /* longrope long */
    int32_t n_freq_factor;                              /* 0 = none */
    bool tied_head;                                     /* the output head is the embedding table */
    bool qkv_bias;                                      /* qwen2 */
    bool qk_norm;                                       /* qwen3 */
    int32_t eos[KVE_MAX_EOS], n_eos; /* every id that ends an answer (config / generation_config lists) */
    int32_t bos;                     /* -1 = none */
} kve_config;

/* cos and sin tables [n_positions][R/2] for positions 0 .. n_positions - 1, computed in double, into host memory.
 * total_len: n + new tokens of the sample (longrope chooses its factors by it). */
kve_status kve_rope_tables(const kve_config *cfg, int32_t n_positions, int32_t total_len, float *cos_out,
                           float *sin_out);

const char *kve_arch_name(kve_arch arch);

/* Fills *cfg from a Hugging Face config.json (generation_config.json's eos too when `generation` is not NULL).
 * `name` is the file for messages. */
kve_status kve_config_from_json(const cJSON *root, const cJSON *generation, const char *name, kve_config *cfg);

/* Checks that the numbers fit together (Hq % Hkv, D, R even, positive sizes, limits); every reader ends with it. */
kve_status kve_config_check(const kve_config *cfg, const char *name);

#endif
