/* The final order of rows: suites, tasks, policies by class, budgets; the last attempt of each cell. Contract:
 * report_raw.h. */
#include "eval/report_raw.h"

#include <stdlib.h>
#include <string.h>

typedef struct sort_name {
    const char *name;
    size_t old, suite_len;
    kve_report_policy policy;
} sort_name;

static int compare_names(const char *a, const char *b)
{
    kve_record x = {.task = a, .sample_id = "", .policy = ""}, y = {.task = b, .sample_id = "", .policy = ""};
    int c = kve_record_compare(&x, &y); /* numbers inside a name by value */
    return c ? c : strcmp(a, b);
}

/* By suite first: "ruler", "ruler-4k/x" and "ruler/x" must not interleave. */
static int by_task(const void *pa, const void *pb)
{
    const sort_name *a = pa, *b = pb;
    size_t least = a->suite_len < b->suite_len ? a->suite_len : b->suite_len;
    if (a->suite_len != b->suite_len || memcmp(a->name, b->name, least) != 0) {
        int c = memcmp(a->name, b->name, least);
        return c ? c : (a->suite_len > b->suite_len) - (a->suite_len < b->suite_len);
    }
    return compare_names(a->name, b->name);
}

static int by_class(const void *pa, const void *pb)
{
    const sort_name *a = pa, *b = pb;
    if (a->policy.class != b->policy.class)
        return a->policy.class < b->policy.class ? -1 : 1;
    return compare_names(a->name, b->name);
}

static int by_budget(const void *pa, const void *pb)
{
    int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    return (a > b) - (a < b);
}

static kve_report_class class_of(const char *info)
{
    static const char *const names[] = {"none", "attention-free", "prefill-attention", "second-pass",
                                        "future-attention"};
    for (size_t i = 0; info && i < sizeof names / sizeof *names; i++)
        if (strcmp(info, names[i]) == 0)
            return (kve_report_class)i;
    return KVE_C_NONE;
}

static kve_status order_policies(kve_report_raw *raw)
{
    kve_report *r = raw->r;
    sort_name *s = NULL;
    size_t *rank = NULL;
    KVE_TRY(kve_arena_alloc(&r->arena, raw->policies.n, sizeof *s, &s));
    KVE_TRY(kve_arena_alloc(&r->arena, raw->policies.n, sizeof *rank, &rank));
    KVE_TRY(kve_arena_alloc(&r->arena, raw->policies.n, sizeof *r->policies, &r->policies));
    for (size_t i = 0; i < raw->policies.n; i++)
        s[i] = (sort_name){.name = raw->policies.names[i], .old = i, .policy = {.name = raw->policies.names[i]}};
    for (size_t i = 0; i < r->n_rows; i++) {
        kve_report_policy *p = &s[r->rows[i].i_policy].policy;
        const char *info = r->rows[i].info;
        if (r->rows[i].shared)
            p->shared = r->rows[i].shared;
        if (!info)
            continue;
        p->mixed = p->mixed || (p->info && p->info != info);
        if (!p->info || class_of(info) > p->class) {
            p->info = info;
            p->class = class_of(info);
        }
    }
    qsort(s, raw->policies.n, sizeof *s, by_class);
    r->n_policies = raw->policies.n;
    r->i_full = KVE_REPORT_NONE;
    for (size_t i = 0; i < r->n_policies; i++) {
        r->policies[i] = s[i].policy;
        rank[s[i].old] = i;
        if (strcmp(s[i].name, "full") == 0)
            r->i_full = (int)i;
    }
    for (size_t i = 0; i < r->n_rows; i++)
        r->rows[i].i_policy = rank[r->rows[i].i_policy];
    return KVE_OK;
}

static size_t suite_length(const char *task)
{
    return strcspn(task, "/");
}

static kve_status make_suites(kve_report *r)
{
    kve_report_scope *suite = NULL;
    r->n_scopes = r->n_tasks;
    for (size_t t = 0; t < r->n_tasks; t++) {
        const char *name = r->scopes[t].name;
        size_t len = suite_length(name);
        if (!suite || strlen(suite->name) != len || memcmp(suite->name, name, len) != 0) {
            char *copy = NULL;
            KVE_TRY(kve_arena_strndup(&r->arena, name, len, &copy));
            suite = &r->scopes[r->n_scopes++];
            *suite = (kve_report_scope){
                .name = copy, .is_suite = true, .i_suite = r->n_scopes - 1, .first_task = t, .n_tasks = 0};
        }
        suite->n_tasks++;
        r->scopes[t].i_suite = suite->i_suite;
    }
    return KVE_OK;
}

