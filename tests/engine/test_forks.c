/* Forks on the tiny models: ranked caches against the full one, uneven batches against forks alone, and decoding
 * against the reference's logits. */
#include "tests/engine/tiny.h"

#include "host/base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { CHUNK = 512 };
static const double SAME_TOL = 1e-5, NLL_TOL = 1e-4;

/* A context of p tokens, and what a full fork says of the tokens behind it. */
typedef struct scene {
    fixture f;
    sequence q;
    int32_t p, rest;
    size_t V;
    kve_session *s;
    kve_context ctx;
    float *full; /* [rest][V] */
} scene;

/* One fork's logits of the tokens behind the context; the caller's to free. lengths: host [L Hkv], or NULL: `kept`. */
static float *fork_logits_at(const scene *c, kve_kv prefix, int32_t kept, const int32_t *lengths)
{
    float *logits = must_alloc((size_t)c->rest * c->V, sizeof *logits);
    forks f = {.m = c->f.m};
    forks_add(&f, prefix, kept, c->p, c->rest);
    if (lengths) {
        size_t heads = (size_t)c->f.m->cfg.shape.L * (size_t)c->f.m->cfg.shape.Hkv;
        MUST(c->f.be->vt->write(c->f.be, f.lengths[0], lengths, heads * sizeof *lengths));
    }
    forks_begin(&f);
    extend_fork(c->s, &f, 0, c->q.ids + c->p, c->rest, CHUNK, logits);
    forks_end(&f);
    return logits;
}

static float *fork_logits(const scene *c, kve_kv prefix, int32_t kept)
{
    return fork_logits_at(c, prefix, kept, NULL);
}

static void open_scene(const char *model, scene *c)
{
    *c = (scene){.rest = 12};
    tiny_open(model, KVE_F32, 1, &c->f);
    c->q = tiny_random(&c->f.m->cfg);
    c->p = c->q.n - c->rest;
    c->V = (size_t)c->f.m->cfg.shape.V;
    c->s = open_session(c->f.m, CHUNK, MOST_FORKS, c->q.n);
    MUST(kve_context_alloc(c->f.m, c->p, &c->ctx));
    MUST(kve_prefill(c->s, c->q.ids, c->p, &c->ctx));
    c->full = fork_logits(c, c->ctx.kv, c->p);
}

static void close_scene(scene *c)
{
    free(c->full);
    kve_context_free(c->f.m, &c->ctx);
    kve_session_close(c->s);
    fixture_close(&c->f);
}

/* Device scores [L][Hkv][p]: by chance, all equal, all NaN. */
static float *make_scores(const scene *c, int kind)
{
    kve_backend *be = c->f.be;
    size_t count = (size_t)c->f.m->cfg.shape.L * (size_t)c->f.m->cfg.shape.Hkv * (size_t)c->p;
    float *host = must_alloc(count, sizeof *host), *device = NULL;
    kve_rng rng;
    kve_rng_init(&rng, 9, 0, 0, 0);
    for (size_t i = 0; i < count; i++)
        host[i] = kind == 0 ? kve_rng_float(&rng) - 0.5f : kind == 1 ? 1.0f : NAN;
    MUST(be->vt->alloc(be, count * sizeof *device, &device));
    MUST(be->vt->write(be, device, host, count * sizeof *device));
    free(host);
    return device;
}

/* How many of the ranking's places hold another token than position order would put there. */
static int check_order(const scene *c, const kve_ranked *r)
{
    size_t rows = (size_t)c->f.m->cfg.shape.L * (size_t)c->f.m->cfg.shape.Hkv, n = (size_t)r->n;
    int32_t *order = must_alloc(rows * n, sizeof *order);
    int moved = 0;
    MUST(c->f.be->vt->read(c->f.be, order, r->order, rows * n * sizeof *order));
    for (size_t row = 0; row < rows; row++) {
        bool seen[MOST_IDS] = {false};
        for (size_t i = 0; i < n; i++) {
            int32_t j = order[row * n + i];
            assert_true(j >= 0 && j < r->n && !seen[j]);
            seen[j] = true;
            moved += j != (int32_t)i;
        }
    }
    free(order);
    return moved;
}

