/* Needles in a haystack: eight tasks that differ in what the haystack is (noise, essay, other needles), what keys and
 * values are (adjective-noun pairs, 7-digit numbers, UUIDs) and how many of them there are. */
#include "datasets/ruler/ruler.h"

#include <assert.h>

typedef enum haystack_kind { NOISE, ESSAY, NEEDLES } haystack_kind;

enum { MAX_NEEDLES = 4, DEPTHS = 40, NUMBERS = 9000000, FIRST_NUMBER = 1000000 };
enum {
    KEY_STREAM = 1,
    NUMBER_STREAM,
    DEPTH_STREAM,
    START_STREAM,
    ASK_STREAM,
    UUID_KEY_STREAM = 1 << 20,
    UUID_VALUE_STREAM = 2 << 20
};

typedef struct niah_variant {
    haystack_kind haystack;
    bool uuid_keys, uuid_values;
    size_t n_keys, n_values, n_queries; /* needles: one per key, or n_values for the only key */
} niah_variant;

static const niah_variant VARIANTS[] = {
    {NOISE, false, false, 1, 1, 1},   /* single_1 */
    {ESSAY, false, false, 1, 1, 1},   /* single_2 */
    {ESSAY, false, true, 1, 1, 1},    /* single_3 */
    {ESSAY, false, false, 4, 1, 1},   /* multikey_1 */
    {NEEDLES, false, false, 1, 1, 1}, /* multikey_2 */
    {NEEDLES, true, true, 1, 1, 1},   /* multikey_3 */
    {ESSAY, false, false, 1, 4, 1},   /* multivalue */
    {ESSAY, false, false, 4, 1, 4},   /* multiquery */
};

typedef struct niah {
    kve_ruler_job *job;
    const niah_variant *v;
    size_t n_needles, start;
    double depth[MAX_NEEDLES];  /* in [0,1], rising: needle i lies at depth i */
    int32_t asked[MAX_NEEDLES]; /* the needles whose keys are asked for, in the order of the question */
} niah;

bool kve_ruler_niah_needs_essay(int variant)
{
    return VARIANTS[variant].haystack == ESSAY;
}

static kve_status put_uuid(const niah *t, uint64_t stream, kve_str *out)
{
    kve_rng rng;
    kve_ruler_rng(t->job, stream, &rng);
    uint64_t a = kve_rng_u64(&rng), b = kve_rng_u64(&rng);
    a = (a & ~(uint64_t)0xf000) | 0x4000;               /* version 4 */
    b = (b & ~((uint64_t)3 << 62)) | (uint64_t)1 << 63; /* variant 1 */
    return kve_str_printf(out, "%08llx-%04llx-%04llx-%04llx-%012llx", (unsigned long long)(a >> 32),
                          (unsigned long long)(a >> 16 & 0xffff), (unsigned long long)(a & 0xffff),
                          (unsigned long long)(b >> 48), (unsigned long long)(b & 0xffffffffffffu));
}

/* Key and value number i: the needles come first, then the needles that are haystack. No two keys are the same and no
 * two values are. */
static kve_status put_key(const niah *t, size_t i, kve_str *out)
{
    if (t->v->uuid_keys)
        return put_uuid(t, UUID_KEY_STREAM + i, out);
    return kve_word_pair((size_t)kve_ruler_unique(t->job, KEY_STREAM, i, kve_n_word_pairs()), out);
}

static kve_status put_value(const niah *t, size_t i, kve_str *out)
{
    if (t->v->uuid_values)
        return put_uuid(t, UUID_VALUE_STREAM + i, out);
    return kve_str_printf(out, "%llu",
                          (unsigned long long)(FIRST_NUMBER + kve_ruler_unique(t->job, NUMBER_STREAM, i, NUMBERS)));
}

static const char *noun(const niah *t)
{
    return t->v->uuid_values ? "UUID" : "number";
}

static kve_status put_needle(const niah *t, size_t i, kve_str *out)
{
    KVE_TRY(kve_str_printf(out, "The secret %s for ", noun(t)));
    KVE_TRY(put_key(t, t->v->n_values > 1 ? 0 : i, out));
    KVE_TRY(kve_str_puts(out, " is "));
    KVE_TRY(put_value(t, i, out));
    return kve_str_puts(out, ".");
}

static kve_status put_hay(const niah *t, size_t i, kve_str *out)
{
    const kve_sentences *hay = &t->job->r->hay;
    if (t->v->haystack == NOISE)
        return kve_str_puts(out, kve_noise_sentence(i));
    if (t->v->haystack == ESSAY)
        return kve_str_puts(out, hay->items[(t->start + i) % hay->n]);
    return put_needle(t, t->n_needles + i, out);
}

