/* Logits of hidden rows, and what is read off them: arg-maxes, log-likelihoods. */
#include "host/engine/session_internal.h"

/* Logits of rows[0 .. n_rows), n_rows <= LOGIT_ROWS, into s->logits. Contiguous rows are used where they lie. */
static kve_status head_rows(kve_session *s, const int32_t *rows, int32_t n_rows)
{
    kve_backend *be = s->m->be;
    size_t E = (size_t)s->m->cfg.shape.E;
    bool contiguous = true;
    for (int32_t i = 0; i < n_rows; i++) {
        if (rows[i] < 0 || rows[i] >= s->T)
            return kve_fail(KVE_ERR_USAGE, "row %d is outside the %d rows of the last forward", rows[i], s->T);
        contiguous = contiguous && rows[i] == rows[0] + i;
    }
    if (contiguous)
        return session_matmul(s, s->h + (size_t)rows[0] * E, s->m->head, NULL, s->logits, n_rows, false);
    for (int32_t i = 0; i < n_rows; i++)
        KVE_TRY(be->vt->read(be, s->host_rows + (size_t)i * E, s->h + (size_t)rows[i] * E, E * sizeof(float)));
    KVE_TRY(be->vt->write(be, s->picked, s->host_rows, (size_t)n_rows * E * sizeof(float)));
    return session_matmul(s, s->picked, s->m->head, NULL, s->logits, n_rows, false);
}

static int32_t slice(int32_t n_rows, int32_t at)
{
    return n_rows - at < LOGIT_ROWS ? n_rows - at : LOGIT_ROWS;
}

kve_status kve_next_tokens(kve_session *s, const int32_t *rows, int32_t n_rows, int32_t *next)
{
    kve_backend *be = s->m->be;
    for (int32_t at = 0; at < n_rows; at += LOGIT_ROWS) {
        int32_t count = slice(n_rows, at);
        KVE_TRY(head_rows(s, rows + at, count));
        kve_argmax_params p = {.logits = s->logits, .ids = s->out_ids, .T = count, .V = s->m->cfg.shape.V};
        KVE_TRY(be->vt->argmax(be, &p));
        KVE_TRY(be->vt->read(be, next + at, s->out_ids, (size_t)count * sizeof *next));
    }
    return KVE_OK;
}

kve_status kve_row_nll(kve_session *s, const int32_t *rows, const int32_t *target, int32_t n_rows, float *nll)
{
    kve_backend *be = s->m->be;
    for (int32_t at = 0; at < n_rows; at += LOGIT_ROWS) {
        int32_t count = slice(n_rows, at);
        KVE_TRY(head_rows(s, rows + at, count));
        KVE_TRY(be->vt->write(be, s->out_ids, target + at, (size_t)count * sizeof *target));
        kve_nll_params p = {
            .logits = s->logits, .target = s->out_ids, .nll = s->nll, .T = count, .V = s->m->cfg.shape.V};
        KVE_TRY(be->vt->nll(be, &p));
        KVE_TRY(be->vt->read(be, nll + at, s->nll, (size_t)count * sizeof *nll));
    }
    return KVE_OK;
}

kve_status kve_row_logits(kve_session *s, const int32_t *rows, int32_t n_rows, float *logits)
{
    size_t V = (size_t)s->m->cfg.shape.V;
    for (int32_t at = 0; at < n_rows; at += LOGIT_ROWS) {
        int32_t count = slice(n_rows, at);
        KVE_TRY(head_rows(s, rows + at, count));
        KVE_TRY(s->m->be->vt->read(s->m->be, logits + (size_t)at * V, s->logits, (size_t)count * V * sizeof(float)));
    }
    return KVE_OK;
}
