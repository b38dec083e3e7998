/* Warnings and notes: what a reader has to know before trusting a table. Contract: report_table.h. */
#include "eval/report_table.h"

#include <stdlib.h>
#include <string.h>

const char *const kve_report_legend[] = {
    "\xe2\x80\xa0 reads the attention of the prefill (a fused attention kernel does not give it away for free); "
    "policies "
    "without a mark are attention-free.",
    "\xc2\xa7 reads the context a second time before it evicts: about another prefill, or two.",
    "\xc2\xb6 shares its budget unevenly over layers or heads: compare it with policies that do likewise.",
    "\xe2\x80\xa1 reads the attention of tokens that are yet to come: an upper bound, not a policy that can be "
    "deployed.",
    "full is the whole cache: no budget applies, so one value stands for every column.",
    "\xc2\xb1 is half of a 95 % percentile bootstrap interval (2,000 resamples); summary.csv has both ends. "
    "A \xc2\xb1 of 0 means that all samples agree, not that more samples would; no \xc2\xb1: a task has one sample "
    "only.",
    "A suite's value is the mean over its tasks of the task means; its interval resamples samples inside each task. "
    "It is left out where a task is missing. A suite of subjects (mmlu) weighs every sample alike instead.",
    "not compressed: no prompt was longer than the budget, so the value would be the full cache's and say nothing "
    "about "
    "the policy; where some were, the last row has the share that lost tokens.",
    "Perplexity is exp(sum of nats / sum of tokens), so long samples weigh more; a suite's is exp of the mean over its "
    "tasks.",
    "(n) behind a value: PARTIAL, fewer samples than the fullest cell of the table. Failed or unknown cells are "
    "counted, "
    "never averaged in; differences use only the samples that both sides have.",
};
const size_t kve_report_legend_count = sizeof kve_report_legend / sizeof *kve_report_legend;

kve_status kve_report_note_add(kve_report_notes *notes, kve_arena *arena, kve_note_kind kind, const char *text)
{
    if (notes->n == notes->cap) {
        kve_report_note *grown = NULL;
        notes->cap = notes->cap ? notes->cap * 2 : 16;
        KVE_TRY(kve_arena_alloc(arena, notes->cap, sizeof *grown, &grown));
        if (notes->n)
            memcpy(grown, notes->items, notes->n * sizeof *grown);
        notes->items = grown;
    }
    notes->items[notes->n++] = (kve_report_note){.kind = kind, .text = text};
    return KVE_OK;
}

const char *kve_note_word(kve_note_kind kind)
{
    return kind == KVE_NOTE_UNLIKE ? "UNLIKE PROTOCOLS (--mix):" : kind == KVE_NOTE_WARNING ? "Warning:" : NULL;
}

kve_status kve_report_refuse_mix(const char *what, const kve_report_notes *notes)
{
    kve_str all = {0};
    kve_tw w = {.out = &all};
    for (size_t i = 0; i < notes->n; i++)
        if (notes->items[i].kind == KVE_NOTE_UNLIKE) {
            kve_tw_puts(&w, all.len ? "; " : "");
            kve_tw_plain(&w, notes->items[i].text);
        }
    kve_status st = w.status;
    if (st == KVE_OK && all.len)
        st = kve_fail(KVE_ERR_USAGE, "%s: unlike protocols are not shown together unless --mix is given: %s", what,
                      all.p);
    kve_str_free(&all);
    return st;
}

#define ADD(notes, arena, kind, ...)                                                                                   \
    do {                                                                                                               \
        const char *add_text_ = NULL;                                                                                  \
        KVE_TRY(kve_report_text(arena, &add_text_, __VA_ARGS__));                                                      \
        KVE_TRY(kve_report_note_add(notes, arena, kind, add_text_));                                                   \
    } while (0)

/* --- the run ---------------------------------------------------------------------------------------------------- */

