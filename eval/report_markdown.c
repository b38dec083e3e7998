/* The report on a terminal: Markdown tables, aligned. Contract: report_table.h. */
#include "eval/report_table.h"

/* "0.512 ±0.031 (37)". */
static kve_status cell_text(const kve_table_cell *c, kve_str *out)
{
    kve_tw w = {.out = out};
    kve_str_clear(out);
    kve_tw_puts(&w, ""); /* a string also where nothing follows */
    kve_tw_md(&w, c->text ? c->text : "");
    if (c->spread && !c->repeats) {
        kve_tw_puts(&w, " ");
        kve_tw_puts(&w, c->spread);
    }
    if (c->mark && *c->mark) {
        kve_tw_puts(&w, " ");
        kve_tw_md(&w, c->mark);
    }
    return w.status;
}

static void pad(kve_tw *w, size_t n, const char *with)
{
    for (size_t i = 0; i < n; i++)
        kve_tw_puts(w, with);
}

static kve_status column_width(const kve_table *t, size_t col, kve_str *scratch, size_t *width)
{
    *width = kve_report_width(t->head[col]);
    *width = *width < 3 ? 3 : *width;
    for (size_t row = 0; row < t->n_rows; row++) {
        KVE_TRY(cell_text(kve_table_at(t, row, col), scratch));
        size_t own = kve_report_width(scratch->p);
        *width = own > *width ? own : *width;
    }
    return KVE_OK;
}

static kve_status table_lines(const kve_table *t, kve_tw *w, kve_str *scratch, size_t *widths)
{
    for (size_t col = 0; col < t->n_cols; col++)
        KVE_TRY(column_width(t, col, scratch, &widths[col]));
    for (size_t col = 0; col < t->n_cols; col++) {
        kve_tw_printf(w, "| %s", t->head[col]);
        pad(w, widths[col] - kve_report_width(t->head[col]) + 1, " ");
    }
    kve_tw_puts(w, "|\n");
    for (size_t col = 0; col < t->n_cols; col++) {
        kve_tw_puts(w, "| ");
        pad(w, widths[col], "-");
        kve_tw_puts(w, " ");
    }
    kve_tw_puts(w, "|\n");
    for (size_t row = 0; row < t->n_rows; row++) {
        for (size_t col = 0; col < t->n_cols; col++) {
            KVE_TRY(cell_text(kve_table_at(t, row, col), scratch));
            kve_tw_printf(w, "| %s", scratch->p);
            pad(w, widths[col] - kve_report_width(scratch->p) + 1, " ");
        }
        kve_tw_puts(w, "|\n");
    }
    kve_tw_puts(w, "\n");
    return w->status;
}

kve_status kve_table_markdown(const kve_table *t, const char *level, kve_arena *arena, kve_tw *w)
{
    kve_str scratch = {0};
    size_t *widths = NULL;
    if (t->n_rows == 0)
        return KVE_OK;
    KVE_TRY(kve_arena_alloc(arena, t->n_cols, sizeof *widths, &widths));
    kve_tw_printf(w, "%s ", level);
    kve_tw_plain(w, t->title);
    kve_tw_printf(w, "\n\n%s%s", t->caption ? t->caption : "", t->caption ? "\n\n" : "");
    kve_status st = table_lines(t, w, &scratch, widths);
    kve_str_free(&scratch);
    return st;
}

void kve_notes_markdown(const kve_report_notes *notes, kve_tw *w)
{
    for (size_t i = 0; i < notes->n; i++) {
        const char *word = kve_note_word(notes->items[i].kind);
        kve_tw_puts(w, "- ");
        if (word)
            kve_tw_printf(w, "**%s** ", word);
        kve_tw_plain(w, notes->items[i].text);
        kve_tw_puts(w, "\n");
    }
    if (notes->n)
        kve_tw_puts(w, "\n");
}

static kve_status print_measure(const kve_report *r, size_t s, kve_measure m, kve_arena *arena, kve_tw *w)
{
    const kve_report_scope *suite = &r->scopes[s];
    kve_table t;
    if (suite->n_tasks > 1) {
        KVE_TRY(kve_table_values(r, s, m, arena, &t));
        KVE_TRY(kve_table_markdown(&t, "###", arena, w));
    }
    for (size_t task = suite->first_task; task < suite->first_task + suite->n_tasks; task++) {
        KVE_TRY(kve_table_values(r, task, m, arena, &t));
        KVE_TRY(kve_table_markdown(&t, suite->n_tasks > 1 ? "####" : "###", arena, w));
    }
    return KVE_OK;
}

