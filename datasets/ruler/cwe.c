/* Common word extraction: a numbered, shuffled list in which 10 words occur often and all others rarely; the 10 are
 * asked for. One solved example stands in front. Where the official counts do not fit, smaller ones are used and the
 * sample's note says so. */
#include "datasets/ruler/ruler.h"

#include <stdlib.h>
#include <string.h>

enum { COMMON = 10, MIN_OTHERS = 5, OFFICIAL_LENGTH = 4096, MIDDLE_LENGTH = 1024 };
enum { POOL_STREAM = 1, SHOT_STREAM, LIST_STREAM };

typedef struct counts {
    size_t common, other;           /* occurrences of a common word and of any other */
    size_t shot_common, shot_other; /* the same in the example */
    size_t shot_words;              /* other words in the example; shot_common 0 = no example */
} counts;

/* The first row is RULER's; the second is the one RULER uses below 4096; the others are for short lengths, and for chat
 * templates and tokenizers that need much room. */
static const counts LADDER[] = {
    {30, 3, 10, 3, 30}, {6, 1, 3, 1, 10}, {4, 1, 2, 1, 8}, {3, 1, 2, 1, 4}, {3, 1, 0, 0, 0}};

typedef struct cwe {
    kve_ruler_job *job;
    counts c;
    bool pairs;                          /* "adjective-noun" instead of single words, once these run out */
    size_t pool;                         /* how many words there are */
    size_t common[COMMON], shot[COMMON]; /* numbers in the sample's random order of the pool */
    size_t first_other;                  /* the first number after these */
} cwe;

static kve_status put_word(const cwe *t, size_t i, kve_str *out)
{
    size_t w = (size_t)kve_ruler_unique(t->job, POOL_STREAM, i, t->pool);
    if (t->pairs)
        return kve_word_pair(w, out);
    return kve_str_puts(out, w < kve_n_adjectives ? kve_adjectives[w] : kve_nouns[w - kve_n_adjectives]);
}

/* A common word must not be part of another one: the metric looks for substrings. */
static kve_status clashes(const cwe *t, const size_t *chosen, size_t n, size_t candidate, bool *clash)
{
    kve_str a = {0}, b = {0};
    kve_status st;
    *clash = false;
    KVE_TRY_GOTO(st, put_word(t, candidate, &a), done);
    for (size_t i = 0; i < n && !*clash; i++) {
        kve_str_clear(&b);
        KVE_TRY_GOTO(st, put_word(t, chosen[i], &b), done);
        *clash = strstr(a.p, b.p) || strstr(b.p, a.p);
    }
done:
    kve_str_free(&a);
    kve_str_free(&b);
    return st;
}

static kve_status choose(cwe *t, size_t *chosen)
{
    for (size_t n = 0; n < COMMON; t->first_other++) {
        bool clash;
        KVE_TRY(clashes(t, chosen, n, t->first_other, &clash));
        if (!clash)
            chosen[n++] = t->first_other;
    }
    return KVE_OK;
}

/* "1. word 2. word ..." in random order: `often` times each of the common words, `rarely` times each of the others. */
static kve_status put_list(const cwe *t, const size_t *common, size_t often, size_t first_other, size_t n_others,
                           size_t rarely, uint64_t stream, kve_str *out)
{
    int32_t *list = NULL;
    size_t n = 0, total = COMMON * often + n_others * rarely;
    kve_rng rng;
    kve_status st = KVE_OK;
    KVE_TRY(kve_alloc(total, sizeof *list, &list));
    for (size_t k = 0; k < COMMON * often; k++)
        list[n++] = (int32_t)common[k % COMMON];
    for (size_t k = 0; k < n_others * rarely; k++)
        list[n++] = (int32_t)(first_other + k / rarely);
    kve_ruler_rng(t->job, stream, &rng);
    kve_rng_shuffle(&rng, list, total);
    for (size_t k = 0; k < total; k++) {
        KVE_TRY_GOTO(st, kve_str_printf(out, k ? " %zu. " : "%zu. ", k + 1), done);
        KVE_TRY_GOTO(st, put_word(t, (size_t)list[k], out), done);
    }
done:
    free(list);
    return st;
}

