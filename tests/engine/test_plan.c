/* The memory plan against what the engine really allocates, and its arithmetic of what fits. */
#include "host/engine/plan.h"
#include "tests/engine/tiny.h"

#include <stdlib.h>

static size_t in_use(const fixture *f)
{
    return f->be->vt->bytes_in_use(f->be);
}

/* A run's pieces, one after the other: each grows the memory in use by what the plan says. */
static void check_model(const char *name, kve_dtype dtype)
{
    fixture f;
    tiny_open(name, dtype, 1, &f);
    const kve_shape *s = &f.m->cfg.shape;
    kve_plan_request r = {.cfg = &f.m->cfg,
                          .dtype = dtype,
                          .weight_bytes = in_use(&f),
                          .free_bytes = (size_t)1 << 40,
                          .n = 37,
                          .n_tail = 11,
                          .chunk = 16,
                          .b_max = 9,
                          .n_budgets = 3,
                          .n_policies = 4};
    kve_plan p;
    kve_plan_make(&r, &p);
    size_t before = in_use(&f);
    kve_session *session = open_session(f.m, r.chunk, r.chunk, r.n + r.n_tail);
    assert_int_equal(in_use(&f) - before, p.scratch);
    before = in_use(&f);
    kve_context ctx;
    MUST(kve_context_alloc(f.m, r.n, &ctx));
    assert_int_equal(in_use(&f) - before, p.context);
    ctx.n = r.n;
    float *scores = NULL;
    MUST(f.be->vt->alloc(f.be, (size_t)(s->L * s->Hkv * r.n) * sizeof *scores, &scores));
    before = in_use(&f);
    kve_ranked ranked;
    ranked = ranked_make(f.m, &ctx, scores, r.b_max, 0, 0);
    assert_int_equal(in_use(&f) - before, p.ranked);
    before = in_use(&f);
    forks fork = {.m = f.m};
    forks_add(&fork, ranked.kv, r.b_max, r.n, r.n_tail);
    forks_begin(&fork);
    assert_int_equal(in_use(&f) - before, p.fork);
    forks_end(&fork);
    kve_ranked_free(f.m, &ranked);
    f.be->vt->free(f.be, scores);
    kve_context_free(f.m, &ctx);
    kve_session_close(session);
    assert_int_equal(in_use(&f), r.weight_bytes);
    fixture_close(&f);
}

static void test_real_sizes(void **state)
{
    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        check_model(g_tiny[i], KVE_F32);
        check_model(g_tiny[i], KVE_BF16);
    }
}

/* Room for the fixed part and a given number of policies, to the byte. */
static void test_what_fits(void **state)
{
    (void)state;
    fixture f;
    tiny_open(g_tiny[0], KVE_BF16, 1, &f);
    kve_plan_request r = {.cfg = &f.m->cfg,
                          .weight_bytes = 1000,
                          .n = 50,
                          .n_tail = 8,
                          .chunk = 64,
                          .b_max = 20,
                          .n_budgets = 5,
                          .n_policies = 7,
                          .dtype = KVE_BF16};
    kve_plan p;
    kve_plan_make(&r, &p);
    assert_int_equal(p.policies_at_once, 0);
    size_t policy = p.ranked + 5 * p.fork;
    assert_int_equal(p.all, p.fixed + 7 * policy);
    for (size_t k = 0; k <= 9; k++) {
        r.free_bytes = p.fixed + k * policy;
        kve_plan_make(&r, &p);
        assert_int_equal(p.policies_at_once, k < 7 ? k : 7);
        assert_int_equal(p.forks_at_once, 5 * p.policies_at_once);
        r.free_bytes--;
        kve_plan_make(&r, &p);
        assert_int_equal(p.policies_at_once, k == 0 ? 0 : k <= 7 ? k - 1 : 7);
    }
    r.chunk = 12; /* rows for two policies' forks only; the scratch shrinks with it */
    r.free_bytes = (size_t)1 << 40;
    kve_plan_make(&r, &p);
    assert_int_equal(p.policies_at_once, 2);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_real_sizes), cmocka_unit_test(test_what_fits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