static int by_sample(const void *pa, const void *pb)
{
    const kve_report_row *a = *(const kve_report_row *const *)pa, *b = *(const kve_report_row *const *)pb;
    if (a->i_task != b->i_task)
        return a->i_task < b->i_task ? -1 : 1;
    int c = strcmp(a->sample, b->sample);
    return c ? c : (a->line > b->line) - (a->line < b->line);
}

/* One sample has one prompt: a mix means that two different runs share the folder. */
static kve_status check_prompts(const kve_report *r, kve_arena *arena, kve_report_notes *notes)
{
    const kve_report_row **rows = NULL, *first = NULL, *bad = NULL;
    size_t n = 0;
    KVE_TRY(kve_alloc(r->n_rows, sizeof *rows, &rows));
    for (size_t i = 0; i < r->n_rows; i++)
        if (r->rows[i].prompt)
            rows[n++] = &r->rows[i];
    qsort(rows, n, sizeof *rows, by_sample);
    for (size_t i = 0; i < n && !bad; i++) {
        if (!first || first->i_task != rows[i]->i_task || first->sample != rows[i]->sample)
            first = rows[i];
        else if (first->prompt != rows[i]->prompt)
            bad = rows[i];
    }
    free(rows);
    if (bad)
        ADD(notes, arena, KVE_NOTE_UNLIKE,
            "%s, sample %s: its cells were run on different prompts (prompt_sha256, lines %zu and %zu of "
            "records.jsonl); they do not compare",
            r->scopes[bad->i_task].name, bad->sample, first->line, bad->line);
    return KVE_OK;
}

static kve_status note_counts(const kve_report *r, kve_arena *arena, kve_report_notes *notes)
{
    size_t failed = 0, unknown = 0;
    for (size_t s = r->n_tasks; s < r->n_scopes; s++)
        for (size_t i = 0; i < r->n_policies * r->n_slots; i++) {
            failed += kve_report_at(r, s, 0, i)->n_failed;
            unknown += kve_report_at(r, s, 0, i)->n_unknown;
        }
    if (failed)
        ADD(notes, arena, KVE_NOTE_WARNING, "%zu of %zu cells failed; they are in no average (see 'Failed cells')",
            failed, r->n_rows);
    if (unknown)
        ADD(notes, arena, KVE_NOTE_WARNING, "%zu cells are ok but have no score; they are in no average", unknown);
    if (r->n_repeated)
        ADD(notes, arena, KVE_NOTE_WARNING,
            "%zu records repeat a cell in the same attempt; the later line of records.jsonl counts", r->n_repeated);
    if (r->n_superseded)
        ADD(notes, arena, KVE_NOTE_FACT, "%zu records of earlier attempts are replaced by later ones", r->n_superseded);
    return KVE_OK;
}

/* Full rows evict nothing, whatever the run did. */
static kve_status note_evictions(const kve_report *r, kve_arena *arena, kve_report_notes *notes)
{
    const kve_report_row *first = NULL;
    for (size_t i = 0; i < r->n_rows; i++) {
        const kve_report_row *row = &r->rows[i];
        if (row->i_slot == 0)
            continue;
        first = first ? first : row;
        if (row->evict_every == first->evict_every)
            continue;
        ADD(notes, arena, KVE_NOTE_UNLIKE,
            "cells differ in how they evict while decoding (evict_every, lines %zu and %zu of records.jsonl)",
            first->line, row->line);
        return KVE_OK;
    }
    if (first && first->evict_every != KVE_NO_INT)
        ADD(notes, arena, KVE_NOTE_FACT,
            "evict_every %lld: while decoding, caches were cut to their budgets again after every %lld more tokens",
            (long long)first->evict_every, (long long)first->evict_every);
    return KVE_OK;
}

