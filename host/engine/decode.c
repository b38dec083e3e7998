/* The greedy loop and teacher forcing, for all forks of a batch at once. */
#include "host/engine/decode.h"

#include "host/base/mem.h"

#include <stdlib.h>
#include <string.h>

static bool is_end(const kve_config *c, int32_t id)
{
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return true;
    return id < 0; /* argmax found nothing but NaN: nothing more can be said */
}

typedef struct loop {
    kve_session *s;
    kve_batch *b;
    kve_capture *capture;
    const int32_t *tail; /* [n_tail] */
    int32_t n_tail;
    int32_t *ids, *rows, *q_len, *fork_of, *next; /* [max(X, chunk)] twice, [X] thrice */
    int32_t *picked;                              /* greedy: [X] */
    int32_t *target;                              /* teacher forcing: [chunk] */
    float *nll;                                   /* teacher forcing: [X][n_tail - 1] */
} loop;

static kve_status extend(loop *w, int32_t T)
{
    KVE_TRY(kve_extend(w->s, w->b, w->ids, w->q_len, w->capture));
    if (w->capture)
        w->capture->at += T;
    return KVE_OK;
}

/* Stages tail[at .. at + len) for forks [x0, x1); returns the number of rows. */
static int32_t stage_slice(loop *w, const int32_t *tail, int32_t at, int32_t len, int32_t x0, int32_t x1)
{
    int32_t T = 0;
    for (int32_t x = 0; x < w->b->X; x++) {
        w->q_len[x] = x >= x0 && x < x1 ? len : 0;
        for (int32_t i = 0; i < w->q_len[x]; i++)
            w->ids[T++] = tail[at + i];
    }
    return T;
}

/* What is done with the hidden rows of forks [x0, x1) after tail[at .. at + len) was fed. */
typedef kve_status (*after_slice)(loop *w, int32_t at, int32_t len, int32_t x0, int32_t x1);

/* The tail goes to as many forks at once as fit `chunk` rows; in slices if even one fork does not fit. */
static kve_status feed_tail(loop *w, const int32_t *tail, int32_t n_tail, int32_t chunk, after_slice after)
{
    int32_t X = w->b->X;
    for (int32_t at = 0, len; at < n_tail; at += len) {
        len = n_tail - at < chunk ? n_tail - at : chunk;
        int32_t per_call = chunk / len;
        for (int32_t x0 = 0; x0 < X; x0 += per_call) {
            int32_t x1 = X - x0 < per_call ? X : x0 + per_call;
            KVE_TRY(extend(w, stage_slice(w, tail, at, len, x0, x1)));
            KVE_TRY(after(w, at, len, x0, x1));
        }
    }
    return KVE_OK;
}

static kve_status pick_next(loop *w, int32_t at, int32_t len, int32_t x0, int32_t x1)
{
    if (at + len < w->n_tail)
        return KVE_OK;
    for (int32_t x = x0; x < x1; x++)
        w->rows[x - x0] = (x - x0 + 1) * len - 1;
    return kve_next_tokens(w->s, w->rows, x1 - x0, w->next + x0);
}

static kve_status score_slice(loop *w, int32_t at, int32_t len, int32_t x0, int32_t x1)
{
    int32_t scored = at + len < w->n_tail ? len : len - 1; /* the last token predicts nothing that is known */
    for (int32_t i = 0; i < scored; i++)
        w->target[i] = w->tail[at + i + 1];
    for (int32_t x = x0; x < x1; x++) {
        for (int32_t i = 0; i < scored; i++)
            w->rows[i] = (x - x0) * len + i;
        KVE_TRY(
            kve_row_nll(w->s, w->rows, w->target, scored, w->nll + (size_t)x * (size_t)(w->n_tail - 1) + (size_t)at));
    }
    return KVE_OK;
}

static kve_status decode_steps(loop *w, const kve_config *cfg, int32_t max_new, int32_t *out, int32_t *n_out)
{
    for (int32_t step = 0; step < max_new; step++) {
        int32_t T = 0;
        for (int32_t x = 0; x < w->b->X; x++) {
            bool alive = n_out[x] == step && !is_end(cfg, w->next[x]);
            w->q_len[x] = 0;
            if (!alive)
                continue;
            out[(size_t)x * (size_t)max_new + (size_t)step] = w->next[x];
            n_out[x]++;
            w->q_len[x] = 1;
            w->ids[T] = w->next[x];
            w->rows[T] = T;
            w->fork_of[T++] = x;
        }
        if (T == 0)
            break;
        bool last = step + 1 == max_new;
        if (last && !w->capture)
            break;
        KVE_TRY(extend(w, T));
        if (last)
            break;
        KVE_TRY(kve_next_tokens(w->s, w->rows, T, w->picked));
        for (int32_t i = 0; i < T; i++)
            w->next[w->fork_of[i]] = w->picked[i];
    }
    return KVE_OK;
}

/* Sets up the loop's arrays; the caller frees w->ids. */
static kve_status open_loop(kve_session *s, kve_batch *b, const int32_t *tail, int32_t n_tail, int32_t chunk,
                            kve_capture *capture, loop *w)
{
    size_t X = (size_t)b->X, rows = (size_t)(chunk > b->X ? chunk : b->X);
    if (n_tail < 1 || (capture && X != 1))
        return kve_fail(KVE_ERR_USAGE,
                        "a fork needs at least one token after the context (%d given), and only a fork alone can be "
                        "captured (%d given)",
                        n_tail, b->X);
    *w = (loop){.s = s, .b = b, .capture = capture, .tail = tail, .n_tail = n_tail};
    KVE_TRY(kve_alloc(3 * rows + 4 * X, sizeof *w->ids, &w->ids));
    w->rows = w->ids + rows;
    w->target = w->rows + rows;
    w->q_len = w->target + rows;
    w->fork_of = w->q_len + X;
    w->next = w->fork_of + X;
    w->picked = w->next + X;
    return KVE_OK;
}

kve_status kve_decode_greedy(kve_session *s, const kve_model *m, kve_batch *b, const int32_t *tail, int32_t n_tail,
                             int32_t max_new, int32_t chunk, kve_capture *capture, int32_t *out, int32_t *n_out)
{
    loop w;
    KVE_TRY(open_loop(s, b, tail, n_tail, chunk, capture, &w));
    memset(n_out, 0, (size_t)b->X * sizeof *n_out);
    kve_status st = feed_tail(&w, tail, n_tail, chunk, pick_next);
    if (st == KVE_OK)
        st = decode_steps(&w, &m->cfg, max_new, out, n_out);
    free(w.ids);
    return st;
}

kve_status kve_teacher_force(kve_session *s, kve_batch *b, const int32_t *tail, int32_t n_tail, int32_t chunk,
                             kve_capture *capture, float *nll)
{
    loop w;
    KVE_TRY(open_loop(s, b, tail, n_tail, chunk, capture, &w));
    w.nll = nll;
    kve_status st = feed_tail(&w, tail, n_tail, chunk, score_slice);
    free(w.ids);
    return st;
}
