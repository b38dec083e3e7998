/* Opening and closing a trainer. Contract: trainer.h. */
#include "policies/kvp/trainer.h"

#include "host/base/processor.h"
#include "policies/kvp/net.h"
#include "policies/kvp/parallel.h"

#include <stdlib.h>
#include <string.h>

static int32_t longest(const kvp_trainer *t)
{
    return t->train.max_n > t->held.max_n ? t->train.max_n : t->held.max_n;
}

static kve_status open_worker(const kvp_trainer *t, kvp_worker *w)
{
    size_t n = (size_t)longest(t);
    int32_t m = longest(t) - KVE_KVP_SINK - KVE_KVP_RECENT;
    KVE_TRY(kvp_work_create(t->shape, m, &w->net));
    KVE_TRY(kvp_rank_work_create(m, t->o->samples, &w->rank));
    KVE_TRY(kve_alloc(n, sizeof *w->importance, &w->importance));
    KVE_TRY(kve_alloc(n, sizeof *w->scores, &w->scores));
    KVE_TRY(kve_alloc(n, sizeof *w->d_scores, &w->d_scores));
    KVE_TRY(kve_alloc(n, sizeof *w->order, &w->order));
    return kve_alloc(kve_kvp_count(t->shape), sizeof *w->grad, &w->grad);
}

static void close_worker(kvp_worker *w)
{
    kvp_work_free(w->net);
    kvp_rank_work_free(&w->rank);
    free(w->importance);
    free(w->scores);
    free(w->d_scores);
    free(w->order);
    free(w->grad);
}

kve_status kvp_trainer_data(kvp_trainer *t)
{
    const kve_kvp_train_options *o = t->o;
    KVE_TRY(kvp_traces_open(o->traces, KVE_KVP_SINK + KVE_KVP_RECENT, &t->train));
    if (o->held_out) {
        KVE_TRY(kvp_traces_open(o->held_out, KVE_KVP_SINK + KVE_KVP_RECENT, &t->held));
        KVE_TRY(kvp_traces_disjoint(&t->train, &t->held));
    }
    t->shape = (kve_kvp_shape){.D = t->train.D, .H = o->width, .P = KVE_KVP_P};
    if (!kve_kvp_is_legal(t->shape))
        return kve_fail(KVE_ERR_USAGE,
                        "--width %d for heads of %d dimensions: both are multiples of %d, at most %d and %d", o->width,
                        t->train.D, KVE_KVP_UNIT, KVE_KVP_MAX_H, KVE_KVP_MAX_D);
    return kvp_recipe(o, &t->train, &t->held, &t->recipe);
}

/* As the cpu backend takes it; what training does not have an instance for runs on the next lower one. */
static kve_status check_isa(void)
{
    static const char *const KNOWN[] = {"portable", "avx2", "avx512", "avx512bf16"};
    const char *wish = getenv("KVEVAL_ISA");
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (!wish || !*wish || strcmp(wish, KNOWN[i]) == 0)
            return KVE_OK;
    return kve_fail(KVE_ERR_USAGE, "KVEVAL_ISA is '%s'; it is one of portable, avx2, avx512, avx512bf16", wish);
}

kve_status kvp_trainer_open(kvp_trainer *t)
{
    const int32_t heads = t->train.L * t->train.Hkv;
    const size_t n = (size_t)longest(t);
    KVE_TRY(check_isa());
    t->math = kvp_math_pick();
    t->threads = t->o->threads > 0 ? t->o->threads : kve_usable_cpus();
    t->epoch = -1;
    KVE_TRY(kvp_state_create(t->shape, heads, &t->s));
    KVE_TRY(kve_alloc(n * (size_t)t->shape.P, sizeof *t->positions, &t->positions));
    KVE_TRY(kvp_position_rows(t->math, longest(t), t->shape.P, t->positions));
    KVE_TRY(kve_alloc(t->train.n, sizeof *t->shuffled, &t->shuffled));
    KVE_TRY(kve_alloc((size_t)heads, sizeof *t->ratio, &t->ratio));
    KVE_TRY(kve_alloc((size_t)heads, sizeof *t->norm, &t->norm));
    KVE_TRY(kve_alloc((size_t)t->threads, sizeof *t->workers, &t->workers));
    for (int32_t i = 0; i < t->threads; i++)
        KVE_TRY(open_worker(t, &t->workers[i]));
    return KVE_OK;
}

void kvp_trainer_close(kvp_trainer *t)
{
    for (int32_t i = 0; i < t->threads && t->workers; i++)
        close_worker(&t->workers[i]);
    free(t->workers);
    free(t->positions);
    free(t->shuffled);
    free(t->ratio);
    free(t->norm);
    kvp_state_free(&t->s);
    kve_str_free(&t->recipe);
    kve_str_free(&t->checkpoint);
    kvp_traces_close(&t->train);
    kvp_traces_close(&t->held);
}
