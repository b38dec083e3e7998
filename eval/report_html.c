/* The page: provenance, plots, tables, notes; one file, nothing fetched. Contract: report_files.h. */
#include "eval/report_files.h"

#include <math.h>
#include <string.h>

static const char g_style[] =
    ":root{--ink:#1b1f24;--soft:#57606a;--line:#d8dde3;--card:#fff;--page:#f6f7f9;--bar:#dcebf7;--warn:#fff4e0;"
    "--warnline:#d98e04;--accent:#0072b2}\n"
    "*{box-sizing:border-box}\n"
    "html{color-scheme:light}\n"
    "body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe "
    "UI',sans-serif}\n"
    "main{max-width:1320px;margin:0 auto;padding:28px 24px 64px}\n"
    "h1{font-size:26px;margin:0 0 2px;letter-spacing:-.01em}\n"
    "h2{font-size:21px;margin:44px 0 10px;padding-top:14px;border-top:2px solid var(--ink)}\n"
    "h3{font-size:15px;margin:22px 0 2px}\n"
    "p.sub{margin:0 0 18px;color:var(--soft)}\n"
    "p.cap{margin:0 0 8px;color:var(--soft);font-size:13px;max-width:100ch}\n"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 16px;margin:0;font-size:13px}\n"
    "dt{color:var(--soft)}dd{margin:0;font-family:ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}\n"
    ".card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:16px 18px;margin:0 0 14px}\n"
    ".tiles{display:flex;flex-wrap:wrap;gap:12px;margin:0 0 14px}\n"
    ".tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 18px;min-width:108px}\n"
    ".tile b{display:block;font-size:22px;line-height:1.25;font-variant-numeric:tabular-nums}\n"
    ".tile span{color:var(--soft);font-size:12px}\n"
    ".tile.bad b{color:#b3400a}\n"
    "ul.notes{list-style:none;margin:0 0 14px;padding:0;font-size:13.5px}\n"
    "ul.notes li{padding:6px 12px;margin:0 0 4px;border-left:3px solid var(--line);background:var(--card)}\n"
    "ul.notes li.warn{border-color:var(--warnline);background:var(--warn)}\n"
    ".legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin:0;padding:0;list-style:none;font-size:13.5px}\n"
    ".legend li,.who{white-space:nowrap}\n"
    ".swatch{width:36px;height:12px;vertical-align:-1px;margin-right:7px}\n"
    ".legend small{color:var(--soft)}\n"
    ".pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(480px,1fr));gap:14px}\n"
    ".pair .card{margin:0}.pair .card:only-child{max-width:760px}\n"
    ".many{display:grid;grid-template-columns:repeat(auto-fill,minmax(270px,1fr));gap:10px;margin:6px 0 14px}\n"
    "figure{margin:0}figcaption{font-weight:600;font-size:14px;margin:0 0 4px}\n"
    ".many figure{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px 8px 2px}\n"
    ".many figcaption{font-size:12.5px;font-weight:500;overflow-wrap:anywhere}\n"
    "figure svg{display:block;width:100%;height:auto}\n"
    ".heads{display:flex;flex-wrap:wrap;gap:14px 22px;background:var(--card);border:1px solid var(--line);"
    "border-radius:8px;padding:12px 16px;margin:0 0 10px}\n"
    ".heads figcaption{font-weight:500;font-size:12.5px}.heads figcaption small{display:block;color:var(--soft)}.heads "
    "sup{line-height:0}\n"
    ".heads figure>svg{width:auto}.heads text{font-size:9px;fill:var(--soft)}\n"
    "figure svg.swatch{display:inline;width:36px}.scale{vertical-align:-2px}\n"
    ".scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:8px}\n"
    "table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:5px 11px;text-align:right;border-bottom:1px solid #eceff2;white-space:nowrap}\n"
    "tr:last-child td{border-bottom:0}\n"
    "th{color:var(--soft);font-weight:600;font-size:12.5px;border-bottom:1px solid var(--line)}\n"
    "th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--card)}\n"
    "td small{display:block;color:var(--soft);font-size:11px}\n"
    "td.fill{background:linear-gradient(to right,var(--bar) calc(var(--v)*100%),transparent 0)}\n"
    "td.best{font-weight:700;color:var(--accent)}td.best small{font-weight:400}\n"
    "td.span{text-align:center}\n"
    "td.text{text-align:left;white-space:normal;min-width:320px}\n"
    "details{margin:8px 0}summary{cursor:pointer;font-weight:600;font-size:14px;padding:4px 0}\n"
    "ul.read{font-size:13.5px;padding-left:18px;max-width:100ch}\n"
    "footer{margin-top:40px;color:var(--soft);font-size:12.5px}\n"
    "@media print{body{background:#fff}.card,.scroll,.many figure{break-inside:avoid}}\n";

