/* Lost future attention by layer and KV head: means, the grids of the page, and what stands in the way of them.
 * Contracts: report_data.h, report_files.h, report_table.h. Knows rows and the model's shape; reads no file. */
#include "eval/report_files.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = 4096, CELL_W = 12, CELL_H = 8, LEFT = 24, TOP = 14 };

static size_t n_heads(const kve_report *r)
{
    return (size_t)r->layers * (size_t)r->kv_heads;
}

/* 0: not a count. */
static int32_t count_of(const char *text)
{
    char *end = NULL;
    long v = text ? strtol(text, &end, 10) : 0;
    return text && end != text && !*end && v >= 1 && v <= MOST ? (int32_t)v : 0;
}

static bool fits(const kve_report *r, const kve_report_row *row)
{
    bool all = row->n_heads == n_heads(r);
    for (size_t h = 0; all && h < row->n_heads; h++)
        all = isfinite(row->heads[h]);
    return all;
}

void kve_report_heads_shape(kve_report *r, const char *layers, const char *kv_heads)
{
    r->layers = count_of(layers);
    r->kv_heads = count_of(kv_heads);
    if (r->layers == 0 || r->kv_heads == 0)
        r->layers = r->kv_heads = 0;
    for (size_t i = 0; i < r->n_rows; i++) {
        kve_report_row *row = &r->rows[i];
        if (!row->ok || !row->heads)
            continue;
        r->any_heads = true;
        if (r->layers && fits(r, row)) {
            r->scopes[r->scopes[row->i_task].i_suite].has_heads = true;
            continue;
        }
        if (r->n_odd_heads++ == 0 || row->line < r->odd_line) {
            r->odd_line = row->line;
            r->odd_count = row->n_heads;
        }
        row->heads = NULL;
    }
}

/* A sample that lost nothing at all lost nothing in any head, which its record does not spell out. */
static bool known(const kve_report_row *row)
{
    return row->ok && (row->heads || row->x[KVE_M_LOST] == 0);
}

static size_t count_known(const kve_report_cell *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n_rows; i++)
        n += known(&c->rows[i]);
    return n;
}

static bool task_measured(const kve_report *r, size_t t)
{
    bool any = false;
    for (size_t i = 0; i < r->n_policies * r->n_slots && !any; i++)
        any = count_known(kve_report_at(r, t, 0, i)) > 0; /* the slots of all policies follow each other */
    return any;
}

void kve_report_heads_mean(const kve_report *r, size_t i_suite, size_t i_policy, size_t i_slot, double *mean, size_t *n)
{
    const kve_report_scope *suite = &r->scopes[i_suite];
    size_t n_used = 0, n_all = 0, end = suite->first_task + suite->n_tasks;
    *n = 0;
    for (size_t t = suite->first_task; t < end; t++) {
        size_t own = count_known(kve_report_at(r, t, i_policy, i_slot));
        if (own == 0 && task_measured(r, t))
            return;
        n_used += own > 0;
        n_all += own;
    }
    for (size_t h = 0; h < n_heads(r); h++)
        mean[h] = 0;
    for (size_t t = suite->first_task; t < end; t++) {
        const kve_report_cell *c = kve_report_at(r, t, i_policy, i_slot);
        double weight = suite->pooled ? 1.0 / (double)n_all : 1.0 / ((double)n_used * (double)count_known(c));
        for (size_t i = 0; i < c->n_rows; i++)
            for (size_t h = 0; c->rows[i].ok && c->rows[i].heads && h < n_heads(r); h++)
                mean[h] += weight * c->rows[i].heads[h];
    }
    *n = n_all;
}

