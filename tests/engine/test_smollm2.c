/* The default model in f32 against the reference library: tokens, logits, sums of rows, greedy answers. Skipped where
 * the model is not on this machine (bench/fetch_model.sh fetches it). */
#include "tests/engine/fixture.h"
#include "tests/engine/smollm2_golden.h"

#include "host/text/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN KVE_SOURCE_DIR "/tests/golden/smollm2/logits.txt"

enum { CHUNK = 96, SKIPPED = 77 }; /* the longest prompt takes several chunks, and short ones share a call */
static const double TOL = 1e-4;

static fixture g_f;
static golden g_golden;
static float *g_row; /* [V] */
static double g_worst, g_worst_sum;

static void test_model(void **state)
{
    (void)state;
    char sha[KVE_SHA256_HEX];
    MUST(kve_checkpoint_sha256(g_f.ck, sha));
    assert_string_equal(sha, g_golden.sha256);
}

static void test_tokens(void **state)
{
    (void)state;
    kve_tokenizer *tk = NULL;
    MUST(kve_tokenizer_create(kve_checkpoint_vocab(g_f.ck), &tk));
    for (int i = 0; i < g_golden.n; i++) {
        const golden_prompt *p = &g_golden.prompts[i];
        kve_ids ids = {0};
        MUST(kve_tokenize(tk, p->text, p->text_len, false, true, &ids));
        if (ids.len != (size_t)p->n || memcmp(ids.p, p->ids, ids.len * sizeof *ids.p) != 0)
            fail_msg("prompt '%s': other tokens than the reference's (%zu instead of %d)", p->name, ids.len, p->n);
        kve_ids_free(&ids);
    }
    kve_tokenizer_free(tk);
}

/* Row `row` of the session's last call against a golden row: the logits that are known, the best, none beyond the TOP
 * that is larger, the sum of the whole row. */
static void check_row(kve_session *s, int32_t row, const golden_prompt *p, const golden_row *want)
{
    int32_t V = g_f.m->cfg.shape.V, above = 0, best = 0;
    float got[ROW_LOGITS];
    double sum = 0, top = (double)want->value[0], scale = 0;
    MUST(kve_row_logits(s, &row, 1, g_row));
    for (int i = 0; i < ROW_LOGITS; i++) {
        assert_true(want->id[i] >= 0 && want->id[i] < V);
        got[i] = g_row[want->id[i]];
        scale = fmax(scale, fabs((double)want->value[i]));
    }
    for (int32_t v = 0; v < V; v++) {
        sum += exp((double)g_row[v] - top);
        above += (double)g_row[v] > (double)want->value[TOP - 1] + TOL * scale;
        best = g_row[v] > g_row[best] ? v : best;
    }
    double off = relative_error(got, want->value, ROW_LOGITS), off_sum = fabs(top + log(sum) - want->lse) / scale;
    if (!(off <= TOL) || !(off_sum <= TOL) || above >= TOP || best != want->id[0])
        fail_msg("prompt '%s', position %d: relative error %g, of the sum's logarithm %g; %d logits above the last of "
                 "the %d largest; the best is %d instead of %d",
                 p->name, want->position, off, off_sum, above, TOP, best, want->id[0]);
    g_worst = fmax(g_worst, off);
    g_worst_sum = fmax(g_worst_sum, off_sum);
}

static void begin_worst(void)
{
    g_worst = g_worst_sum = 0;
}

static void print_worst(const char *what, int rows)
{
    printf("%s: %d rows, worst relative error %.2e, of the sum's logarithm %.2e\n", what, rows, g_worst, g_worst_sum);
}

static kve_session *open_all(void)
{
    int32_t most = 0;
    for (int i = 0; i < g_golden.n; i++)
        most = g_golden.prompts[i].n > most ? g_golden.prompts[i].n : most;
    return open_session(g_f.m, CHUNK, MOST_PROMPTS, most + MOST_NEW);
}

