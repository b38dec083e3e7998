/* The table of RULER's 13 tasks, opening a dataset of one of them, and the fitting of a context to the length. What a
 * task says is its family's business (niah.c, vt.c, cwe.c, fwe.c, qa.c). */
#include "datasets/ruler/ruler.h"
#include "host/base/text.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_LENGTH = 512, MAX_LENGTH = 131072, DEFAULT_SAMPLES = 500 };

static const kve_ruler_task TASKS[] = {
    {"niah_single_1", 128, KVE_METRIC_RULER_ALL, 0, kve_ruler_niah},
    {"niah_single_2", 128, KVE_METRIC_RULER_ALL, 1, kve_ruler_niah},
    {"niah_single_3", 128, KVE_METRIC_RULER_ALL, 2, kve_ruler_niah},
    {"niah_multikey_1", 128, KVE_METRIC_RULER_ALL, 3, kve_ruler_niah},
    {"niah_multikey_2", 128, KVE_METRIC_RULER_ALL, 4, kve_ruler_niah},
    {"niah_multikey_3", 128, KVE_METRIC_RULER_ALL, 5, kve_ruler_niah},
    {"niah_multivalue", 128, KVE_METRIC_RULER_ALL, 6, kve_ruler_niah},
    {"niah_multiquery", 128, KVE_METRIC_RULER_ALL, 7, kve_ruler_niah},
    {"vt", 30, KVE_METRIC_RULER_ALL, 0, kve_ruler_vt},
    {"cwe", 120, KVE_METRIC_RULER_ALL, 0, kve_ruler_cwe},
    {"fwe", 50, KVE_METRIC_RULER_ALL, 0, kve_ruler_fwe},
    {"qa_1", 32, KVE_METRIC_RULER_ANY, 1, kve_ruler_qa},
    {"qa_2", 32, KVE_METRIC_RULER_ANY, 2, kve_ruler_qa},
};

size_t kve_ruler_n_tasks(void)
{
    return sizeof TASKS / sizeof *TASKS;
}

const char *kve_ruler_task_name(size_t i)
{
    return TASKS[i].name;
}

const kve_ruler_task *kve_ruler_at(size_t i)
{
    return &TASKS[i];
}

const kve_ruler_task *kve_ruler_find(const char *name)
{
    for (size_t i = 0; i < kve_ruler_n_tasks(); i++)
        if (strcmp(TASKS[i].name, name) == 0)
            return &TASKS[i];
    return NULL;
}

kve_status kve_ruler_resolve(const char *name, const kve_ruler_task **out)
{
    const char *names[sizeof TASKS / sizeof *TASKS];
    for (size_t i = 0; i < kve_ruler_n_tasks(); i++) {
        names[i] = TASKS[i].name;
        if (kve_same_name(TASKS[i].name, name)) {
            *out = &TASKS[i];
            return KVE_OK;
        }
    }
    return kve_fail(KVE_ERR_USAGE,
                    "'%s' is no RULER task; did you mean '%s'? There are niah_single_1..3, niah_multikey_1..3, "
                    "niah_multivalue, niah_multiquery, vt, cwe, fwe, qa_1 and qa_2",
                    name, kve_nearest(name, names, kve_ruler_n_tasks()));
}

kve_status kve_ruler_check_length(int64_t length_tok)
{
    if (length_tok >= MIN_LENGTH && length_tok <= MAX_LENGTH)
        return KVE_OK;
    return kve_fail(KVE_ERR_USAGE, "a RULER length of %lld tokens is outside %d .. %d", (long long)length_tok,
                    MIN_LENGTH, MAX_LENGTH);
}

void kve_ruler_rng(const kve_ruler_job *job, uint64_t stream, kve_rng *rng)
{
    const char *name = job->r->task->name;
    kve_rng_init(rng, job->r->opt.seed, kve_hash_text(name, strlen(name)), job->index, stream);
}

/* A Feistel network on the smallest even number of bits that covers the range is a permutation; values outside the
 * range are sent round again (cycle walking), which keeps it one on the range. */