kve_status kve_report_notes_run(const kve_report *r, kve_arena *arena, kve_report_notes *out)
{
    *out = (kve_report_notes){0};
    KVE_TRY(note_counts(r, arena, out));
    KVE_TRY(check_prompts(r, arena, out));
    KVE_TRY(note_evictions(r, arena, out));
    KVE_TRY(kve_report_heads_notes(r, arena, out));
    if (r->limit)
        ADD(out, arena, KVE_NOTE_WARNING,
            "PARTIAL: the run was limited to %s samples of each task (--samples, --limit)", r->limit);
    for (size_t p = 0; p < r->n_policies; p++) {
        if (r->policies[p].shared)
            ADD(out, arena, KVE_NOTE_FACT,
                "%s shares its budget over %s: the budget is the mean over layers and KV heads, the total the same",
                r->policies[p].name, r->policies[p].shared);
        if (r->policies[p].mixed)
            ADD(out, arena, KVE_NOTE_WARNING, "%s: its records disagree about what it may see; '%s' is shown",
                r->policies[p].name, r->policies[p].info);
        if (!r->policies[p].info)
            ADD(out, arena, KVE_NOTE_WARNING,
                "%s: its records do not say what it may see (field info), so it carries no mark", r->policies[p].name);
    }
    return KVE_OK;
}

/* --- one suite -------------------------------------------------------------------------------------------------- */

static kve_status note_partial(const kve_report *r, size_t s, kve_arena *arena, kve_report_notes *notes)
{
    size_t n = 0, first_p = 0, first_b = 0, first_t = 0;
    const kve_report_scope *suite = &r->scopes[s];
    for (size_t t = suite->first_task; t < suite->first_task + suite->n_tasks; t++)
        for (size_t p = 0; p < r->n_policies; p++)
            for (size_t b = 0; b < r->n_slots; b++)
                if (kve_report_at(r, t, p, b)->partial && n++ == 0) {
                    first_t = t;
                    first_p = p;
                    first_b = b;
                }
    if (n == 0)
        return KVE_OK;
    const char *budget = NULL;
    const kve_report_cell *c = kve_report_at(r, first_t, first_p, first_b);
    KVE_TRY(kve_table_budget(arena, r->budgets[first_b], &budget));
    ADD(notes, arena, KVE_NOTE_WARNING,
        "PARTIAL: %zu of the suite's (task, policy, budget) groups have fewer samples than the fullest of their task; "
        "first: %s, %s, %s with %zu of %zu",
        n, r->scopes[first_t].name, r->policies[first_p].name, budget, c->n_ok - c->n_unknown,
        r->scopes[first_t].n_samples);
    return KVE_OK;
}

static kve_status note_questions(const kve_report *r, size_t s, kve_arena *arena, kve_report_notes *notes)
{
    size_t with = 0, n = 0;
    for (size_t i = 0; i < r->n_rows; i++) {
        if (r->scopes[r->rows[i].i_task].i_suite != s || !r->rows[i].ok)
            continue;
        with += r->rows[i].question;
        n++;
    }
    if (with && with < n)
        ADD(notes, arena, KVE_NOTE_UNLIKE,
            "%s: %zu of %zu cells had the question in the prefill, the others had not (a policy that sees the question "
            "has a different, easier test)",
            r->scopes[s].name, with, n);
    else if (n)
        ADD(notes, arena, KVE_NOTE_FACT, "the question was %s the prefill", with ? "in" : "not in");
    return KVE_OK;
}