/* --- pieces ----------------------------------------------------------------------------------------------------- */

static void swatch(const kve_report *r, size_t p, kve_tw *w)
{
    static const char *const points[] = {
        "<circle cx='18' cy='6' r='3.6'/>",           "<rect x='14.6' y='2.6' width='6.8' height='6.8'/>",
        "<path d='M18 1.6 22.2 9.2H13.8z'/>",         "<path d='M18 10.4 22.2 2.8H13.8z'/>",
        "<path d='M18 1.2 22.8 6 18 10.8 13.2 6z'/>", "<path d='M18 1.8 22.2 4.9 20.6 9.8H15.4L13.8 4.9z'/>"};
    kve_report_style style = kve_report_style_of(r, p);
    kve_tw_printf(w,
                  "<svg class='swatch' viewBox='0 0 36 12' aria-hidden='true' fill='%s' stroke='%s'><path d='M1 6H35' "
                  "fill='none' stroke-width='2.2'%s/>",
                  style.color, style.color, style.dashed ? " stroke-dasharray='6 3'" : "");
    if (style.point >= 0)
        kve_tw_printf(w, "<g stroke='none'>%s</g>", points[style.point]);
    kve_tw_puts(w, "</svg>");
}

void kve_report_policy_html(const kve_report *r, size_t i_policy, kve_tw *w)
{
    const char *mark = kve_report_mark(&r->policies[i_policy]);
    swatch(r, i_policy, w);
    kve_tw_html(w, r->policies[i_policy].name);
    if (*mark)
        kve_tw_printf(w, "&#8201;<sup>%s</sup>", mark);
}

static void legend(const kve_report *r, kve_tw *w)
{
    kve_tw_puts(w, "<div class='card'><ul class='legend'>\n");
    for (size_t p = 0; p < r->n_policies; p++) {
        kve_tw_puts(w, "<li>");
        kve_report_policy_html(r, p, w);
        kve_tw_puts(w, " <small>");
        kve_tw_html(w, r->policies[p].info ? r->policies[p].info : "unknown");
        kve_tw_puts(w, "</small></li>\n");
    }
    kve_tw_puts(w, "</ul></div>\n");
}

static void notes_list(const kve_report_notes *notes, kve_tw *w)
{
    if (notes->n == 0)
        return;
    kve_tw_puts(w, "<ul class='notes'>\n");
    for (size_t i = 0; i < notes->n; i++) {
        const char *word = kve_note_word(notes->items[i].kind);
        kve_tw_puts(w, word ? "<li class='warn'>" : "<li>");
        kve_tw_puts(w, notes->items[i].kind == KVE_NOTE_UNLIKE ? word : "");
        kve_tw_puts(w, notes->items[i].kind == KVE_NOTE_UNLIKE ? " " : "");
        kve_tw_html(w, notes->items[i].text);
        kve_tw_puts(w, "</li>\n");
    }
    kve_tw_puts(w, "</ul>\n");
}

static void table_cell(const kve_table *t, size_t row, size_t col, kve_tw *w)
{
    const kve_table_cell *c = kve_table_at(t, row, col);
    size_t span = 1;
    while (col + span < t->n_cols && kve_table_at(t, row, col + span)->repeats)
        span++;
    bool wide = col + 1 == t->n_cols && strcmp(t->head[col], "first reason") == 0;
    kve_tw_printf(w, "<td class='%s%s%s%s'", span > 1 ? "span " : "", c->best ? "best " : "",
                  isfinite(c->fill) ? "fill " : "", wide ? "text" : "");
    if (span > 1)
        kve_tw_printf(w, " colspan='%zu'", span);
    if (isfinite(c->fill))
        kve_tw_printf(w, " style='--v:%.4f'", c->fill);
    kve_tw_puts(w, ">");
    kve_tw_html(w, c->text ? c->text : "");
    if (c->mark && *c->mark) {
        kve_tw_puts(w, " ");
        kve_tw_html(w, c->mark);
    }
    if (c->range)
        kve_tw_printf(w, "<small>%s</small>", c->range);
    kve_tw_puts(w, "</td>");
}

