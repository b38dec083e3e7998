/* The tensors of a checkpoint under one set of names: translation, splitting of fused rows, checks, reading. Knows the
 * architectures' tensor lists and no file format. */
#include "host/model/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64 };

typedef enum role {
    ROLE_EMBED,
    ROLE_HEAD,
    ROLE_FINAL_NORM,
    ROLE_ATTN_NORM,
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_O,
    ROLE_Q_BIAS,
    ROLE_K_BIAS,
    ROLE_V_BIAS,
    ROLE_Q_NORM,
    ROLE_K_NORM,
    ROLE_FFN_NORM,
    ROLE_GATE,
    ROLE_UP,
    ROLE_DOWN,
    N_ROLES,
    ROLE_QKV = N_ROLES, /* fused, never seen by a reader of tensors */
    ROLE_GATE_UP,
    N_ALL_ROLES,
} role;

/* Names without the layer's prefix ("blk.12.", "model.layers.12."). */
static const struct {
    const char *name, *names[2]; /* normalised; by kve_naming */
    bool per_layer;
} roles[N_ALL_ROLES] = {
    [ROLE_EMBED] = {"embed", {"token_embd.weight", "model.embed_tokens.weight"}, false},
    [ROLE_HEAD] = {"head", {"output.weight", "lm_head.weight"}, false},
    [ROLE_FINAL_NORM] = {"final_norm", {"output_norm.weight", "model.norm.weight"}, false},
    [ROLE_ATTN_NORM] = {"attn_norm", {"attn_norm.weight", "input_layernorm.weight"}, true},
    [ROLE_Q] = {"q", {"attn_q.weight", "self_attn.q_proj.weight"}, true},
    [ROLE_K] = {"k", {"attn_k.weight", "self_attn.k_proj.weight"}, true},
    [ROLE_V] = {"v", {"attn_v.weight", "self_attn.v_proj.weight"}, true},
    [ROLE_O] = {"o", {"attn_output.weight", "self_attn.o_proj.weight"}, true},
    [ROLE_Q_BIAS] = {"q_bias", {"attn_q.bias", "self_attn.q_proj.bias"}, true},
    [ROLE_K_BIAS] = {"k_bias", {"attn_k.bias", "self_attn.k_proj.bias"}, true},
    [ROLE_V_BIAS] = {"v_bias", {"attn_v.bias", "self_attn.v_proj.bias"}, true},
    [ROLE_Q_NORM] = {"q_norm", {"attn_q_norm.weight", "self_attn.q_norm.weight"}, true},
    [ROLE_K_NORM] = {"k_norm", {"attn_k_norm.weight", "self_attn.k_norm.weight"}, true},
    [ROLE_FFN_NORM] = {"ffn_norm", {"ffn_norm.weight", "post_attention_layernorm.weight"}, true},
    [ROLE_GATE] = {"gate", {"ffn_gate.weight", "mlp.gate_proj.weight"}, true},
    [ROLE_UP] = {"up", {"ffn_up.weight", "mlp.up_proj.weight"}, true},
    [ROLE_DOWN] = {"down", {"ffn_down.weight", "mlp.down_proj.weight"}, true},
    [ROLE_QKV] = {"qkv", {"attn_qkv.weight", "self_attn.qkv_proj.weight"}, true},
    /* GGUF keeps phi3's fused pair under the name of `up`: the architecture decides. */
    [ROLE_GATE_UP] = {"gate_up", {"ffn_up.weight", "mlp.gate_up_proj.weight"}, true},
};

static bool fused(const kve_config *c)
{
    return c->arch == KVE_ARCH_PHI3;
}

/* Whether a file of this architecture stores the role as a tensor of its own. */
static bool stored(const kve_config *c, role r)
{
    switch (r) {
    case ROLE_Q:
    case ROLE_K:
    case ROLE_V:
    case ROLE_GATE:
    case ROLE_UP:
        return !fused(c);
    case ROLE_QKV:
    case ROLE_GATE_UP:
        return fused(c);
    case ROLE_Q_BIAS:
    case ROLE_K_BIAS:
    case ROLE_V_BIAS:
        return c->qkv_bias;
    case ROLE_Q_NORM:
    case ROLE_K_NORM:
        return c->qk_norm;
    default:
        return true;
    }
}