static const char INSTRUCTION[] =
    "You are given a numbered word list in which a few words come up again and again. Keep track of those that come "
    "up most often.\n\n";
static const char QUESTION[] = "\n\nQuestion: Which 10 words occur most often in the list above?\n";
static const char PREFIX[] = "Answer: The 10 words that occur most often in the list are:";

static kve_status put_example(const cwe *t, kve_str *out)
{
    KVE_TRY(kve_str_puts(out, INSTRUCTION));
    KVE_TRY(put_list(t, t->shot, t->c.shot_common, t->first_other, t->c.shot_words, t->c.shot_other, SHOT_STREAM, out));
    KVE_TRY(kve_str_printf(out, "%s%s", QUESTION, PREFIX));
    for (size_t k = 0; k < COMMON; k++) {
        KVE_TRY(kve_str_printf(out, " %zu. ", k + 1));
        KVE_TRY(put_word(t, t->shot[k], out));
    }
    return kve_str_puts(out, "\n\n");
}

static kve_status build(void *ctx, size_t n, kve_str *out)
{
    const cwe *t = ctx;
    if (t->c.shot_common)
        KVE_TRY(put_example(t, out));
    KVE_TRY(kve_str_puts(out, INSTRUCTION));
    return put_list(t, t->common, t->c.common, t->first_other + t->c.shot_words, n, t->c.other, LIST_STREAM, out);
}

static kve_status set_references(cwe *t)
{
    const char *texts[COMMON];
    size_t at[COMMON];
    kve_str words = {0};
    kve_status st = KVE_OK;
    for (size_t k = 0; k < COMMON; k++) {
        at[k] = words.len;
        KVE_TRY_GOTO(st, put_word(t, t->common[k], &words), done);
        KVE_TRY_GOTO(st, kve_str_append(&words, "", 1), done);
    }
    for (size_t k = 0; k < COMMON; k++)
        texts[k] = words.p + at[k];
    st = kve_ruler_references(t->job, texts, COMMON);
done:
    kve_str_free(&words);
    return st;
}

/* One step of the ladder with single words or pairs. *exhausted: all words were used before the length was. */
static kve_status attempt(kve_ruler_job *job, const counts *c, bool pairs, bool *fits, bool *exhausted)
{
    cwe t = {.job = job, .c = *c, .pairs = pairs};
    t.pool = pairs ? kve_n_word_pairs() : kve_n_adjectives + kve_n_nouns;
    size_t n = 0;
    KVE_TRY(choose(&t, t.common));
    KVE_TRY(choose(&t, t.shot));
    KVE_TRY(set_references(&t));
    size_t left = t.pool - t.first_other - c->shot_words, hi = left < 131072 ? left : 131072;
    KVE_TRY(kve_ruler_fit(job, build, &t, MIN_OTHERS, hi, &n, fits));
    *exhausted = *fits && n == hi;
    return KVE_OK;
}

kve_status kve_ruler_cwe(kve_ruler_job *job)
{
    int64_t length = job->r->opt.length_tok;
    size_t step = length >= OFFICIAL_LENGTH ? 0 : length >= MIDDLE_LENGTH ? 1 : 2;
    bool fits = false, exhausted = false;
    job->s->question = QUESTION;
    job->s->answer_prefix = PREFIX;
    for (; step < sizeof LADDER / sizeof *LADDER && !fits; step++) {
        KVE_TRY(attempt(job, &LADDER[step], false, &fits, &exhausted));
        if (exhausted)
            KVE_TRY(attempt(job, &LADDER[step], true, &fits, &(bool){false}));
    }
    if (!fits)
        return kve_ruler_too_short(job);
    const counts *c = &LADDER[step - 1], *official = &LADDER[0];
    if (c == official && !exhausted)
        return KVE_OK;
    return kve_ruler_text(job, &job->s->note, "words occur %zu and %zu times (official: %zu and %zu)%s%s", c->common,
                          c->other, official->common, official->other, c->shot_common ? "" : "; no example",
                          exhausted ? "; adjective-noun pairs instead of single words" : "");
}
