/* Question answering over documents: the golden ones are always there, the question's own neighbours come next, then
 * any others of the file, all in random order. Question i is the file's question i, as in RULER. */
#include "datasets/ruler/ruler.h"

#include <stdlib.h>
#include <string.h>

enum { NEAR_STREAM = 1, OTHER_STREAM, ORDER_STREAM };

typedef struct qa {
    kve_ruler_job *job;
    int32_t *docs;    /* the documents in the order in which they are added */
    int32_t *shuffle; /* room for a context's order */
    size_t n_docs, n_golden;
} qa;

static void add(qa *t, bool *taken, size_t limit, uint32_t doc)
{
    if (taken[doc] || t->n_docs == limit)
        return;
    taken[doc] = true;
    t->docs[t->n_docs++] = (int32_t)doc;
}

/* Up to `limit` documents: golden, near in random order, others in random order. */
static kve_status choose(qa *t, const kve_qa_question *q, size_t limit)
{
    const kve_qa *data = t->job->r->qa;
    bool *taken = NULL;
    kve_rng rng;
    KVE_TRY(kve_alloc(data->n_docs, sizeof *taken, &taken));
    for (size_t i = 0; i < q->n_golden; i++)
        add(t, taken, limit, q->golden[i]);
    t->n_golden = t->n_docs;
    for (size_t i = 0; i < q->n_near; i++)
        add(t, taken, limit, q->near[i]);
    kve_ruler_rng(t->job, NEAR_STREAM, &rng);
    kve_rng_shuffle(&rng, t->docs + t->n_golden, t->n_docs - t->n_golden);
    for (size_t i = 0; i < data->n_docs && t->n_docs < limit; i++)
        add(t, taken, limit, (uint32_t)kve_ruler_unique(t->job, OTHER_STREAM, i, data->n_docs));
    free(taken);
    return KVE_OK;
}

static kve_status build(void *ctx, size_t n, kve_str *out)
{
    qa *t = ctx;
    kve_rng rng;
    memcpy(t->shuffle, t->docs, n * sizeof *t->shuffle);
    kve_ruler_rng(t->job, ORDER_STREAM, &rng);
    kve_rng_shuffle(&rng, t->shuffle, n);
    KVE_TRY(kve_str_puts(out,
                         "Some documents follow, and after them a question that they answer. Reply in as few words as "
                         "possible.\n\n"));
    for (size_t i = 0; i < n; i++)
        KVE_TRY(kve_str_printf(out, "%sDocument %zu:\n%s", i ? "\n\n" : "", i + 1, t->job->r->qa->docs[t->shuffle[i]]));
    return KVE_OK;
}

static kve_status make(qa *t, const kve_qa_question *q)
{
    kve_ruler_job *job = t->job;
    size_t n = 0, limit = (size_t)job->r->opt.length_tok;
    if (limit > job->r->qa->n_docs) /* a document has a token at least, so no more than the length are ever needed */
        limit = job->r->qa->n_docs;
    KVE_TRY(kve_alloc(limit, sizeof *t->docs, &t->docs));
    KVE_TRY(kve_alloc(limit, sizeof *t->shuffle, &t->shuffle));
    KVE_TRY(choose(t, q, limit));
    KVE_TRY(kve_ruler_references(job, q->answers, q->n_answers));
    KVE_TRY(kve_ruler_text(job, &job->s->question,
                           "\n\nGo by the documents above alone and reply with the bare answer.\n\nQuestion: %s\n",
                           q->text));
    job->s->answer_prefix = "Answer:";
    KVE_TRY(kve_ruler_fit(job, build, t, t->n_golden, t->n_docs, &n, NULL));
    if (n < job->r->qa->n_docs)
        return KVE_OK;
    return kve_ruler_text(job, &job->s->note, "all %zu documents of the file are in the context and leave room", n);
}

kve_status kve_ruler_qa(kve_ruler_job *job)
{
    qa t = {.job = job};
    kve_status st = make(&t, &job->r->qa->questions[job->index]);
    free(t.docs);
    free(t.shuffle);
    return st;
}
