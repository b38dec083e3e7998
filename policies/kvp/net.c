/* The weight file. Contract: net.h. */
#include "policies/kvp/net.h"

#include "host/model/dequant.h"
#include "host/model/safetensors.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "kveval-kvp-1"

static const struct {
    const char *name;
    unsigned bits;
} g_inputs[] = {{"kvpos", KVE_KVP_K | KVE_KVP_V | KVE_KVP_POS},
                {"kv", KVE_KVP_K | KVE_KVP_V},
                {"k", KVE_KVP_K},
                {"pos", KVE_KVP_POS}};

const char *kve_kvp_inputs_name(unsigned inputs)
{
    for (size_t i = 0; i < sizeof g_inputs / sizeof *g_inputs; i++)
        if (g_inputs[i].bits == inputs)
            return g_inputs[i].name;
    return NULL;
}

bool kve_kvp_inputs_find(const char *name, unsigned *out)
{
    for (size_t i = 0; i < sizeof g_inputs / sizeof *g_inputs; i++)
        if (strcmp(g_inputs[i].name, name) == 0) {
            *out = g_inputs[i].bits;
            return true;
        }
    return false;
}

/* --- Reading */

static kve_status meta_text(const kve_safetensors *st, const char *key, kve_arena *arena, const char **out)
{
    const char *value = kve_st_meta_get(st, key);
    char *copy = NULL;
    if (!value)
        return kve_fail(KVE_ERR_FILE, "%s: no metadata '%s'; kveval train writes such files", st->name, key);
    KVE_TRY(kve_arena_strndup(arena, value, strlen(value), &copy));
    *out = copy;
    return KVE_OK;
}

static kve_status meta_int(const kve_safetensors *st, const char *key, int32_t most, int32_t *out)
{
    const char *value = kve_st_meta_get(st, key);
    char *end = NULL;
    if (!value)
        return kve_fail(KVE_ERR_FILE, "%s: no metadata '%s'; kveval train writes such files", st->name, key);
    errno = 0;
    long v = strtol(value, &end, 10);
    if (end == value || *end || errno || v < 1 || v > most)
        return kve_fail(KVE_ERR_FILE, "%s: metadata %s is '%s', a whole number from 1 to %d is due", st->name, key,
                        value, most);
    *out = (int32_t)v;
    return KVE_OK;
}

static kve_status read_meta(const kve_safetensors *st, kve_arena *arena, kve_kvp_net *net)
{
    const char *format = NULL, *inputs = NULL;
    KVE_TRY(meta_text(st, "format", arena, &format));
    if (strcmp(format, FORMAT) != 0)
        return kve_fail(KVE_ERR_FILE, "%s: the format is '%s'; this program reads %s", st->name, format, FORMAT);
    KVE_TRY(meta_int(st, "layers", 4096, &net->L));
    KVE_TRY(meta_int(st, "kv_heads", 4096, &net->Hkv));
    KVE_TRY(meta_int(st, "head_dim", KVE_KVP_MAX_D, &net->shape.D));
    KVE_TRY(meta_int(st, "width", KVE_KVP_MAX_H, &net->shape.H));
    KVE_TRY(meta_int(st, "position_width", KVE_KVP_MAX_P, &net->shape.P));
    if (!kve_kvp_is_legal(net->shape))
        return kve_fail(KVE_ERR_FILE, "%s: head_dim %d, width %d, position_width %d: multiples of %d are due", st->name,
                        net->shape.D, net->shape.H, net->shape.P, KVE_KVP_UNIT);
    KVE_TRY(meta_text(st, "inputs", arena, &inputs));
    if (!kve_kvp_inputs_find(inputs, &net->inputs))
        return kve_fail(KVE_ERR_FILE, "%s: metadata inputs is '%s'; kvpos, kv, k or pos is due", st->name, inputs);
    KVE_TRY(meta_text(st, "model", arena, &net->model));
    KVE_TRY(meta_text(st, "model_sha256", arena, &net->model_sha256));
    KVE_TRY(meta_text(st, "objective", arena, &net->objective));
    KVE_TRY(meta_text(st, "recipe", arena, &net->recipe));
    KVE_TRY(meta_text(st, "data_sha256", arena, &net->data_sha256));
    KVE_TRY(meta_text(st, "seed", arena, &net->seed));
    return meta_text(st, "step", arena, &net->step);
}

