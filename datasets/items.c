/* Datasets of items: which files are read, few-shot blocks, duplicate ids, subjects, and prompts. Contract: items.h. */
#include "datasets/items.h"

#include "host/base/file.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ASK_TOKENS = 8 }; /* room for one word, which is all that counts */

/* A growable list of items; the arena of the bundle owns it. */
typedef struct item_list {
    kve_item *p;
    size_t n, cap;
} item_list;

/* Everything of one task, shared by its subjects' datasets. */
typedef struct bundle {
    size_t n_users;
    const kve_item_task *task;
    bool ask;             /* the answer is generated, not picked */
    size_t n_shots, most; /* most: samples of each dataset, 0 = all */
    item_list items, shots;
    const char **subjects; /* in the order they were met */
    size_t n_subjects, cap_subjects;
    kve_arena arena;
} bundle;

typedef struct items {
    kve_dataset base; /* first: the dataset is this object */
    bundle *b;
    size_t *which; /* [n_samples] into b->items */
} items;

static void release(bundle *b)
{
    if (--b->n_users > 0)
        return;
    kve_arena_free(&b->arena);
    free(b);
}

kve_status kve_item_text(kve_arena *arena, const char **out, const char *fmt, ...)
{
    va_list args;
    char *text = NULL;
    va_start(args, fmt);
    int len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    KVE_TRY(kve_arena_alloc(arena, (size_t)len + 1, 1, &text));
    va_start(args, fmt);
    vsnprintf(text, (size_t)len + 1, fmt, args);
    va_end(args);
    *out = text;
    return KVE_OK;
}

kve_status kve_item_label(const cJSON *row, const char *key, const kve_place *at, size_t n, size_t *out)
{
    const cJSON *v = kve_json_get(row, key);
    const char *text = cJSON_IsString(v) ? v->valuestring : NULL;
    double label = -1;
    if (!v || cJSON_IsNull(v))
        return kve_fail(KVE_ERR_FILE, "%s: field '%s' is missing", at->name, key);
    if (text && !*text)
        return kve_fail(KVE_ERR_FILE, "%s: field '%s' is empty: this split has no labels; use one that has", at->name,
                        key);
    if (cJSON_IsNumber(v))
        label = v->valuedouble;
    else if (text && text[0] >= 'A' && text[0] <= 'Z' && !text[1])
        label = text[0] - 'A';
    else if (text && isdigit((unsigned char)text[0]) && !text[1])
        label = text[0] - '0';
    if (label < 0 || label >= (double)n || label > (double)(size_t)label) {
        if (cJSON_IsNumber(v))
            return kve_fail(KVE_ERR_FILE, "%s: field '%s' is %g, outside the %zu choices (0 to %zu)", at->name, key,
                            v->valuedouble, n, n - 1);
        return kve_fail(KVE_ERR_FILE, "%s: field '%s' is %s, outside the %zu choices", at->name, key,
                        text ? text : "neither a number nor a text", n);
    }
    *out = (size_t)label;
    return KVE_OK;
}

/* --- Reading */

typedef struct reading {
    bundle *b;
    item_list *into;
    const char *only;   /* a subject, NULL = all */
    const char **taken; /* subjects that an earlier file gave, NULL-terminated; NULL: none */
    size_t n_passed;    /* rows passed over for that */
} reading;

static size_t count_of(const item_list *l, const char *subject)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        n += !subject || strcmp(l->p[i].subject, subject) == 0;
    return n;
}

static bool is_taken(const reading *r, const char *subject)
{
    for (size_t i = 0; r->taken && r->taken[i]; i++)
        if (strcmp(r->taken[i], subject) == 0)
            return true;
    return false;
}

static kve_status read_item(void *ctx, const cJSON *row, const kve_place *at)
{
    reading *r = ctx;
    kve_item item = {.header = "", .context = "", .question = "", .answer_prefix = "", .line = at->line};
    KVE_TRY(r->b->task->read(row, at, &r->b->arena, &item));
    if (item.subject && r->only && strcmp(item.subject, r->only) != 0)
        return KVE_OK;
    if (item.subject && is_taken(r, item.subject)) {
        r->n_passed++;
        return KVE_OK;
    }
    if (r->b->ask)
        KVE_TRY(kve_item_ask(r->b->task, &r->b->arena, &item));
    KVE_TRY(kve_item_text(&r->b->arena, &item.where, "%s", at->name));
    KVE_TRY(kve_list_room(&r->b->arena, r->into->n, &r->into->cap, sizeof item, &r->into->p));
    r->into->p[r->into->n++] = item;
    return KVE_OK;
}

