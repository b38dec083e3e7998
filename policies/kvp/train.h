/* Trains the learned policy on traces: one network per layer and KV head, all side by side, by one objective. The same
 * options go on where a run stopped, bit for bit and whatever the thread count. Knows traces and files; no model, no
 * command line. */
#ifndef KVE_POLICIES_KVP_TRAIN_H
#define KVE_POLICIES_KVP_TRAIN_H

#include "policies/kvp/objective.h"

#include <signal.h>

/* Tokens that every ranking protects: the network never sees them. Those of kveval eval's defaults. */
enum { KVE_KVP_SINK = 4, KVE_KVP_RECENT = 16 };

typedef struct kve_kvp_train_options {
    const char *traces;   /* folder */
    const char *held_out; /* folder, or NULL: the last weights win instead of the best */
    const char *out;      /* the weight file; out + ".checkpoint" until it is complete */
    const char *log;      /* CSV, or NULL */
    kvp_objective objective;
    unsigned inputs;                               /* kve_kvp_input bits */
    int32_t width, steps, samples, every, threads; /* threads 0: one per core */
    double lr;
    uint64_t seed;
    const volatile sig_atomic_t *stop; /* non-zero: finish the step, write the checkpoint, KVE_ERR_STOPPED */
} kve_kvp_train_options;

/* KVE_ERR_USAGE names a setting that differs from the checkpoint's or the finished file's. A file that was finished
 * with the same settings is left as it is. */
kve_status kve_kvp_train(const kve_kvp_train_options *o);

#endif
