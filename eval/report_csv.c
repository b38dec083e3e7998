/* summary.csv, differences.csv and reward_heads.csv. Contract: report_files.h. */
#include "eval/report_files.h"

#include <math.h>
#include <stdlib.h>

static void field(kve_tw *w, const char *text)
{
    if (text)
        kve_tw_csv(w, text);
    kve_tw_puts(w, ",");
}

static void field_int(kve_tw *w, int64_t v)
{
    if (v != KVE_NO_INT)
        kve_tw_printf(w, "%lld", (long long)v);
    kve_tw_puts(w, ",");
}

static void field_num(kve_tw *w, double v)
{
    kve_tw_num(w, v);
    kve_tw_puts(w, ",");
}

static void key_fields(const kve_report *r, size_t s, size_t p, size_t b, kve_tw *w)
{
    const kve_report_scope *scope = &r->scopes[s];
    field(w, scope->is_suite ? "suite" : "task");
    field(w, r->scopes[scope->i_suite].name);
    field(w, scope->is_suite ? NULL : scope->name);
    field(w, r->policies[p].name);
    field(w, r->policies[p].info);
    field_int(w, r->budgets[b]);
}

/* The record's own name of a score ("ruler_all"), where the cell's samples agree on one. */
static const char *metric_name(const kve_report_cell *c, kve_measure m)
{
    return m == KVE_M_SCORE && c->metric ? c->metric : kve_measures[m].name;
}

/* The version of a scope's tasks, where all rows agree on one. */
static const char *version_of(const kve_report *r, size_t s)
{
    const kve_report_scope *scope = &r->scopes[s];
    const char *version = NULL;
    for (size_t i = 0; i < r->n_rows; i++) {
        const kve_report_row *row = &r->rows[i];
        if (row->i_task < scope->first_task || row->i_task >= scope->first_task + scope->n_tasks || !row->version)
            continue;
        if (version && version != row->version)
            return NULL;
        version = row->version;
    }
    return version;
}

static void summary_row(const kve_report *r, size_t s, size_t p, size_t b, kve_measure m, kve_tw *w)
{
    const kve_report_cell *c = kve_report_at(r, s, p, b);
    const kve_report_stat *stat = &c->stat[m];
    key_fields(r, s, p, b, w);
    field(w, metric_name(c, m));
    field(w, kve_measures[m].lower_better ? "lower" : "higher");
    field_int(w, (int64_t)stat->n);
    field_num(w, stat->mean);
    field_num(w, stat->low);
    field_num(w, stat->high);
    field_int(w, (int64_t)c->n_ok);
    field_int(w, (int64_t)c->n_failed);
    field_int(w, (int64_t)c->n_unknown);
    field(w, c->partial ? "1" : "0");
    field_int(w, c->kept_min);
    field_int(w, c->kept_max);
    field_num(w, c->kv_bytes);
    for (int k = 0; k < KVE_N_TIMINGS; k++)
        field_num(w, c->timing[k]);
    field_num(w, c->score_flops);
    field_num(w, c->flops_share);
    field_num(w, c->decode_rate);
    field_num(w, c->n_measured ? (double)c->n_compressed / (double)c->n_measured : NAN);
    if (version_of(r, s))
        kve_tw_csv(w, version_of(r, s));
    kve_tw_puts(w, "\n");
}

kve_status kve_report_csv(const kve_report *r, kve_str *out)
{
    kve_tw w = {.out = out};
    kve_tw_puts(&w, "scope,suite,task,policy,info,budget,metric,better,n,mean,low,high,n_ok,n_failed,n_unknown,partial,"
                    "kept_min,kept_max,kv_bytes,prefill_us,score_us,rank_us,compact_us,score_flops,score_flops_share,"
                    "decode_tokens_per_s,compressed,"
                    "version\n");
    for (size_t s = 0; s < r->n_scopes; s++)
        for (size_t p = 0; p < r->n_policies; p++)
            for (size_t b = 0; b < r->n_slots; b++)
                for (int m = 0; m < KVE_N_MEASURES; m++)
                    if (r->scopes[s].has[m] && kve_report_at(r, s, p, b)->n_rows)
                        summary_row(r, s, p, b, (kve_measure)m, &w);
    return w.status;
}

static void difference_row(const kve_report *r, size_t s, size_t p, size_t b, kve_measure m, kve_baseline base,
                           kve_tw *w)
{
    const kve_report_stat *d = &kve_report_at(r, s, p, b)->diff[base][m];
    size_t suite = r->scopes[s].i_suite;
    int q = base == KVE_VS_FULL ? r->i_full : r->best_free[(suite * r->n_slots + b) * KVE_N_DIFF_MEASURES + (size_t)m];
    if (d->n == 0)
        return;
    key_fields(r, s, p, b, w);
    field(w, base == KVE_VS_FULL ? "full" : "best-attention-free");
    field(w, r->policies[q].name);
    field(w, m == KVE_M_NLL ? "nats_per_token" : "score");
    field_int(w, (int64_t)d->n);
    field_num(w, d->mean);
    field_num(w, d->low);
    kve_tw_num(w, d->high);
    kve_tw_puts(w, "\n");
}

kve_status kve_report_csv_differences(const kve_report *r, kve_str *out)
{
    kve_tw w = {.out = out};
    kve_tw_puts(&w, "scope,suite,task,policy,info,budget,against,baseline,metric,n,mean,low,high\n");
    for (size_t s = 0; s < r->n_scopes; s++)
        for (size_t p = 0; p < r->n_policies; p++)
            for (size_t b = 0; b < r->n_slots; b++)
                for (int m = 0; m < KVE_N_DIFF_MEASURES; m++)
                    for (int base = 0; base < KVE_N_BASELINES; base++)
                        difference_row(r, s, p, b, (kve_measure)m, (kve_baseline)base, &w);
    return w.status;
}

static void head_rows(const kve_report *r, size_t s, size_t p, size_t b, const double *mean, size_t n, kve_tw *w)
{
    const kve_report_cell *c = kve_report_at(r, s, p, b);
    for (int32_t l = 0; l < r->layers; l++)
        for (int32_t h = 0; h < r->kv_heads; h++) {
            field(w, r->scopes[s].name);
            field(w, r->policies[p].name);
            field(w, r->policies[p].info);
            field_int(w, r->budgets[b]);
            field_int(w, l);
            field_int(w, h);
            field_int(w, (int64_t)n);
            field_num(w, mean[(size_t)l * (size_t)r->kv_heads + (size_t)h]);
            kve_tw_num(w, c->n_measured ? (double)c->n_compressed / (double)c->n_measured : NAN);
            kve_tw_puts(w, "\n");
        }
}

kve_status kve_report_csv_heads(const kve_report *r, kve_str *out)
{
    kve_tw w = {.out = out};
    double *mean = NULL;
    KVE_TRY(kve_alloc((size_t)r->layers * (size_t)r->kv_heads, sizeof *mean, &mean));
    kve_tw_puts(&w, "suite,policy,info,budget,layer,kv_head,n,mean_lost,compressed\n");
    for (size_t s = r->n_tasks; s < r->n_scopes; s++)
        for (size_t p = 0; r->scopes[s].has_heads && p < r->n_policies; p++)
            for (size_t b = 1; b < r->n_slots; b++) {
                size_t n;
                kve_report_heads_mean(r, s, p, b, mean, &n);
                if (n)
                    head_rows(r, s, p, b, mean, n, &w);
            }
    free(mean);
    return w.status;
}
