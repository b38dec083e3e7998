/* Frequent word extraction: coded words whose counts fall as rank^-2 (a zeta distribution). Rank 1 is "...", which is
 * to be left aside; ranks 2 to 4 are asked for. */
#include "datasets/ruler/ruler.h"

#include <math.h>
#include <stdlib.h>

enum { ASKED = 3, WORD_LEN = 6, MIN_WORDS = 60 };
enum { WORD_STREAM = 1, ORDER_STREAM };

static const double ZETA_2 = 1.6449340668482264; /* pi^2 / 6: the sum of all k^-2 */

typedef struct fwe {
    kve_ruler_job *job;
} fwe;

/* How often rank k (from 1) occurs among n words; 0 ends the vocabulary. From MIN_WORDS on, rank 4 is ahead of 5. */
static size_t occurrences(size_t n, size_t k)
{
    return (size_t)floor((double)n / (ZETA_2 * (double)k * (double)k));
}

static void coded_word(const fwe *t, size_t rank, char word[WORD_LEN + 1])
{
    const uint64_t n_words = 308915776; /* 26^6 */
    uint64_t x = kve_ruler_unique(t->job, WORD_STREAM, rank, n_words);
    for (size_t j = 0; j < WORD_LEN; j++, x /= 26)
        word[j] = (char)('a' + x % 26);
    word[WORD_LEN] = '\0';
}

static kve_status put_words(const fwe *t, const int32_t *ranks, size_t n, kve_str *out)
{
    char word[WORD_LEN + 1];
    for (size_t i = 0; i < n; i++) {
        KVE_TRY(kve_str_puts(out, i ? " " : ""));
        if (ranks[i] > 1)
            coded_word(t, (size_t)ranks[i], word);
        KVE_TRY(kve_str_puts(out, ranks[i] > 1 ? word : "..."));
    }
    return KVE_OK;
}

static kve_status build(void *ctx, size_t n, kve_str *out)
{
    const fwe *t = ctx;
    int32_t *ranks = NULL;
    size_t total = 0;
    kve_rng rng;
    KVE_TRY(kve_str_puts(out, "The text below consists of coded words. Keep count of how often each of them "
                              "occurs.\n\n"));
    KVE_TRY(kve_alloc(n, sizeof *ranks, &ranks));
    for (size_t k = 1; occurrences(n, k) > 0; k++)
        for (size_t i = occurrences(n, k); i > 0; i--)
            ranks[total++] = (int32_t)k;
    kve_ruler_rng(t->job, ORDER_STREAM, &rng);
    kve_rng_shuffle(&rng, ranks, total);
    kve_status st = put_words(t, ranks, total, out);
    free(ranks);
    return st;
}

kve_status kve_ruler_fwe(kve_ruler_job *job)
{
    fwe t = {job};
    char words[ASKED][WORD_LEN + 1];
    const char *texts[ASKED];
    for (size_t i = 0; i < ASKED; i++) {
        coded_word(&t, i + 2, words[i]);
        texts[i] = words[i];
    }
    KVE_TRY(kve_ruler_references(job, texts, ASKED));
    job->s->question = "\n\nQuestion: Leave the dots '...' aside. Which three coded words occur most often in the text "
                       "above? Give no explanation.\n";
    job->s->answer_prefix = "Answer: The three coded words that occur most often in the text are:";
    return kve_ruler_fit(job, build, &t, MIN_WORDS, 262144, NULL, NULL);
}
