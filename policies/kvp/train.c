/* The training loop. Contract: train.h. A head's arithmetic is its own: its weights, its stream of random numbers, one
 * thread at a time; so the thread count changes nothing. */
#include "policies/kvp/train.h"

#include "host/base/clock.h"
#include "host/base/file.h"
#include "host/base/log.h"
#include "policies/kvp/net.h"
#include "policies/kvp/parallel.h"
#include "policies/kvp/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- One head of one trace */

static kve_status check_scores(const kvp_trainer *t, const kvp_traces *data, size_t i, int32_t head,
                               const float *scores, int32_t m)
{
    for (int32_t j = 0; j < m; j++)
        if (!isfinite(scores[j])) {
            KVE_TRY(kvp_trace_check(data, i, head));
            return kve_fail(KVE_ERR_USAGE, "step %d: layer %d, KV head %d gives the score %g; use a lower --lr",
                            t->s.step, head / data->Hkv, head % data->Hkv, (double)scores[j]);
        }
    return KVE_OK;
}

/* Scores the head's tokens of trace i with the weights in `array` and measures the ranking. */
static kve_status rank_head(const kvp_trainer *t, const kvp_traces *data, size_t i, int32_t head, kvp_array array,
                            kvp_worker *w, double *ratio)
{
    const int32_t n = data->items[i].n;
    KVE_TRY(kvp_trace_importance(data, i, head, w->importance));
    w->target = kvp_target_make(w->importance, n, KVE_KVP_SINK, KVE_KVP_RECENT, &w->rank);
    w->head = (kvp_head){t->math, t->shape, t->o->inputs, kvp_state_at(&t->s, array, head)};
    w->rows = (kvp_rows){.keys = kvp_trace_rows(data, i, head, false, KVE_KVP_SINK),
                         .values = kvp_trace_rows(data, i, head, true, KVE_KVP_SINK),
                         .positions = t->positions + (size_t)KVE_KVP_SINK * (size_t)t->shape.P,
                         .m = w->target.m};
    kvp_forward(&w->head, &w->rows, w->net, w->scores);
    KVE_TRY(check_scores(t, data, i, head, w->scores, w->target.m));
    kvp_sort(w->scores, w->target.m, &w->rank, w->order);
    *ratio = kvp_ratio(&w->target, w->order);
    return KVE_OK;
}

static kve_status train_head(void *ctx, int32_t head, int32_t worker)
{
    kvp_trainer *t = ctx;
    kvp_worker *w = &t->workers[worker];
    kve_rng rng;
    KVE_TRY(rank_head(t, &t->train, t->i_trace, head, KVP_WEIGHTS, w, &t->ratio[head]));
    kvp_stream(&rng, t->o->seed, t->s.step, head / t->train.Hkv, head % t->train.Hkv);
    kvp_objective_gradient(t->o->objective, &w->target, w->scores, &rng, &w->rank, w->d_scores);
    kvp_backward(&w->head, &w->rows, w->net, w->d_scores, w->grad);
    return kvp_state_update(&t->s, t->math, head, w->grad, t->rate, &t->norm[head]);
}

/* The head's EMA on all held-out traces; `best` where it is better than ever. */
static kve_status evaluate_head(void *ctx, int32_t head, int32_t worker)
{
    kvp_trainer *t = ctx;
    double sum = 0, ratio = 0;
    for (size_t i = 0; i < t->held.n; i++) {
        KVE_TRY(rank_head(t, &t->held, i, head, KVP_EMA, &t->workers[worker], &ratio));
        sum += ratio;
    }
    t->ratio[head] = sum / (double)t->held.n;
    if (t->ratio[head] < t->s.best_ratio[head]) {
        t->s.best_ratio[head] = t->ratio[head];
        memcpy(kvp_state_at(&t->s, KVP_BEST, head), kvp_state_at(&t->s, KVP_EMA, head), t->s.count * sizeof(float));
    }
    return KVE_OK;
}

static double mean(const double *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i];
    return sum / n;
}

/* --- Steps */

