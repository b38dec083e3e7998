/* ROUGE-L over numbered words. Contract: metric_rouge.h. */
#include "eval/metric_rouge.h"

#include "host/base/mem.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* --- Words as numbers: equal words have equal numbers. */

typedef struct word {
    const char *p;
    size_t len;
    size_t at; /* in the order of the texts */
} word;

typedef struct words {
    word *p;
    size_t n, cap;
    int32_t *id; /* [n], once numbered */
    int32_t n_ids;
} words;

static kve_status push(words *w, const char *p, size_t len)
{
    if (w->n == w->cap) {
        word *grown = NULL;
        size_t cap = w->cap ? w->cap * 2 : 64;
        KVE_TRY(kve_alloc(cap, sizeof *grown, &grown));
        if (w->n)
            memcpy(grown, w->p, w->n * sizeof *grown);
        free(w->p);
        w->p = grown;
        w->cap = cap;
    }
    w->p[w->n] = (word){p, len, w->n};
    w->n++;
    return KVE_OK;
}

static int by_text(const void *a, const void *b)
{
    const word *x = a, *y = b;
    int c = memcmp(x->p, y->p, x->len < y->len ? x->len : y->len);
    return c ? c : (x->len > y->len) - (x->len < y->len);
}

/* Sorts w->p. */
static kve_status number(words *w)
{
    KVE_TRY(kve_alloc(w->n, sizeof *w->id, &w->id));
    qsort(w->p, w->n, sizeof *w->p, by_text);
    for (size_t i = 0; i < w->n; i++) {
        w->n_ids += i == 0 || by_text(&w->p[i - 1], &w->p[i]) != 0;
        w->id[w->p[i].at] = w->n_ids - 1;
    }
    return KVE_OK;
}

static void words_free(words *w)
{
    free(w->p);
    free(w->id);
    *w = (words){0};
}

/* --- The longest common subsequence */

/* [n + 1][m + 1] lengths; the caller frees. */
static kve_status lcs_table(const int32_t *x, size_t n, const int32_t *y, size_t m, uint32_t **out)
{
    uint32_t *t = NULL;
    size_t step = m + 1;
    KVE_TRY(kve_alloc(n + 1, step * sizeof *t, &t));
    for (size_t i = 1; i <= n; i++)
        for (size_t j = 1; j <= m; j++) {
            uint32_t up = t[(i - 1) * step + j], left = t[i * step + j - 1];
            t[i * step + j] = x[i - 1] == y[j - 1] ? t[(i - 1) * step + j - 1] + 1 : up > left ? up : left;
        }
    *out = t;
    return KVE_OK;
}

static kve_status lcs_length(const int32_t *x, size_t n, const int32_t *y, size_t m, size_t *out)
{
    uint32_t *row = NULL;
    KVE_TRY(kve_alloc(m + 1, sizeof *row, &row));
    for (size_t i = 0; i < n; i++) {
        uint32_t corner = 0;
        for (size_t j = 0; j < m; j++) {
            uint32_t up = row[j + 1];
            row[j + 1] = x[i] == y[j] ? corner + 1 : up > row[j] ? up : row[j];
            corner = up;
        }
    }
    *out = row[m];
    free(row);
    return KVE_OK;
}

/* --- rouge_l */

/* The lower-case letter or digit at s, 0 if there is none. Two letters outside ASCII become ASCII in lower case: the
 * Kelvin sign is a k, and the capital I with a dot is an i (and a dot, which ends the word). *ends: the word ends here.
 * *len: bytes. */
static char plain_letter(const unsigned char *s, size_t *len, bool *ends)
{
    *len = 1;
    *ends = false;
    if ((*s >= 'a' && *s <= 'z') || (*s >= '0' && *s <= '9'))
        return (char)*s;
    if (*s >= 'A' && *s <= 'Z')
        return (char)(*s + 32);
    if (s[0] == 0xe2 && s[1] == 0x84 && s[2] == 0xaa) {
        *len = 3;
        return 'k';
    }
    if (s[0] == 0xc4 && s[1] == 0xb0) {
        *len = 2;
        *ends = true;
        return 'i';
    }
    return 0;
}

/* Words of text as pieces of `lower`, which has room for it. */
static kve_status split_plain(const char *text, char *lower, words *w)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t begin = 0, at = 0;
    while (*s) {
        size_t len;
        bool ends;
        char c = plain_letter(s, &len, &ends);
        if (c)
            lower[at++] = c;
        if ((!c || ends) && at > begin) {
            KVE_TRY(push(w, lower + begin, at - begin));
            begin = at;
        }
        s += len;
    }
    return at > begin ? push(w, lower + begin, at - begin) : KVE_OK;
}

static kve_status score_plain(words *w, size_t n_answer, double *score)
{
    size_t common, n_reference = w->n - n_answer;
    *score = 0;
    if (n_answer == 0 || n_reference == 0)
        return KVE_OK;
    KVE_TRY(number(w));
    KVE_TRY(lcs_length(w->id + n_answer, n_reference, w->id, n_answer, &common));
    double p = (double)common / (double)n_answer, r = (double)common / (double)n_reference;
    *score = p + r > 0 ? 2 * p * r / (p + r) : 0;
    return KVE_OK;
}

kve_status kve_rouge_l(const char *answer, const char *reference, double *score)
{
    words w = {0};
    char *lower = NULL;
    size_t n_answer = 0, len = strlen(answer);
    KVE_TRY(kve_alloc(len + strlen(reference) + 1, 1, &lower));
    kve_status st = split_plain(answer, lower, &w);
    n_answer = w.n;
    if (st == KVE_OK)
        st = split_plain(reference, lower + len, &w);
    if (st == KVE_OK)
        st = score_plain(&w, n_answer, score);
    words_free(&w);
    free(lower);
    return st;
}