/* At b = n the ranked cache is the full one in another order. One token less must show, or nothing is compared. */
static void test_ranked(void **state)
{
    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        scene c;
        open_scene(g_tiny[i], &c);
        double worst = 0;
        for (int kind = 0; kind < 3; kind++) {
            float *scores = make_scores(&c, kind);
            kve_ranked r = ranked_make(c.f.m, &c.ctx, scores, c.p, kind == 1 ? 4 : 0, kind == 1 ? 16 : 0);
            assert_true(r.kv.cap == c.p && r.n == c.p);
            assert_true((check_order(&c, &r) > 0) == (kind < 2)); /* recent tokens move; NaN alone moves nothing */
            float *got = fork_logits(&c, r.kv, c.p), *less = fork_logits(&c, r.kv, c.p - 1);
            double off = worst_row(got, c.full, c.rest, c.V);
            worst = fmax(worst, off);
            if (!(off <= SAME_TOL) || !(worst_row(less, c.full, c.rest, c.V) > 10 * SAME_TOL))
                fail_msg("%s, scores %d: off by %g; with one token less by %g", g_tiny[i], kind, off,
                         worst_row(less, c.full, c.rest, c.V));
            free(got);
            free(less);
            kve_ranked_free(c.f.m, &r);
            c.f.be->vt->free(c.f.be, scores);
        }
        printf("%s: ranked against full: worst relative error %.2e\n", g_tiny[i], worst);
        close_scene(&c);
    }
}

/* Heads of different lengths: the packed cache takes the memory of its rows and no more, and what reads it sees what a
 * uniform cache with these lengths shows. */
static void check_ragged(const scene *c, const float *scores)
{
    const kve_model *m = c->f.m;
    int32_t rows[64], heads = m->cfg.shape.L * m->cfg.shape.Hkv, total = 0;
    kve_rng rng;
    kve_rng_init(&rng, 10, 0, 0, 0);
    assert_in_range(heads, 2, 64);
    for (int32_t h = 0; h < heads; h++) {
        rows[h] = h == 0 ? c->p : h == 1 ? 1 : (int32_t)kve_rng_below(&rng, (uint64_t)c->p);
        total += rows[h];
    }
    kve_ranked whole = ranked_make(m, &c->ctx, scores, c->p, 1, 2), packed;
    MUST(kve_ranked_order(m, &c->ctx, scores, 1, 2, &packed));
    size_t before = c->f.be->vt->bytes_in_use(c->f.be);
    MUST(kve_ranked_gather(m, &c->ctx, rows, &packed));
    assert_int_equal(c->f.be->vt->bytes_in_use(c->f.be) - before,
                     kve_kv_bytes(m, total) + (size_t)heads * sizeof(int64_t));
    assert_non_null(packed.kv.first);
    float *want = fork_logits_at(c, whole.kv, c->p, rows), *got = fork_logits_at(c, packed.kv, c->p, rows);
    assert_true(same_bits(want, got, (size_t)c->rest * c->V));
    assert_false(same_bits(want, c->full, (size_t)c->rest * c->V));
    free(want);
    free(got);
    kve_ranked_free(m, &whole);
    kve_ranked_free(m, &packed);
}

static void test_ragged(void **state)
{
    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        scene c;
        open_scene(g_tiny[i], &c);
        float *scores = make_scores(&c, 0);
        check_ragged(&c, scores);
        c.f.be->vt->free(c.f.be, scores);
        close_scene(&c);
    }
}

