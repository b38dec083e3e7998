/* config.json and generation_config.json to kve_config. What would change the model's results and is not supported is
 * refused by name. */
#include "host/model/internal.h"

#include <math.h>
#include <string.h>

typedef struct reader {
    const cJSON *root;
    const char *name;
    kve_config *c;
    bool mistral;
} reader;

static kve_status get_size(const reader *r, const char *key, int32_t *out)
{
    int64_t v = 0;
    KVE_TRY(kve_json_int(r->root, key, r->name, &v));
    if (v < 0 || v > INT32_MAX)
        return kve_fail(KVE_ERR_FILE, "%s: '%s' is %lld; 0 to %d is possible", r->name, key, (long long)v, INT32_MAX);
    *out = (int32_t)v;
    return KVE_OK;
}

/* Leaves *out as it is when the field is absent or null. */
static kve_status get_size_or(const reader *r, const char *key, int32_t *out)
{
    const cJSON *f = kve_json_get(r->root, key);
    return f && !cJSON_IsNull(f) ? get_size(r, key, out) : KVE_OK;
}

static kve_status read_arch(reader *r)
{
    static const struct {
        const char *name;
        kve_arch arch;
    } known[] = {{"llama", KVE_ARCH_LLAMA},
                 {"mistral", KVE_ARCH_LLAMA},
                 {"qwen2", KVE_ARCH_QWEN2},
                 {"qwen3", KVE_ARCH_QWEN3},
                 {"phi3", KVE_ARCH_PHI3}};
    const char *type = "";
    KVE_TRY(kve_json_str(r->root, "model_type", r->name, &type));
    r->mistral = strcmp(type, "mistral") == 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, type) == 0) {
            r->c->arch = known[i].arch;
            return KVE_OK;
        }
    }
    return kve_fail(KVE_ERR_FILE,
                    "%s: model_type '%s' is not supported; use a llama, mistral, qwen2, qwen3 or phi3 model", r->name,
                    type);
}

static kve_status refuse_extras(const reader *r)
{
    static const char *const flags[] = {"attention_bias", "mlp_bias"};
    const char *act = "";
    const cJSON *quant = kve_json_get(r->root, "quantization_config");
    if (quant && !cJSON_IsNull(quant))
        return kve_fail(KVE_ERR_FILE,
                        "%s: quantised safetensors ('quantization_config') are not supported; use the original "
                        "weights or a GGUF file",
                        r->name);
    KVE_TRY(kve_json_str_or(r->root, "hidden_act", r->name, "silu", &act));
    if (strcmp(act, "silu") != 0)
        return kve_fail(KVE_ERR_FILE, "%s: hidden_act '%s' is not supported; 'silu' is", r->name, act);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        bool on = false;
        KVE_TRY(kve_json_bool_or(r->root, flags[i], r->name, false, &on));
        if (on)
            return kve_fail(KVE_ERR_FILE, "%s: '%s' is true, which is not supported", r->name, flags[i]);
    }
    return KVE_OK;
}

static kve_status read_shape(const reader *r)
{
    kve_shape *s = &r->c->shape;
    KVE_TRY(get_size(r, "num_hidden_layers", &s->L));
    KVE_TRY(get_size(r, "num_attention_heads", &s->Hq));
    KVE_TRY(get_size(r, "hidden_size", &s->E));
    KVE_TRY(get_size(r, "intermediate_size", &s->F));
    KVE_TRY(get_size(r, "vocab_size", &s->V));
    if (s->Hq < 1)
        return kve_fail(KVE_ERR_FILE, "%s: 'num_attention_heads' is %d; a positive number is due", r->name, s->Hq);
    s->Hkv = s->Hq;
    s->D = s->E / s->Hq;
    KVE_TRY(get_size_or(r, "num_key_value_heads", &s->Hkv));
    return get_size_or(r, "head_dim", &s->D);
}

/* Qwen needs a switch for its window; Mistral's absent field means 4,096; a list of layer types that are all full
 * attention means none. */