static kve_status build(void *ctx, size_t n, kve_str *out)
{
    const niah *t = ctx;
    const char *glue = t->v->haystack == NEEDLES ? "\n" : " ";
    size_t next = 0;
    KVE_TRY(kve_str_printf(out,
                           t->n_needles == 1 && t->v->haystack != NEEDLES
                               ? "The text below mentions a secret %s. Read it with care and keep the %s in mind; a "
                                 "question about it follows the text.\n\n"
                               : "The text below mentions some secret %ss. Read it with care and keep the %ss in mind; "
                                 "a question about them follows the text.\n\n",
                           noun(t), noun(t)));
    for (size_t i = 0; i <= n; i++) {
        for (; next < t->n_needles && (size_t)(t->depth[next] * (double)n) <= i; next++) {
            KVE_TRY(put_needle(t, next, out));
            KVE_TRY(i < n || next + 1 < t->n_needles ? kve_str_puts(out, glue) : KVE_OK);
        }
        if (i < n)
            KVE_TRY(put_hay(t, i, out));
        if (i < n && (i + 1 < n || next < t->n_needles))
            KVE_TRY(kve_str_puts(out, glue));
    }
    return KVE_OK;
}

/* As in RULER: in an essay, depths are drawn from 40 evenly spaced ones without repeats; elsewhere any place will do.
 */
static void draw_depths(niah *t)
{
    int32_t grid[DEPTHS];
    kve_rng rng;
    for (int32_t i = 0; i < DEPTHS; i++)
        grid[i] = i;
    kve_ruler_rng(t->job, DEPTH_STREAM, &rng);
    kve_rng_shuffle(&rng, grid, DEPTHS);
    for (size_t i = 0; i < t->n_needles; i++) {
        double depth = t->v->haystack == ESSAY ? grid[i] / (double)(DEPTHS - 1) : kve_rng_double(&rng);
        size_t at = i;
        for (; at > 0 && t->depth[at - 1] > depth; at--)
            t->depth[at] = t->depth[at - 1];
        t->depth[at] = depth;
    }
}

/* Any of the keys, in any order: neither the first needle nor the order of the text gives the answer away. */
static void draw_asked(niah *t)
{
    kve_rng rng;
    for (size_t i = 0; i < t->v->n_keys; i++)
        t->asked[i] = (int32_t)i;
    kve_ruler_rng(t->job, ASK_STREAM, &rng);
    kve_rng_shuffle(&rng, t->asked, t->v->n_keys);
}

/* "a", "a and b", "a, b and c" */
static kve_status put_queried_keys(const niah *t, kve_str *out)
{
    for (size_t i = 0; i < t->v->n_queries; i++) {
        if (i)
            KVE_TRY(kve_str_puts(out, i + 1 < t->v->n_queries ? ", " : " and "));
        KVE_TRY(put_key(t, (size_t)t->asked[i], out));
    }
    return KVE_OK;
}

static kve_status put_references(const niah *t, kve_str *values)
{
    const char *texts[MAX_NEEDLES];
    bool many = t->v->n_values > 1;
    size_t at[MAX_NEEDLES], n = many ? t->v->n_values : t->v->n_queries;
    for (size_t i = 0; i < n; i++) {
        at[i] = values->len;
        KVE_TRY(put_value(t, many ? i : (size_t)t->asked[i], values));
        KVE_TRY(kve_str_append(values, "", 1)); /* the NUL between two values */
    }
    for (size_t i = 0; i < n; i++)
        texts[i] = values->p + at[i];
    return kve_ruler_references(t->job, texts, n);
}

static kve_status ask(const niah *t, kve_str *keys, kve_str *values)
{
    bool one = t->v->n_values == 1 && t->v->n_queries == 1;
    const char *be = one ? "is" : "are", *s = one ? "" : "s";
    KVE_TRY(put_queried_keys(t, keys));
    KVE_TRY(put_references(t, values));
    KVE_TRY(kve_ruler_text(t->job, &t->job->s->question, "\n\nWhat %s%s the secret %s%s for %s in the text above?\n",
                           be, t->v->n_values > 1 ? " all" : "", noun(t), s, keys->p));
    return kve_ruler_text(t->job, &t->job->s->answer_prefix, "In the text, the secret %s%s for %s %s", noun(t), s,
                          keys->p, be);
}

/* An essay that had to begin again is no longer an ordinary text: the record says so. */
static kve_status note_repeats(const niah *t, size_t n_sentences)
{
    size_t n = t->job->r->hay.n;
    if (t->v->haystack != ESSAY || n_sentences <= n)
        return KVE_OK;
    return kve_ruler_text(t->job, &t->job->s->note,
                          "the essay (%zu sentences) is too short for this length and repeats", n);
}

kve_status kve_ruler_niah(kve_ruler_job *job)
{
    niah t = {.job = job, .v = &VARIANTS[job->r->task->variant]};
    kve_str keys = {0}, values = {0};
    size_t n = 0;
    t.n_needles = t.v->n_keys > t.v->n_values ? t.v->n_keys : t.v->n_values;
    assert(t.n_needles <= MAX_NEEDLES);
    draw_depths(&t);
    draw_asked(&t);
    if (t.v->haystack == ESSAY) {
        kve_rng rng;
        kve_ruler_rng(job, START_STREAM, &rng);
        t.start = (size_t)kve_rng_below(&rng, job->r->hay.n);
    }
    kve_status st = ask(&t, &keys, &values);
    if (st == KVE_OK) /* every unit has a token at least; the keys of a needle haystack must not run out */
        st = kve_ruler_fit(job, build, &t, 1, 131072, &n, NULL);
    if (st == KVE_OK)
        st = note_repeats(&t, n);
    kve_str_free(&keys);
    kve_str_free(&values);
    return st;
}
