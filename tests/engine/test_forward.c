/* The forward pass on tiny models: all positions' logits against the reference library's, by every way the engine has
 * to compute them, and what may not change a bit of them: chunks and threads. */
#include "tests/engine/tiny.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 512 };
static const double REFERENCE_TOL = 1e-4, SAME_TOL = 1e-5, BF16_TOL = 0.05;

/* The backend refuses a set that this processor does not have. */
static bool use_isa(const char *isa)
{
    char word[32];
    kve_backend *be = NULL;
    kve_backend_options opt = {.threads = 1};
    assert_int_equal(setenv("KVEVAL_ISA", isa, 1), 0);
    if (kve_cpu_open(&opt, &be) != KVE_OK) {
        printf("skipped: %s\n", kve_diag());
        return false;
    }
    snprintf(word, sizeof word, " %s,", isa);
    assert_non_null(strstr(be->vt->describe(be), word));
    be->vt->close(be);
    return true;
}

static int best_isa(void **state)
{
    (void)state;
    return unsetenv("KVEVAL_ISA");
}

/* All p rows: a prefill keeps those of its last chunk only, so every piece gets a prefill of all before its end. The
 * last one leaves ctx as a plain prefill of p tokens does. */
static void prefill_rows(kve_session *s, const int32_t *ids, int32_t p, int32_t chunk, size_t V, kve_context *ctx,
                         float *logits)
{
    int32_t rows[MOST_IDS], piece = chunk < KVE_WINDOW ? chunk : KVE_WINDOW;
    for (int32_t end = 0; end < p;) {
        end = end + piece < p ? end + piece : p;
        MUST(kve_prefill(s, ids, end, ctx));
        for (int32_t i = 0; i < ctx->W; i++)
            rows[i] = i;
        assert_int_equal(ctx->W, end < piece ? end : piece);
        MUST(kve_row_logits(s, rows, ctx->W, logits + (size_t)(end - ctx->W) * V));
    }
}

/* The first p tokens by prefill, the others as one fork's extension; logits [n][V], the caller's to free. */
static float *forward(const kve_model *m, const int32_t *ids, int32_t n, int32_t p, int32_t chunk)
{
    size_t V = (size_t)m->cfg.shape.V;
    float *logits = must_alloc((size_t)n * V, sizeof *logits);
    kve_session *s = open_session(m, chunk, 1, n);
    kve_context ctx;
    MUST(kve_context_alloc(m, p, &ctx));
    prefill_rows(s, ids, p, chunk, V, &ctx, logits);
    if (p < n) {
        forks f = {.m = m};
        forks_add(&f, ctx.kv, p, p, n - p);
        forks_begin(&f);
        extend_fork(s, &f, 0, ids + p, n - p, chunk, logits + (size_t)p * V);
        forks_end(&f);
    }
    kve_context_free(m, &ctx);
    kve_session_close(s);
    return logits;
}

static void test_comparisons(void **state)
{
    (void)state;
    float a[3] = {1, -2, 0.5f}, b[3] = {1, -2, 0.5f}, zero[3] = {0};
    assert_true(same_bits(a, b, 3) && !(relative_error(a, b, 3) > 0));
    b[1] = -2.0001f;
    assert_true(!same_bits(a, b, 3) && relative_error(a, b, 3) > 4e-5 && relative_error(a, b, 3) < 6e-5);
    assert_false(relative_error(a, zero, 3) <= 1);
    for (int bad = 0; bad < 2; bad++) {
        a[2] = b[2] = bad ? INFINITY : NAN;
        memcpy(b, a, sizeof b);
        assert_true(same_bits(a, b, 3) == (bad == 1));
        assert_false(relative_error(a, b, 3) <= 1e30);
        b[2] = 0.5f;
        assert_false(relative_error(a, b, 3) <= 1e30);
        assert_false(relative_error(b, a, 3) <= 1e30);
        assert_false(worst_row(a, b, 1, 3) <= 1e30);
    }
}

/* Each model, each sequence; nothing, one token, a half, all but one and all of it by prefill. */
static void test_reference(void **state)
{
    const char *isa = *state;
    if (!use_isa(isa))
        skip();
    for (int i = 0; i < N_TINY; i++) {
        fixture f;
        golden g;
        double worst = 0;
        tiny_open(g_tiny[i], KVE_F32, 1, &f);
        size_t V = (size_t)f.m->cfg.shape.V;
        tiny_golden(g_tiny[i], V, &g);
        for (int k = 0; k < g.n; k++) {
            const sequence *q = &g.seq[k];
            const int32_t prefilled[] = {0, 1, q->n / 2, q->n - 1, q->n};
            for (size_t c = 0; c < sizeof prefilled / sizeof *prefilled; c++) {
                float *got = forward(f.m, q->ids, q->n, prefilled[c], CHUNK);
                double off = worst_row(got, q->logits, q->n, V);
                free(got);
                worst = fmax(worst, off);
                if (!(off <= REFERENCE_TOL))
                    fail_msg("%s, %s, sequence %d, %d of %d by prefill: relative error %g", g_tiny[i], isa, k,
                             prefilled[c], q->n, off);
            }
        }
        printf("%s, %s: worst relative error %.2e\n", g_tiny[i], isa, worst);
        free(g.file);
        fixture_close(&f);
    }
}