/* Whole prompts as tails of forks without a prefix, as many tokens of as many forks a call as fit. */
static void test_forks(void **state)
{
    (void)state;
    kve_session *s = open_all();
    forks f = {.m = g_f.m};
    kve_kv none;
    int32_t fed[MOST_PROMPTS] = {0}, ids[CHUNK], T = 1;
    int rows = 0, expected = 0;
    begin_worst();
    MUST(kve_kv_alloc(g_f.m, 0, &none));
    for (int i = 0; i < g_golden.n; i++) {
        forks_add(&f, none, 0, 0, g_golden.prompts[i].n);
        expected += g_golden.prompts[i].n_rows;
    }
    forks_begin(&f);
    while (T > 0) {
        int32_t q_len[MOST_PROMPTS] = {0};
        T = 0;
        for (int i = 0; i < g_golden.n; i++) {
            const golden_prompt *p = &g_golden.prompts[i];
            q_len[i] = p->n - fed[i] < CHUNK - T ? p->n - fed[i] : CHUNK - T;
            memcpy(ids + T, p->ids + fed[i], (size_t)q_len[i] * sizeof *ids);
            T += q_len[i];
        }
        MUST(kve_extend(s, &f.batch, ids, q_len, NULL));
        for (int32_t i = 0, at = 0; i < g_golden.n; at += q_len[i++]) {
            const golden_prompt *p = &g_golden.prompts[i];
            for (int k = 0; k < p->n_rows; k++)
                if (p->rows[k].position >= fed[i] && p->rows[k].position < fed[i] + q_len[i]) {
                    check_row(s, at + p->rows[k].position - fed[i], p, &p->rows[k]);
                    rows++;
                }
            fed[i] += q_len[i];
        }
    }
    print_worst("forks without a prefix", rows);
    assert_int_equal(rows, expected);
    forks_end(&f);
    kve_kv_free(g_f.m, &none);
    kve_session_close(s);
}

/* All but the last token by prefill; the rows that it leaves. */
static int prefill_prompt(kve_session *s, const golden_prompt *p, kve_context *ctx)
{
    int32_t n = p->n - 1;
    int rows = 0;
    MUST(kve_context_alloc(g_f.m, n, ctx));
    MUST(kve_prefill(s, p->ids, n, ctx));
    for (int k = 0; k < p->n_rows - 1; k++)
        if (p->rows[k].position >= n - ctx->W) {
            check_row(s, p->rows[k].position - (n - ctx->W), p, &p->rows[k]);
            rows++;
        }
    return rows;
}

/* The forks that still speak get their token; the others rest. Returns how many do. */
static int32_t feed_answers(kve_session *s, forks *f, int32_t step, int32_t (*next)[MOST_PROMPTS])
{
    int32_t q_len[MOST_PROMPTS] = {0}, ids[MOST_PROMPTS], rows[MOST_PROMPTS], best[MOST_PROMPTS], T = 0;
    for (int i = 0; i < g_golden.n; i++)
        if (step < g_golden.prompts[i].n_next) {
            q_len[i] = 1;
            rows[T] = T;
            ids[T++] = (*next)[i];
        }
    MUST(kve_extend(s, &f->batch, ids, q_len, NULL));
    MUST(kve_next_tokens(s, rows, T, best));
    for (int i = 0, at = 0; i < g_golden.n; i++)
        if (q_len[i])
            (*next)[i] = best[at++];
    return T;
}

