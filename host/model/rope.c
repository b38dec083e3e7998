/* cos and sin of every position, in double: frequencies theta^(-2 i / R), changed by the model's scaling. */
#include "host/model/config.h"

#include <math.h>

/* Llama 3.1: wavelengths short against the original context stay, long ones are stretched by the factor, and those
 * between are blended linearly in (original context / wavelength). */
static double llama3(const kve_config *c, double freq)
{
    double turns = c->rope_original_context * freq / (2 * M_PI); /* in the original context */
    if (turns > c->rope_high_freq)
        return freq;
    if (turns < c->rope_low_freq)
        return freq / c->rope_factor;
    double keep = (turns - c->rope_low_freq) / (c->rope_high_freq - c->rope_low_freq);
    return (1 - keep) * freq / c->rope_factor + keep * freq;
}

static double frequency(const kve_config *c, int32_t i, int32_t total_len)
{
    double freq = pow(c->rope_theta, -2.0 * i / c->shape.R);
    switch (c->rope_scaling) {
    case KVE_ROPE_LINEAR:
        return freq / c->rope_factor;
    case KVE_ROPE_LLAMA3:
        return llama3(c, freq);
    case KVE_ROPE_LONGROPE:
        return freq /
               (double)(total_len > c->rope_original_context ? c->rope_freq_factor_long : c->rope_freq_factor)[i];
    default:
        return c->n_freq_factor ? freq / (double)c->rope_freq_factor[i] : freq;
    }
}

/* LongRoPE without a stored attention factor: sqrt(1 + ln s / ln original), s = trained context / original context. */
static double amplitude(const kve_config *c)
{
    if (c->rope_attn_factor > 0)
        return c->rope_attn_factor;
    if (c->rope_scaling != KVE_ROPE_LONGROPE || c->rope_factor <= 1)
        return 1;
    return sqrt(1 + log(c->rope_factor) / log((double)c->rope_original_context));
}

kve_status kve_rope_tables(const kve_config *cfg, int32_t n_positions, int32_t total_len, float *cos_out,
                           float *sin_out)
{
    int32_t half = cfg->shape.R / 2;
    if (n_positions < 0 || half < 1 || half > KVE_MAX_ROPE_DIMS / 2)
        return kve_fail(KVE_ERR_INTERNAL, "RoPE tables of %d positions and %d rotary dimensions", n_positions,
                        cfg->shape.R);
    double freq[KVE_MAX_ROPE_DIMS / 2], scale = amplitude(cfg);
    for (int32_t i = 0; i < half; i++)
        freq[i] = frequency(cfg, i, total_len);
    for (int32_t pos = 0; pos < n_positions; pos++) {
        for (int32_t i = 0; i < half; i++) {
            int64_t at = (int64_t)pos * half + i;
            cos_out[at] = (float)(scale * cos(pos * freq[i]));
            sin_out[at] = (float)(scale * sin(pos * freq[i]));
        }
    }
    return KVE_OK;
}
