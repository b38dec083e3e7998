/* The greedy loop. */
#include "host/engine/decode.h"

#include "host/base/mem.h"

#include <stdlib.h>

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
    int32_t *ids, *q_len, *rows, *fork_of, *next; /* [max(X, X n_tail)], [X], [X], [X], [X] */
} loop;

static kve_status extend(loop *w, int32_t T)
{
    KVE_TRY(kve_extend(w->s, w->b, w->ids, w->q_len, w->capture));
    if (w->capture)
        w->capture->at += T;
    return KVE_OK;
}

/* The tail goes to as many forks at once as fit `chunk` rows, tail slices first if even one fork does not fit. */
static kve_status feed_tail(loop *w, const int32_t *tail, int32_t n_tail, int32_t chunk)
{
    int32_t at = 0, X = w->b->X;
    while (at < n_tail) {
        int32_t len = n_tail - at < chunk ? n_tail - at : chunk, per_call = chunk / len;
        for (int32_t x0 = 0; x0 < X; x0 += per_call) {
            int32_t n_rows = 0, T = 0, stop = X - x0 < per_call ? X : x0 + per_call;
            for (int32_t x = 0; x < X; x++) {
                w->q_len[x] = x >= x0 && x < stop ? len : 0;
                for (int32_t i = 0; i < w->q_len[x]; i++)
                    w->ids[T++] = tail[at + i];
                if (w->q_len[x])
                    w->rows[n_rows++] = T - 1;
            }
            KVE_TRY(extend(w, T));
            if (at + len == n_tail)
                KVE_TRY(kve_next_tokens(w->s, w->rows, n_rows, w->next + x0));
        }
        at += len;
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
        int32_t *picked = w->rows + w->b->X;
        KVE_TRY(kve_next_tokens(w->s, w->rows, T, picked));
        for (int32_t i = 0; i < T; i++)
            w->next[w->fork_of[i]] = picked[i];
    }
    return KVE_OK;
}

kve_status kve_decode_greedy(kve_session *s, const kve_model *m, kve_batch *b, const int32_t *tail, int32_t n_tail,
                             int32_t max_new, int32_t chunk, kve_capture *capture, int32_t *out, int32_t *n_out)
{
    size_t X = (size_t)b->X, rows = (size_t)(chunk > b->X ? chunk : b->X);
    if (n_tail < 1 || (capture && X != 1))
        return kve_fail(
            KVE_ERR_USAGE,
            "decoding needs at least one token after the context (%d given), and captures one fork alone (%d given)",
            n_tail, b->X);
    int32_t *ints = NULL;
    KVE_TRY(kve_alloc(rows + 5 * X, sizeof *ints, &ints));
    loop w = {.s = s,
              .b = b,
              .capture = capture,
              .ids = ints,
              .q_len = ints + rows,
              .next = ints + rows + X,
              .fork_of = ints + rows + 2 * X,
              .rows = ints + rows + 3 * X};
    for (size_t x = 0; x < X; x++)
        n_out[x] = 0;
    kve_status st = feed_tail(&w, tail, n_tail, chunk);
    if (st == KVE_OK)
        st = decode_steps(&w, &m->cfg, max_new, out, n_out);
    free(ints);
    return st;
}
