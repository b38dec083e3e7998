/* A model on disk, whatever its format: a GGUF file (v2, v3) or a Hugging Face folder (config.json, one or several
 * safetensors, tokenizer.json). Tensors appear under ONE set of names (below) with ONE row order (Hugging Face's:
 * rotate-half Q/K; GGUF's permuted llama rows are put back on reading). Memory-mapped; every size, offset and type is
 * checked when the file is opened. Knows no backend.
 *
 * Names:  embed [V][E] · head [V][E] (absent when tied, also if the file holds an equal copy) · final_norm [E]
 *         L.attn_norm [E] · L.q [Hq D][E] · L.k [Hkv D][E] · L.v [Hkv D][E] · L.o [E][Hq D] · L.q_bias · L.k_bias ·
 * L.v_bias L.q_norm [D] · L.k_norm [D] · L.ffn_norm [E] · L.gate [F][E] · L.up [F][E] · L.down [E][F] with L the
 * layer's number in decimal, as in "12.attn_norm". Fused tensors (phi3: qkv, gate_up) are split here, so a reader never
 * sees them. */
#ifndef KVE_MODEL_CHECKPOINT_H
#define KVE_MODEL_CHECKPOINT_H

#include "host/base/hash.h"
#include "host/base/status.h"
#include "host/model/config.h"
#include "host/text/vocab.h"

typedef struct kve_checkpoint kve_checkpoint;

/* path: a .gguf file, a folder with config.json, a file inside such a folder, "smollm2" (the default model in
 * $KVEVAL_CACHE or ~/.cache/kveval; the message says how to get it), or org/name[@rev] (looked up in the Hugging Face
 * cache: HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub; if absent, the message prints the `hf
 * download` line). All tensors that the architecture needs must be there with their shapes, and none that it does not
 * know. */
kve_status kve_checkpoint_open(const char *path, kve_checkpoint **out);
void kve_checkpoint_close(kve_checkpoint *ck);

const kve_config *kve_checkpoint_config(const kve_checkpoint *ck);
const char *kve_checkpoint_path(const kve_checkpoint *ck);   /* the resolved path */
const char *kve_checkpoint_format(const kve_checkpoint *ck); /* "gguf v3" | "safetensors" */

/* The vocabulary; lives as long as the checkpoint. */
const kve_vocab *kve_checkpoint_vocab(const kve_checkpoint *ck);
/* The model's own chat template (Jinja text), or NULL. */
const char *kve_checkpoint_chat_template(const kve_checkpoint *ck);

bool kve_checkpoint_has(const kve_checkpoint *ck, const char *name);
/* Rows [row0, row0 + n_rows) of a tensor as f32 (dequantised) into out [n_rows][cols]; a vector is one row.
 * NaN or infinity among the values is an error that names tensor and row. Thread-safe. */
kve_status kve_checkpoint_read(const kve_checkpoint *ck, const char *name, int64_t row0, int64_t n_rows, float *out);
/* rows and cols of a tensor under its normalised name. */
kve_status kve_checkpoint_dims(const kve_checkpoint *ck, const char *name, int64_t *rows, int64_t *cols);

/* SHA-256 over the weight file's bytes (GGUF), or over its shards' hashes, sorted, one a line,
 * (several safetensors; one alone counts like a GGUF file); computed once, cached. */
kve_status kve_checkpoint_sha256(kve_checkpoint *ck, char hex[KVE_SHA256_HEX]);

/* Enumerates tensors for `kveval info`: i from 0; false at the end. */
typedef struct kve_tensor_info {
    const char *name, *type; /* normalised name, "Q4_1" ... */
    int64_t rows, cols;
    int64_t bytes;
} kve_tensor_info;
bool kve_checkpoint_tensor(const kve_checkpoint *ck, size_t i, kve_tensor_info *out);

/* The models that can be named without a path: "smollm2" and every org/name in the Hugging Face cache. Memory belongs
 * to the arena. */
typedef struct kve_found_model {
    const char *name, *path;
} kve_found_model;
kve_status kve_models_found(kve_arena *arena, kve_found_model **out, size_t *n_out);

#endif
