/* Tables of summed rewards, of bytes and times, and of failed cells. Contract: report_table.h. */
#include "eval/report_table.h"

#include <math.h>
#include <string.h>

static const char *const DASH = "\xe2\x80\x94";

static void set_policy(const kve_report *r, size_t p, kve_table *t)
{
    t->row_policy[t->n_rows] = (int)p;
    kve_table_at(t, t->n_rows, 0)->text = r->policies[p].name;
    kve_table_at(t, t->n_rows, 0)->mark = kve_report_mark(&r->policies[p]);
}

kve_status kve_table_sums(const kve_report *r, size_t i_suite, kve_arena *arena, kve_table *out)
{
    static const kve_measure shown[] = {KVE_M_SUM, KVE_M_SUM_NORM};
    enum { N_SHOWN = sizeof shown / sizeof *shown };
    const kve_report_scope *suite = &r->scopes[i_suite];
    *out = (kve_table){0};
    if (!suite->has[KVE_M_SUM] && !suite->has[KVE_M_SUM_NORM])
        return KVE_OK;
    KVE_TRY(kve_table_new(arena, r->n_policies, 2 + N_SHOWN, out));
    KVE_TRY(kve_report_text(arena, &out->title, "%s: lost future attention over all budgets", suite->name));
    out->caption =
        "lower is better; one value per sample and policy: the lost share summed over every budget from 1 to "
        "the prompt's length - 1; relative to the oracle, 1 is the least that any ranking can lose";
    out->head[0] = "policy";
    out->head[1] = "n";
    out->head[2] = "sum";
    out->head[3] = "relative to the oracle";
    for (size_t p = 0; p < r->n_policies; p++) {
        size_t n = 0;
        for (size_t i = 0; i < N_SHOWN; i++) {
            size_t slot = kve_report_policy_slot(r, i_suite, p, shown[i]);
            const kve_report_stat *stat = &kve_report_at(r, i_suite, p, slot)->stat[shown[i]];
            KVE_TRY(
                kve_table_stat(arena, stat, kve_measures[shown[i]].format, "", kve_table_at(out, out->n_rows, 2 + i)));
            n = stat->n > n ? stat->n : n;
        }
        if (n == 0)
            continue;
        set_policy(r, p, out);
        KVE_TRY(kve_report_text(arena, &kve_table_at(out, out->n_rows, 1)->text, "%zu", n));
        out->n_rows++;
    }
    return KVE_OK;
}

/* --- bytes and times -------------------------------------------------------------------------------------------- */

static kve_status bytes_text(kve_arena *arena, double bytes, const char **out)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    if (isnan(bytes)) {
        *out = DASH;
        return KVE_OK;
    }
    for (; bytes >= 1024 && u + 1 < sizeof units / sizeof *units; u++)
        bytes /= 1024;
    return kve_report_text(arena, out, u ? "%.2f %s" : "%.0f %s", bytes, units[u]);
}

/* "1.24 ms (3.1 %)": the share is of the prefill. */
static kve_status time_text(kve_arena *arena, double us, double prefill_us, const char **out)
{
    *out = DASH;
    if (isnan(us))
        return KVE_OK;
    const char *unit = us < 999.5e3 ? "ms" : "s";
    double value = us < 999.5e3 ? us / 1e3 : us / 1e6;
    if (prefill_us > 0)
        return kve_report_text(arena, out, "%.3g %s (%.2g %%)", value, unit, 100 * us / prefill_us);
    return kve_report_text(arena, out, "%.3g %s", value, unit);
}

/* "12.3 GFLOP (1.1 %)": the share is of the prefill. */
static kve_status flops_text(kve_arena *arena, const kve_report_cell *c, const char **out)
{
    *out = DASH;
    if (isnan(c->score_flops))
        return KVE_OK;
    return kve_report_text(arena, out, "%.3g GFLOP (%.2g %%)", c->score_flops / 1e9, 100 * c->flops_share);
}

static kve_status kept_text(kve_arena *arena, const kve_report_cell *c, const char **out)
{
    if (c->kept_min == KVE_NO_INT)
        *out = DASH;
    else if (c->kept_min == c->kept_max)
        return kve_report_text(arena, out, "%lld", (long long)c->kept_min);
    else
        return kve_report_text(arena, out, "%lld-%lld", (long long)c->kept_min, (long long)c->kept_max);
    return KVE_OK;
}

static kve_status speed_row(const kve_report *r, size_t s, size_t p, size_t b, double full_bytes, kve_arena *arena,
                            kve_table *t)
{
    const kve_report_cell *c = kve_report_at(r, s, p, b);
    double prefill = c->timing[KVE_T_PREFILL];
    size_t row = t->n_rows;
    set_policy(r, p, t);
    KVE_TRY(kve_table_budget(arena, r->budgets[b], &kve_table_at(t, row, 1)->text));
    KVE_TRY(kept_text(arena, c, &kve_table_at(t, row, 2)->text));
    KVE_TRY(bytes_text(arena, c->kv_bytes, &kve_table_at(t, row, 3)->text));
    kve_table_at(t, row, 4)->text = DASH;
    if (full_bytes > 0 && !isnan(c->kv_bytes)) {
        KVE_TRY(kve_report_text(arena, &kve_table_at(t, row, 4)->text, "%.1f %%", 100 * c->kv_bytes / full_bytes));
        kve_table_at(t, row, 4)->fill = fmin(c->kv_bytes / full_bytes, 1);
    }
    KVE_TRY(flops_text(arena, c, &kve_table_at(t, row, 5)->text));
    KVE_TRY(time_text(arena, c->timing[KVE_T_SCORE], prefill, &kve_table_at(t, row, 6)->text));
    KVE_TRY(time_text(arena, c->timing[KVE_T_RANK], prefill, &kve_table_at(t, row, 7)->text));
    KVE_TRY(time_text(arena, c->timing[KVE_T_COMPACT], prefill, &kve_table_at(t, row, 8)->text));
    if (t->n_cols > 9 && isnan(c->decode_rate))
        kve_table_at(t, row, 9)->text = DASH;
    else if (t->n_cols > 9)
        KVE_TRY(kve_report_text(arena, &kve_table_at(t, row, 9)->text, "%.1f tok/s", c->decode_rate));
    t->n_rows++;
    return KVE_OK;
}