kve_status kve_report_heads_notes(const kve_report *r, kve_arena *arena, kve_report_notes *notes)
{
    const char *text = NULL;
    if (r->any_heads && !r->layers) {
        KVE_TRY(kve_report_text(arena, &text,
                                "no grids of lost attention by layer and head: manifest.json does not say layers and "
                                "kv_heads (older runs do not); the run's own kveval eval command writes them there"));
        return kve_report_note_add(notes, arena, KVE_NOTE_FACT, text);
    }
    if (r->n_odd_heads == 0)
        return KVE_OK;
    KVE_TRY(kve_report_text(arena, &text,
                            "%zu records are left out of the grids of layers and heads: their reward_heads are not %d "
                            "x %d finite numbers, as the manifest's layers and kv_heads demand; first: records.jsonl, "
                            "line %zu, with %zu values",
                            r->n_odd_heads, r->layers, r->kv_heads, r->odd_line, r->odd_count));
    return kve_report_note_add(notes, arena, KVE_NOTE_WARNING, text);
}

/* --- the page --------------------------------------------------------------------------------------------------- */

/* Darker = more is lost, also without colours: the lightness falls all the way. */
static const int g_stops[][3] = {{255, 247, 214}, {253, 196, 99}, {222, 92, 44}, {107, 15, 26}};
enum { N_STOPS = sizeof g_stops / sizeof *g_stops };

static void put_color(double share, kve_tw *w)
{
    double at = fmin(fmax(share, 0), 1) * (N_STOPS - 1);
    int i = at >= N_STOPS - 1 ? N_STOPS - 2 : (int)at, rgb[3];
    for (int k = 0; k < 3; k++)
        rgb[k] = (int)lround(g_stops[i][k] + (at - i) * (g_stops[i + 1][k] - g_stops[i][k]));
    kve_tw_printf(w, "#%02x%02x%02x", (unsigned)rgb[0], (unsigned)rgb[1], (unsigned)rgb[2]);
}

static void scale_legend(double most, kve_tw *w)
{
    enum { STEPS = 24 };
    kve_tw_printf(w, "<p class='cap'>0 <svg class='scale' width='%d' height='12' aria-hidden='true'>", STEPS * 7);
    for (int i = 0; i < STEPS; i++) {
        kve_tw_printf(w, "<path d='M%d 0h7v12h-7z' fill='", i * 7);
        put_color((double)i / (STEPS - 1), w);
        kve_tw_puts(w, "'/>");
    }
    kve_tw_printf(w, "</svg> %.4f of a head's future attention is lost; one scale for all grids of this budget</p>\n",
                  most);
}

static void axis_labels(const kve_report *r, kve_tw *w)
{
    for (int32_t i = 0; i < r->layers; i++) {
        bool end = i == r->layers - 1;
        if (end || (i % 5 == 0 && i + 2 < r->layers))
            kve_tw_printf(w, "<text x='%d' y='%d' text-anchor='end'>%d</text>", LEFT - 4, TOP + i * CELL_H + CELL_H, i);
    }
    kve_tw_printf(w, "<text x='%d' y='%d'>0</text>", LEFT + 2, TOP - 3);
    if (r->kv_heads > 1)
        kve_tw_printf(w, "<text x='%d' y='%d' text-anchor='end'>%d</text>", LEFT + r->kv_heads * CELL_W - 2, TOP - 3,
                      r->kv_heads - 1);
}

static void grid(const kve_report *r, const double *mean, double most, kve_tw *w)
{
    kve_tw_printf(w, "<svg width='%d' height='%d' role='img' aria-label='layers by KV heads'>",
                  LEFT + r->kv_heads * CELL_W, TOP + r->layers * CELL_H + 4);
    axis_labels(r, w);
    for (int32_t l = 0; l < r->layers; l++)
        for (int32_t h = 0; h < r->kv_heads; h++) {
            double lost = mean[(size_t)l * (size_t)r->kv_heads + (size_t)h];
            kve_tw_printf(w, "<path d='M%d %dh%dv%dh-%dz' fill='", LEFT + h * CELL_W, TOP + l * CELL_H, CELL_W - 1,
                          CELL_H - 1, CELL_W - 1);
            put_color(most > 0 ? lost / most : 0, w);
            kve_tw_printf(w, "'><title>layer %d, KV head %d: ", l, h);
            kve_tw_num(w, lost);
            kve_tw_puts(w, "</title></path>\n");
        }
    kve_tw_puts(w, "</svg>");
}