static kve_status all_finite(const kve_safetensors *st, const char *tensor, const float *x, int64_t n)
{
    int64_t bad = kve_first_not_finite(x, n);
    if (bad < 0)
        return KVE_OK;
    return kve_fail(KVE_ERR_FILE, "%s: '%s', value %lld is %g; train the file again", st->name, tensor, (long long)bad,
                    (double)x[bad]);
}

static kve_status read_weights(const kve_safetensors *st, kve_arena *arena, kve_kvp_net *net)
{
    const kve_st_tensor *t = kve_st_find(st, "weights");
    size_t each = kve_kvp_count(net->shape), count = (size_t)net->L * (size_t)net->Hkv * each;
    if (!t || (t->dtype != KVE_ST_F16 && t->dtype != KVE_ST_F32) || t->n_dims != 3 || t->dims[0] != net->L ||
        t->dims[1] != net->Hkv || t->dims[2] != (int64_t)each)
        return kve_fail(KVE_ERR_FILE, "%s: no tensor 'weights', F16 or F32 [%d][%d][%zu], as the metadata demand",
                        st->name, net->L, net->Hkv, each);
    KVE_TRY(kve_arena_alloc(arena, count, sizeof *net->weights, &net->weights));
    kve_dequant(t->dtype == KVE_ST_F16 ? KVE_TYPE_F16 : KVE_TYPE_F32, t->data, t->count, net->weights);
    return all_finite(st, "weights", net->weights, t->count);
}

static kve_status read_table(const kve_safetensors *st, kve_arena *arena, kve_kvp_net *net)
{
    const char *position = NULL;
    const kve_st_tensor *t = kve_st_find(st, "table");
    KVE_TRY(meta_text(st, "position", arena, &position));
    if (strcmp(position, "analytic") == 0 && !t)
        return KVE_OK;
    if (strcmp(position, "table") != 0 || !t)
        return kve_fail(KVE_ERR_FILE,
                        "%s: metadata position is '%s' and there is %s tensor 'table'; 'table' goes with one, "
                        "'analytic' without",
                        st->name, position, t ? "a" : "no");
    if (t->dtype != KVE_ST_F32 || t->n_dims != 3 || (t->dims[0] != 1 && t->dims[0] != (int64_t)net->L * net->Hkv) ||
        t->dims[1] < 1 || t->dims[1] > 1 << 24 || t->dims[2] != net->shape.P)
        return kve_fail(KVE_ERR_FILE, "%s: 'table' is not F32 [1 or %d][positions][%d]", st->name, net->L * net->Hkv,
                        net->shape.P);
    net->n_tables = (int32_t)t->dims[0];
    net->n_positions = (int32_t)t->dims[1];
    KVE_TRY(kve_arena_alloc(arena, (size_t)t->count, sizeof *net->table, &net->table));
    memcpy(net->table, t->data, t->bytes);
    return all_finite(st, "table", net->table, t->count);
}

kve_status kve_kvp_net_read(const char *path, kve_arena *arena, kve_kvp_net *out)
{
    kve_safetensors st = {0};
    *out = (kve_kvp_net){0};
    kve_status r = kve_safetensors_open(path, &st);
    if (r == KVE_OK)
        r = read_meta(&st, arena, out);
    if (r == KVE_OK)
        r = read_weights(&st, arena, out);
    if (r == KVE_OK)
        r = read_table(&st, arena, out);
    kve_safetensors_close(&st);
    return r;
}