static void shape_of(const kve_config *c, role r, int64_t *rows, int64_t *cols)
{
    const kve_shape *s = &c->shape;
    int64_t q = (int64_t)s->Hq * s->D, kv = (int64_t)s->Hkv * s->D;
    const int64_t shapes[N_ALL_ROLES][2] = {
        [ROLE_EMBED] = {s->V, s->E},
        [ROLE_HEAD] = {s->V, s->E},
        [ROLE_FINAL_NORM] = {1, s->E},
        [ROLE_ATTN_NORM] = {1, s->E},
        [ROLE_Q] = {q, s->E},
        [ROLE_K] = {kv, s->E},
        [ROLE_V] = {kv, s->E},
        [ROLE_O] = {s->E, q},
        [ROLE_Q_BIAS] = {1, q},
        [ROLE_K_BIAS] = {1, kv},
        [ROLE_V_BIAS] = {1, kv},
        [ROLE_Q_NORM] = {1, s->D},
        [ROLE_K_NORM] = {1, s->D},
        [ROLE_FFN_NORM] = {1, s->E},
        [ROLE_GATE] = {s->F, s->E},
        [ROLE_UP] = {s->F, s->E},
        [ROLE_DOWN] = {s->E, s->F},
        [ROLE_QKV] = {q + 2 * kv, s->E},
        [ROLE_GATE_UP] = {2 * (int64_t)s->F, s->E},
    };
    *rows = shapes[r][0];
    *cols = shapes[r][1];
}

static void print_name(char out[NAME_BYTES], role r, int32_t layer)
{
    if (roles[r].per_layer)
        snprintf(out, NAME_BYTES, "%" PRId32 ".%s", layer, roles[r].name);
    else
        snprintf(out, NAME_BYTES, "%s", roles[r].name);
}

static const char *const layer_prefix[2] = {"blk.", "model.layers."};

/* "blk.12.attn_q.weight" -> ROLE_Q, 12. False if the architecture has no such tensor. */
static bool parse_name(const kve_config *c, kve_naming naming, const char *name, role *out, int32_t *layer)
{
    const char *rest = name;
    size_t prefix = strlen(layer_prefix[naming]);
    *layer = -1;
    if (strncmp(name, layer_prefix[naming], prefix) == 0) {
        int32_t n = 0;
        const char *p = name + prefix;
        if (*p < '0' || *p > '9' || (*p == '0' && p[1] != '.'))
            return false;
        for (; *p >= '0' && *p <= '9' && n < KVE_MAX_LAYERS; p++)
            n = n * 10 + (*p - '0');
        if (*p != '.' || n >= c->shape.L)
            return false;
        *layer = n;
        rest = p + 1;
    }
    for (int r = 0; r < N_ALL_ROLES; r++) {
        if (roles[r].per_layer == (*layer >= 0) && stored(c, (role)r) && strcmp(roles[r].names[naming], rest) == 0) {
            *out = (role)r;
            return true;
        }
    }
    return false;
}

kve_status kve_entries_reserve(kve_checkpoint *ck, size_t n)
{
    if (n > SIZE_MAX / 3)
        return kve_fail(KVE_ERR_FILE, "%s: %zu tensors are too many", ck->path, n);
    ck->cap_entries = 3 * n; /* a fused tensor gives at most three */
    ck->n_entries = 0;
    return kve_arena_alloc(&ck->arena, ck->cap_entries, sizeof *ck->entries, &ck->entries);
}

/* Appends rows [row0, row0 + rows) of the file's tensor as a tensor of the given role. */
static kve_status push(kve_checkpoint *ck, const kve_entry *raw, role r, int32_t layer, int64_t row0, int64_t rows)
{
    char name[NAME_BYTES], *copy;
    print_name(name, r, layer);
    KVE_TRY(kve_arena_strndup(&ck->arena, name, strlen(name), &copy));
    kve_entry *e = &ck->entries[ck->n_entries++];
    *e = *raw;
    e->name = copy;
    e->data = raw->data + (size_t)row0 * raw->row_bytes;
    e->rows = rows;
    return KVE_OK;
}

