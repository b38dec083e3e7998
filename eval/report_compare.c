/* Two runs side by side: paired differences of the cells that both have. Contract: report.h. */
#include "eval/report.h"

#include "eval/report_manifest.h"
#include "eval/report_table.h"

#include <string.h>

typedef struct comparison {
    const kve_report *a, *b;
    size_t *task_a, *task_b, n; /* the tasks of one suite that both have */
    const kve_report_cell **cells_a, **cells_b;
    const char **names;
    bool *uses;
    bool pooled;
    size_t n_pairs, n_other_prompt; /* joined samples; those whose prompts differ */
} comparison;

static kve_status make(const kve_report *a, const kve_report *b, kve_arena *arena, comparison *c)
{
    *c = (comparison){.a = a, .b = b};
    KVE_TRY(kve_arena_alloc(arena, a->n_tasks, sizeof *c->task_a, &c->task_a));
    KVE_TRY(kve_arena_alloc(arena, a->n_tasks, sizeof *c->task_b, &c->task_b));
    KVE_TRY(kve_arena_alloc(arena, a->n_tasks, sizeof *c->cells_a, &c->cells_a));
    KVE_TRY(kve_arena_alloc(arena, a->n_tasks, sizeof *c->cells_b, &c->cells_b));
    KVE_TRY(kve_arena_alloc(arena, a->n_tasks, sizeof *c->names, &c->names));
    return kve_arena_alloc(arena, a->n_tasks, sizeof *c->uses, &c->uses);
}

static void join_tasks(comparison *c, const kve_report_scope *suite)
{
    c->n = 0;
    c->pooled = suite->pooled;
    for (size_t ta = suite->first_task; ta < suite->first_task + suite->n_tasks; ta++)
        for (size_t tb = 0; tb < c->b->n_tasks; tb++)
            if (strcmp(c->a->scopes[ta].name, c->b->scopes[tb].name) == 0) {
                c->names[c->n] = c->a->scopes[ta].name;
                c->task_a[c->n] = ta;
                c->task_b[c->n++] = tb;
            }
}

static int find_policy(const kve_report *r, const char *name)
{
    for (size_t p = 0; p < r->n_policies; p++)
        if (strcmp(r->policies[p].name, name) == 0)
            return (int)p;
    return KVE_REPORT_NONE;
}

static int find_slot(const kve_report *r, int64_t budget)
{
    for (size_t s = 0; s < r->n_slots; s++)
        if (r->budgets[s] == budget)
            return (int)s;
    return KVE_REPORT_NONE;
}

static void count_prompts(comparison *c, const kve_report_cell *a, const kve_report_cell *b)
{
    for (size_t i = 0, k = 0; i < a->n_rows && k < b->n_rows;) {
        int order = strcmp(a->rows[i].sample, b->rows[k].sample);
        if (order == 0) {
            const char *pa = a->rows[i].prompt, *pb = b->rows[k].prompt;
            c->n_pairs++;
            c->n_other_prompt += pa && pb && strcmp(pa, pb) != 0;
        }
        i += order <= 0;
        k += order >= 0;
    }
}

/* B - A over the joined tasks; n == 0 when a task has no common sample. */
static kve_status difference(comparison *c, size_t pa, size_t pb, size_t sa, size_t sb, kve_measure m,
                             kve_report_stat *out)
{
    for (size_t i = 0; i < c->n; i++) {
        c->uses[i] = c->a->scopes[c->task_a[i]].has[m] && c->b->scopes[c->task_b[i]].has[m];
        c->cells_a[i] = kve_report_at(c->a, c->task_a[i], pa, sa);
        c->cells_b[i] = kve_report_at(c->b, c->task_b[i], pb, sb);
        if (c->uses[i])
            count_prompts(c, c->cells_a[i], c->cells_b[i]);
    }
    kve_report_tasks tasks = {
        .n_tasks = c->n, .a = c->cells_b, .b = c->cells_a, .names = c->names, .uses = c->uses, .pooled = c->pooled};
    return kve_report_aggregate(&tasks, m, out, NULL);
}