static kve_status order_tasks(kve_report_raw *raw)
{
    kve_report *r = raw->r;
    sort_name *s = NULL;
    size_t *rank = NULL, n = raw->tasks.n;
    KVE_TRY(kve_arena_alloc(&r->arena, n, sizeof *s, &s));
    KVE_TRY(kve_arena_alloc(&r->arena, n, sizeof *rank, &rank));
    KVE_TRY(kve_arena_alloc(&r->arena, 2 * n, sizeof *r->scopes, &r->scopes)); /* at most as many suites as tasks */
    for (size_t i = 0; i < n; i++)
        s[i] = (sort_name){.name = raw->tasks.names[i], .old = i, .suite_len = suite_length(raw->tasks.names[i])};
    qsort(s, n, sizeof *s, by_task);
    for (size_t i = 0; i < n; i++) {
        r->scopes[i] = (kve_report_scope){.name = s[i].name, .first_task = i, .n_tasks = 1};
        rank[s[i].old] = i;
    }
    r->n_tasks = n;
    for (size_t i = 0; i < r->n_rows; i++)
        r->rows[i].i_task = rank[r->rows[i].i_task];
    return make_suites(r);
}

static kve_status order_budgets(kve_report_raw *raw)
{
    kve_report *r = raw->r;
    int64_t *sorted = NULL;
    KVE_TRY(kve_arena_alloc(&r->arena, r->n_rows + 1, sizeof *sorted, &sorted));
    memcpy(sorted, raw->row_budget, r->n_rows * sizeof *sorted);
    sorted[r->n_rows] = KVE_NO_INT; /* slot 0 is there even if nothing uses it */
    qsort(sorted, r->n_rows + 1, sizeof *sorted, by_budget);
    size_t n = 1;
    for (size_t i = 1; i <= r->n_rows; i++)
        if (sorted[i] != sorted[n - 1])
            sorted[n++] = sorted[i];
    r->budgets = sorted;
    r->n_slots = n;
    for (size_t i = 0; i < r->n_rows; i++) {
        const int64_t *at = bsearch(&raw->row_budget[i], sorted, n, sizeof *sorted, by_budget);
        r->rows[i].i_slot = (size_t)(at - sorted);
    }
    return KVE_OK;
}

static int by_cell(const kve_report_row *a, const kve_report_row *b)
{
    if (a->i_task != b->i_task)
        return a->i_task < b->i_task ? -1 : 1;
    if (a->i_policy != b->i_policy)
        return a->i_policy < b->i_policy ? -1 : 1;
    if (a->i_slot != b->i_slot)
        return a->i_slot < b->i_slot ? -1 : 1;
    return a->sample == b->sample ? 0 : strcmp(a->sample, b->sample);
}

static int by_cell_latest(const void *pa, const void *pb)
{
    const kve_report_row *a = pa, *b = pb;
    int c = by_cell(a, b);
    if (!c && a->attempt != b->attempt)
        return a->attempt > b->attempt ? -1 : 1;
    return c ? c : (a->line < b->line) - (a->line > b->line);
}

static void keep_latest(kve_report *r)
{
    size_t n = 0;
    qsort(r->rows, r->n_rows, sizeof *r->rows, by_cell_latest);
    for (size_t i = 0; i < r->n_rows; i++) {
        if (n && by_cell(&r->rows[n - 1], &r->rows[i]) == 0) {
            r->n_repeated += r->rows[n - 1].attempt == r->rows[i].attempt;
            r->n_superseded += r->rows[n - 1].attempt != r->rows[i].attempt;
        } else {
            r->rows[n++] = r->rows[i];
        }
    }
    r->n_rows = n;
}

kve_status kve_report_order(kve_report_raw *raw)
{
    KVE_TRY(order_policies(raw));
    KVE_TRY(order_tasks(raw));
    KVE_TRY(order_budgets(raw));
    keep_latest(raw->r);
    return KVE_OK;
}
