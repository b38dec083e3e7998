/* The CPU backend's invariance, bit by bit: a row of matmul, attention_prefill, attention_fork, rmsnorm,
 * rope_append, glu and nll is the same alone, among any neighbours, in any chunk and with any number of threads. The
 * batch is run once as a whole on one thread; every other run must repeat its rows byte for byte. Also: a fork that
 * keeps the whole context agrees with prefill. */
#include "tests/ops/invariance.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static kve_backend *open_cpu(const char *isa, int32_t threads)
{
    kve_backend *be = NULL;
    kve_backend_options opt = {.threads = threads};
    assert_int_equal(setenv("KVEVAL_ISA", isa, 1), 0);
    assert_int_equal(kve_cpu_open(&opt, &be), KVE_OK);
    return be;
}

static void same_rows(op_env *e, const subject *s, const void *batch, const int32_t *rows, int32_t count,
                      const float *whole, const char *how)
{
    op_begin(e, "invariance of %s: %s, %d rows from %d", s->name, how, count, rows[0]);
    const float *got = s->run(e, s, batch, rows, count), *want = pick_rows(e, whole, s->width, rows, count);
    size_t row_bytes = s->width * sizeof *got;
    for (int32_t i = 0; i < count; i++) {
        const float *a = got + (size_t)i * s->width, *b = want + (size_t)i * s->width;
        size_t d = 0;
        while (d < s->width && memcmp(a + d, b + d, sizeof *a) == 0)
            d++;
        if (memcmp(a, b, row_bytes) != 0)
            op_fail(e, "row %d, element %zu: %.9g, in the whole batch %.9g", rows[i], d, (double)a[d], (double)b[d]);
    }
    op_end(e);
}

static void check(op_env *e, const subject *s, const void *batch, const float *whole)
{
    static const int32_t chunks[] = {1, 2, 7, 48, 64, 100};
    int32_t *rows = calloc((size_t)s->T, sizeof *rows), *turned = calloc((size_t)s->T, sizeof *turned);
    assert_true(rows && turned);
    for (int32_t t = 0; t < s->T; t++) {
        rows[t] = t;
        turned[t] = s->T - 1 - t;
    }
    same_rows(e, s, batch, rows, s->T, whole, "the batch again");
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
        for (int32_t first = 0; first < s->T; first += chunks[c])
            same_rows(e, s, batch, rows + first, s->T - first < chunks[c] ? s->T - first : chunks[c], whole, "chunk");
    if (!s->contiguous) {
        same_rows(e, s, batch, turned, s->T, whole, "reversed");
        kve_rng rng;
        kve_rng_init(&rng, 1, 2, 3, 4);
        for (int i = 0; i < 5; i++) {
            kve_rng_shuffle(&rng, turned, (size_t)s->T);
            same_rows(e, s, batch, turned, 1 + (int32_t)kve_rng_below(&rng, (uint64_t)s->T), whole, "shuffled");
        }
    }
    free(rows);
    free(turned);
}

/* The number of runs that differ. */
static int32_t check_subject(const subject *s, const char *isa)
{
    kve_backend *one = open_cpu(isa, 1), *two = open_cpu(isa, 2);
    op_env *data = op_env_new(one), *e1 = op_env_new(one), *e2 = op_env_new(two);
    int32_t *rows = calloc((size_t)s->T, sizeof *rows);
    assert_non_null(rows);
    for (int32_t t = 0; t < s->T; t++)
        rows[t] = t;
    op_begin(data, "invariance of %s", s->name);
    const void *batch = s->prepare(data, s);
    const float *whole = s->run(data, s, batch, rows, s->T);
    check(e1, s, batch, whole);
    check(e2, s, batch, whole);
    for (size_t i = 0; i < (size_t)s->T * s->width; i++) /* equal NaN would prove nothing */
        if (!isfinite(whole[i])) {
            op_fail(data, "element %zu of the batch is %.9g", i, (double)whole[i]);
            break;
        }
    op_end(data);
    free(rows);
    int32_t failed = op_env_free(data) + op_env_free(e1) + op_env_free(e2);
    one->vt->close(one);
    two->vt->close(two);
    return failed;
}

static bool has_isa(const char *isa)
{
    kve_backend *be = NULL;
    assert_int_equal(setenv("KVEVAL_ISA", isa, 1), 0);
    if (kve_cpu_open(&(kve_backend_options){.threads = 1}, &be) != KVE_OK) {
        assert_non_null(strstr(isa, "avx")); /* portable must be there */
        printf("skipped: %s\n", kve_diag());
        return false;
    }
    be->vt->close(be);
    return true;
}