static kve_status note_kept(const kve_report *r, size_t s, kve_arena *arena, kve_report_notes *notes)
{
    for (size_t b = 1; b < r->n_slots; b++) {
        long long budget = (long long)r->budgets[b];
        bool fits = false;
        for (size_t p = 0; p < r->n_policies; p++) {
            const kve_report_cell *c = kve_report_at(r, s, p, b);
            const char *name = r->policies[p].name;
            fits = fits || c->short_prompts;
            if (c->above)
                ADD(notes, arena, KVE_NOTE_WARNING,
                    "%s kept %lld tokens at a budget of %lld: MORE than allowed, it does not compare", name,
                    (long long)c->kept_max, budget);
            if (c->below)
                ADD(notes, arena, KVE_NOTE_WARNING,
                    "%s kept as few as %lld tokens at a budget of %lld: fewer than it was allowed", name,
                    (long long)c->kept_min, budget);
            if (c->uneven)
                ADD(notes, arena, KVE_NOTE_FACT,
                    "%s at %lld: layers and heads kept different numbers of tokens, %lld to %lld", name, budget,
                    (long long)c->kept_min, (long long)c->kept_max);
        }
        if (fits)
            ADD(notes, arena, KVE_NOTE_FACT,
                "budget %lld: some prompts are no longer than this; nothing is evicted from them", budget);
    }
    return KVE_OK;
}

/* Distinct texts of one field over a suite's rows, in the order of the rows. */
static kve_status distinct(const kve_report *r, size_t s, size_t offset, kve_arena *arena, const char ***out, size_t *n)
{
    enum { MOST = 16 };
    KVE_TRY(kve_arena_alloc(arena, MOST, sizeof **out, out));
    *n = 0;
    for (size_t i = 0; i < r->n_rows && *n < MOST; i++) {
        const char *text = *(const char *const *)((const char *)&r->rows[i] + offset);
        bool seen = !text || !*text || r->scopes[r->rows[i].i_task].i_suite != s;
        for (size_t k = 0; k < *n && !seen; k++)
            seen = (*out)[k] == text;
        if (!seen)
            (*out)[(*n)++] = text;
    }
    return KVE_OK;
}

/* A task whose rows disagree in a field that should be one and the same. */
static kve_status note_mixed(const kve_report *r, size_t s, size_t offset, const char *what, kve_arena *arena,
                             kve_report_notes *notes)
{
    const kve_report_scope *suite = &r->scopes[s];
    for (size_t t = suite->first_task; t < suite->first_task + suite->n_tasks; t++) {
        const char *first = NULL;
        for (size_t i = 0; i < r->n_rows; i++) {
            const char *own =
                r->rows[i].i_task == t ? *(const char *const *)((const char *)&r->rows[i] + offset) : NULL;
            if (first && own && own != first) {
                ADD(notes, arena, KVE_NOTE_UNLIKE, "%s: %s '%s' and '%s' are mixed", r->scopes[t].name, what, first,
                    own);
                break;
            }
            first = own ? own : first;
        }
    }
    return KVE_OK;
}

static kve_status note_versions(const kve_report *r, size_t s, kve_arena *arena, kve_report_notes *notes)
{
    const char **texts = NULL;
    size_t n = 0;
    KVE_TRY(note_mixed(r, s, offsetof(kve_report_row, version), "versions of the task", arena, notes));
    KVE_TRY(note_mixed(r, s, offsetof(kve_report_row, metric), "metrics", arena, notes));
    KVE_TRY(distinct(r, s, offsetof(kve_report_row, version), arena, &texts, &n));
    for (size_t i = 0; i < n; i++)
        ADD(notes, arena, KVE_NOTE_FACT, "version of the task: %s", texts[i]);
    KVE_TRY(distinct(r, s, offsetof(kve_report_row, note), arena, &texts, &n));
    for (size_t i = 0; i < n; i++)
        ADD(notes, arena, KVE_NOTE_FACT, "departs from the official task: %s", texts[i]);
    return KVE_OK;
}

kve_status kve_report_notes_suite(const kve_report *r, size_t i_suite, kve_arena *arena, kve_report_notes *out)
{
    *out = (kve_report_notes){0};
    KVE_TRY(note_partial(r, i_suite, arena, out));
    KVE_TRY(note_questions(r, i_suite, arena, out));
    KVE_TRY(note_kept(r, i_suite, arena, out));
    return note_versions(r, i_suite, arena, out);
}
