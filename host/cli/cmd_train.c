/* kveval train: the learned policy from traces. Needs no model. */
#include "host/cli/cli.h"
#include "policies/kvp/net.h"
#include "policies/kvp/train.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { TRACES, HELD_OUT, OUT, LOG, OBJECTIVE, INPUTS, WIDTH, STEPS, SAMPLES, LR, EVERY, SEED, THREADS, N_FLAGS };

static const kve_flag g_flags[N_FLAGS] = {
    [TRACES] = {"--traces", "DIR", "files of kveval trace to learn from, folders in it included", NULL},
    [HELD_OUT] = {"--held-out", "DIR", "other traces, which choose the best weights; without: the last are taken",
                  NULL},
    [OUT] = {"--out", "F", "the weights, a .safetensors file; the same command resumes from F.checkpoint", NULL},
    [LOG] = {"--log", "FILE", "losses and rates as CSV", NULL},
    [OBJECTIVE] = {"--objective", "O", "rl, or the controls regression (log importance) and topb (classification)",
                   "rl"},
    [INPUTS] = {"--inputs", "I", "what the network sees: kvpos, kv, k or pos", "kvpos"},
    [WIDTH] = {"--width", "N", "of the network's hidden layers, a multiple of 16", "64"},
    [STEPS] = {"--steps", "N", "a step is one trace", "4000"},
    [SAMPLES] = {"--samples", "N", "rl: rankings drawn in a step", "16"},
    [LR] = {"--lr", "X", "learning rate after the warm-up", "5e-5"},
    [EVERY] = {"--every", "N", "steps between two looks at the held-out traces, and two checkpoints", "100"},
    [SEED] = {"--seed", "N", "of weights, order of traces and draws", "42"},
    [THREADS] = {"--threads", "N", "0 = one per core; changes speed, not results", "0"},
};

static volatile sig_atomic_t g_stop;

static void on_signal(int sig)
{
    g_stop = 1;
    signal(sig, SIG_DFL); /* a second one ends the program at once; the last checkpoint is safe */
}

static kve_status rate(const kve_flag *f, double *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtod(f->value, &end);
    if (end == f->value || *end || errno || !(*out > 0) || *out > 1)
        return kve_fail(KVE_ERR_USAGE, "%s: '%s' is no number above 0 and up to 1, e.g. 5e-5", f->name, f->value);
    return KVE_OK;
}

static kve_status options(const kve_flag *f, kve_kvp_train_options *o)
{
    int32_t seed;
    *o = (kve_kvp_train_options){.traces = f[TRACES].value,
                                 .held_out = f[HELD_OUT].value,
                                 .out = f[OUT].value,
                                 .log = f[LOG].value,
                                 .stop = &g_stop};
    KVE_TRY(kvp_objective_parse(f[OBJECTIVE].value, &o->objective));
    if (!kve_kvp_inputs_find(f[INPUTS].value, &o->inputs))
        return kve_fail(KVE_ERR_USAGE, "--inputs: '%s' is unknown; use kvpos, kv, k or pos", f[INPUTS].value);
    KVE_TRY(kve_flag_int(&f[WIDTH], 16, 256, &o->width));
    KVE_TRY(kve_flag_int(&f[STEPS], 1, 1 << 24, &o->steps));
    KVE_TRY(kve_flag_int(&f[SAMPLES], 2, 1024, &o->samples));
    KVE_TRY(kve_flag_int(&f[EVERY], 1, 1 << 24, &o->every));
    KVE_TRY(kve_flag_int(&f[SEED], 0, 0x7fffffff, &seed));
    KVE_TRY(kve_flag_int(&f[THREADS], 0, 1024, &o->threads));
    o->seed = (uint64_t)seed;
    return rate(&f[LR], &o->lr);
}

kve_status kve_cmd_train(int argc, char **argv)
{
    kve_flag f[N_FLAGS];
    kve_kvp_train_options o;
    bool help;
    memcpy(f, g_flags, sizeof f);
    KVE_TRY(kve_flags_parse(argc, argv, f, N_FLAGS, &help));
    if (help) {
        kve_flags_print("kveval train --traces DIR --out F [flags]", f, N_FLAGS);
        return KVE_OK;
    }
    if (!f[TRACES].value || !f[OUT].value)
        return kve_fail(KVE_ERR_USAGE, "--traces and --out are needed");
    KVE_TRY(options(f, &o));
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    return kve_kvp_train(&o);
}