static void test_invariance(void **state)
{
    const char *isa = *state;
    int32_t failed = 0;
    if (!has_isa(isa))
        skip();
    for (size_t i = 0; i < g_n_row_subjects; i++)
        failed += check_subject(&g_row_subjects[i], isa);
    for (size_t i = 0; i < g_n_cache_subjects; i++)
        failed += check_subject(&g_cache_subjects[i], isa);
    assert_int_equal(failed, 0);
}

/* n context rows through prefill; the same rows as prefix (all but the last `tail_rows`) and tail of one fork. */
static void fork_row(op_env *e, kve_dtype t, int32_t n, int32_t tail_rows)
{
    enum { HQ = 6, HKV = 2, D = 96 };
    op_begin(e, "fork with everything kept against prefill, %s, n=%d tail=%d", op_dtype_name(t), n, tail_rows);
    size_t count = (size_t)tail_rows * HQ * D, size = kve_dtype_bytes(t);
    int32_t kept = n - tail_rows, row_of = 0, tail_len = 0, lengths[HKV] = {kept, kept};
    op_kv all = op_kv_make(e, 1, HKV, n, D, t), tail = op_kv_make(e, 1, HKV, tail_rows, D, t);
    for (int32_t h = 0; h < HKV; h++) {
        op_kv_fill(e, &all, 0, h, 0, n, 2);
        size_t from = oracle_kv_at(&all.host, HKV, D, 0, h, kept) * size;
        size_t to = oracle_kv_at(&tail.host, HKV, D, 0, h, 0) * size;
        memcpy((char *)tail.host.k + to, (char *)all.host.k + from, (size_t)tail_rows * D * size);
        memcpy((char *)tail.host.v + to, (char *)all.host.v + from, (size_t)tail_rows * D * size);
    }
    op_kv_in(e, &all);
    op_kv_in(e, &tail);
    kve_attention_prefill_params p = {.q = op_in(e, op_random(e, count, 2), count * sizeof(float)),
                                      .kv = all.dev,
                                      .out = op_out(e, count * sizeof(float)),
                                      .scale = (float)(1 / sqrt(D)),
                                      .T = tail_rows,
                                      .start = kept,
                                      .Hq = HQ,
                                      .Hkv = HKV,
                                      .D = D,
                                      .kv_dtype = t};
    kve_fork_slot slot = {all.dev, op_in(e, lengths, sizeof lengths), tail.dev};
    kve_attention_fork_params f = {.q = p.q,
                                   .slots = op_in(e, &slot, sizeof slot),
                                   .row_of = op_in(e, &row_of, sizeof row_of),
                                   .q_len = op_in(e, &tail_rows, sizeof tail_rows),
                                   .tail_len = op_in(e, &tail_len, sizeof tail_len),
                                   .out = op_out(e, count * sizeof(float)),
                                   .scale = p.scale,
                                   .T = tail_rows,
                                   .X = 1,
                                   .Hq = HQ,
                                   .Hkv = HKV,
                                   .D = D,
                                   .kv_dtype = t};
    op_ok(e, e->be->vt->attention_prefill(e->be, &p));
    op_ok(e, e->be->vt->attention_fork(e->be, &f));
    const float *a = op_read(e, p.out, count * sizeof *a);
    double *want = op_host(e, count, sizeof *want);
    for (size_t i = 0; i < count; i++)
        want[i] = (double)a[i];
    op_compare(e, "out", op_read(e, f.out, count * sizeof *a), want, count, (op_tol){4e-6, 6e-6});
    op_end(e);
}

static void test_fork_is_prefill(void **state)
{
    static const int32_t n[] = {1, 65, 130, 300}, tails[] = {1, 5, 66, 290};
    (void)state;
    kve_backend *be = open_cpu("", 2);
    op_env *e = op_env_new(be);
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < 4; i++)
            for (size_t j = 0; j < 4; j++)
                if (tails[j] <= n[i])
                    fork_row(e, (kve_dtype)t, n[i], tails[j]);
    int32_t failed = op_env_free(e);
    be->vt->close(be);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_invariance, "portable"),
        cmocka_unit_test_prestate(test_invariance, "avx2"),
        cmocka_unit_test_prestate(test_invariance, "avx512"),
        cmocka_unit_test_prestate(test_invariance, "avx512bf16"),
        cmocka_unit_test(test_fork_is_prefill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