static kve_status print_suite(const kve_report *r, size_t s, kve_arena *arena, kve_tw *w)
{
    kve_report_notes notes;
    kve_table t;
    kve_tw_puts(w, "## ");
    kve_tw_plain(w, r->scopes[s].name);
    kve_tw_puts(w, "\n\n");
    KVE_TRY(kve_report_notes_suite(r, s, arena, &notes));
    kve_notes_markdown(&notes, w);
    for (int m = 0; m < KVE_N_DIFF_MEASURES; m++) {
        KVE_TRY(print_measure(r, s, (kve_measure)m, arena, w));
        for (int base = 0; base < KVE_N_BASELINES; base++) {
            KVE_TRY(kve_table_differences(r, s, (kve_measure)m, (kve_baseline)base, arena, &t));
            KVE_TRY(kve_table_markdown(&t, "###", arena, w));
        }
    }
    for (int m = KVE_M_ACC; m < KVE_N_MEASURES; m++)
        KVE_TRY(print_measure(r, s, (kve_measure)m, arena, w));
    KVE_TRY(print_measure(r, s, KVE_M_LOST, arena, w));
    KVE_TRY(print_measure(r, s, KVE_M_NORM, arena, w));
    KVE_TRY(kve_table_sums(r, s, arena, &t));
    KVE_TRY(kve_table_markdown(&t, "###", arena, w));
    KVE_TRY(kve_table_speed(r, s, arena, &t));
    return kve_table_markdown(&t, "###", arena, w);
}

/* The overall tables alone. */
static kve_status print_brief(const kve_report *r, kve_arena *arena, kve_tw *w)
{
    static const kve_measure measures[] = {KVE_M_SCORE, KVE_M_NLL, KVE_M_ACC, KVE_M_ROUGE_LONGBENCH, KVE_M_LOST};
    kve_report_notes notes;
    kve_table t;
    for (size_t s = r->n_tasks; s < r->n_scopes; s++) {
        KVE_TRY(kve_report_notes_suite(r, s, arena, &notes));
        kve_notes_markdown(&notes, w);
        for (size_t m = 0; m < sizeof measures / sizeof *measures; m++) {
            if (!r->scopes[s].has[measures[m]])
                continue;
            KVE_TRY(kve_table_values(r, s, measures[m], arena, &t));
            KVE_TRY(kve_table_markdown(&t, "##", arena, w));
        }
    }
    KVE_TRY(kve_table_failures(r, arena, &t));
    KVE_TRY(kve_table_markdown(&t, "##", arena, w));
    kve_tw_puts(w,
                "\xe2\x80\xa0 sees the prefill's attention; \xc2\xa7 reads the context twice; \xc2\xb6 shares its "
                "budget unevenly; \xe2\x80\xa1 an upper bound that sees the future. All tables: kveval report DIR\n");
    return w->status;
}

static kve_status print_all(const kve_report *r, const kve_provenance *provenance, kve_arena *arena, kve_tw *w)
{
    kve_report_notes notes;
    kve_table failures;
    kve_tw_puts(w, "# kveval report\n\n");
    for (size_t i = 0; i < provenance->n; i++) {
        if (!provenance->values[i])
            continue;
        kve_tw_printf(w, "- %s: ", provenance->keys[i]);
        kve_tw_plain(w, provenance->values[i]);
        kve_tw_puts(w, "\n");
    }
    kve_tw_printf(w, "- %zu cells: %zu tasks, %zu policies\n\n", r->n_rows, r->n_tasks, r->n_policies);
    KVE_TRY(kve_report_notes_run(r, arena, &notes));
    kve_notes_markdown(&notes, w);
    for (size_t s = r->n_tasks; s < r->n_scopes; s++)
        KVE_TRY(print_suite(r, s, arena, w));
    KVE_TRY(kve_table_failures(r, arena, &failures));
    KVE_TRY(kve_table_markdown(&failures, "##", arena, w));
    kve_tw_puts(w, "## How to read the tables\n\n");
    for (size_t i = 0; i < kve_report_legend_count; i++)
        kve_tw_printf(w, "- %s\n", kve_report_legend[i]);
    return w->status;
}

kve_status kve_report_markdown(const kve_report *r, const kve_provenance *provenance, bool brief, kve_str *out)
{
    kve_arena arena = {0};
    kve_tw w = {.out = out};
    kve_status st = brief ? print_brief(r, &arena, &w) : print_all(r, provenance, &arena, &w);
    kve_arena_free(&arena);
    return st;
}