kve_status kve_entries_add(kve_checkpoint *ck, kve_naming naming, const kve_entry *raw)
{
    const kve_config *c = &ck->cfg;
    role r;
    int32_t layer;
    int64_t rows, cols;
    if (!parse_name(c, naming, raw->source, &r, &layer))
        return kve_fail(KVE_ERR_FILE,
                        "%s: tensor '%s' is not part of a %s model with %d layers; the file holds something else, "
                        "which would be left out silently",
                        raw->file, raw->source, kve_arch_name(c->arch), c->shape.L);
    shape_of(c, r, &rows, &cols);
    if (raw->rows != rows || raw->cols != cols)
        return kve_fail(KVE_ERR_FILE,
                        "%s: tensor '%s' is [%" PRId64 "][%" PRId64 "], but the configuration asks for [%" PRId64
                        "][%" PRId64 "]; the file and its configuration do not belong together",
                        raw->file, raw->source, raw->rows, raw->cols, rows, cols);
    kve_entry e = *raw;
    if (naming == KVE_NAMES_GGUF && c->arch == KVE_ARCH_LLAMA && (r == ROLE_Q || r == ROLE_K))
        e.interleaved_rows = c->shape.D;
    int64_t q = (int64_t)c->shape.Hq * c->shape.D, kv = (int64_t)c->shape.Hkv * c->shape.D, f = c->shape.F;
    if (r == ROLE_QKV) {
        KVE_TRY(push(ck, &e, ROLE_Q, layer, 0, q));
        KVE_TRY(push(ck, &e, ROLE_K, layer, q, kv));
        return push(ck, &e, ROLE_V, layer, q + kv, kv);
    }
    if (r == ROLE_GATE_UP) {
        KVE_TRY(push(ck, &e, ROLE_GATE, layer, 0, f));
        return push(ck, &e, ROLE_UP, layer, f, f);
    }
    return push(ck, &e, r, layer, 0, rows);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const kve_entry *)a)->name, ((const kve_entry *)b)->name);
}

static int name_order(const void *key, const void *entry)
{
    return strcmp(key, ((const kve_entry *)entry)->name);
}

const kve_entry *kve_entry_find(const kve_checkpoint *ck, const char *name)
{
    return ck->n_entries ? bsearch(name, ck->entries, ck->n_entries, sizeof *ck->entries, name_order) : NULL;
}

static bool needed(const kve_config *c, role r)
{
    if (r == ROLE_HEAD)
        return !c->tied_head;
    bool whole = r == ROLE_Q || r == ROLE_K || r == ROLE_V || r == ROLE_GATE || r == ROLE_UP;
    return whole || stored(c, r);
}

kve_status kve_entries_check(kve_checkpoint *ck, const char *file)
{
    if (ck->n_entries)
        qsort(ck->entries, ck->n_entries, sizeof *ck->entries, by_name);
    for (size_t i = 1; i < ck->n_entries; i++)
        if (by_name(&ck->entries[i - 1], &ck->entries[i]) == 0)
            return kve_fail(KVE_ERR_FILE, "%s: tensor '%s' stands in %s too; remove one of the two files",
                            ck->entries[i].file, ck->entries[i].source, ck->entries[i - 1].file);
    for (int r = 0; r < N_ROLES; r++) {
        int32_t layers = roles[r].per_layer ? ck->cfg.shape.L : 1;
        for (int32_t layer = 0; needed(&ck->cfg, (role)r) && layer < layers; layer++) {
            char name[NAME_BYTES];
            print_name(name, (role)r, layer);
            if (!kve_entry_find(ck, name))
                return kve_fail(KVE_ERR_FILE,
                                "%s: the tensor '%s' of a %s model is missing%s; the file is incomplete, download or "
                                "convert it again",
                                file, name, kve_arch_name(ck->cfg.arch),
                                r == ROLE_HEAD ? " although the head is not tied to the embedding" : "");
        }
    }
    return KVE_OK;
}

kve_status kve_entry_read(const kve_entry *e, int64_t row0, int64_t n_rows, float *out)
{
    if (row0 < 0 || n_rows < 0 || n_rows > e->rows || row0 > e->rows - n_rows)
        return kve_fail(KVE_ERR_INTERNAL, "%s: rows %" PRId64 " + %" PRId64 " of tensor '%s', which has %" PRId64,
                        e->file, row0, n_rows, e->name, e->rows);
    for (int64_t i = 0; i < n_rows; i++) {
        int64_t row = row0 + i, from = row;
        if (e->interleaved_rows) { /* row (half p, place j) of a head lies at 2 j + p */
            int64_t in_head = row % e->interleaved_rows, half = e->interleaved_rows / 2;
            from = row - in_head + 2 * (in_head % half) + in_head / half;
        }
        float *x = out + i * e->cols;
        kve_dequant(e->type, e->data + (size_t)from * e->row_bytes, e->cols, x);
        int64_t bad = kve_first_not_finite(x, e->cols);
        if (bad >= 0)
            return kve_fail(KVE_ERR_FILE,
                            "%s: tensor '%s' (%s): row %" PRId64 ", column %" PRId64
                            " is %g; weights must be finite, the file is damaged",
                            e->file, e->source, kve_type_name(e->type), row, bad, (double)x[bad]);
    }
    return KVE_OK;
}