/* The grids of all policies at one budget: [n_policies][heads], n[p] = 0 where there is none. */
typedef struct grids {
    double *mean, most;
    size_t *n, n_most;
} grids;

static void find_grids(const kve_report *r, size_t s, size_t b, grids *g)
{
    g->most = 0;
    g->n_most = 0;
    for (size_t p = 0; p < r->n_policies; p++) {
        double *mean = g->mean + p * n_heads(r);
        kve_report_heads_mean(r, s, p, b, mean, &g->n[p]);
        if (g->n[p] == 0 || kve_report_uncompressed(kve_report_at(r, s, p, b)))
            continue;
        g->n_most = g->n[p] > g->n_most ? g->n[p] : g->n_most;
        for (size_t h = 0; h < n_heads(r); h++)
            g->most = fmax(g->most, mean[h]);
    }
}

static void policy_grid(const kve_report *r, size_t s, size_t p, size_t b, const grids *g, kve_tw *w)
{
    const double *mean = g->mean + p * n_heads(r);
    double sum = 0;
    kve_tw_puts(w, "<figure><figcaption>");
    kve_report_policy_html(r, p, w);
    if (kve_report_uncompressed(kve_report_at(r, s, p, b))) {
        kve_tw_puts(w, "<small>not compressed</small></figcaption></figure>\n");
        return;
    }
    for (size_t h = 0; h < n_heads(r); h++)
        sum += mean[h];
    kve_tw_printf(w, "<small>mean %.4f", sum / (double)n_heads(r));
    if (g->n[p] < g->n_most)
        kve_tw_printf(w, " (%zu)", g->n[p]);
    kve_tw_puts(w, "</small></figcaption>");
    grid(r, mean, g->most, w);
    kve_tw_puts(w, "</figure>\n");
}

static void budget_grids(const kve_report *r, size_t s, size_t b, grids *g, kve_tw *w)
{
    bool any = false;
    find_grids(r, s, b, g);
    for (size_t p = 0; p < r->n_policies; p++)
        any = any || g->n[p] > 0;
    if (!any)
        return;
    kve_tw_printf(w, "<details open><summary>budget %lld</summary>\n", (long long)r->budgets[b]);
    if (g->n_most)
        scale_legend(g->most, w);
    kve_tw_puts(w, "<div class='heads'>\n");
    for (size_t p = 0; p < r->n_policies; p++)
        if (g->n[p])
            policy_grid(r, s, p, b, g, w);
    kve_tw_puts(w, "</div></details>\n");
}

kve_status kve_report_heads_html(const kve_report *r, size_t i_suite, kve_arena *arena, kve_tw *w)
{
    grids g = {0};
    if (!r->scopes[i_suite].has_heads)
        return KVE_OK;
    KVE_TRY(kve_arena_alloc(arena, r->n_policies * n_heads(r), sizeof *g.mean, &g.mean));
    KVE_TRY(kve_arena_alloc(arena, r->n_policies, sizeof *g.n, &g.n));
    kve_tw_puts(w, "<h3>");
    kve_tw_html(w, r->scopes[i_suite].name);
    kve_tw_printf(
        w,
        ": lost future attention by layer and KV head</h3>\n<p class='cap'>rows are the %d layers, columns the "
        "%d KV heads; darker: more is lost; each cell is the mean that the table of lost future attention "
        "has for all heads together. Point at a cell for its number; all are in reward_heads.csv</p>\n",
        r->layers, r->kv_heads);
    for (size_t b = 1; b < r->n_slots; b++) /* without a budget nothing is lost */
        budget_grids(r, i_suite, b, &g, w);
    return w->status;
}
