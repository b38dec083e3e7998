/* The greedy loop, for all forks of a batch at once. */
#include "host/engine/decode.h"

#include "host/base/mem.h"
#include "host/engine/step.h"

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
    int32_t *picked;                              /* greedy: [steps at once][X] */
} loop;

static kve_status extend(loop *w, int32_t T)
{
    KVE_TRY(kve_extend(w->s, w->b, w->ids, w->q_len, w->capture));
    if (w->capture)
        w->capture->at += T;
    return KVE_OK;
}

/* Stages tail[at .. at + len) for forks [x0, x1); returns the number of rows. */
static int32_t stage_slice(loop *w, int32_t at, int32_t len, int32_t x0, int32_t x1)
{
    int32_t T = 0;
    for (int32_t x = 0; x < w->b->X; x++) {
        w->q_len[x] = x >= x0 && x < x1 ? len : 0;
        for (int32_t i = 0; i < w->q_len[x]; i++)
            w->ids[T++] = w->tail[at + i];
    }
    return T;
}

/* After tail[at .. at + len) was fed to forks [x0, x1): at its end their next tokens. */
static kve_status pick_next(loop *w, int32_t at, int32_t len, int32_t x0, int32_t x1)
{
    if (at + len < w->n_tail)
        return KVE_OK;
    for (int32_t x = x0; x < x1; x++)
        w->rows[x - x0] = (x - x0 + 1) * len - 1;
    return kve_next_tokens(w->s, w->rows, x1 - x0, w->next + x0);
}

/* The tail goes to as many forks at once as fit `chunk` rows; in slices if even one fork does not fit, or has to evict
 * on the way. */
static kve_status feed_tail(loop *w, int32_t chunk)
{
    int32_t X = w->b->X;
    bool made = false;
    for (int32_t at = 0, len; at < w->n_tail; at += len) {
        len = w->n_tail - at < chunk ? w->n_tail - at : chunk;
        for (int32_t x = 0; x < X; x++)
            KVE_TRY(kve_batch_room(w->b, x, &len, &made));
        int32_t per_call = chunk / len;
        for (int32_t x0 = 0; x0 < X; x0 += per_call) {
            int32_t x1 = X - x0 < per_call ? X : x0 + per_call;
            KVE_TRY(extend(w, stage_slice(w, at, len, x0, x1)));
            KVE_TRY(pick_next(w, at, len, x0, x1));
        }
    }
    return KVE_OK;
}

/* Takes the forks' next tokens: writes them out and lists the forks that go on as rows. */
static int32_t take_tokens(loop *w, const kve_config *cfg, int32_t step, int32_t max_new, int32_t *out, int32_t *n_out)
{
    int32_t T = 0;
    for (int32_t x = 0; x < w->b->X; x++) {
        if (n_out[x] != step || is_end(cfg, w->next[x]))
            continue;
        out[(size_t)x * (size_t)max_new + (size_t)step] = w->next[x];
        n_out[x]++;
        w->ids[T] = w->next[x];
        w->fork_of[T++] = x;
    }
    return T;
}

/* `n` steps found picked [n][T]: all but the last column is final here; the last one is the forks' next token. */
static void take_steps(loop *w, const kve_config *cfg, int32_t T, int32_t step, int32_t n, int32_t max_new,
                       int32_t *out, int32_t *n_out)
{
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < T; t++) {
            int32_t x = w->fork_of[t], id = w->picked[i * T + t];
            if (n_out[x] != step + i)
                continue;
            w->next[x] = id;
            if (i + 1 == n || is_end(cfg, id))
                continue;
            out[(size_t)x * (size_t)max_new + (size_t)(step + i)] = id;
            n_out[x]++;
        }
}

/* Steps until no fork goes on. The last token is fed only where its queries are asked for. */
static kve_status decode_steps(loop *w, const kve_config *cfg, int32_t max_new, int32_t *out, int32_t *n_out)
{
    int32_t at_once = kve_steps_at_once(w->s, w->capture), feeds = w->capture ? max_new : max_new - 1, T_before = -1;
    kve_steps steps = {0};
    kve_status st = KVE_OK;
    for (int32_t step = 0; step < max_new && st == KVE_OK;) {
        int32_t T = take_tokens(w, cfg, step, max_new, out, n_out), n = feeds - step < at_once ? feeds - step : at_once;
        bool made = false;
        if (T == 0 || n < 1)
            break;
        for (int32_t t = 0; t < T && st == KVE_OK; t++)
            st = kve_batch_room(w->b, w->fork_of[t], &n, &made);
        if (st == KVE_OK && (made || T != T_before)) { /* what a fork holds is the device's business in between */
            kve_steps_end(&steps);
            st = kve_steps_begin(w->s, w->b, w->fork_of, w->ids, T, &steps);
            T_before = T;
        }
        if (st == KVE_OK)
            st = kve_steps_run(&steps, n, w->capture, w->picked);
        if (st == KVE_OK)
            take_steps(w, cfg, T, step + 1, n, max_new, out, n_out);
        step += n;
    }
    kve_steps_end(&steps);
    return st;
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
    size_t at_once = (size_t)kve_steps_at_once(s, capture);
    KVE_TRY(kve_alloc(2 * rows + (3 + at_once) * X, sizeof *w->ids, &w->ids));
    w->rows = w->ids + rows;
    w->q_len = w->rows + rows;
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
    kve_status st = feed_tail(&w, chunk);
    if (st == KVE_OK)
        st = decode_steps(&w, &m->cfg, max_new, out, n_out);
    free(w.ids);
    return st;
}