/* Every trace once in an epoch, in an order of its own. */
static void choose_trace(kvp_trainer *t)
{
    const int64_t n = (int64_t)t->train.n, epoch = t->s.step / n;
    if (epoch != t->epoch) {
        kve_rng rng;
        kve_rng_init(&rng, t->o->seed, (uint64_t)-2, (uint64_t)epoch, 0);
        for (int32_t i = 0; i < n; i++)
            t->shuffled[i] = i;
        kve_rng_shuffle(&rng, t->shuffled, t->train.n);
        t->epoch = epoch;
    }
    t->i_trace = (size_t)t->shuffled[t->s.step % n];
}

static kve_status train_step(kvp_trainer *t)
{
    kvp_state *s = &t->s;
    int64_t begin = kve_now_us();
    choose_trace(t);
    t->rate = kvp_rate(t->o->lr, s->step, t->o->steps);
    KVE_TRY(kvp_parallel(t->threads, s->heads, train_head, t));
    s->step++;
    s->sum_ratio += mean(t->ratio, s->heads);
    s->sum_norm += mean(t->norm, s->heads);
    s->n_sum++;
    s->seconds += (double)(kve_now_us() - begin) * 1e-6;
    return KVE_OK;
}

static kve_status write_log(const kvp_trainer *t)
{
    kve_str text = {0};
    if (!t->o->log)
        return KVE_OK;
    kve_status st =
        kve_str_printf(&text, "step,lr,train,held_out,best,gradient,seconds\n%s", t->s.log.p ? t->s.log.p : "");
    if (st == KVE_OK)
        st = kve_file_write(t->o->log, text.p, text.len);
    kve_str_free(&text);
    return st;
}

static void show(const kvp_trainer *t, double train, double held)
{
    const kvp_state *s = &t->s;
    double done = s->step - t->start_step, left = t->o->steps - s->step;
    double per_step = done > 0 ? (double)(kve_now_us() - t->start_us) * 1e-6 / done : 0;
    char text[128] = "";
    if (t->held.n)
        snprintf(text, sizeof text, ", held out %.4f, best %.4f", held, mean(s->best_ratio, s->heads));
    if (done > 0)
        kve_note("step %d of %d: loss over the oracle's: train %.4f%s; %.2f steps/s, %.0f s left", s->step, t->o->steps,
                 train, text, 1 / per_step, left * per_step);
    else
        kve_note("step %d of %d: loss over the oracle's%s", s->step, t->o->steps, text);
}

/* Ends a stretch of steps: the held-out traces, a line in the log. */
static kve_status take_stock(kvp_trainer *t)
{
    kvp_state *s = &t->s;
    double held = 0, train = s->n_sum ? s->sum_ratio / s->n_sum : 0;
    if (t->held.n) {
        KVE_TRY(kvp_parallel(t->threads, s->heads, evaluate_head, t));
        held = mean(t->ratio, s->heads);
    }
    KVE_TRY(kve_str_printf(&s->log, "%d,%.9g,", s->step, t->rate));
    if (s->n_sum)
        KVE_TRY(kve_str_printf(&s->log, "%.9g", train));
    KVE_TRY(kve_str_puts(&s->log, ","));
    if (t->held.n)
        KVE_TRY(kve_str_printf(&s->log, "%.9g,%.9g", held, mean(s->best_ratio, s->heads)));
    else
        KVE_TRY(kve_str_puts(&s->log, ","));
    KVE_TRY(kve_str_puts(&s->log, ","));
    if (s->n_sum)
        KVE_TRY(kve_str_printf(&s->log, "%.9g", s->sum_norm / s->n_sum));
    KVE_TRY(kve_str_printf(&s->log, ",%.1f\n", s->seconds));
    show(t, train, held);
    s->sum_ratio = s->sum_norm = 0;
    s->n_sum = 0;
    return write_log(t);
}

static kve_status all_steps(kvp_trainer *t)
{
    const kve_kvp_train_options *o = t->o;
    kvp_state *s = &t->s;
    t->start_us = kve_now_us();
    t->start_step = s->step;
    if (s->step == 0)
        KVE_TRY(take_stock(t));
    while (s->step < o->steps) {
        KVE_TRY(train_step(t));
        bool stop = o->stop && *o->stop, stock = s->step % o->every == 0 || s->step == o->steps;
        if (stock)
            KVE_TRY(take_stock(t));
        if (stock || stop)
            KVE_TRY(kvp_checkpoint_write(t->checkpoint.p, s, t->recipe.p));
        if (stop && s->step < o->steps)
            return kve_fail(KVE_ERR_STOPPED, "stopped after step %d of %d; the same command goes on from here", s->step,
                            o->steps);
    }
    return KVE_OK;
}

