/* The learned policy's weight file: one safetensors file per model, written by kveval train, and the position feature.
 * Knows the network's shape (kernels/kvp.h) and files; no backend, no training.
 *
 * Tensors:
 *   weights  F16 or F32 [L][Hkv][kve_kvp_count]   blobs in the layout of kernels/kvp.h
 *   table    F32 [1 or L Hkv][positions][P]       a learned position table; absent with the analytic feature
 * Metadata, all text: format "kveval-kvp-1"; layers, kv_heads, head_dim, width, position_width; inputs "kvpos" | "kv" |
 * "k" | "pos"; position "analytic" | "table"; model, model_sha256 (what it was trained for); objective, recipe (JSON),
 * data_sha256, seed, step. */
#ifndef KVE_POLICIES_KVP_NET_H
#define KVE_POLICIES_KVP_NET_H

#include "host/base/mem.h"
#include "host/shape.h"
#include "kernels/kvp.h"
#include "kernels/ops.h"

enum { KVE_KVP_P = 32 }; /* width of the position feature in what kveval trains */

typedef struct kve_kvp_net {
    kve_kvp_shape shape;
    int32_t L, Hkv;
    unsigned inputs;  /* kve_kvp_input bits */
    float *weights;   /* [L][Hkv][kve_kvp_count(shape)] */
    float *table;     /* [n_tables][n_positions][P], or NULL: the analytic feature */
    int32_t n_tables; /* 1 or L * Hkv */
    int32_t n_positions;
    const char *model, *model_sha256, *objective, *recipe, *data_sha256, *seed, *step;
} kve_kvp_net;

/* Checks all of the file: format, shape, every number finite. Memory belongs to the arena. */
kve_status kve_kvp_net_read(const char *path, kve_arena *arena, kve_kvp_net *out);
/* Weights go into the file as F16 (nearest even), half the size and finer than what a bf16 cache makes of them. */
kve_status kve_kvp_net_write(const char *path, const kve_kvp_net *net);
/* KVE_ERR_FILE where the file was trained for another model: other layers, heads or dimensions, or another SHA-256
 * (NULL: not known, only the shape counts). */
kve_status kve_kvp_net_fits(const kve_kvp_net *net, const char *path, const kve_shape *shape, const char *model_sha256);

/* "kvpos", "kv", "k" or "pos" <-> bits of kve_kvp_input. */
const char *kve_kvp_inputs_name(unsigned inputs); /* NULL for other bits */
bool kve_kvp_inputs_find(const char *name, unsigned *out);

/* The analytic position feature of rows 0 .. n - 1, out [n][P], P a multiple of 16. With F = P / 2 - 2 and i < F:
 *   [2i], [2i + 1]   sin, cos of 2 pi pos / (8 x 256^(i / (F - 1))): wavelengths of 8 to 2,048 tokens, all of which a
 *                    text of 2,000 tokens has shown; further on they repeat
 *   [2F + i], i < 4  log(1 + pos / 16^i) / 4: tells near from far at any length, slowly growing
 * Nothing in it depends on the length of the text, so it holds beyond the training length. */
void kve_kvp_positions(int32_t n, int32_t P, float *out);

#endif