static kve_status fill_row(comparison *c, size_t pa, kve_measure m, kve_arena *arena, kve_table *t)
{
    const kve_report_policy *policy = &c->a->policies[pa];
    int pb = find_policy(c->b, policy->name);
    size_t most = 0, row = t->n_rows;
    for (size_t sa = 0; pb != KVE_REPORT_NONE && sa < c->a->n_slots; sa++) {
        kve_table_cell *cell = kve_table_at(t, row, 2 + sa);
        kve_report_stat stat = {0};
        int sb = find_slot(c->b, c->a->budgets[sa]);
        if (sb != KVE_REPORT_NONE)
            KVE_TRY(difference(c, pa, (size_t)pb, sa, (size_t)sb, m, &stat));
        KVE_TRY(kve_table_stat(arena, &stat, "%.3f", "+", cell));
        cell->mark = stat.n && (stat.low > 0 || stat.high < 0) ? "*" : NULL;
        most = stat.n > most ? stat.n : most;
    }
    if (most == 0)
        return KVE_OK;
    t->row_policy[row] = (int)pa;
    kve_table_at(t, row, 0)->text = policy->name;
    kve_table_at(t, row, 0)->mark = kve_report_mark(policy);
    t->n_rows++;
    return kve_report_text(arena, &kve_table_at(t, row, 1)->text, "%zu", most);
}

static kve_status compare_suite(comparison *c, const kve_report_scope *suite, kve_measure m, kve_arena *arena,
                                kve_tw *w)
{
    kve_table t = {0};
    KVE_TRY(kve_table_new(arena, c->a->n_policies + 1, 2 + c->a->n_slots, &t));
    KVE_TRY(kve_report_text(arena, &t.title, "%s: %s, B - A over %zu of %zu tasks", suite->name,
                            m == KVE_M_NLL ? "nats per token" : "score", c->n, suite->n_tasks));
    t.caption = "over the samples that both runs have; * the interval excludes 0";
    t.head[0] = "policy";
    t.head[1] = "n";
    for (size_t s = 0; s < c->a->n_slots; s++)
        KVE_TRY(kve_table_budget(arena, c->a->budgets[s], &t.head[2 + s]));
    for (size_t p = 0; p < c->a->n_policies; p++)
        KVE_TRY(fill_row(c, p, m, arena, &t));
    return kve_table_markdown(&t, "##", arena, w);
}

/* --- Protocols */

/* Settings that a result depends on; two runs that are compared agree in them. */
static const char *const g_settings[] = {
    "model_sha256", "tokenizer_sha256",     "backend",  "dtype", "chat_family", "add_bos",    "sink",
    "recent",       "chat_template_sha256", "question", "shots", "answer",      "evict_every"};
enum { N_SETTINGS = sizeof g_settings / sizeof *g_settings };

/* A hash is known by its first digits. */
static kve_status note_setting(const char *key, const char *va, const char *vb, kve_arena *arena,
                               kve_report_notes *notes)
{
    enum { SHOWN = 12 };
    const char *text = NULL;
    if (va == vb || (va && vb && strcmp(va, vb) == 0))
        return KVE_OK;
    KVE_TRY(kve_report_text(arena, &text, "%s is %.*s in A and %.*s in B", key, SHOWN, va ? va : "default", SHOWN,
                            vb ? vb : "default"));
    return kve_report_note_add(notes, arena, KVE_NOTE_UNLIKE, text);
}

static kve_status note_settings(const kve_report *a, const kve_report *b, kve_arena *arena, kve_report_notes *notes)
{
    const char *va[N_SETTINGS], *vb[N_SETTINGS], *text = NULL;
    bool in_a, in_b;
    KVE_TRY(kve_report_manifest(a->dir, g_settings, N_SETTINGS, arena, va, &in_a));
    KVE_TRY(kve_report_manifest(b->dir, g_settings, N_SETTINGS, arena, vb, &in_b));
    if (!in_a || !in_b) {
        KVE_TRY(kve_report_text(arena, &text,
                                "%s has no manifest.json: whether the runs had the same settings is not known",
                                in_a ? b->dir : a->dir));
        return kve_report_note_add(notes, arena, KVE_NOTE_WARNING, text);
    }
    for (size_t i = 0; i < N_SETTINGS; i++)
        KVE_TRY(note_setting(g_settings[i], va[i], vb[i], arena, notes));
    return KVE_OK;
}