static void table_html(const kve_report *r, const kve_table *t, kve_tw *w)
{
    if (t->n_rows == 0)
        return;
    kve_tw_puts(w, "<h3>");
    kve_tw_html(w, t->title);
    kve_tw_puts(w, "</h3>\n<p class='cap'>");
    kve_tw_html(w, t->caption ? t->caption : "");
    kve_tw_puts(w, "</p>\n<div class='scroll'><table><thead><tr>");
    for (size_t col = 0; col < t->n_cols; col++) {
        kve_tw_puts(w, "<th>");
        kve_tw_html(w, t->head[col]);
        kve_tw_puts(w, "</th>");
    }
    kve_tw_puts(w, "</tr></thead><tbody>\n");
    for (size_t row = 0; row < t->n_rows; row++) {
        kve_tw_puts(w, "<tr><td class='who'>");
        if (t->row_policy[row] == KVE_REPORT_NONE)
            kve_tw_html(w, kve_table_at(t, row, 0)->text);
        else
            kve_report_policy_html(r, (size_t)t->row_policy[row], w);
        kve_tw_puts(w, "</td>");
        for (size_t col = 1; col < t->n_cols; col++)
            if (!kve_table_at(t, row, col)->repeats)
                table_cell(t, row, col, w);
        kve_tw_puts(w, "</tr>\n");
    }
    kve_tw_puts(w, "</tbody></table></div>\n");
}

static void figure(const kve_report *r, const kve_plot *plot, kve_tw *w)
{
    const kve_report_scope *scope = &r->scopes[plot->i_scope];
    const char *slash = strchr(scope->name, '/');
    kve_tw_puts(w, plot->small ? "<figure>" : "<figure class='card'>");
    kve_tw_puts(w, "<figcaption>");
    if (plot->small)
        kve_tw_html(w, slash && slash[1] ? slash + 1 : scope->name);
    else
        kve_tw_printf(w, "%s <span style='font-weight:400;color:var(--soft)'>%s is better</span>",
                      kve_measures[plot->m].title, kve_measures[plot->m].lower_better ? "lower" : "higher");
    kve_tw_puts(w, "</figcaption>");
    kve_tw_puts(w, plot->svg);
    kve_tw_puts(w, "</figure>\n");
}

static void figures(const kve_report *r, size_t s, const kve_plot *plots, size_t n, bool small, kve_measure m,
                    kve_tw *w)
{
    bool open = false;
    for (size_t i = 0; i < n; i++) {
        bool chosen = plots[i].svg && plots[i].small == small && r->scopes[plots[i].i_scope].i_suite == s &&
                      (!small || plots[i].m == m);
        if (!chosen)
            continue;
        if (!open && small)
            kve_tw_printf(w, "<h3>%s, task by task</h3>\n", kve_measures[m].title);
        if (!open)
            kve_tw_puts(w, small ? "<div class='many'>\n" : "<div class='pair'>\n");
        open = true;
        figure(r, &plots[i], w);
    }
    if (open)
        kve_tw_puts(w, "</div>\n");
}

/* --- sections --------------------------------------------------------------------------------------------------- */

static void tile(size_t n, const char *label, bool bad, kve_tw *w)
{
    kve_tw_printf(w, "<div class='tile%s'><b>%zu</b><span>%s</span></div>\n", bad ? " bad" : "", n, label);
}

static void header(const kve_report *r, const kve_provenance *provenance, kve_tw *w)
{
    size_t failed = 0, samples = 0;
    for (size_t s = r->n_tasks; s < r->n_scopes; s++) {
        samples += r->scopes[s].n_samples;
        for (size_t i = 0; i < r->n_policies * r->n_slots; i++)
            failed += kve_report_at(r, s, 0, i)->n_failed;
    }
    kve_tw_puts(w,
                "<h1>KV-cache eviction at absolute budgets</h1>\n<p class='sub'>kveval report: what each policy keeps "
                "of a model's ability, against the number of tokens it keeps</p>\n<div class='tiles'>\n");
    tile(r->n_tasks, "tasks", false, w);
    tile(samples, "samples", false, w);
    tile(r->n_policies, "policies", false, w);
    tile(r->n_slots - 1, "budgets", false, w);
    tile(r->n_rows, "cells", false, w);
    tile(failed, "failed cells", failed > 0, w);
    kve_tw_puts(w, "</div>\n");
    bool open = false;
    for (size_t i = 0; i < provenance->n; i++) {
        if (!provenance->values[i])
            continue;
        kve_tw_printf(w, "%s<dt>%s</dt><dd>", open ? "" : "<div class='card'><dl>\n", provenance->keys[i]);
        kve_tw_html(w, provenance->values[i]);
        kve_tw_puts(w, "</dd>\n");
        open = true;
    }
    kve_tw_puts(w, open ? "</dl></div>\n" : "");
}

static kve_status measure_section(const kve_report *r, size_t s, kve_measure m, kve_arena *arena, kve_tw *w)
{
    const kve_report_scope *suite = &r->scopes[s];
    kve_table t;
    if (!suite->has[m])
        return KVE_OK;
    KVE_TRY(kve_table_values(r, s, m, arena, &t));
    table_html(r, &t, w);
    if (suite->n_tasks < 2)
        return KVE_OK;
    kve_tw_printf(w, "<details><summary>%s: tables of the %zu tasks</summary>\n", kve_measures[m].title,
                  suite->n_tasks);
    for (size_t task = suite->first_task; task < suite->first_task + suite->n_tasks; task++) {
        KVE_TRY(kve_table_values(r, task, m, arena, &t));
        table_html(r, &t, w);
    }
    kve_tw_puts(w, "</details>\n");
    return KVE_OK;
}

