/* From scores to a ranking, its reward, and the gradient of an objective by the scores. One head of one trace; knows
 * importances and scores, no network. */
#ifndef KVE_POLICIES_KVP_OBJECTIVE_H
#define KVE_POLICIES_KVP_OBJECTIVE_H

#include "host/base/rng.h"
#include "host/base/status.h"

#include <stdbool.h>

/* A head's future importance I. The first `sink` tokens and the last `recent`, newest first, have the ranks 0 ..
 * sink + recent - 1 whatever is learned; the m between them are ranked by scores. A ranking loses the sum of
 * (rank, from 0) x I: the sum over all budgets b = 1 .. n - 1 of what lies behind rank b, -R of the KVP paper. */
typedef struct kvp_target {
    const float *importance; /* [m] */
    int32_t m;
    int32_t first;  /* rank of the first learned token: sink + recent */
    double fixed;   /* what the protected tokens lose */
    double oracle;  /* what the best ranking loses, `fixed` included. (The evaluation divides by an oracle that protects
                       nothing: its R / R(oracle) is larger by a factor of each head and text.) */
    int32_t *order; /* [m]: the best ranking of the m */
} kvp_target;

typedef enum kvp_objective { KVP_RL, KVP_REGRESSION, KVP_TOPB } kvp_objective;
const char *kvp_objective_name(kvp_objective o); /* "rl", "regression", "topb" */
kve_status kvp_objective_parse(const char *name, kvp_objective *out);

/* One thread's memory for up to max_m tokens. */
typedef struct kvp_rank_work {
    uint32_t *key[2];
    int32_t *index[2];
    float *noisy;    /* [max_m]: scores with Gumbel noise */
    double *weight;  /* [max_m]: e^score */
    double *behind;  /* [max_m]: suffix sums */
    double *reward;  /* [samples] */
    int32_t *orders; /* [samples][max_m] */
    int32_t *best;   /* [max_m]: kvp_target.order */
    int32_t max_m, samples;
} kvp_rank_work;
kve_status kvp_rank_work_create(int32_t max_m, int32_t samples, kvp_rank_work *out);
void kvp_rank_work_free(kvp_rank_work *w);

/* importance [n] of all tokens; the target lives in w until the next one. n > sink + recent. */
kvp_target kvp_target_make(const float *importance, int32_t n, int32_t sink, int32_t recent, kvp_rank_work *w);

/* order [m]: scores descending, at equal scores the lower index first. No score may be NaN. */
void kvp_sort(const float *scores, int32_t m, kvp_rank_work *w, int32_t *order);

/* What the ranking of the m tokens loses, over what the oracle loses: R / R(oracle) of the paper, 1 at best. A head
 * that nothing can lose gives 1. */
double kvp_ratio(const kvp_target *t, const int32_t *order);
/* The same, expected of a random ranking. */
double kvp_ratio_of_chance(const kvp_target *t);

/* A draw from the Plackett-Luce distribution of the scores: the sort of score + Gumbel noise. */
void kvp_draw(const float *scores, int32_t m, kve_rng *rng, kvp_rank_work *w, int32_t *order);

/* w->weight [m] = e^(score - the largest), what kvp_log_pi_gradient goes by. */
void kvp_weigh(const float *scores, int32_t m, kvp_rank_work *w);
/* grad[i] += factor d log pi(order) / d score[i]; log pi = sum over ranks of score - logsumexp of it and all behind. */
void kvp_log_pi_gradient(const int32_t *order, int32_t m, double factor, kvp_rank_work *w, float *grad);

/* rewards [n] -> advantages: each less the mean of the others, divided by their standard deviation; all 0 where the
 * rewards do not differ. */
void kvp_advantages(double *rewards, int32_t n);

/* grad [m] = the gradient by the scores of what is to be minimised:
 *   rl          -mean over K draws of advantage x log pi / m, reward -R / R(oracle)
 *   regression  mean of (score - log(I / mean I + 1e-4))^2
 *   topb        mean logistic loss of "among the oracle's first b", b drawn uniformly from 1 .. m - 1 */
void kvp_objective_gradient(kvp_objective o, const kvp_target *t, const float *scores, kve_rng *rng, kvp_rank_work *w,
                            float *grad);

#endif