static kve_status read_window(const reader *r)
{
    kve_config *c = r->c;
    bool use = c->arch != KVE_ARCH_QWEN2 && c->arch != KVE_ARCH_QWEN3, all_full = false;
    const cJSON *types = kve_json_get(r->root, "layer_types"), *e;
    if (!use)
        KVE_TRY(kve_json_bool_or(r->root, "use_sliding_window", r->name, false, &use));
    if (r->mistral && !kve_json_get(r->root, "sliding_window"))
        c->sliding_window = 4096;
    KVE_TRY(get_size_or(r, "sliding_window", &c->sliding_window));
    if (cJSON_IsArray(types) && types->child) {
        all_full = true;
        cJSON_ArrayForEach(e, types) all_full =
            all_full && cJSON_IsString(e) && strcmp(e->valuestring, "full_attention") == 0;
    }
    if (!use || all_full || c->sliding_window >= c->max_context)
        c->sliding_window = 0;
    return KVE_OK;
}

static kve_status read_list(const reader *r, const cJSON *rope, const char *key, float *out)
{
    const cJSON *list = kve_json_get(rope, key), *e;
    int32_t n = 0, due = r->c->shape.R / 2;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != due || due > KVE_MAX_ROPE_DIMS / 2)
        return kve_fail(KVE_ERR_FILE, "%s: RoPE scaling: '%s' is not a list of %d numbers", r->name, key, due);
    cJSON_ArrayForEach(e, list)
    {
        if (!cJSON_IsNumber(e))
            return kve_fail(KVE_ERR_FILE, "%s: RoPE scaling: '%s' holds something that is not a number", r->name, key);
        out[n++] = (float)e->valuedouble;
    }
    r->c->n_freq_factor = n;
    return KVE_OK;
}

static kve_status read_longrope(const reader *r, const cJSON *rope)
{
    kve_config *c = r->c;
    double stretch = c->rope_original_context > 0 ? (double)c->max_context / c->rope_original_context : 1;
    if (kve_json_get(rope, "short_mscale") || kve_json_get(rope, "long_mscale"))
        return kve_fail(KVE_ERR_FILE, "%s: longrope with 'short_mscale' or 'long_mscale' is not supported", r->name);
    KVE_TRY(read_list(r, rope, "short_factor", c->rope_freq_factor));
    KVE_TRY(read_list(r, rope, "long_factor", c->rope_freq_factor_long));
    KVE_TRY(kve_json_num_or(rope, "factor", r->name, stretch, &c->rope_factor));
    return kve_json_num_or(rope, "attention_factor", r->name, 0, &c->rope_attn_factor);
}

static kve_status read_scaling(const reader *r, const cJSON *rope, const char *type)
{
    kve_config *c = r->c;
    reader in_rope = {rope, r->name, c, false};
    c->rope_original_context = c->max_context;
    KVE_TRY(get_size_or(&in_rope, "original_max_position_embeddings", &c->rope_original_context));
    KVE_TRY(get_size_or(r, "original_max_position_embeddings", &c->rope_original_context));
    /* Phi-3's first releases called longrope "su", and once "yarn". */
    bool phi = c->arch == KVE_ARCH_PHI3 && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0);
    if (strcmp(type, "longrope") == 0 || phi) {
        c->rope_scaling = KVE_ROPE_LONGROPE;
        return read_longrope(r, rope);
    }
    if (strcmp(type, "llama3") == 0) {
        c->rope_scaling = KVE_ROPE_LLAMA3;
        KVE_TRY(kve_json_num(rope, "low_freq_factor", r->name, &c->rope_low_freq));
        KVE_TRY(kve_json_num(rope, "high_freq_factor", r->name, &c->rope_high_freq));
    } else if (strcmp(type, "linear") == 0) {
        c->rope_scaling = KVE_ROPE_LINEAR;
    } else if (strcmp(type, "yarn") == 0) {
        c->rope_scaling = KVE_ROPE_YARN;
    } else {
        return kve_fail(KVE_ERR_FILE, "%s: RoPE scaling '%s' is not supported; linear, llama3 and longrope are",
                        r->name, type);
    }
    return kve_json_num(rope, "factor", r->name, &c->rope_factor);
}