static kve_status note_protocols(const comparison *c, kve_arena *arena, kve_report_notes *notes)
{
    const char *text = NULL;
    *notes = (kve_report_notes){0};
    KVE_TRY(note_settings(c->a, c->b, arena, notes));
    if (c->n_other_prompt == 0)
        return KVE_OK;
    KVE_TRY(kve_report_text(arena, &text, "%zu of %zu joined cells had different prompts in the two runs",
                            c->n_other_prompt, c->n_pairs));
    return kve_report_note_add(notes, arena, KVE_NOTE_UNLIKE, text);
}

static kve_status refuse_mix(const kve_report *a, const kve_report *b, const kve_report_notes *notes)
{
    kve_str both = {0};
    kve_status st = kve_str_printf(&both, "%s (A) and %s (B)", a->dir, b->dir);
    if (st == KVE_OK)
        st = kve_report_refuse_mix(both.p, notes);
    kve_str_free(&both);
    return st;
}

/* --- All of it */

static kve_status compare_tables(comparison *c, kve_arena *arena, kve_tw *w)
{
    const kve_report *a = c->a, *b = c->b;
    size_t n_joined = 0;
    for (size_t s = a->n_tasks; s < a->n_scopes; s++) {
        join_tasks(c, &a->scopes[s]);
        n_joined += c->n;
        for (int m = 0; c->n && m < KVE_N_DIFF_MEASURES; m++)
            KVE_TRY(compare_suite(c, &a->scopes[s], (kve_measure)m, arena, w));
    }
    if (n_joined == 0)
        return kve_fail(KVE_ERR_USAGE,
                        "%s and %s share no task ('%s' there, '%s' here); compare runs of the same tasks", a->dir,
                        b->dir, a->scopes[0].name, b->scopes[0].name);
    if (c->n_pairs == 0)
        return kve_fail(KVE_ERR_USAGE,
                        "%s and %s share tasks, but no (task, sample, policy, budget); compare runs of the same plan",
                        a->dir, b->dir);
    return w->status;
}

/* The tables come first: only they know which prompts were joined. */
static kve_status compare(const kve_report *a, const kve_report *b, bool mix, kve_arena *arena, kve_tw *w)
{
    comparison c;
    kve_report_notes notes;
    kve_str tables = {0};
    kve_tw to_tables = {.out = &tables};
    KVE_TRY(make(a, b, arena, &c));
    kve_status st = compare_tables(&c, arena, &to_tables);
    if (st == KVE_OK)
        st = note_protocols(&c, arena, &notes);
    if (st == KVE_OK && !mix)
        st = refuse_mix(a, b, &notes);
    if (st == KVE_OK) {
        kve_tw_puts(w, "# kveval report: ");
        kve_tw_plain(w, b->dir);
        kve_tw_puts(w, " (B) against ");
        kve_tw_plain(w, a->dir);
        kve_tw_puts(w, " (A)\n\n");
        kve_notes_markdown(&notes, w);
        kve_tw_puts(w, tables.p ? tables.p : "");
        st = w->status;
    }
    kve_str_free(&tables);
    return st;
}

kve_status kve_report_compare(const char *dir_a, const char *dir_b, bool mix, FILE *out)
{
    kve_report a = {0}, b = {0};
    kve_arena arena = {0};
    kve_str text = {0};
    kve_tw w = {.out = &text};
    kve_status st = kve_report_load(dir_a, &a);
    if (st == KVE_OK)
        st = kve_report_load(dir_b, &b);
    if (st == KVE_OK)
        st = kve_report_find_rows(&a);
    if (st == KVE_OK)
        st = kve_report_find_rows(&b);
    if (st == KVE_OK)
        st = compare(&a, &b, mix, &arena, &w);
    if (st == KVE_OK && (fwrite(text.p, 1, text.len, out) != text.len || fflush(out) != 0))
        st = kve_fail(KVE_ERR_FILE, "the comparison's output: cannot write all of it (is the disk full?)");
    kve_str_free(&text);
    kve_arena_free(&arena);
    kve_report_free(&a);
    kve_report_free(&b);
    return st;
}