static int by_id(const void *a, const void *b)
{
    const kve_item *x = *(const kve_item *const *)a, *y = *(const kve_item *const *)b;
    int c = strcmp(x->id, y->id);
    return c ? c : (x->line > y->line) - (x->line < y->line);
}

/* Rows of one id would be one sample to a run that is resumed. */
static kve_status check_ids(const item_list *l)
{
    const kve_item **sorted = NULL;
    kve_status st = KVE_OK;
    size_t n = 0;
    KVE_TRY(kve_alloc(l->n, sizeof *sorted, &sorted));
    for (size_t i = 0; i < l->n; i++)
        if (l->p[i].id)
            sorted[n++] = &l->p[i];
    qsort(sorted, n, sizeof *sorted, by_id);
    for (size_t i = 1; i < n && st == KVE_OK; i++)
        if (strcmp(sorted[i - 1]->id, sorted[i]->id) == 0)
            st = kve_fail(KVE_ERR_FILE, "%s: field 'id' is '%s', as in line %zu; keep one row", sorted[i]->where,
                          sorted[i]->id, sorted[i - 1]->line);
    free(sorted);
    return st;
}

/* --- Which files */

typedef struct ranked_source {
    const kve_source *s;
    int rank;
} ranked_source;

static int by_rank(const void *a, const void *b)
{
    const ranked_source *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->s->csv != y->s->csv)
        return x->s->csv ? 1 : -1;
    if (x->s->bytes != y->s->bytes)
        return x->s->bytes > y->s->bytes ? -1 : 1;
    return strcmp(x->s->path, y->s->path);
}

/* The sources that may be used, best first. `but`: not this one. */
static size_t rank_sources(const kve_sources *l, const int rank[KVE_N_SPLITS], const kve_source *but,
                           ranked_source *out)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        if (rank[l->items[i].split] != KVE_RANK_NEVER && &l->items[i] != but)
            out[n++] = (ranked_source){&l->items[i], rank[l->items[i].split]};
    qsort(out, n, sizeof *out, by_rank);
    return n;
}

static kve_status add_subjects(bundle *b)
{
    for (size_t i = 0; i < b->items.n; i++) {
        const char *subject = b->items.p[i].subject;
        size_t k = 0;
        while (k < b->n_subjects && strcmp(b->subjects[k], subject) != 0)
            k++;
        if (k < b->n_subjects)
            continue;
        KVE_TRY(kve_list_room(&b->arena, k ? k + 1 : 0, &b->cap_subjects, sizeof *b->subjects, &b->subjects));
        b->subjects[b->n_subjects++] = subject;
        b->subjects[b->n_subjects] = NULL;
    }
    return KVE_OK;
}

typedef struct opening {
    bundle *b;
    const kve_item_task *t;
    const char *subject;
    const kve_task_options *o;
    kve_dataset_list *out;
    kve_sources sources;
    ranked_source *ranked;
    size_t n_ranked;
    kve_bad_rows bad;
} opening;

static kve_status say_left_out(opening *p, const kve_source *left, const kve_source *read)
{
    kve_str why = {0};
    kve_status st =
        kve_str_printf(&why, "it holds the same task (%s) as %s, which is read", p->t->format.task, read->path);
    if (st == KVE_OK)
        st = kve_dataset_list_skip(p->out, left->path, why.p);
    kve_str_free(&why);
    return st;
}

/* One file; or, by subject, every file of the best split: a subject is taken from the first one that has it. */
static kve_status read_files(opening *p)
{
    const ranked_source *first = &p->ranked[0];
    for (size_t i = 0; i < p->n_ranked && p->ranked[i].rank == first->rank; i++) {
        const kve_source *s = p->ranked[i].s;
        if (i && !p->t->by_subject) {
            KVE_TRY(say_left_out(p, s, first->s));
            continue;
        }
        reading r = {.b = p->b, .into = &p->b->items, .only = p->subject, .taken = p->b->subjects};
        size_t before = p->b->items.n;
        KVE_TRY(kve_source_read(s, &p->t->format, &p->bad, read_item, &r));
        if (p->t->by_subject)
            KVE_TRY(add_subjects(p->b));
        if (r.n_passed && p->b->items.n == before)
            KVE_TRY(say_left_out(p, s, first->s));
    }
    return check_ids(&p->b->items);
}