/* Newer files keep everything in rope_parameters; older ones have rope_scaling beside rope_theta. */
static kve_status read_rope(const reader *r)
{
    kve_config *c = r->c;
    const cJSON *rope = kve_json_get(r->root, "rope_parameters");
    const char *type = "default";
    double part = 1;
    if (!rope || cJSON_IsNull(rope))
        rope = kve_json_get(r->root, "rope_scaling");
    if (rope && !cJSON_IsNull(rope) && !cJSON_IsObject(rope))
        return kve_fail(KVE_ERR_FILE, "%s: the RoPE parameters are not an object", r->name);
    bool given = cJSON_IsObject(rope);
    KVE_TRY(kve_json_num_or(r->root, "rope_theta", r->name, c->rope_theta, &c->rope_theta));
    KVE_TRY(kve_json_num_or(r->root, "partial_rotary_factor", r->name, 1, &part));
    if (given) {
        KVE_TRY(kve_json_num_or(rope, "rope_theta", r->name, c->rope_theta, &c->rope_theta));
        KVE_TRY(kve_json_num_or(rope, "partial_rotary_factor", r->name, part, &part));
        KVE_TRY(kve_json_str_or(rope, "type", r->name, type, &type));
        KVE_TRY(kve_json_str_or(rope, "rope_type", r->name, type, &type));
    }
    if (!(part > 0 && part <= 1))
        return kve_fail(KVE_ERR_FILE, "%s: 'partial_rotary_factor' is %g; a number in (0, 1] is due", r->name, part);
    c->shape.R = (int32_t)(c->shape.D * part);
    return strcmp(type, "default") == 0 ? KVE_OK : read_scaling(r, rope, type);
}

/* One id or a list of ids. */
static kve_status read_eos(const cJSON *root, const char *name, kve_config *c)
{
    const cJSON *f = kve_json_get(root, "eos_token_id"), *e;
    if (!f || cJSON_IsNull(f))
        return KVE_OK;
    bool list = cJSON_IsArray(f);
    for (e = list ? f->child : f; e; e = list ? e->next : NULL) {
        if (!cJSON_IsNumber(e) || !(e->valuedouble >= 0 && e->valuedouble < c->shape.V))
            return kve_fail(KVE_ERR_FILE, "%s: 'eos_token_id' holds something that is no id below %d", name,
                            c->shape.V);
        if (c->n_eos == KVE_MAX_EOS)
            return kve_fail(KVE_ERR_FILE, "%s: more than %d end ids", name, (int)KVE_MAX_EOS);
        kve_config_add_eos(c, (int64_t)e->valuedouble);
    }
    return KVE_OK;
}

kve_status kve_config_from_json(const cJSON *root, const cJSON *generation, const char *name, kve_config *cfg)
{
    reader r = {root, name, cfg, false};
    double eps = 0;
    int64_t bos = -1;
    if (!cJSON_IsObject(root))
        return kve_fail(KVE_ERR_FILE, "%s: is not a JSON object", name);
    kve_config_init(cfg);
    KVE_TRY(read_arch(&r));
    KVE_TRY(refuse_extras(&r));
    KVE_TRY(read_shape(&r));
    KVE_TRY(get_size(&r, "max_position_embeddings", &cfg->max_context));
    KVE_TRY(read_window(&r));
    KVE_TRY(kve_json_num(root, "rms_norm_eps", name, &eps));
    cfg->norm_eps = (float)eps;
    KVE_TRY(read_rope(&r));
    KVE_TRY(kve_json_bool_or(root, "tie_word_embeddings", name, false, &cfg->tied_head));
    cfg->qkv_bias = cfg->arch == KVE_ARCH_QWEN2;
    cfg->qk_norm = cfg->arch == KVE_ARCH_QWEN3;
    KVE_TRY(read_eos(root, name, cfg));
    if (generation)
        KVE_TRY(read_eos(generation, name, cfg));
    KVE_TRY(kve_json_int_or(root, "bos_token_id", name, -1, &bos));
    if (bos < -1 || bos >= cfg->shape.V)
        return kve_fail(KVE_ERR_FILE, "%s: 'bos_token_id' is %lld, outside [0, %d)", name, (long long)bos,
                        cfg->shape.V);
    cfg->bos = (int32_t)bos;
    return kve_config_check(cfg, name);
}
