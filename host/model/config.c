/* Checks and names of a model's configuration. */
#include "host/model/config.h"

#include "host/model/internal.h"

#include <math.h>

enum { MAX_HEADS = 1024, MAX_HEAD_DIM = 512, MAX_WIDTH = 1 << 18, MAX_VOCAB = 1 << 24 };

const char *kve_arch_name(kve_arch arch)
{
    static const char *const names[] = {"llama", "qwen2", "qwen3", "phi3"};
    return names[arch];
}

void kve_config_init(kve_config *cfg)
{
    *cfg = (kve_config){.rope_theta = 10000, .rope_factor = 1, .rope_low_freq = 1, .rope_high_freq = 4, .bos = -1};
}

void kve_config_add_eos(kve_config *cfg, int64_t id)
{
    for (int32_t i = 0; i < cfg->n_eos; i++)
        if (cfg->eos[i] == id)
            return;
    if (id >= 0 && id < cfg->shape.V && cfg->n_eos < KVE_MAX_EOS)
        cfg->eos[cfg->n_eos++] = (int32_t)id;
}

static kve_status check_size(const char *name, const char *what, int32_t v, int32_t max)
{
    if (v < 1 || v > max)
        return kve_fail(KVE_ERR_FILE, "%s: %s is %d; 1 to %d is possible", name, what, v, max);
    return KVE_OK;
}

kve_status kve_config_check_shape(const kve_config *cfg, const char *name)
{
    const kve_shape *s = &cfg->shape;
    KVE_TRY(check_size(name, "the number of layers", s->L, KVE_MAX_LAYERS));
    KVE_TRY(check_size(name, "the number of query heads", s->Hq, MAX_HEADS));
    KVE_TRY(check_size(name, "the number of key/value heads", s->Hkv, MAX_HEADS));
    KVE_TRY(check_size(name, "the head dimension", s->D, MAX_HEAD_DIM));
    KVE_TRY(check_size(name, "the number of rotary dimensions", s->R, KVE_MAX_ROPE_DIMS));
    KVE_TRY(check_size(name, "the model width", s->E, MAX_WIDTH));
    KVE_TRY(check_size(name, "the feed-forward width", s->F, MAX_WIDTH));
    KVE_TRY(check_size(name, "the vocabulary size", s->V, MAX_VOCAB));
    if (s->Hq % s->Hkv != 0)
        return kve_fail(KVE_ERR_FILE, "%s: %d query heads are no multiple of %d key/value heads", name, s->Hq, s->Hkv);
    if (s->R > s->D || s->R % 2 != 0 || s->D % 2 != 0)
        return kve_fail(KVE_ERR_FILE,
                        "%s: %d rotary dimensions of a head of %d; an even number that is not larger is due, and the "
                        "head must be even",
                        name, s->R, s->D);
    return KVE_OK;
}

/* What divides a frequency or multiplies an amplitude. Outside of these limits no model was trained, and cos and sin
 * would cease to be finite. */
static bool is_factor(double x)
{
    return x >= 1e-6 && x <= 1e6;
}

/* Factor lists are divisors of the frequencies: as many as there are frequencies. */
static kve_status check_factors(const kve_config *c, const float *f, const char *name)
{
    for (int32_t i = 0; i < c->n_freq_factor; i++)
        if (!is_factor((double)f[i]))
            return kve_fail(KVE_ERR_FILE, "%s: RoPE frequency factor %d is %g; a number from 1e-6 to 1e6 is due", name,
                            i, (double)f[i]);
    return KVE_OK;
}

static kve_status check_rope(const kve_config *c, const char *name)
{
    if (!isfinite(c->rope_theta) || c->rope_theta <= 1)
        return kve_fail(KVE_ERR_FILE, "%s: RoPE theta is %g; a number above 1 is due", name, c->rope_theta);
    if (!is_factor(c->rope_factor) || (c->rope_attn_factor != 0 && !is_factor(c->rope_attn_factor)))
        return kve_fail(KVE_ERR_FILE,
                        "%s: RoPE scaling factor %g, attention factor %g; numbers from 1e-6 to 1e6 are due", name,
                        c->rope_factor, c->rope_attn_factor);
    if (c->rope_scaling == KVE_ROPE_YARN && c->rope_factor != 1)
        return kve_fail(KVE_ERR_FILE,
                        "%s: RoPE scaling 'yarn' with factor %g is not supported; remove it from the configuration to "
                        "use the model within its original context",
                        name, c->rope_factor);
    bool scaled = c->rope_scaling == KVE_ROPE_LLAMA3 || c->rope_scaling == KVE_ROPE_LONGROPE;
    if (scaled && c->rope_original_context < 2)
        return kve_fail(KVE_ERR_FILE, "%s: RoPE scaling needs the original context length, which is %d; 2 is the least",
                        name, c->rope_original_context);
    if (c->rope_scaling == KVE_ROPE_LLAMA3 && !(c->rope_low_freq > 0 && c->rope_high_freq > c->rope_low_freq))
        return kve_fail(KVE_ERR_FILE,
                        "%s: llama3 RoPE scaling with low_freq_factor %g, high_freq_factor %g; 0 < low < high is due",
                        name, c->rope_low_freq, c->rope_high_freq);
    if (c->n_freq_factor != (c->rope_scaling == KVE_ROPE_LONGROPE || c->n_freq_factor ? c->shape.R / 2 : 0))
        return kve_fail(KVE_ERR_FILE, "%s: %d RoPE frequency factors for %d rotary dimensions; %d are due", name,
                        c->n_freq_factor, c->shape.R, c->shape.R / 2);
    KVE_TRY(check_factors(c, c->rope_freq_factor, name));
    return c->rope_scaling == KVE_ROPE_LONGROPE ? check_factors(c, c->rope_freq_factor_long, name) : KVE_OK;
}

kve_status kve_config_check(const kve_config *c, const char *name)
{
    KVE_TRY(kve_config_check_shape(c, name));
    if (c->max_context < 1)
        return kve_fail(KVE_ERR_FILE, "%s: the context length is %d; a positive number is due", name, c->max_context);
    if (c->sliding_window < 0)
        return kve_fail(KVE_ERR_FILE, "%s: the sliding window is %d; 0 (none) or more is due", name, c->sliding_window);
    if (!isfinite(c->norm_eps) || c->norm_eps < 0 || c->norm_eps > 1)
        return kve_fail(KVE_ERR_FILE, "%s: the norm's epsilon is %g; a number in [0, 1] is due", name,
                        (double)c->norm_eps);
    if (c->bos < -1 || c->bos >= c->shape.V)
        return kve_fail(KVE_ERR_FILE, "%s: the BOS id %d lies outside [0, %d)", name, c->bos, c->shape.V);
    return check_rope(c, name);
}