/* The T rows of the last call, asked for in another order. */
static void check_picked_rows(const scene *c, int32_t T, const float *in_order)
{
    int32_t rows[MOST_IDS];
    float *got = must_alloc((size_t)T * c->V, sizeof *got);
    for (int32_t i = 0; i < T; i++)
        rows[i] = T - 1 - i;
    MUST(kve_row_logits(c->s, rows, T, got));
    for (int32_t i = 0; i < T; i++)
        assert_true(same_bits(got + (size_t)i * c->V, in_order + (size_t)rows[i] * c->V, c->V));
    free(got);
}

/* Full, half, ranked and empty forks in uneven steps of one batch give the bits that each gives alone. */
static void check_batch(const scene *c, kve_kv ranked)
{
    enum { FORKS = 5, STEPS = 3 };
    static const int32_t take[STEPS][FORKS] = {{3, 0, 5, 1, 2}, {0, 9, 1, 0, 4}, {9, 3, 6, 11, 6}};
    const struct {
        kve_kv prefix;
        int32_t kept;
    } of[FORKS] = {{c->ctx.kv, c->p}, {c->ctx.kv, c->p / 2}, {ranked, c->p}, {ranked, 3}, {c->ctx.kv, 0}};
    forks f = {.m = c->f.m};
    float *alone[FORKS], *got = must_alloc(FORKS * (size_t)c->rest * c->V, sizeof *got);
    int32_t fed[FORKS] = {0}, ids[MOST_IDS], rows[MOST_IDS];
    for (int x = 0; x < FORKS; x++) {
        alone[x] = fork_logits(c, of[x].prefix, of[x].kept);
        forks_add(&f, of[x].prefix, of[x].kept, c->p, c->rest);
    }
    forks_begin(&f);
    for (int step = 0; step < STEPS; step++) {
        int32_t T = 0;
        for (int x = 0; x < FORKS; x++)
            for (int32_t i = 0; i < take[step][x]; i++, T++) {
                rows[T] = T;
                ids[T] = c->q.ids[c->p + fed[x] + i];
            }
        MUST(kve_extend(c->s, &f.batch, ids, take[step], NULL));
        MUST(kve_row_logits(c->s, rows, T, got));
        check_picked_rows(c, T, got);
        const float *at = got;
        for (int x = 0; x < FORKS; x++) {
            size_t count = (size_t)take[step][x] * c->V;
            assert_true(same_bits(at, alone[x] + (size_t)fed[x] * c->V, count));
            at += count;
            fed[x] += take[step][x];
        }
    }
    forks_end(&f);
    for (int x = 0; x < FORKS; x++) {
        assert_int_equal(fed[x], c->rest);
        free(alone[x]);
    }
    free(got);
}

static void test_batch(void **state)
{
    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        scene c;
        kve_ranked r;
        open_scene(g_tiny[i], &c);
        float *scores = make_scores(&c, 0);
        r = ranked_make(c.f.m, &c.ctx, scores, c.p, 0, 0);
        check_batch(&c, r.kv);
        kve_ranked_free(c.f.m, &r);
        c.f.be->vt->free(c.f.be, scores);
        close_scene(&c);
    }
}

static double nll_of(const float *logits, size_t V, int32_t target)
{
    double top = -INFINITY, sum = 0;
    for (size_t i = 0; i < V; i++)
        top = fmax(top, (double)logits[i]);
    for (size_t i = 0; i < V; i++)
        sum += exp((double)logits[i] - top);
    return top + log(sum) - (double)logits[target];
}