static bool is_end(int32_t id)
{
    const kve_config *c = &g_f.m->cfg;
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

/* -log p of the best token after each prompt, from the last rows of all prompts in order. */
static void check_nll(kve_session *s, const int32_t *rows)
{
    int32_t target[MOST_PROMPTS];
    float nll[MOST_PROMPTS];
    for (int i = 0; i < g_golden.n; i++)
        target[i] = g_golden.prompts[i].rows[g_golden.prompts[i].n_rows - 1].id[0];
    MUST(kve_row_nll(s, rows, target, g_golden.n, nll));
    for (int i = 0; i < g_golden.n; i++) {
        const golden_prompt *p = &g_golden.prompts[i];
        const golden_row *r = &p->rows[p->n_rows - 1];
        double want = r->lse - (double)r->value[0];
        if (!(fabs((double)nll[i] - want) <= TOL * fabs((double)r->value[0])))
            fail_msg("prompt '%s': -log p of token %d is %g instead of %g", p->name, target[i], (double)nll[i], want);
    }
}

/* All answers as one batch. */
static void check_answers(kve_session *s, forks *f)
{
    int32_t ids[MOST_PROMPTS], rows[MOST_PROMPTS], q_len[MOST_PROMPTS], next[MOST_PROMPTS], ended = 0;
    for (int i = 0; i < g_golden.n; i++) {
        ids[i] = g_golden.prompts[i].ids[g_golden.prompts[i].n - 1];
        rows[i] = i;
        q_len[i] = 1;
    }
    MUST(kve_extend(s, &f->batch, ids, q_len, NULL));
    for (int i = 0; i < g_golden.n; i++) {
        const golden_prompt *p = &g_golden.prompts[i];
        check_row(s, i, p, &p->rows[p->n_rows - 1]);
    }
    print_worst("forks of a prefill", g_golden.n);
    check_nll(s, rows);
    MUST(kve_next_tokens(s, rows, g_golden.n, next));
    for (int32_t step = 0, T = 1; step <= MOST_NEW && T > 0; step++) {
        for (int i = 0; i < g_golden.n; i++) {
            const golden_prompt *p = &g_golden.prompts[i];
            if (step < p->n_next && next[i] != p->next[step])
                fail_msg("prompt '%s': token %d of the answer is %d instead of %d", p->name, step, next[i],
                         p->next[step]);
            if (step == p->n_next && step < MOST_NEW) {
                assert_true(is_end(next[i]));
                ended++;
            }
        }
        T = step < MOST_NEW - 1 ? feed_answers(s, f, step, &next) : 0;
    }
    printf("answers: %d of up to %d tokens, %d end early\n", g_golden.n, MOST_NEW, ended);
}

/* The same by the engine's own loop, one at a time. */
static void check_decode(kve_session *s, const golden_prompt *p, const kve_context *ctx)
{
    int32_t out[MOST_NEW], n_out = 0;
    forks f = {.m = g_f.m};
    forks_add(&f, ctx->kv, ctx->n, ctx->n, 1 + MOST_NEW);
    forks_begin(&f);
    MUST(kve_decode_greedy(s, g_f.m, &f.batch, p->ids + p->n - 1, 1, MOST_NEW, CHUNK, NULL, out, &n_out));
    forks_end(&f);
    if (n_out != p->n_next || memcmp(out, p->next, (size_t)n_out * sizeof *out) != 0)
        fail_msg("prompt '%s': kve_decode_greedy gives another answer (%d tokens instead of %d)", p->name, n_out,
                 p->n_next);
}

static void test_answers(void **state)
{
    (void)state;
    kve_session *s = open_all();
    forks f = {.m = g_f.m};
    kve_context ctx[MOST_PROMPTS];
    int rows = 0;
    begin_worst();
    for (int i = 0; i < g_golden.n; i++) {
        rows += prefill_prompt(s, &g_golden.prompts[i], &ctx[i]);
        forks_add(&f, ctx[i].kv, ctx[i].n, ctx[i].n, 1 + MOST_NEW);
    }
    print_worst("prefills", rows);
    begin_worst();
    forks_begin(&f);
    check_answers(s, &f);
    forks_end(&f);
    for (int i = 0; i < g_golden.n; i++) {
        if (i % 18 == 0 || g_golden.prompts[i].n_next < MOST_NEW)
            check_decode(s, &g_golden.prompts[i], &ctx[i]);
        kve_context_free(g_f.m, &ctx[i]);
    }
    kve_session_close(s);
}

/* All prompts take more than four minutes with sanitizers on two cores that others use too. Every second one has to do:
 * the longest and one whose answer ends early are among them. */
static void thin_out(void)
{
#if defined(__SANITIZE_ADDRESS__)
    int n = 0;
    for (int i = 0; i < g_golden.n; i += 2)
        g_golden.prompts[n++] = g_golden.prompts[i];
    printf("a build with sanitizers: %d of %d prompts\n", n, g_golden.n);
    g_golden.n = n;
#endif
}

static int set_up(void **state)
{
    (void)state;
    fixture_open("smollm2", KVE_F32, 0, &g_f);
    g_row = must_alloc((size_t)g_f.m->cfg.shape.V, sizeof *g_row);
    MUST(golden_read(GOLDEN, &g_golden));
    assert_int_equal(g_golden.n, 20);
    thin_out();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(g_row);
    kve_arena_free(&g_golden.arena);
    fixture_close(&g_f);
    return 0;
}

/* Only an absent file is a reason to skip: a damaged one must fail. */
static bool is_there(void)
{
    kve_checkpoint *ck = NULL;
    bool opened = kve_checkpoint_open("smollm2", &ck) == KVE_OK;
    if (!opened && !strstr(kve_diag(), "the default model is not there"))
        return true;
    if (!opened)
        printf("skipped: %s\n", kve_diag());
    kve_checkpoint_close(ck);
    return opened;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_answers),
    };
    if (!is_there())
        return SKIPPED;
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
