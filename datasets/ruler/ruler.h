/* Inside the RULER generator: what the families (niah, vt, cwe, fwe, qa) share. Not for use outside datasets/.
 * A family writes question, prefix and references into the sample and hands kve_ruler_fit() a function that builds the
 * context out of n units (sentences, words, documents); the fit finds the largest n that keeps the length. */
#ifndef KVE_DATASETS_RULER_RULER_H
#define KVE_DATASETS_RULER_RULER_H

#include "datasets/dataset.h"
#include "host/base/rng.h"

typedef struct kve_ruler kve_ruler;
typedef struct kve_qa kve_qa;

typedef struct kve_sentences {
    char **items;
    size_t n;
} kve_sentences;

/* One sample in the making. */
typedef struct kve_ruler_job {
    kve_ruler *r;
    uint64_t index;
    kve_sample *s;
    size_t needed_tok; /* set by a fit that fails: the length that the smallest context would need */
} kve_ruler_job;

typedef struct kve_ruler_task {
    const char *name;
    int32_t max_new_tokens;
    kve_metric metric;
    int variant; /* the family's own numbering */
    kve_status (*generate)(kve_ruler_job *job);
} kve_ruler_task;

struct kve_ruler {
    kve_dataset base; /* first: the dataset is this object */
    const kve_ruler_task *task;
    kve_ruler_options opt; /* strings live in the arena */
    kve_sentences hay;     /* the essay, a sentence an item; empty where the task has none */
    kve_qa *qa;            /* NULL where the task has none */
    kve_arena arena;
};

const kve_ruler_task *kve_ruler_at(size_t i);
const kve_ruler_task *kve_ruler_find(const char *name);                     /* exactly; NULL if unknown */
kve_status kve_ruler_resolve(const char *name, const kve_ruler_task **out); /* '-' equals '_'; names the nearest */
kve_status kve_ruler_check_length(int64_t length_tok);

kve_status kve_ruler_niah(kve_ruler_job *job);
kve_status kve_ruler_vt(kve_ruler_job *job);
kve_status kve_ruler_cwe(kve_ruler_job *job);
kve_status kve_ruler_fwe(kve_ruler_job *job);
kve_status kve_ruler_qa(kve_ruler_job *job);
bool kve_ruler_niah_needs_essay(int variant);

/* qa_data.c: questions and documents. variant 1 = SQuAD, 2 = HotpotQA. */
typedef struct kve_qa_question {
    const char *text;
    const char *const *answers; /* [n_answers], no repeats */
    size_t n_answers;
    const uint32_t *golden, *near; /* numbers of documents: those with the answer, and the next ones to add */
    size_t n_golden, n_near;       /* `near` may name golden ones again */
} kve_qa_question;

struct kve_qa {
    const kve_qa_question *questions; /* in the file's order, those without an answer left out */
    char **docs;                      /* sorted, no repeats */
    size_t n_questions, n_docs;
};

/* Where `path` (a file, or a folder that holds one under a name RULER or the publisher uses) has the data of this
 * variant. *file is left empty where it has none; the reason is then in kve_diag(). */
kve_status kve_qa_locate(int variant, const char *path, kve_str *file);
kve_status kve_qa_open(int variant, const char *path, kve_arena *arena, kve_qa **out);
const char *kve_qa_wanted(int variant); /* what --data must give, for messages */

/* Appends the context made of n units. Called several times, so it must depend on n and the job alone. */
typedef kve_status (*kve_ruler_build)(void *ctx, size_t n, kve_str *out);

/* Sets the sample's context to the largest of lo..hi units that keeps the length, and n_tok. *n_units (may be NULL) is
 * that size. Where lo units are too many: *fits = false if `fits` is given, an error otherwise. */
kve_status kve_ruler_fit(kve_ruler_job *job, kve_ruler_build build, void *ctx, size_t lo, size_t hi, size_t *n_units,
                         bool *fits);
kve_status kve_ruler_too_short(const kve_ruler_job *job); /* the error of a fit that failed */

/* Random streams of a sample: independent of each other and of the order of the calls. */
void kve_ruler_rng(const kve_ruler_job *job, uint64_t stream, kve_rng *rng);

/* The i-th of `range` numbers in a random order without repeats (i < range): a permutation that needs no memory. */
uint64_t kve_ruler_unique(const kve_ruler_job *job, uint64_t stream, uint64_t i, uint64_t range);

/* Texts of the sample, copied into its arena. */
kve_status kve_ruler_text(kve_ruler_job *job, const char **field, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
kve_status kve_ruler_references(kve_ruler_job *job, const char *const *texts, size_t n);

/* words.c: plain English words of this project's own choosing, lower case, no repeats. */
extern const char *const kve_adjectives[];
extern const char *const kve_nouns[];
extern const size_t kve_n_adjectives, kve_n_nouns;
size_t kve_n_word_pairs(void);
kve_status kve_word_pair(size_t i, kve_str *out); /* appends "adjective-noun", i < kve_n_word_pairs() */

/* haystack.c: what the needles lie in. */
extern const char kve_essay[];            /* essay.c */
const char *kve_noise_sentence(size_t i); /* a short round that repeats for ever */
kve_status kve_sentences_split(const char *text, size_t len, kve_arena *arena, kve_sentences *out);
kve_status kve_sentences_load(const char *path, kve_arena *arena, kve_sentences *out); /* NULL = the built-in essay */

#endif