kve_status kve_kvp_net_fits(const kve_kvp_net *net, const char *path, const kve_shape *s, const char *model_sha256)
{
    if (net->L != s->L || net->Hkv != s->Hkv || net->shape.D != s->D)
        return kve_fail(KVE_ERR_FILE,
                        "%s was trained for another model: %s with %d layers, %d KV heads of %d dimensions; this one "
                        "has %d, %d and %d. Train one for it with kveval train",
                        path, net->model, net->L, net->Hkv, net->shape.D, s->L, s->Hkv, s->D);
    if (model_sha256 && strcmp(model_sha256, net->model_sha256) != 0)
        return kve_fail(KVE_ERR_FILE,
                        "%s was trained for another model file: %s with SHA-256 %s; this one has %s. Train one for it "
                        "with kveval train",
                        path, net->model, net->model_sha256, model_sha256);
    return KVE_OK;
}

/* --- Writing */

/* Nearest even; finite and within the range of F16. */
static uint16_t to_f16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const float size = fabsf(x);
    if (size < 0x1p-14f) /* subnormal there: a multiple of 2^-24 */
        return (uint16_t)(sign | (uint32_t)lrintf(size * 0x1p24f));
    bits &= 0x7fffffffu;
    bits += 0xfffu + (bits >> 13 & 1u);
    return (uint16_t)(sign | ((bits - (112u << 23)) >> 13));
}

static kve_status write_weights(kve_st_writer *w, const char *path, const float *x, size_t count)
{
    enum { PIECE = 4096 };
    uint16_t half[PIECE];
    for (size_t at = 0; at < count; at += PIECE) {
        size_t n = count - at < PIECE ? count - at : PIECE;
        for (size_t i = 0; i < n; i++) {
            if (!(fabsf(x[at + i]) < 65504.0f))
                return kve_fail(KVE_ERR_INTERNAL, "%s: weight %zu is %g, too large for F16; did the training diverge?",
                                path, at + i, (double)x[at + i]);
            half[i] = to_f16(x[at + i]);
        }
        KVE_TRY(kve_st_write(w, half, n * sizeof *half));
    }
    return KVE_OK;
}

kve_status kve_kvp_net_write(const char *path, const kve_kvp_net *net)
{
    enum { N_NUMBERS = 5 };
    const int32_t values[N_NUMBERS] = {net->L, net->Hkv, net->shape.D, net->shape.H, net->shape.P};
    size_t each = kve_kvp_count(net->shape), count = (size_t)net->L * (size_t)net->Hkv * each;
    size_t table = (size_t)net->n_tables * (size_t)net->n_positions * (size_t)net->shape.P;
    char n[N_NUMBERS][16];
    kve_st_writer *w = NULL;
    for (int i = 0; i < N_NUMBERS; i++)
        snprintf(n[i], sizeof n[i], "%d", values[i]);
    const kve_st_tensor tensors[] = {
        {.name = "weights", .dtype = KVE_ST_F16, .n_dims = 3, .dims = {net->L, net->Hkv, (int64_t)each}},
        {.name = "table", .dtype = KVE_ST_F32, .n_dims = 3, .dims = {net->n_tables, net->n_positions, net->shape.P}}};
    const kve_st_meta meta[] = {{"format", FORMAT},
                                {"layers", n[0]},
                                {"kv_heads", n[1]},
                                {"head_dim", n[2]},
                                {"width", n[3]},
                                {"position_width", n[4]},
                                {"inputs", kve_kvp_inputs_name(net->inputs)},
                                {"position", net->table ? "table" : "analytic"},
                                {"model", net->model},
                                {"model_sha256", net->model_sha256},
                                {"objective", net->objective},
                                {"recipe", net->recipe},
                                {"data_sha256", net->data_sha256},
                                {"seed", net->seed},
                                {"step", net->step}};
    KVE_TRY(kve_st_create(path, tensors, net->table ? 2 : 1, meta, sizeof meta / sizeof *meta, &w));
    kve_status st = write_weights(w, path, net->weights, count);
    if (st == KVE_OK && net->table)
        st = kve_st_write(w, net->table, table * sizeof(float));
    if (st == KVE_OK)
        return kve_st_finish(w);
    kve_st_abort(w);
    return st;
}
