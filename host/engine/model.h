/* A model's weights on a backend, ready for the forward pass. Knows the checkpoint's names and the backend's vtable. */
#ifndef KVE_ENGINE_MODEL_H
#define KVE_ENGINE_MODEL_H

#include "host/model/checkpoint.h"
#include "kernels/backend.h"

typedef struct kve_layer {
    float *attn_norm, *ffn_norm; /* [E] */
    kve_weight *qkv;             /* [(Hq + 2 Hkv) D][E] */
    float *qkv_bias;             /* [(Hq + 2 Hkv) D] or NULL */
    float *q_norm, *k_norm;      /* [D] or NULL */
    kve_weight *o;               /* [E][Hq D] */
    kve_weight *gate_up;         /* [2 F][E] */
    kve_weight *down;            /* [E][F] */
} kve_layer;

typedef struct kve_model {
    kve_backend *be; /* not owned */
    kve_config cfg;
    kve_dtype dtype;          /* of the weights and of the KV cache */
    kve_weight *embed, *head; /* [V][E]; the same object when tied */
    float *final_norm;        /* [E] */
    kve_layer *layers;        /* [L] */
} kve_model;

/* Uploads every tensor of the checkpoint, which may be closed afterwards. The caller owns *out: kve_model_free. */
kve_status kve_model_load(kve_backend *be, const kve_checkpoint *ck, kve_dtype dtype, kve_model **out);
void kve_model_free(kve_model *m);

#endif
