/* Tables of values and of paired differences. Contract: report_table.h. */
#include "eval/report_table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FIXED_COLS = 2 }; /* policy, n */

kve_status kve_table_new(kve_arena *arena, size_t n_rows, size_t n_cols, kve_table *out)
{
    out->n_rows = 0;
    out->n_cols = n_cols;
    KVE_TRY(kve_arena_alloc(arena, n_cols, sizeof *out->head, &out->head));
    KVE_TRY(kve_arena_alloc(arena, n_rows * n_cols, sizeof *out->cells, &out->cells));
    KVE_TRY(kve_arena_alloc(arena, n_rows, sizeof *out->row_policy, &out->row_policy));
    for (size_t i = 0; i < n_rows * n_cols; i++)
        out->cells[i].fill = NAN;
    return KVE_OK;
}

kve_table_cell *kve_table_at(const kve_table *t, size_t row, size_t col)
{
    return &t->cells[row * t->n_cols + col];
}

kve_status kve_table_budget(kve_arena *arena, int64_t budget, const char **out)
{
    if (budget == KVE_NO_INT) {
        *out = "no budget";
        return KVE_OK;
    }
    return kve_report_text(arena, out, "%lld", (long long)budget);
}

/* The budgets that any policy of the scope has; slot 0 alone when there is none. */
static kve_status budget_columns(const kve_report *r, size_t s, kve_arena *arena, size_t **slots, size_t *n)
{
    KVE_TRY(kve_arena_alloc(arena, r->n_slots, sizeof **slots, slots));
    *n = 0;
    for (size_t b = 1; b < r->n_slots; b++) {
        bool used = false;
        for (size_t p = 0; p < r->n_policies && !used; p++)
            used = kve_report_at(r, s, p, b)->n_rows > 0;
        if (used)
            (*slots)[(*n)++] = b;
    }
    if (*n == 0)
        (*slots)[(*n)++] = 0;
    return KVE_OK;
}

