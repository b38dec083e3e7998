/* Teacher forcing: forks are fed texts of their own, and every token of them is scored. Contract: decode.h. */
#include "host/engine/decode.h"

#include "host/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* What one call of kve_extend carries, and which of its rows predict a token that is known. */
typedef struct load {
    int32_t *ids, *rows, *target; /* [chunk] */
    int32_t *q_len;               /* [X] */
    float *nll;                   /* [chunk] */
    int32_t T, n_rows;
} load;

static int32_t slice_len(const kve_tail *t, int32_t at, int32_t most)
{
    int32_t left = t->n - at;
    return left < 0 ? 0 : left < most ? left : most;
}

static void put_slice(load *l, const kve_tail *t, int32_t x, int32_t at, int32_t len)
{
    l->q_len[x] = len;
    for (int32_t i = at; i < at + len; i++) {
        l->ids[l->T] = t->ids[i];
        if (i + 1 < t->n) { /* the last token predicts nothing that is known */
            l->rows[l->n_rows] = l->T;
            l->target[l->n_rows++] = t->ids[i + 1];
        }
        l->T++;
    }
}

/* Tokens [at, at + most) of forks [x0, x1), as far as they have them. */
static kve_status score_slices(kve_session *s, kve_batch *b, const kve_tail *tails, int32_t x0, int32_t x1, int32_t at,
                               int32_t most, kve_capture *capture, load *l)
{
    int32_t k = 0;
    l->T = l->n_rows = 0;
    memset(l->q_len, 0, (size_t)b->X * sizeof *l->q_len);
    for (int32_t x = x0; x < x1; x++)
        put_slice(l, &tails[x], x, at, slice_len(&tails[x], at, most));
    if (l->T == 0)
        return KVE_OK;
    KVE_TRY(kve_extend(s, b, l->ids, l->q_len, capture));
    if (capture)
        capture->at += l->T;
    if (l->n_rows)
        KVE_TRY(kve_row_nll(s, l->rows, l->target, l->n_rows, l->nll));
    for (int32_t x = x0; x < x1; x++)
        for (int32_t i = at; i < at + slice_len(&tails[x], at, most) && i + 1 < tails[x].n; i++)
            tails[x].nll[i] = l->nll[k++];
    return KVE_OK;
}

/* In rounds of at most `chunk` tokens of every fork, fewer where a fork has to evict first; as many forks at once as
 * fit `chunk` rows. */
static kve_status score_all(kve_session *s, kve_batch *b, const kve_tail *tails, int32_t chunk, kve_capture *capture,
                            load *l)
{
    int32_t longest = 0;
    bool made = false;
    for (int32_t x = 0; x < b->X; x++)
        longest = tails[x].n > longest ? tails[x].n : longest;
    for (int32_t at = 0, len; at < longest; at += len) {
        len = chunk;
        for (int32_t x = 0; x < b->X; x++)
            if (at < tails[x].n)
                KVE_TRY(kve_batch_room(b, x, &len, &made));
        for (int32_t x0 = 0, x1; x0 < b->X; x0 = x1) {
            int32_t T = 0;
            for (x1 = x0; x1 < b->X && T + slice_len(&tails[x1], at, len) <= chunk; x1++)
                T += slice_len(&tails[x1], at, len);
            KVE_TRY(score_slices(s, b, tails, x0, x1, at, len, capture, l));
        }
    }
    return KVE_OK;
}

static kve_status check(const kve_batch *b, const kve_tail *tails, const kve_capture *capture)
{
    for (int32_t x = 0; x < b->X; x++)
        if (tails[x].n < 1)
            return kve_fail(KVE_ERR_USAGE, "fork %d is to be fed %d tokens; at least one is needed", x, tails[x].n);
    if (capture && b->X != 1)
        return kve_fail(KVE_ERR_USAGE, "only a fork alone can be captured (%d given)", b->X);
    return KVE_OK;
}

kve_status kve_score_tails(kve_session *s, kve_batch *b, const kve_tail *tails, int32_t chunk, kve_capture *capture)
{
    load l = {0};
    KVE_TRY(check(b, tails, capture));
    KVE_TRY(kve_alloc(3 * (size_t)chunk + (size_t)b->X, sizeof *l.ids, &l.ids));
    l.rows = l.ids + chunk;
    l.target = l.rows + chunk;
    l.q_len = l.target + chunk;
    kve_status st = kve_alloc((size_t)chunk, sizeof *l.nll, &l.nll);
    if (st == KVE_OK)
        st = score_all(s, b, tails, chunk, capture, &l);
    free(l.nll);
    free(l.ids);
    return st;
}
