/* Means, bootstrap intervals and paired differences over the tasks of a scope. Contract: report_data.h. */
#include "eval/report_data.h"

#include "host/base/rng.h"
#include "host/base/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct sample_set {
    double *x, *w; /* [n] */
    size_t n;
} sample_set;

static void push(sample_set *s, double x, double w)
{
    s->x[s->n] = x;
    s->w[s->n++] = w;
}

static bool known(const kve_report_row *row, kve_measure m)
{
    return row->ok && isfinite(row->x[m]);
}

static double weight(const kve_report_row *row, kve_measure m)
{
    return m == KVE_M_NLL ? row->weight : 1.0;
}

static void gather(const kve_report_cell *a, kve_measure m, sample_set *s)
{
    for (size_t i = 0; i < a->n_rows; i++)
        if (known(&a->rows[i], m))
            push(s, a->rows[i].x[m], weight(&a->rows[i], m));
}

/* Both cells are sorted by sample: a merge finds the samples that both have. */
static void gather_pairs(const kve_report_cell *a, const kve_report_cell *b, kve_measure m, sample_set *s)
{
    for (size_t i = 0, k = 0; i < a->n_rows && k < b->n_rows;) {
        const kve_report_row *ra = &a->rows[i], *rb = &b->rows[k];
        int c = strcmp(ra->sample, rb->sample);
        if (c == 0 && known(ra, m) && known(rb, m))
            push(s, ra->x[m] - rb->x[m], weight(ra, m));
        i += c <= 0;
        k += c >= 0;
    }
}

/* Adds the weighted mean of each resample to sums[]. kve_bootstrap() gives only the interval; a suite
 * needs the resamples of its tasks one by one, because its own k-th resample is the mean over the tasks' k-th. */
static void add_resamples(const sample_set *s, uint64_t seed, double *own, double *sums)
{
    kve_rng rng;
    kve_rng_init(&rng, seed, s->n, 0, 0);
    for (int k = 0; k < KVE_REPORT_RESAMPLES; k++) {
        double sum = 0, total = 0;
        for (size_t i = 0; i < s->n; i++) {
            size_t pick = (size_t)kve_rng_below(&rng, s->n);
            sum += s->w[pick] * s->x[pick];
            total += s->w[pick];
        }
        own[k] = sum / total;
        sums[k] += own[k];
    }
}

static double weighted_mean(sample_set *s)
{
    double total = kve_mean(s->w, s->n);
    for (size_t i = 0; i < s->n; i++)
        s->x[i] *= s->w[i];
    return kve_mean(s->x, s->n) / total;
}

/* One sample says nothing about how far another would be: without `spread` there is a mean, but no interval. */
static kve_report_stat finish(double *resamples, double scale, double mean, size_t n, bool spread)
{
    if (!spread)
        return (kve_report_stat){.n = n, .mean = mean, .low = NAN, .high = NAN};
    for (int k = 0; k < KVE_REPORT_RESAMPLES; k++)
        resamples[k] *= scale;
    double low = kve_quantile(resamples, KVE_REPORT_RESAMPLES, 0.025);
    return (kve_report_stat){
        .n = n, .mean = mean, .low = low, .high = kve_quantile(resamples, KVE_REPORT_RESAMPLES, 0.975)};
}

static void gather_task(const kve_report_tasks *tasks, size_t t, kve_measure m, sample_set *s)
{
    if (tasks->b)
        gather_pairs(tasks->a[t], tasks->b[t], m, s);
    else
        gather(tasks->a[t], m, s);
}

/* All samples of all tasks as one set. */
static void pool(const kve_report_tasks *tasks, kve_measure m, sample_set *s, double *own, double *sums,
                 kve_report_stat *out)
{
    s->n = 0;
    for (size_t t = 0; t < tasks->n_tasks; t++)
        if (tasks->uses[t])
            gather_task(tasks, t, m, s);
    add_resamples(s, kve_hash_text(tasks->names[0], strlen(tasks->names[0])), own, sums);
    *out = finish(own, 1.0, weighted_mean(s), s->n, s->n > 1);
}

static void aggregate(const kve_report_tasks *tasks, kve_measure m, sample_set *s, double *own, double *sums,
                      kve_report_stat *out, kve_report_stat *per_task)
{
    size_t n_used = 0, n = 0;
    double mean = 0;
    bool complete = true, spread = true;
    for (size_t t = 0; t < tasks->n_tasks; t++) {
        if (!tasks->uses[t])
            continue;
        s->n = 0;
        gather_task(tasks, t, m, s);
        complete = complete && s->n > 0;
        spread = spread && s->n > 1;
        n_used++;
        if (s->n == 0)
            continue;
        add_resamples(s, kve_hash_text(tasks->names[t], strlen(tasks->names[t])), own, sums);
        double task_mean = weighted_mean(s);
        mean += task_mean;
        n += s->n;
        if (per_task)
            per_task[t] = finish(own, 1.0, task_mean, s->n, s->n > 1);
    }
    if (complete && n_used > 0 && tasks->pooled)
        pool(tasks, m, s, own, sums, out);
    else if (complete && n_used > 0)
        *out = finish(sums, 1.0 / (double)n_used, mean / (double)n_used, n, spread);
}

kve_status kve_report_aggregate(const kve_report_tasks *tasks, kve_measure m, kve_report_stat *out,
                                kve_report_stat *per_task)
{
    static const kve_report_stat unknown = {.mean = NAN, .low = NAN, .high = NAN};
    size_t n_rows = 0;
    double *space = NULL;
    *out = unknown;
    for (size_t t = 0; t < tasks->n_tasks; t++) {
        if (per_task)
            per_task[t] = unknown;
        n_rows += tasks->a[t]->n_rows;
    }
    KVE_TRY(kve_alloc(2 * (n_rows + KVE_REPORT_RESAMPLES), sizeof *space, &space));
    sample_set s = {.x = space, .w = space + n_rows};
    double *own = space + 2 * n_rows, *sums = own + KVE_REPORT_RESAMPLES;
    aggregate(tasks, m, &s, own, sums, out, per_task);
    free(space);
    return KVE_OK;
}