/* Examples come from another file than the samples: the training split first. */
static kve_status read_shots(opening *p)
{
    bundle *b = p->b;
    ranked_source *ranked = NULL;
    if (b->n_shots == 0)
        return KVE_OK;
    KVE_TRY(kve_arena_alloc(&b->arena, p->sources.n, sizeof *ranked, &ranked));
    size_t n = rank_sources(&p->sources, p->t->shot_rank, p->t->by_subject ? NULL : p->ranked[0].s, ranked);
    for (size_t i = 0; i < n && (i == 0 || p->t->by_subject); i++) {
        reading r = {.b = b, .into = &b->shots, .only = p->subject};
        KVE_TRY(kve_source_read(ranked[i].s, &p->t->format, &p->bad, read_item, &r));
    }
    for (size_t i = 0; i < (b->n_subjects ? b->n_subjects : 1); i++) {
        const char *subject = b->n_subjects ? b->subjects[i] : NULL;
        size_t have = count_of(&b->shots, subject);
        if (have < b->n_shots)
            return kve_fail(KVE_ERR_FILE,
                            "%s: %zu examples%s%s for --shots %zu of task '%s'; put the %s split beside it, or use a "
                            "smaller --shots",
                            p->o->data_path, have, subject ? " of subject " : "", subject ? subject : "", b->n_shots,
                            p->t->format.task, p->t->by_subject ? "dev" : "train");
    }
    return KVE_OK;
}

/* --- Samples */

static kve_status put_item(kve_str *out, const kve_item *item)
{
    return kve_str_printf(out, "%s%s%s %s\n\n", item->context, item->question, item->answer_prefix,
                          item->choices[item->gold]);
}

/* Header, examples, and the item's own context. */
static kve_status put_context(const bundle *b, const kve_item *item, kve_str *out)
{
    size_t left = b->n_shots;
    KVE_TRY(kve_str_puts(out, item->header));
    for (size_t i = 0; i < b->shots.n && left; i++)
        if (!item->subject || strcmp(b->shots.p[i].subject, item->subject) == 0) {
            KVE_TRY(put_item(out, &b->shots.p[i]));
            left--;
        }
    return kve_str_puts(out, item->context);
}

static kve_status copy_texts(kve_arena *arena, const char *const *from, size_t n, const char *in_front,
                             const char *const **out)
{
    const char **texts = NULL;
    KVE_TRY(kve_arena_alloc(arena, n, sizeof *texts, &texts));
    for (size_t i = 0; i < n; i++)
        KVE_TRY(kve_item_text(arena, &texts[i], "%s%s", in_front, from[i]));
    *out = texts;
    return KVE_OK;
}

static kve_status fill_sample(const items *d, const kve_item *item, kve_sample *s)
{
    kve_str context = {0};
    kve_status st = put_context(d->b, item, &context);
    if (st == KVE_OK)
        st = kve_item_text(&s->arena, &s->context, "%s", context.p ? context.p : "");
    kve_str_free(&context);
    KVE_TRY(st);
    KVE_TRY(kve_item_text(&s->arena, &s->question, "%s", item->question));
    KVE_TRY(kve_item_text(&s->arena, &s->answer_prefix, "%s", item->answer_prefix));
    KVE_TRY(kve_item_text(&s->arena, &s->source, "%s: field '%s'", item->where, item->long_field));
    KVE_TRY(item->id ? kve_item_text(&s->arena, &s->id, "%s", item->id)
                     : kve_item_text(&s->arena, &s->id, "line-%zu", item->line));
    s->n_choices = d->b->ask ? 0 : item->n_choices;
    KVE_TRY(copy_texts(&s->arena, item->choices, s->n_choices, " ", &s->choices));
    KVE_TRY(item->n_choices ? copy_texts(&s->arena, item->choices + item->gold, 1, "", &s->references)
                            : copy_texts(&s->arena, item->references, item->n_references, "", &s->references));
    s->gold = item->gold;
    s->n_references = item->n_choices ? 1 : item->n_references;
    if (item->subject)
        KVE_TRY(kve_item_text(&s->arena, &s->subject, "%s", item->subject));
    return KVE_OK;
}

