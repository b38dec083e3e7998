/* Inside the trainer: everything that changes while it runs, its settings as text, and the file that holds both. */
#ifndef KVE_POLICIES_KVP_STATE_H
#define KVE_POLICIES_KVP_STATE_H

#include "host/base/mem.h"
#include "kernels/kvp.h"
#include "policies/kvp/dense.h"
#include "policies/kvp/traces.h"
#include "policies/kvp/train.h"

typedef enum kvp_array { KVP_WEIGHTS, KVP_MEAN, KVP_SQUARE, KVP_EMA, KVP_BEST, KVP_ARRAYS } kvp_array;

typedef struct kvp_state {
    int32_t heads;
    size_t count;               /* floats of a head: kve_kvp_count */
    float *array[KVP_ARRAYS];   /* [heads][count]; mean and square are AdamW's */
    double *best_ratio;         /* [heads]: R / R(oracle) of `best` on the held-out traces */
    int32_t step;               /* steps done */
    double seconds;             /* spent on them */
    double sum_ratio, sum_norm; /* over the steps since the last line of the log */
    int32_t n_sum;
    kve_str log; /* lines of the CSV file */
} kvp_state;

kve_status kvp_state_create(kve_kvp_shape shape, int32_t heads, kvp_state *out);
void kvp_state_free(kvp_state *s);
/* As torch initialises Linear and LayerNorm: uniform within 1 / sqrt(inputs), gains 1, shifts 0. */
void kvp_state_init(kvp_state *s, kve_kvp_shape shape, uint64_t seed, int32_t Hkv);

/* kvp_state.array[a] of a head. */
float *kvp_state_at(const kvp_state *s, kvp_array a, int32_t head);

/* Rate of step `step` (from 0) of `steps`: 100 steps of warm-up from a hundredth, then a cosine down to 1e-6. */
double kvp_rate(double lr, int32_t step, int32_t steps);
/* One step of a head's weights by its gradient, which is clipped to length 5; EMA 0.99 from step 100 on. *norm: the
 * gradient's length before that. */
kve_status kvp_state_update(kvp_state *s, const kvp_math *math, int32_t head, const float *grad, double rate,
                            double *norm);

/* The stream of one head in one step, and of what all heads share. */
void kvp_stream(kve_rng *rng, uint64_t seed, int64_t step, int32_t layer, int32_t head);

/* Everything that the result depends on, as a JSON object. The caller frees the string. */
kve_status kvp_recipe(const kve_kvp_train_options *o, const kvp_traces *train, const kvp_traces *held, kve_str *out);
/* KVE_ERR_USAGE names the first setting in which the recipe of the file at `path` differs. */
kve_status kvp_recipe_check(const char *path, const char *old, const char *recipe);

/* Written in one step; reading checks the recipe first. */
kve_status kvp_checkpoint_write(const char *path, const kvp_state *s, const char *recipe);
kve_status kvp_checkpoint_read(const char *path, const char *recipe, kvp_state *s);

#endif