/* Two forks of a half of the sequence are told the other half. */
static double check_teacher(const fixture *f, const sequence *q, int32_t chunk)
{
    int32_t p = q->n / 2, n_tail = q->n - p;
    size_t V = (size_t)f->m->cfg.shape.V;
    double worst = 0;
    float nll[2 * MOST_IDS];
    kve_session *s = open_session(f->m, chunk, 2, q->n);
    kve_context ctx;
    forks two = {.m = f->m};
    MUST(kve_context_alloc(f->m, p, &ctx));
    MUST(kve_prefill(s, q->ids, p, &ctx));
    forks_add(&two, ctx.kv, p, p, n_tail);
    forks_add(&two, ctx.kv, p, p, n_tail);
    forks_begin(&two);
    const kve_tail tails[] = {{q->ids + p, n_tail, nll}, {q->ids + p, n_tail, nll + n_tail - 1}};
    MUST(kve_score_tails(s, &two.batch, tails, chunk, NULL));
    for (int32_t i = 0; i < 2 * (n_tail - 1); i++) {
        int32_t at = p + i % (n_tail - 1);
        double want = nll_of(q->logits + (size_t)at * V, V, q->ids[at + 1]), off = fabs((double)nll[i] - want);
        if (!(off <= NLL_TOL))
            fail_msg("position %d: -log p is %g instead of %g", at, (double)nll[i], want);
        worst = fmax(worst, off);
    }
    forks_end(&two);
    kve_context_free(f->m, &ctx);
    kve_session_close(s);
    return worst;
}

static void test_teacher(void **state)
{
    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        fixture f;
        golden g;
        double worst = 0;
        tiny_open(g_tiny[i], KVE_F32, 1, &f);
        tiny_golden(g_tiny[i], (size_t)f.m->cfg.shape.V, &g);
        for (int k = 0; k < g.n; k++) {
            worst = fmax(worst, check_teacher(&f, &g.seq[k], CHUNK));
            worst = fmax(worst, check_teacher(&f, &g.seq[k], 5));
        }
        printf("%s: teacher forcing: worst error of -log p %.2e\n", g_tiny[i], worst);
        free(g.file);
        fixture_close(&f);
    }
}

static bool is_end(const kve_config *c, int32_t id)
{
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

/* What two forks decode, read again in one pass by a fork without a prefix: each token is the best after those before
 * it, and an answer that ends early ends before an end token. */
static void check_greedy(scene *c)
{
    enum { NEW = 8, TAIL = 4 };
    int32_t out[2 * NEW], n_out[2], ids[MOST_IDS], rows[NEW + 1], best[NEW + 1], n = c->p + TAIL;
    forks two = {.m = c->f.m}, one = {.m = c->f.m};
    forks_add(&two, c->ctx.kv, c->p, c->p, TAIL + NEW);
    forks_add(&two, c->ctx.kv, c->p, c->p, TAIL + NEW);
    forks_begin(&two);
    MUST(kve_decode_greedy(c->s, c->f.m, &two.batch, c->q.ids + c->p, TAIL, NEW, 3, NULL, out, n_out));
    forks_end(&two);
    assert_int_equal(n_out[0], n_out[1]);
    assert_memory_equal(out, out + NEW, (size_t)n_out[0] * sizeof *out);
    for (int32_t i = 0; i < n + n_out[0]; i++)
        ids[i] = i < n ? c->q.ids[i] : out[i - n];
    for (int32_t i = 0; i <= n_out[0]; i++)
        rows[i] = n - 1 + i;
    forks_add(&one, c->ctx.kv, 0, 0, n + n_out[0]);
    forks_begin(&one);
    extend_fork(c->s, &one, 0, ids, n + n_out[0], CHUNK, NULL);
    MUST(kve_next_tokens(c->s, rows, n_out[0] + 1, best));
    forks_end(&one);
    assert_memory_equal(out, best, (size_t)n_out[0] * sizeof *out);
    assert_true(n_out[0] == NEW || is_end(&c->f.m->cfg, best[n_out[0]]));
}

static void test_greedy(void **state)
{
    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        scene c;
        open_scene(g_tiny[i], &c);
        check_greedy(&c);
        close_scene(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranked),  cmocka_unit_test(test_ragged), cmocka_unit_test(test_batch),
        cmocka_unit_test(test_teacher), cmocka_unit_test(test_greedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
