/* Inside the session: its scratch, and one forward over staged rows. Included by session.c, forward.c, head.c and
 * step.c only. */
#ifndef KVE_ENGINE_SESSION_INTERNAL_H
#define KVE_ENGINE_SESSION_INTERNAL_H

#include "host/engine/session.h"

enum {
    LOGIT_ROWS = 64, /* rows of logits in flight: 4,096 x 152k floats would be 2.5 GB */
    STEP_LOG = 8     /* greedy steps between two looks of the host, where the device runs them by itself */
};

struct kve_session {
    const kve_model *m;
    kve_session_options opt;
    float *cos, *sin;                        /* [max_positions][R/2] */
    float *x, *h;                            /* [chunk][E]: residual stream; normed rows */
    float *qkv, *q, *att;                    /* [chunk][(Hq + 2 Hkv) D], [chunk][Hq D], [chunk][Hq D] */
    float *gate_up, *act;                    /* [chunk][2 F], [chunk][F] */
    float *picked, *logits;                  /* [LOGIT_ROWS][E], [LOGIT_ROWS][V] */
    float *nll;                              /* [LOGIT_ROWS] */
    int32_t *ids, *pos, *slot_of, *index_of; /* device [chunk] */
    int32_t *row_of, *q_len, *tail_len;      /* device [max_forks] */
    int32_t *out_ids;                        /* device [LOGIT_ROWS]: targets, or the arg-maxes of one slice */
    int32_t *next, *log, *n_logged;          /* device [max_forks], [STEP_LOG][max_forks], [1]: greedy steps */
    kve_fork_slot *ctx_slot;                 /* device [1]: the context as a tail, for rope_append */
    int32_t *host_i;                         /* [4][chunk]: staging of ids, pos, slot_of, index_of */
    int32_t *host_row;                       /* [max_forks] */
    float *host_rows;                        /* [LOGIT_ROWS][E] */
    int32_t T;                               /* rows of the last forward */
    int64_t n_prefills;
};

/* One forward over T rows that are staged already. Exactly one of ctx (prefill from row `start`) and batch is set. */
typedef struct session_pass {
    int32_t T, start;
    const kve_context *ctx;
    const kve_batch *batch;
    float *q_base;         /* where layer 0's queries go; [.][Hq][D] */
    size_t q_layer_stride; /* floats from one layer's queries to the next; 0 = the same scratch */
} session_pass;

/* Puts a row's token into the host arrays; KVE_ERR_USAGE where it cannot be one of this model and session. */
kve_status session_stage(kve_session *s, int32_t row, int32_t id, int32_t pos, int32_t slot, int32_t index);
/* Moves the first T staged rows to the device. */
kve_status session_upload(kve_session *s, int32_t T);
/* Embeds the rows that are on the device, runs all layers, leaves the final-normed rows in s->h. */
kve_status session_forward(kve_session *s, const session_pass *p);
kve_status session_matmul(kve_session *s, const float *x, const kve_weight *w, const float *bias, float *y, int32_t T,
                          bool accumulate);

#endif