/* bf16 weights and cache are another, coarser model; only a blunder shows here. */
static void test_reference_bf16(void **state)
{
    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        fixture f;
        golden g;
        tiny_open(g_tiny[i], KVE_BF16, 1, &f);
        size_t V = (size_t)f.m->cfg.shape.V;
        tiny_golden(g_tiny[i], V, &g);
        const sequence *q = &g.seq[0];
        float *got = forward(f.m, q->ids, q->n, q->n / 2, CHUNK);
        double off = worst_row(got, q->logits, q->n, V);
        free(got);
        printf("%s, bf16: worst relative error %.2e\n", g_tiny[i], off);
        if (!(off <= BF16_TOL))
            fail_msg("%s, bf16: relative error %g", g_tiny[i], off);
        free(g.file);
        fixture_close(&f);
    }
}

static void check_chunks(const char *what, const kve_model *m, const sequence *q, int32_t p)
{
    static const int32_t chunks[] = {7, 1};
    size_t V = (size_t)m->cfg.shape.V;
    float *whole = forward(m, q->ids, q->n, p, CHUNK);
    for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
        float *got = forward(m, q->ids, q->n, p, chunks[k]);
        if (!same_bits(whole, got, (size_t)q->n * V))
            fail_msg("%s: %d of %d by prefill: chunks of %d change bits", what, p, q->n, chunks[k]);
        free(got);
    }
    free(whole);
}

/* The long sequence by halves only: a prefill for every token and chunks of 1 are quadratic work. */
static void test_chunks(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * N_TINY; i++) {
        const char *model = g_tiny[i / 2];
        char what[64];
        fixture f;
        golden g;
        tiny_open(model, i % 2 ? KVE_BF16 : KVE_F32, 1, &f);
        tiny_golden(model, (size_t)f.m->cfg.shape.V, &g);
        snprintf(what, sizeof what, "%s, %s", model, i % 2 ? "bf16" : "f32");
        for (int k = 0; k < g.n; k++) {
            check_chunks(what, f.m, &g.seq[k], 0);
            check_chunks(what, f.m, &g.seq[k], g.seq[k].n - 1);
        }
        sequence q = tiny_random(&f.m->cfg);
        check_chunks(what, f.m, &q, 0);
        check_chunks(what, f.m, &q, q.n / 2);
        free(g.file);
        fixture_close(&f);
    }
}

/* Where a context ends and a fork's own tokens begin changes the order of sums, and no more: blocks of keys are cut
 * elsewhere. */
static void test_splits(void **state)
{
    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        fixture f;
        double worst = 0;
        tiny_open(g_tiny[i], KVE_F32, 1, &f);
        sequence q = tiny_random(&f.m->cfg);
        float *alone = forward(f.m, q.ids, q.n, 0, CHUNK);
        const int32_t prefilled[] = {1, q.n / 2, q.n - 1, q.n};
        for (size_t c = 0; c < sizeof prefilled / sizeof *prefilled; c++) {
            float *got = forward(f.m, q.ids, q.n, prefilled[c], CHUNK);
            double off = worst_row(got, alone, q.n, (size_t)f.m->cfg.shape.V);
            worst = fmax(worst, off);
            if (!(off <= SAME_TOL))
                fail_msg("%s: %d of %d by prefill: %g away from a fork alone", g_tiny[i], prefilled[c], q.n, off);
            free(got);
        }
        printf("%s: prefill against fork, %d tokens: worst relative error %.2e\n", g_tiny[i], q.n, worst);
        free(alone);
        fixture_close(&f);
    }
}

static void test_threads(void **state)
{
    (void)state;
    static const int32_t threads[] = {1, 2, 5};
    for (int i = 0; i < 2 * N_TINY; i++) {
        float *first = NULL;
        for (size_t k = 0; k < sizeof threads / sizeof *threads; k++) {
            fixture f;
            tiny_open(g_tiny[i / 2], i % 2 ? KVE_BF16 : KVE_F32, threads[k], &f);
            sequence q = tiny_random(&f.m->cfg);
            float *got = forward(f.m, q.ids, q.n, q.n / 2, CHUNK);
            if (first && !same_bits(first, got, (size_t)q.n * (size_t)f.m->cfg.shape.V))
                fail_msg("%s: %d threads change bits", g_tiny[i / 2], threads[k]);
            if (first)
                free(got);
            else
                first = got;
            fixture_close(&f);
        }
        free(first);
    }
}

int main(void)
{
    static char isas[][16] = {"portable", "avx2", "avx512", "avx512bf16"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comparisons),
        cmocka_unit_test_prestate_setup_teardown(test_reference, NULL, best_isa, isas[0]),
        cmocka_unit_test_prestate_setup_teardown(test_reference, NULL, best_isa, isas[1]),
        cmocka_unit_test_prestate_setup_teardown(test_reference, NULL, best_isa, isas[2]),
        cmocka_unit_test_prestate_setup_teardown(test_reference, NULL, best_isa, isas[3]),
        cmocka_unit_test(test_reference_bf16),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