kve_status kve_table_stat(kve_arena *arena, const kve_report_stat *stat, const char *format, const char *sign,
                          kve_table_cell *out)
{
    char value[64], low[64], high[64], half[64];
    if (stat->n == 0) {
        out->text = "\xe2\x80\x94"; /* em dash: nothing known */
        return KVE_OK;
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* the formats stand in kve_measures[] */
    snprintf(value, sizeof value, format, fabs(stat->mean));
    snprintf(low, sizeof low, format, stat->low);
    snprintf(high, sizeof high, format, stat->high);
    snprintf(half, sizeof half, format, (stat->high - stat->low) / 2);
#pragma GCC diagnostic pop
    const char *minus = stat->mean < 0 ? "-" : sign;
    KVE_TRY(kve_report_text(arena, &out->text, "%s%s", minus, value));
    if (isnan(stat->low)) /* a mean without an interval */
        return KVE_OK;
    KVE_TRY(kve_report_text(arena, &out->spread, "\xc2\xb1%s", half));
    return kve_report_text(arena, &out->range, "[%s, %s]", low, high);
}

/* --- values ----------------------------------------------------------------------------------------------------- */

typedef struct grid {
    const kve_report *r;
    size_t s, *slots, n_slots;
    kve_measure m;
    size_t n_most; /* samples of the fullest cell */
} grid;

static const kve_report_cell *grid_cell(const grid *g, size_t p, size_t col)
{
    return kve_report_at(g->r, g->s, p, g->slots[col]);
}

static void find_most(grid *g)
{
    for (size_t p = 0; p < g->r->n_policies; p++)
        for (size_t b = 0; b < g->r->n_slots; b++) {
            size_t n = kve_report_at(g->r, g->s, p, b)->stat[g->m].n;
            g->n_most = n > g->n_most ? n : g->n_most;
        }
}

static kve_status value_cell(const grid *g, const kve_report_cell *c, kve_arena *arena, kve_table_cell *out)
{
    const kve_report_stat *stat = &c->stat[g->m];
    bool share = g->m == KVE_M_SCORE || g->m == KVE_M_LOST || g->m >= KVE_M_ACC;
    if (stat->n && kve_report_uncompressed(c)) { /* the full cache's value would flatter a policy */
        out->text = "not compressed";
        return KVE_OK;
    }
    KVE_TRY(kve_table_stat(arena, stat, kve_measures[g->m].format, "", out));
    if (stat->n && share && stat->mean >= 0 && stat->mean <= 1)
        out->fill = stat->mean;
    if (stat->n == 0 && c->n_rows && g->r->scopes[g->s].is_suite && g->r->scopes[g->s].n_tasks > 1)
        return kve_report_text(arena, &out->mark, "(%zu/%zu tasks)", c->n_tasks, g->r->scopes[g->s].n_tasks);
    if (stat->n && stat->n < g->n_most)
        return kve_report_text(arena, &out->mark, "(%zu)", stat->n);
    return KVE_OK;
}

static kve_status count_cell(kve_arena *arena, size_t low, size_t high, kve_table_cell *out)
{
    if (low == high)
        return kve_report_text(arena, &out->text, "%zu", high);
    return kve_report_text(arena, &out->text, "%zu-%zu", low, high);
}

static kve_status value_row(const grid *g, size_t p, bool budgeted, kve_arena *arena, kve_table *t)
{
    size_t row = t->n_rows++, low = SIZE_MAX, high = 0;
    t->row_policy[row] = (int)p;
    kve_table_at(t, row, 0)->text = g->r->policies[p].name;
    kve_table_at(t, row, 0)->mark = kve_report_mark(&g->r->policies[p]);
    for (size_t col = 0; col < g->n_slots; col++) {
        const kve_report_cell *c = budgeted ? grid_cell(g, p, col) : kve_report_at(g->r, g->s, p, 0);
        kve_table_cell *cell = kve_table_at(t, row, FIXED_COLS + col);
        KVE_TRY(value_cell(g, c, arena, cell));
        cell->repeats = !budgeted && col > 0;
        if (c->n_rows) {
            low = c->stat[g->m].n < low ? c->stat[g->m].n : low;
            high = c->stat[g->m].n > high ? c->stat[g->m].n : high;
        }
    }
    return count_cell(arena, low, high, kve_table_at(t, row, 1));
}

/* The best of each column, the full cache and upper bounds aside; ties are all marked. */
static void mark_best(const grid *g, kve_table *t)
{
    for (size_t col = 0; col < g->n_slots; col++) {
        double best = NAN;
        for (int pass = 0; pass < 2; pass++)
            for (size_t row = 0; row < t->n_rows; row++) {
                const kve_report_policy *p = &g->r->policies[t->row_policy[row]];
                const kve_report_cell *c = grid_cell(g, (size_t)t->row_policy[row], col);
                const kve_report_stat *stat = &c->stat[g->m];
                if (stat->n == 0 || kve_report_uncompressed(c) || p->class == KVE_C_NONE || p->class == KVE_C_FUTURE)
                    continue;
                bool better = kve_measures[g->m].lower_better ? stat->mean < best : stat->mean > best;
                if (pass == 0 && (isnan(best) || better))
                    best = stat->mean;
                else if (pass == 1)
                    kve_table_at(t, row, FIXED_COLS + col)->best = stat->mean <= best && stat->mean >= best;
            }
    }
}

/* A last row: which share of the samples lost tokens at each budget. Nothing where all did. */
static kve_status share_row(const grid *g, kve_arena *arena, kve_table *t)
{
    size_t row = t->n_rows;
    bool any_whole = false;
    t->row_policy[row] = KVE_REPORT_NONE;
    kve_table_at(t, row, 0)->text = "(samples compressed)";
    for (size_t col = 0; col < g->n_slots; col++) {
        size_t n = 0, lost = 0;
        for (size_t p = 0; p < g->r->n_policies; p++) {
            n += grid_cell(g, p, col)->n_measured;
            lost += grid_cell(g, p, col)->n_compressed;
        }
        any_whole = any_whole || lost < n;
        if (n)
            KVE_TRY(kve_report_text(arena, &kve_table_at(t, row, FIXED_COLS + col)->text, "%.0f %%",
                                    100.0 * (double)lost / (double)n));
    }
    t->n_rows += any_whole;
    return KVE_OK;
}

static kve_status value_heading(const grid *g, kve_arena *arena, kve_table *t)
{
    const kve_report_scope *scope = &g->r->scopes[g->s];
    const char *what = kve_measures[g->m].title, *metric = NULL;
    for (size_t p = 0; p < g->r->n_policies && !metric; p++)
        for (size_t b = 0; b < g->r->n_slots && !metric; b++)
            metric = kve_report_at(g->r, g->s, p, b)->metric;
    if (scope->pooled && scope->n_tasks > 1)
        KVE_TRY(kve_report_text(arena, &t->title, "%s: %s, all samples of %zu subjects", scope->name, what,
                                scope->n_tasks));
    else if (scope->is_suite && scope->n_tasks > 1)
        KVE_TRY(kve_report_text(arena, &t->title, "%s: %s, mean of %zu tasks", scope->name, what, scope->n_tasks));
    else if (g->m == KVE_M_SCORE && metric)
        KVE_TRY(kve_report_text(arena, &t->title, "%s: %s (%s)", scope->name, what, metric));
    else
        KVE_TRY(kve_report_text(arena, &t->title, "%s: %s", scope->name, what));
    KVE_TRY(kve_report_text(arena, &t->caption, "%s is better; %zu samples per cell; columns are budgets in tokens",
                            kve_measures[g->m].lower_better ? "lower" : "higher", g->n_most));
    t->head[0] = "policy";
    t->head[1] = "n";
    for (size_t col = 0; col < g->n_slots; col++)
        KVE_TRY(kve_table_budget(arena, g->r->budgets[g->slots[col]], &t->head[FIXED_COLS + col]));
    return KVE_OK;
}

kve_status kve_table_values(const kve_report *r, size_t i_scope, kve_measure m, kve_arena *arena, kve_table *out)
{
    grid g = {.r = r, .s = i_scope, .m = m};
    *out = (kve_table){0};
    if (!r->scopes[i_scope].has[m])
        return KVE_OK;
    find_most(&g);
    KVE_TRY(budget_columns(r, i_scope, arena, &g.slots, &g.n_slots));
    KVE_TRY(kve_table_new(arena, 2 * r->n_policies + 1, FIXED_COLS + g.n_slots, out));
    KVE_TRY(value_heading(&g, arena, out));
    for (size_t p = 0; p < r->n_policies; p++) {
        bool budgeted = false, known = kve_report_at(r, i_scope, p, 0)->stat[m].n > 0 || m <= KVE_M_NLL;
        for (size_t b = 1; b < r->n_slots; b++)
            budgeted = budgeted || kve_report_at(r, i_scope, p, b)->n_rows > 0;
        if (kve_report_at(r, i_scope, p, 0)->n_rows && known) /* no row for a full cache without rewards */
            KVE_TRY(value_row(&g, p, false, arena, out));
        if (budgeted)
            KVE_TRY(value_row(&g, p, true, arena, out));
    }
    mark_best(&g, out);
    return share_row(&g, arena, out);
}

/* --- differences ------------------------------------------------------------------------------------------------ */

static kve_status diff_row(const grid *g, size_t p, kve_baseline base, kve_arena *arena, kve_table *t)
{
    size_t row = t->n_rows, low = SIZE_MAX, high = 0;
    for (size_t col = 0; col < g->n_slots; col++) {
        const kve_report_cell *c = grid_cell(g, p, col);
        const kve_report_stat *d = &c->diff[base][g->m];
        kve_table_cell *cell = kve_table_at(t, row, FIXED_COLS + col);
        int best = g->r->best_free[(g->s * g->r->n_slots + g->slots[col]) * KVE_N_DIFF_MEASURES + g->m];
        if (kve_report_uncompressed(c)) {
            cell->text = "not compressed";
            continue;
        }
        KVE_TRY(kve_table_stat(arena, d, "%.3f", "+", cell));
        cell->mark = d->n && (d->low > 0 || d->high < 0) ? "*" : NULL;
        if (base == KVE_VS_FREE && best == (int)p)
            cell->text = "baseline";
        if (d->n) {
            low = d->n < low ? d->n : low;
            high = d->n > high ? d->n : high;
        }
    }
    if (high == 0)
        return KVE_OK;
    t->row_policy[row] = (int)p;
    kve_table_at(t, row, 0)->text = g->r->policies[p].name;
    kve_table_at(t, row, 0)->mark = kve_report_mark(&g->r->policies[p]);
    t->n_rows++;
    return count_cell(arena, low, high, kve_table_at(t, row, 1));
}

kve_status kve_table_differences(const kve_report *r, size_t i_suite, kve_measure m, kve_baseline base,
                                 kve_arena *arena, kve_table *out)
{
    grid g = {.r = r, .s = i_suite, .m = m};
    *out = (kve_table){0};
    if (!r->scopes[i_suite].has[m] || (base == KVE_VS_FULL && r->i_full == KVE_REPORT_NONE))
        return KVE_OK;
    KVE_TRY(budget_columns(r, i_suite, arena, &g.slots, &g.n_slots));
    KVE_TRY(kve_table_new(arena, r->n_policies + 1, FIXED_COLS + g.n_slots, out));
    const char *what = m == KVE_M_NLL ? "nats per token" : "score";
    KVE_TRY(kve_report_text(arena, &out->title, "%s: %s, paired difference to %s", r->scopes[i_suite].name, what,
                            base == KVE_VS_FULL ? "the full cache" : "the best attention-free policy"));
    KVE_TRY(kve_report_text(arena, &out->caption, "%s; over the samples that both have; * the interval excludes 0%s",
                            m == KVE_M_NLL ? "above 0 is worse" : "below 0 is worse",
                            base == KVE_VS_FULL ? ""
                                                : "; the baseline is chosen at each budget after seeing the scores, "
                                                  "which flatters it a little"));
    out->head[0] = "policy";
    out->head[1] = "n";
    for (size_t col = 0; col < g.n_slots; col++)
        KVE_TRY(kve_table_budget(arena, r->budgets[g.slots[col]], &out->head[FIXED_COLS + col]));
    for (size_t p = 0; p < r->n_policies; p++)
        KVE_TRY(diff_row(&g, p, base, arena, out));
    return KVE_OK;
}