static kve_status suite_section(const kve_report *r, size_t s, const kve_plot *plots, size_t n, kve_arena *arena,
                                kve_tw *w)
{
    kve_report_notes notes;
    kve_table t;
    kve_tw_puts(w, "<section>\n<h2>");
    kve_tw_html(w, r->scopes[s].name);
    kve_tw_puts(w, "</h2>\n");
    KVE_TRY(kve_report_notes_suite(r, s, arena, &notes));
    notes_list(&notes, w);
    figures(r, s, plots, n, false, KVE_M_SCORE, w);
    for (int m = 0; m < KVE_N_DIFF_MEASURES; m++) {
        figures(r, s, plots, n, true, (kve_measure)m, w);
        KVE_TRY(measure_section(r, s, (kve_measure)m, arena, w));
        for (int base = 0; base < KVE_N_BASELINES; base++) {
            KVE_TRY(kve_table_differences(r, s, (kve_measure)m, (kve_baseline)base, arena, &t));
            table_html(r, &t, w);
        }
    }
    for (int m = KVE_M_ACC; m < KVE_N_MEASURES; m++)
        KVE_TRY(measure_section(r, s, (kve_measure)m, arena, w));
    figures(r, s, plots, n, true, KVE_M_LOST, w);
    KVE_TRY(measure_section(r, s, KVE_M_LOST, arena, w));
    KVE_TRY(kve_report_heads_html(r, s, arena, w));
    KVE_TRY(measure_section(r, s, KVE_M_NORM, arena, w));
    KVE_TRY(kve_table_sums(r, s, arena, &t));
    table_html(r, &t, w);
    KVE_TRY(kve_table_speed(r, s, arena, &t));
    table_html(r, &t, w);
    kve_tw_puts(w, "</section>\n");
    return w->status;
}

static kve_status page(const kve_report *r, const kve_provenance *provenance, const kve_plot *plots, size_t n_plots,
                       const char *plot_problem, kve_arena *arena, kve_tw *w)
{
    kve_report_notes notes;
    kve_table failures;
    kve_tw_puts(w, "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n<meta name='viewport' "
                   "content='width=device-width,initial-scale=1'>\n<title>kveval report</title>\n<style>\n");
    kve_tw_puts(w, g_style);
    kve_tw_puts(w, "</style>\n</head>\n<body>\n<main>\n");
    header(r, provenance, w);
    KVE_TRY(kve_report_notes_run(r, arena, &notes));
    notes_list(&notes, w);
    if (plot_problem) {
        kve_tw_puts(w, "<ul class='notes'><li class='warn'>");
        kve_tw_html(w, plot_problem);
        kve_tw_puts(w, "</li></ul>\n");
    }
    legend(r, w);
    for (size_t s = r->n_tasks; s < r->n_scopes; s++)
        KVE_TRY(suite_section(r, s, plots, n_plots, arena, w));
    KVE_TRY(kve_table_failures(r, arena, &failures));
    table_html(r, &failures, w);
    kve_tw_puts(w, "<section>\n<h2>How to read this page</h2>\n<ul class='read'>\n");
    for (size_t i = 0; i < kve_report_legend_count; i++) {
        kve_tw_puts(w, "<li>");
        kve_tw_html(w, kve_report_legend[i]);
        kve_tw_puts(w, "</li>\n");
    }
    kve_tw_puts(w,
                "<li>In plots, policies that read attention or read twice are dashed, upper bounds are grey, the full "
                "cache is the "
                "level line, and bars are the intervals; curves stand a hair apart so that the bars do not hide each "
                "other. Point at a curve to see its name.</li>\n"
                "<li>Bold blue: the best policy at that budget, upper bounds left aside.</li>\n</ul>\n</section>\n"
                "<footer>Made by kveval report from records.jsonl; the numbers are in summary.csv, "
                "differences.csv and reward_heads.csv beside this page.</footer>\n</main>\n</body>\n</html>\n");
    return w->status;
}

kve_status kve_report_html(const kve_report *r, const kve_provenance *provenance, const kve_plot *plots, size_t n_plots,
                           const char *plot_problem, kve_str *out)
{
    kve_arena arena = {0};
    kve_tw w = {.out = out};
    kve_status st = page(r, provenance, plots, n_plots, plot_problem, &arena, &w);
    kve_arena_free(&arena);
    return st;
}