/* --- rouge_l_longbench */

/* Bytes of the white space at s, 0 if it is none: what Python's str.split() takes for it. */
static size_t space_len(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    if (*s == ' ' || (*s >= 0x09 && *s <= 0x0d) || (*s >= 0x1c && *s <= 0x1f))
        return 1;
    if (s[0] == 0xc2 && (s[1] == 0x85 || s[1] == 0xa0))
        return 2;
    if (s[0] == 0xe1 && s[1] == 0x9a && s[2] == 0x80)
        return 3;
    if (s[0] == 0xe2 && s[1] == 0x80 &&
        ((s[2] >= 0x80 && s[2] <= 0x8a) || s[2] == 0xa8 || s[2] == 0xa9 || s[2] == 0xaf))
        return 3;
    if (s[0] == 0xe2 && s[1] == 0x81 && s[2] == 0x9f)
        return 3;
    return s[0] == 0xe3 && s[1] == 0x80 && s[2] == 0x80 ? 3 : 0;
}

/* A sentence: words [from, to) of the list. */
typedef struct sentence {
    size_t from, to;
} sentence;

typedef struct sentences {
    sentence *p; /* the caller's, with room for one more than there are full stops */
    size_t n;
} sentences;

/* One sentence; of nothing but white space it is one empty word. */
static kve_status split_words(const char *s, size_t len, words *w)
{
    size_t before = w->n;
    for (size_t i = 0; i < len;) {
        size_t begin = i, gap = 0;
        while (i < len && (gap = space_len(s + i)) == 0)
            i++;
        if (i > begin)
            KVE_TRY(push(w, s + begin, i - begin));
        i += i < len ? gap : 0;
    }
    return w->n == before ? push(w, s, 0) : KVE_OK;
}

static kve_status split_sentences(const char *text, words *w, sentences *out)
{
    size_t stops = 0;
    for (const char *c = text; *c; c++)
        stops += *c == '.';
    KVE_TRY(kve_alloc(stops + 1, sizeof *out->p, &out->p));
    for (const char *at = text; *at;) {
        size_t len = strcspn(at, "."), from = w->n;
        if (len) {
            KVE_TRY(split_words(at, len, w));
            out->p[out->n++] = (sentence){from, w->n};
        }
        at += len + (at[len] != '\0');
    }
    return KVE_OK;
}

/* Adds the words of the pair's subsequence to the set. Of several equally long ones it is the package's choice. */
static kve_status add_union(const words *w, sentence ref, sentence hyp, bool *set)
{
    const int32_t *x = w->id + ref.from, *y = w->id + hyp.from;
    size_t i = ref.to - ref.from, j = hyp.to - hyp.from, step = j + 1;
    uint32_t *t = NULL;
    KVE_TRY(lcs_table(x, i, y, j, &t));
    while (i && j) {
        if (x[i - 1] == y[j - 1]) {
            set[x[i - 1]] = true;
            i--;
            j--;
        } else if (t[(i - 1) * step + j] > t[i * step + j - 1]) {
            i--;
        } else {
            j--;
        }
    }
    free(t);
    return KVE_OK;
}

static size_t count_set(const words *w, size_t from, size_t to, bool *set)
{
    size_t n = 0;
    memset(set, 0, (size_t)w->n_ids);
    for (size_t i = from; i < to; i++) {
        n += !set[w->id[i]];
        set[w->id[i]] = true;
    }
    return n;
}

static kve_status score_sentences(words *w, size_t n_answer, const sentences *hyp, const sentences *ref, double *score)
{
    bool *set = NULL;
    *score = 0;
    if (hyp->n == 0 || ref->n == 0)
        return KVE_OK;
    KVE_TRY(number(w));
    KVE_TRY(kve_alloc((size_t)w->n_ids, sizeof *set, &set));
    double n = (double)count_set(w, 0, n_answer, set), m = (double)count_set(w, n_answer, w->n, set), hits = 0;
    memset(set, 0, (size_t)w->n_ids);
    kve_status st = KVE_OK;
    for (size_t r = 0; r < ref->n && st == KVE_OK; r++)
        for (size_t h = 0; h < hyp->n && st == KVE_OK; h++)
            st = add_union(w, ref->p[r], hyp->p[h], set);
    for (int32_t i = 0; i < w->n_ids; i++)
        hits += set[i];
    free(set);
    double p = hits / n, r = hits / m;
    *score = 2.0 * (p * r / (p + r + 1e-8));
    return st;
}

kve_status kve_rouge_l_longbench(const char *answer, const char *reference, double *score)
{
    words w = {0};
    sentences hyp = {0}, ref = {0};
    kve_status st = split_sentences(answer, &w, &hyp);
    size_t n_answer = w.n;
    if (st == KVE_OK)
        st = split_sentences(reference, &w, &ref);
    if (st == KVE_OK)
        st = score_sentences(&w, n_answer, &hyp, &ref, score);
    words_free(&w);
    free(hyp.p);
    free(ref.p);
    return st;
}

kve_status kve_rouge_best(kve_rouge_fn rouge, const char *answer, const char *const *references, size_t n,
                          double *score)
{
    *score = 0;
    for (size_t i = 0; i < n; i++) {
        double one = 0;
        KVE_TRY(rouge(answer, references[i], &one));
        *score = one > *score ? one : *score;
    }
    return KVE_OK;
}
