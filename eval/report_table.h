/* Tables as data: built once from the cells, printed as Markdown (report_markdown.c) and as HTML (report_html.c). Knows
 * report_data.h; knows no file. */
#ifndef KVE_EVAL_REPORT_TABLE_H
#define KVE_EVAL_REPORT_TABLE_H

#include "eval/report_data.h"
#include "eval/report_text.h"

/* Texts belong to the arena that the builder got, or are literals; NULL: nothing. */
typedef struct kve_table_cell {
    const char *text;
    const char *spread; /* "±0.031": half of the interval */
    const char *range;  /* "[0.480, 0.541]": both ends of the interval */
    const char *mark;   /* "(37)": fewer samples than the others; "*": the interval excludes 0 */
    double fill;        /* 0..1: how much of the cell is shaded in HTML; NaN: not at all */
    bool best;          /* of its column, among the policies that a user can deploy */
    bool repeats;       /* says again what stands to its left: "full" has one value for all budgets */
} kve_table_cell;

typedef struct kve_table {
    const char *title, *caption;
    size_t n_cols, n_rows;
    const char **head;     /* [n_cols] */
    kve_table_cell *cells; /* [n_rows][n_cols] */
    int *row_policy;       /* [n_rows]: whose row it is, or KVE_REPORT_NONE */
} kve_table;

/* For the builders: an empty table with room for n_rows (n_rows stays 0); a cell; a value with its interval. */
kve_status kve_table_new(kve_arena *arena, size_t n_rows, size_t n_cols, kve_table *out);
kve_table_cell *kve_table_at(const kve_table *t, size_t row, size_t col);
kve_status kve_table_stat(kve_arena *arena, const kve_report_stat *stat, const char *format, const char *sign,
                          kve_table_cell *out);

/* Each leaves n_rows == 0 when there is nothing to show. i_scope: a task or a suite; i_suite: a suite. */
kve_status kve_table_values(const kve_report *r, size_t i_scope, kve_measure m, kve_arena *arena, kve_table *out);
kve_status kve_table_differences(const kve_report *r, size_t i_suite, kve_measure m, kve_baseline base,
                                 kve_arena *arena, kve_table *out);
kve_status kve_table_sums(const kve_report *r, size_t i_suite, kve_arena *arena, kve_table *out);
kve_status kve_table_speed(const kve_report *r, size_t i_suite, kve_arena *arena, kve_table *out);
kve_status kve_table_failures(const kve_report *r, kve_arena *arena, kve_table *out);

/* "2048", or "no budget". */
kve_status kve_table_budget(kve_arena *arena, int64_t budget, const char **out);

/* What has to be said about a suite or about the whole run, most urgent first. */
typedef enum kve_note_kind {
    KVE_NOTE_FACT,
    KVE_NOTE_WARNING,
    KVE_NOTE_UNLIKE, /* cells of unlike protocols: not shown together unless asked for */
} kve_note_kind;
typedef struct kve_report_note {
    kve_note_kind kind;
    const char *text;
} kve_report_note;
typedef struct kve_report_notes {
    kve_report_note *items;
    size_t n, cap;
} kve_report_notes;
kve_status kve_report_notes_run(const kve_report *r, kve_arena *arena, kve_report_notes *out);
kve_status kve_report_notes_suite(const kve_report *r, size_t i_suite, kve_arena *arena, kve_report_notes *out);
kve_status kve_report_note_add(kve_report_notes *notes, kve_arena *arena, kve_note_kind kind, const char *text);
/* Why grids of layers and heads are missing, or lack records. */
kve_status kve_report_heads_notes(const kve_report *r, kve_arena *arena, kve_report_notes *notes);
/* What stands in front of a note: "Warning:", "UNLIKE PROTOCOLS (--mix):"; NULL: nothing. */
const char *kve_note_word(kve_note_kind kind);
/* KVE_ERR_USAGE with all notes about unlike protocols, KVE_OK if there is none. `what`: the folders, for the message.
 */
kve_status kve_report_refuse_mix(const char *what, const kve_report_notes *notes);
void kve_notes_markdown(const kve_report_notes *notes, kve_tw *w);

/* One table under a heading of `level` ("##"); nothing when it has no rows. `arena`: for scratch. */
kve_status kve_table_markdown(const kve_table *t, const char *level, kve_arena *arena, kve_tw *w);

/* Everything as Markdown. `provenance`: key, value pairs. */
typedef struct kve_provenance {
    const char *const *keys;
    const char *const *values; /* NULL: absent */
    size_t n;
} kve_provenance;
kve_status kve_report_markdown(const kve_report *r, const kve_provenance *provenance, bool brief, kve_str *out);

/* The words that explain marks and statistics, shared by the terminal and the page. */
extern const char *const kve_report_legend[];
extern const size_t kve_report_legend_count;

#endif