/* --- Beginning and end */

/* The held-out loss of a random ranking, to see the others by. */
static kve_status show_chance(const kvp_trainer *t)
{
    double sum = 0;
    kvp_worker *w = &t->workers[0];
    for (size_t i = 0; i < t->held.n; i++)
        for (int32_t h = 0; h < t->s.heads; h++) {
            KVE_TRY(kvp_trace_importance(&t->held, i, h, w->importance));
            kvp_target target =
                kvp_target_make(w->importance, t->held.items[i].n, KVE_KVP_SINK, KVE_KVP_RECENT, &w->rank);
            sum += kvp_ratio_of_chance(&target);
        }
    if (t->held.n)
        kve_note("held out: %zu traces; a random ranking loses %.4f times what the oracle loses", t->held.n,
                 sum / (double)t->held.n / t->s.heads);
    return KVE_OK;
}

/* The file is there already: right or wrong? */
static kve_status check_finished(const kvp_trainer *t, bool *finished)
{
    kve_arena arena = {0};
    kve_kvp_net net;
    *finished = kve_path_exists(t->o->out);
    if (!*finished)
        return KVE_OK;
    kve_status st = kve_kvp_net_read(t->o->out, &arena, &net);
    if (st == KVE_OK)
        st = kvp_recipe_check(t->o->out, net.recipe, t->recipe.p);
    if (st == KVE_OK)
        kve_note("%s was finished with these settings; nothing is left to do", t->o->out);
    kve_arena_free(&arena);
    return st;
}

static kve_status begin(kvp_trainer *t)
{
    KVE_TRY(kve_make_parents(t->o->out));
    if (t->o->log)
        KVE_TRY(kve_make_parents(t->o->log));
    KVE_TRY(kvp_trainer_open(t));
    KVE_TRY(show_chance(t));
    if (!kve_path_exists(t->checkpoint.p)) {
        kvp_state_init(&t->s, t->shape, t->o->seed, t->train.Hkv);
        return KVE_OK;
    }
    KVE_TRY(kvp_checkpoint_read(t->checkpoint.p, t->recipe.p, &t->s));
    kve_note("resume: %d of %d steps were done already", t->s.step, t->o->steps);
    return KVE_OK;
}

static kve_status write_file(const kvp_trainer *t)
{
    char seed[24], step[16];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)t->o->seed);
    snprintf(step, sizeof step, "%d", t->s.step);
    return kve_kvp_net_write(t->o->out, &(kve_kvp_net){.shape = t->shape,
                                                       .L = t->train.L,
                                                       .Hkv = t->train.Hkv,
                                                       .inputs = t->o->inputs,
                                                       .weights = t->s.array[t->held.n ? KVP_BEST : KVP_EMA],
                                                       .model = t->train.model,
                                                       .model_sha256 = t->train.model_sha256,
                                                       .objective = kvp_objective_name(t->o->objective),
                                                       .recipe = t->recipe.p,
                                                       .data_sha256 = t->train.sha256,
                                                       .seed = seed,
                                                       .step = step});
}

static kve_status run(kvp_trainer *t)
{
    bool finished = false;
    KVE_TRY(kvp_trainer_data(t));
    KVE_TRY(kve_str_printf(&t->checkpoint, "%s.checkpoint", t->o->out));
    KVE_TRY(check_finished(t, &finished));
    if (!finished) {
        KVE_TRY(begin(t));
        KVE_TRY(all_steps(t));
        KVE_TRY(write_log(t));
        KVE_TRY(write_file(t));
        kve_note("%s: %s, %d steps, %d heads, %.1f s", t->o->out, kvp_objective_name(t->o->objective), t->s.step,
                 t->s.heads, t->s.seconds);
    }
    unlink(t->checkpoint.p); /* its content is in the file now */
    return KVE_OK;
}

kve_status kve_kvp_train(const kve_kvp_train_options *o)
{
    kvp_trainer t = {.o = o};
    kve_status st = run(&t);
    kvp_trainer_close(&t);
    return st;
}
