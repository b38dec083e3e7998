/* Inside the trainer: what it holds while it runs, and how that is opened and closed. */
#ifndef KVE_POLICIES_KVP_TRAINER_H
#define KVE_POLICIES_KVP_TRAINER_H

#include "policies/kvp/grad.h"
#include "policies/kvp/state.h"

/* One thread's: the head it is at, and room for the longest trace. */
typedef struct kvp_worker {
    kvp_work *net;
    kvp_rank_work rank;
    float *importance, *scores, *d_scores, *grad;
    int32_t *order;
    kvp_head head;
    kvp_rows rows;
    kvp_target target;
} kvp_worker;

typedef struct kvp_trainer {
    const kve_kvp_train_options *o;
    const kvp_math *math;
    kve_kvp_shape shape;
    kvp_traces train, held;
    kvp_state s;
    kve_str recipe, checkpoint;
    float *positions;    /* [longest trace][P] */
    kvp_worker *workers; /* [threads] */
    int32_t threads;
    int32_t *shuffled;    /* [train.n]: the traces in this epoch's order */
    int64_t epoch;        /* that it is of; -1: none */
    size_t i_trace;       /* of this step */
    double *ratio, *norm; /* [heads]: of this step, or of this evaluation */
    double rate;          /* learning rate */
    int64_t start_us;
    int32_t start_step;
} kvp_trainer;

/* Traces, the network's shape, the recipe. */
kve_status kvp_trainer_data(kvp_trainer *t);
/* The state and every thread's memory, for that data. */
kve_status kvp_trainer_open(kvp_trainer *t);
void kvp_trainer_close(kvp_trainer *t); /* also after a failure */

#endif