static kve_status items_sample(kve_dataset *self, size_t i, kve_sample *out)
{
    const items *d = (const items *)self;
    const kve_item_task *t = d->b->task;
    out->task = self->name;
    bool ask = d->b->ask;
    out->task_version = ask ? t->ask_version : t->version;
    out->note = t->note;
    out->metric = ask ? KVE_METRIC_EXACT : t->metric;
    out->plain = t->plain && !ask;
    out->question_place = ask && t->question_place != KVE_QUESTION_IN ? KVE_QUESTION_AFTER : t->question_place;
    out->max_new_tokens = ask ? ASK_TOKENS : t->max_new_tokens;
    out->n_shots = t->metric == KVE_METRIC_ROUGE_L ? -1 : (int64_t)d->b->n_shots;
    return fill_sample(d, &d->b->items.p[d->which[i]], out);
}

static void items_close(kve_dataset *self)
{
    items *d = (items *)self;
    release(d->b);
    free(d->which);
    free(d);
}

/* --- Opening */

static kve_status add_dataset(bundle *b, const char *subject, kve_dataset_list *out)
{
    items *d = NULL;
    const char *name = b->task->format.task;
    size_t n = count_of(&b->items, subject), k = 0;
    if (b->most && b->most < n)
        n = b->most;
    if (subject)
        KVE_TRY(kve_item_text(&b->arena, &name, "%s/%s", b->task->format.task, subject));
    KVE_TRY(kve_alloc(1, sizeof *d, &d));
    kve_status st = kve_alloc(n, sizeof *d->which, &d->which);
    if (st != KVE_OK) {
        free(d);
        return st;
    }
    for (size_t i = 0; k < n; i++)
        if (!subject || strcmp(b->items.p[i].subject, subject) == 0)
            d->which[k++] = i;
    d->base = (kve_dataset){.name = name, .n_samples = n, .sample = items_sample, .close = items_close};
    d->b = b;
    b->n_users++;
    return kve_dataset_list_add(out, &d->base);
}

static kve_status say_bad_rows(opening *p)
{
    kve_str name = {0};
    if (p->bad.n == 0)
        return KVE_OK;
    kve_status st = kve_str_printf(&name, "%s: %zu bad rows", p->t->format.task, p->bad.n);
    if (st == KVE_OK)
        st = kve_dataset_list_skip(p->out, name.p, p->bad.first.p);
    p->out->n_bad_rows += p->bad.n;
    kve_str_free(&name);
    return st;
}

static kve_status fail_nothing(const opening *p)
{
    if (p->subject)
        return kve_fail(KVE_ERR_USAGE, "%s: has no rows of subject '%s' of task '%s'", p->o->data_path, p->subject,
                        p->t->format.task);
    return kve_fail(KVE_ERR_FILE, "%s: every row of task '%s' is bad; first: %s", p->o->data_path, p->t->format.task,
                    p->bad.first.p ? p->bad.first.p : "none");
}

static kve_status open_all(opening *p)
{
    bundle *b = p->b;
    KVE_TRY(kve_sources_find(&p->t->format, p->o->data_path, &b->arena, &p->sources));
    KVE_TRY(kve_arena_alloc(&b->arena, p->sources.n, sizeof *p->ranked, &p->ranked));
    p->n_ranked = rank_sources(&p->sources, p->t->rank, NULL, p->ranked);
    if (p->n_ranked == 0)
        return kve_fail(KVE_ERR_FILE, "%s: holds only the %s split of task '%s', which gives examples, no samples",
                        p->o->data_path, p->t->by_subject ? "dev" : "train", p->t->format.task);
    KVE_TRY(read_files(p));
    if (b->items.n == 0)
        return fail_nothing(p);
    KVE_TRY(read_shots(p));
    for (size_t i = 0; i < (b->n_subjects ? b->n_subjects : 1); i++)
        KVE_TRY(add_dataset(b, b->n_subjects ? b->subjects[i] : NULL, p->out));
    return say_bad_rows(p);
}

kve_status kve_items_open(const kve_item_task *t, const char *subject, const kve_task_options *o, kve_dataset_list *out)
{
    opening p = {.t = t, .subject = subject, .o = o, .out = out, .bad = {.skip = o->skip_bad}};
    if (!o->data_path)
        return kve_fail(KVE_ERR_USAGE, "task '%s' needs --data: a file or a folder with %s", t->format.task,
                        t->format.wanted);
    KVE_TRY(kve_alloc(1, sizeof *p.b, &p.b));
    p.b->n_users = 1;
    p.b->task = t;
    p.b->ask = o->generate && t->ask_version;
    p.b->most = o->n_samples;
    p.b->n_shots = t->metric == KVE_METRIC_ROUGE_L ? 0 : o->has_shots ? o->shots : t->shots;
    kve_status st = open_all(&p);
    kve_str_free(&p.bad.first);
    release(p.b);
    return st;
}