static kve_status rates_caption(const kve_report_scope *suite, kve_arena *arena, const char **out)
{
    const char *prefill = "unknown", *decode = "unknown";
    if (!isnan(suite->prefill_rate))
        KVE_TRY(kve_report_text(arena, &prefill, "%.0f tokens/s (median)", suite->prefill_rate));
    if (!isnan(suite->decode_rate))
        KVE_TRY(kve_report_text(arena, &decode, "%.1f tokens/s%s", suite->decode_rate,
                                suite->single_forks ? ""
                                                    : " over whole batches of forks (policies and budgets are decoded "
                                                      "together, so one of them has no rate of its own)"));
    return kve_report_text(arena, out,
                           "prefill: %s; decoding: %s; KV bytes are means, times are medians, in brackets as a share "
                           "of the prefill's median; a ranking is made once for all budgets of a policy",
                           prefill, decode);
}

kve_status kve_table_speed(const kve_report *r, size_t i_suite, kve_arena *arena, kve_table *out)
{
    static const char *const heads[] = {"policy",         "budget", "kept", "KV memory", "of full",
                                        "score by count", "score",  "rank", "compact",   "decode"};
    const kve_report_scope *suite = &r->scopes[i_suite];
    double full_bytes = r->i_full == KVE_REPORT_NONE ? NAN : kve_report_at(r, i_suite, (size_t)r->i_full, 0)->kv_bytes;
    bool any = false;
    size_t n_cols = suite->single_forks && !isnan(suite->decode_rate) ? 10 : 9;
    *out = (kve_table){0};
    KVE_TRY(kve_table_new(arena, r->n_policies * r->n_slots, n_cols, out));
    memcpy(out->head, heads, n_cols * sizeof *heads);
    KVE_TRY(kve_report_text(arena, &out->title, "%s: memory and time", suite->name));
    KVE_TRY(rates_caption(suite, arena, &out->caption));
    for (size_t p = 0; p < r->n_policies; p++)
        for (size_t b = 0; b < r->n_slots; b++) {
            const kve_report_cell *c = kve_report_at(r, i_suite, p, b);
            if (c->n_ok == 0)
                continue;
            any = any || !isnan(c->kv_bytes) || !isnan(c->timing[KVE_T_SCORE]) || !isnan(c->timing[KVE_T_PREFILL]);
            KVE_TRY(speed_row(r, i_suite, p, b, full_bytes, arena, out));
        }
    if (!any)
        out->n_rows = 0;
    return KVE_OK;
}

/* --- failures --------------------------------------------------------------------------------------------------- */

static const char *first_reason(const kve_report_cell *c)
{
    for (size_t i = 0; i < c->n_rows; i++)
        if (!c->rows[i].ok)
            return c->rows[i].reason ? c->rows[i].reason : "no reason was recorded";
    return "";
}

kve_status kve_table_failures(const kve_report *r, kve_arena *arena, kve_table *out)
{
    static const char *const heads[] = {"policy", "task", "budget", "failed", "first reason"};
    enum { N_COLS = sizeof heads / sizeof *heads };
    size_t n = 0, n_failed = 0;
    *out = (kve_table){0};
    for (size_t t = 0; t < r->n_tasks; t++)
        for (size_t i = 0; i < r->n_policies * r->n_slots; i++) {
            size_t failed = kve_report_at(r, t, 0, i)->n_failed; /* the slots of all policies follow each other */
            n += failed > 0;
            n_failed += failed;
        }
    if (n == 0)
        return KVE_OK;
    KVE_TRY(kve_table_new(arena, n, N_COLS, out));
    memcpy(out->head, heads, sizeof heads);
    KVE_TRY(kve_report_text(arena, &out->title, "Failed cells: %zu", n_failed));
    out->caption = "counted, never averaged in";
    for (size_t t = 0; t < r->n_tasks; t++)
        for (size_t p = 0; p < r->n_policies; p++)
            for (size_t b = 0; b < r->n_slots; b++) {
                const kve_report_cell *c = kve_report_at(r, t, p, b);
                if (c->n_failed == 0)
                    continue;
                set_policy(r, p, out);
                kve_table_at(out, out->n_rows, 1)->text = r->scopes[t].name;
                KVE_TRY(kve_table_budget(arena, r->budgets[b], &kve_table_at(out, out->n_rows, 2)->text));
                KVE_TRY(kve_report_text(arena, &kve_table_at(out, out->n_rows, 3)->text, "%zu of %zu", c->n_failed,
                                        c->n_rows));
                kve_table_at(out, out->n_rows, 4)->text = first_reason(c);
                out->n_rows++;
            }
    return KVE_OK;
}