uint64_t kve_ruler_unique(const kve_ruler_job *job, uint64_t stream, uint64_t i, uint64_t range)
{
    enum { ROUNDS = 6 };
    uint64_t keys[ROUNDS];
    unsigned half = 1;
    kve_rng rng;
    assert(i < range);
    kve_ruler_rng(job, stream, &rng);
    for (int k = 0; k < ROUNDS; k++)
        keys[k] = kve_rng_u64(&rng);
    while (half < 31 && ((uint64_t)1 << (2 * half)) < range)
        half++;
    uint64_t mask = ((uint64_t)1 << half) - 1, x = i;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (int k = 0; k < ROUNDS; k++) {
            uint64_t h = (right ^ keys[k]) * 0xbf58476d1ce4e5b9u;
            h = (h ^ (h >> 29)) * 0x94d049bb133111ebu;
            uint64_t next = left ^ ((h ^ (h >> 32)) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= range);
    return x;
}

kve_status kve_ruler_text(kve_ruler_job *job, const char **field, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int need = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *text = NULL;
    kve_status st = need < 0 ? kve_fail(KVE_ERR_INTERNAL, "bad format '%s'", fmt)
                             : kve_arena_alloc(&job->s->arena, (size_t)need + 1, 1, &text);
    if (st == KVE_OK) {
        vsnprintf(text, (size_t)need + 1, fmt, again);
        *field = text;
    }
    va_end(again);
    return st;
}

kve_status kve_ruler_references(kve_ruler_job *job, const char *const *texts, size_t n)
{
    char **refs = NULL;
    KVE_TRY(kve_arena_alloc(&job->s->arena, n, sizeof *refs, &refs));
    for (size_t i = 0; i < n; i++)
        KVE_TRY(kve_arena_strndup(&job->s->arena, texts[i], strlen(texts[i]), &refs[i]));
    job->s->references = (const char *const *)refs;
    job->s->n_references = n;
    return KVE_OK;
}

/* --- Fitting the context */

typedef struct fit {
    const kve_token_fns *tokens;
    kve_ruler_build build;
    void *ctx;
    size_t room;        /* tokens the context may have */
    kve_str text, best; /* the context just tried, and the largest that fits */
} fit;

/* A size that fits and one that does not. */
typedef struct bracket {
    size_t low, low_tok, high, high_tok;
    bool bounded; /* high was measured; otherwise it is only the end of what is possible */
} bracket;

static kve_status count_text(const kve_token_fns *t, const char *text, size_t *total)
{
    size_t n = 0;
    KVE_TRY(t->count(t->ctx, text, strlen(text), &n));
    *total += n;
    return KVE_OK;
}

/* Builds and counts the context of n units; one that fits becomes `best`. */
static kve_status probe(fit *f, size_t n, size_t *tok)
{
    kve_str_clear(&f->text);
    KVE_TRY(f->build(f->ctx, n, &f->text));
    KVE_TRY(f->tokens->count(f->tokens->ctx, f->text.p, f->text.len, tok));
    if (*tok <= f->room) {
        kve_str swap = f->best;
        f->best = f->text;
        f->text = swap;
    }
    return KVE_OK;
}

/* The next size to try, in (low, high): where a straight line between what is known meets the room. `stride` grows, so
 * that a line that is too steep cannot creep; after some tries halving guarantees the end. */
static size_t next_size(const bracket *b, size_t room, double per_unit, size_t stride, int tries)
{
    enum { GUESSES = 8 };
    size_t next;
    if (b->bounded) {
        double share = (double)(room - b->low_tok) / (double)(b->high_tok - b->low_tok);
        size_t gap = b->high - b->low;
        next = b->low + (tries < GUESSES ? (size_t)(share * (double)gap) : gap / 2);
    } else {
        double step = per_unit > 0 ? (double)(room - b->low_tok) / per_unit : 0;
        next = step > (double)stride ? b->low + (size_t)fmin(step, (double)(b->high - b->low)) : b->low + stride;
    }
    return next <= b->low ? b->low + 1 : next >= b->high ? b->high - 1 : next;
}

/* Largest n in [lo, hi] whose context has at most `room` tokens (largest in the sense that n + 1 was tried or is past
 * the end); lo is known to fit with lo_tok. A count means tokenizing thousands of tokens: about six of them do. */
static kve_status search(fit *f, size_t lo, size_t lo_tok, size_t hi, size_t *best, size_t *best_tok)
{
    bracket b = {.low = lo, .low_tok = lo_tok, .high = hi + 1};
    double per_unit = 0;
    size_t stride = 16; /* enough units for a first idea of their mean length */
    for (int tries = 0; b.high - b.low > 1; tries++) {
        size_t tok = 0, next = next_size(&b, f->room, per_unit, stride, tries);
        KVE_TRY(probe(f, next, &tok));
        stride = tries ? stride * 2 : 1;
        if (tok > lo_tok)
            per_unit = (double)(tok - lo_tok) / (double)(next - lo);
        if (tok <= f->room) {
            b.low = next;
            b.low_tok = tok;
        } else {
            b.high = next;
            b.high_tok = tok;
            b.bounded = true;
        }
    }
    *best = b.low;
    *best_tok = b.low_tok;
    return KVE_OK;
}

/* Pieces are counted one by one, because the question may be tokenized apart from the context. */
static kve_status fit_context(kve_ruler_job *job, fit *f, size_t lo, size_t hi, size_t *n_units, bool *fits)
{
    kve_sample *s = job->s;
    size_t length = (size_t)job->r->opt.length_tok, lo_tok = 0, tok = 0, n = 0;
    size_t fixed = (size_t)job->r->opt.overhead_tok + (size_t)job->r->task->max_new_tokens;
    KVE_TRY(count_text(f->tokens, s->question, &fixed));
    KVE_TRY(count_text(f->tokens, s->answer_prefix, &fixed));
    f->room = fixed < length ? length - fixed : 0;
    KVE_TRY(probe(f, lo, &lo_tok));
    *fits = lo_tok <= f->room;
    if (!*fits) {
        job->needed_tok = fixed + lo_tok;
        return KVE_OK;
    }
    KVE_TRY(search(f, lo, lo_tok, hi, &n, &tok));
    char *text = NULL;
    KVE_TRY(kve_arena_strndup(&s->arena, f->best.p, f->best.len, &text));
    s->context = text;
    s->n_tok = (int64_t)(fixed + tok);
    if (n_units)
        *n_units = n;
    return KVE_OK;
}

kve_status kve_ruler_fit(kve_ruler_job *job, kve_ruler_build build, void *ctx, size_t lo, size_t hi, size_t *n_units,
                         bool *fits)
{
    fit f = {.tokens = &job->r->opt.tokens, .build = build, .ctx = ctx};
    bool ok = false;
    assert(lo <= hi);
    kve_status st = fit_context(job, &f, lo, hi, n_units, &ok);
    kve_str_free(&f.text);
    kve_str_free(&f.best);
    if (st == KVE_OK && fits)
        *fits = ok;
    else if (st == KVE_OK && !ok)
        st = kve_ruler_too_short(job);
    return st;
}

kve_status kve_ruler_too_short(const kve_ruler_job *job)
{
    return kve_fail(KVE_ERR_USAGE,
                    "task '%s', sample %llu: a length of %lld tokens is too short, the smallest one takes %zu; give "
                    "a greater length",
                    job->r->task->name, (unsigned long long)job->index, (long long)job->r->opt.length_tok,
                    job->needed_tok);
}

/* --- The dataset */

static kve_status ruler_sample(kve_dataset *self, size_t i, kve_sample *out)
{
    kve_ruler *r = (kve_ruler *)self;
    kve_ruler_job job = {.r = r, .index = i, .s = out};
    out->task = r->base.name;
    out->task_version = KVE_RULER_VERSION;
    out->max_new_tokens = r->task->max_new_tokens;
    out->metric = r->task->metric;
    KVE_TRY(kve_ruler_text(&job, &out->id, "%s-%lld-s%llu-%zu", r->task->name, (long long)r->opt.length_tok,
                           (unsigned long long)r->opt.seed, i));
    return r->task->generate(&job);
}

static void ruler_close(kve_dataset *self)
{
    kve_ruler *r = (kve_ruler *)self;
    kve_arena_free(&r->arena);
    free(r);
}

/* "ruler-4k/vt": a task of another length is another task. */
static kve_status name_dataset(kve_ruler *r)
{
    kve_str text = {0};
    char *name = NULL;
    bool k = r->opt.length_tok % 1024 == 0;
    kve_status st =
        kve_str_printf(&text, "ruler-%lld%s/%s", (long long)(k ? r->opt.length_tok / 1024 : r->opt.length_tok),
                       k ? "k" : "", r->task->name);
    if (st == KVE_OK)
        st = kve_arena_strndup(&r->arena, text.p, text.len, &name);
    kve_str_free(&text);
    r->base.name = name;
    return st;
}

static kve_status check_options(const kve_ruler_options *o, const kve_ruler_task **task)
{
    KVE_TRY(kve_ruler_resolve(o->task, task));
    KVE_TRY(kve_ruler_check_length(o->length_tok));
    if (o->overhead_tok < 0 || o->overhead_tok >= o->length_tok)
        return kve_fail(KVE_ERR_USAGE, "a chat template of %lld tokens leaves no room in a length of %lld",
                        (long long)o->overhead_tok, (long long)o->length_tok);
    if ((*task)->generate == kve_ruler_qa && !o->data_path)
        return kve_fail(KVE_ERR_USAGE, "task '%s' needs --data: %s", (*task)->name, kve_qa_wanted((*task)->variant));
    return KVE_OK;
}

kve_status kve_ruler_open(const kve_ruler_options *options, kve_dataset **out)
{
    const kve_ruler_task *task = NULL;
    kve_ruler *r = NULL;
    KVE_TRY(check_options(options, &task));
    KVE_TRY(kve_alloc(1, sizeof *r, &r));
    size_t n = options->n_samples ? options->n_samples : DEFAULT_SAMPLES;
    r->base = (kve_dataset){.n_samples = n, .sample = ruler_sample, .close = ruler_close};
    r->task = task;
    r->opt = *options;
    kve_status st = name_dataset(r);
    if (st == KVE_OK && task->generate == kve_ruler_qa)
        st = kve_qa_open(task->variant, options->data_path, &r->arena, &r->qa);
    else if (st == KVE_OK && task->generate == kve_ruler_niah && kve_ruler_niah_needs_essay(task->variant))
        st = kve_sentences_load(options->haystack_path, &r->arena, &r->hay);
    if (st == KVE_OK && r->qa && r->qa->n_questions < n)
        r->base.n_samples = r->qa->n_questions;
    r->opt.task = task->name; /* the caller's strings may go away now */
    r->opt.haystack_path = r->opt.data_path = NULL;
    if (st != KVE_OK) {
        ruler_close(&r->base);
        return st;
    }
    *out = &r->base;
    return KVE_OK;
}
