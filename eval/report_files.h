/* What the report writes beside the terminal's tables: CSV, plots, the page. Knows the tables and the data; report.c
 * alone decides where the files go. */
#ifndef KVE_EVAL_REPORT_FILES_H
#define KVE_EVAL_REPORT_FILES_H

#include "eval/report_table.h"

/* One flat row per scope x policy x budget x measure; unknown values are empty fields. RFC 4180, lines end in \n. */
kve_status kve_report_csv(const kve_report *r, kve_str *out);
/* One row per scope x policy x budget x baseline: paired differences. */
kve_status kve_report_csv_differences(const kve_report *r, kve_str *out);
/* One row per suite x policy x budget x layer x head: mean lost share. */
kve_status kve_report_csv_heads(const kve_report *r, kve_str *out);

/* A curve's looks, the same in plots, legends and tables. */
typedef struct kve_report_style {
    const char *color; /* "#0072b2" */
    int point;         /* 0..5: circle, square, triangle up, triangle down, diamond, pentagon; -1: none */
    bool dashed;
} kve_report_style;
kve_report_style kve_report_style_of(const kve_report *r, size_t i_policy);
/* Its swatch, name and mark. */
void kve_report_policy_html(const kve_report *r, size_t i_policy, kve_tw *w);

/* The grids of lost attention by layer and head of a suite; nothing where no row has them. */
kve_status kve_report_heads_html(const kve_report *r, size_t i_suite, kve_arena *arena, kve_tw *w);

typedef struct kve_plot {
    size_t i_scope;
    kve_measure m;
    bool small;
    const char *svg; /* set by kve_report_plots: an <svg> element, in the arena; NULL: nothing to show or no gnuplot */
} kve_plot;

/* Draws all plots in one run of gnuplot. When that fails, *problem (else NULL) says why and what to do, every svg is
 * NULL, and the status is still KVE_OK: a page without plots is better than none. No text of a record reaches gnuplot.
 */
kve_status kve_report_plots(const kve_report *r, const char *gnuplot, kve_plot *plots, size_t n, kve_arena *arena,
                            const char **problem);

/* The self-contained page. `plot_problem`: shown in place of the plots, or NULL. */
kve_status kve_report_html(const kve_report *r, const kve_provenance *provenance, const kve_plot *plots, size_t n_plots,
                           const char *plot_problem, kve_str *out);

#endif
