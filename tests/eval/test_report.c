/* The report's numbers on records whose answers are worked out by hand. */
#include "eval/report_data.h"
#include "tests/eval/report_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define FULL KVE_NO_INT

static kve_report load(run_folder *f)
{
    kve_report r = {0};
    write_records(f);
    assert_int_equal(kve_report_load(f->path, &r), KVE_OK);
    assert_int_equal(kve_report_summarise(&r), KVE_OK);
    return r;
}

static size_t scope_of(const kve_report *r, const char *name, bool suite)
{
    for (size_t s = 0; s < r->n_scopes; s++)
        if (strcmp(r->scopes[s].name, name) == 0 && r->scopes[s].is_suite == suite)
            return s;
    fail_msg("no scope %s", name);
    return 0;
}

static const kve_report_cell *cell(const kve_report *r, const char *scope, bool suite, const char *policy,
                                   int64_t budget)
{
    for (size_t p = 0; p < r->n_policies; p++)
        for (size_t b = 0; b < r->n_slots; b++)
            if (strcmp(r->policies[p].name, policy) == 0 && r->budgets[b] == budget)
                return kve_report_at(r, scope_of(r, scope, suite), p, b);
    fail_msg("no cell %s at %lld", policy, (long long)budget);
    return NULL;
}

static void put(run_folder *f, const char *task, const char *sample, const char *policy, int64_t budget, double score)
{
    kve_record r = a_record(task, sample, policy, budget, score);
    add_record(f, &r);
}

static void near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-12))
        fail_msg("%.17g is not %.17g", a, b);
}

static void test_means_and_suites(void **state)
{
    run_folder *f = *state;
    put(f, "r-1k/a", "1", "knorm", 64, 0.5);
    put(f, "r-1k/a", "2", "knorm", 64, 1.0);
    put(f, "r-1k/b", "1", "knorm", 64, 0.0);
    put(f, "r-1k/b", "2", "knorm", 64, 0.25);
    put(f, "r-1k/b", "3", "knorm", 64, 0.0);
    put(f, "r-1k/b", "4", "knorm", 64, 0.0);
    put(f, "r/c", "1", "knorm", 64, 1.0); /* another suite, though "r" begins "r-1k" */
    kve_report r = load(f);
    near(cell(&r, "r-1k/a", false, "knorm", 64)->stat[KVE_M_SCORE].mean, 0.75);
    near(cell(&r, "r-1k/b", false, "knorm", 64)->stat[KVE_M_SCORE].mean, 0.0625);
    const kve_report_stat *all = &cell(&r, "r-1k", true, "knorm", 64)->stat[KVE_M_SCORE];
    near(all->mean, (0.75 + 0.0625) / 2); /* of the task means, not of the six samples */
    assert_int_equal(all->n, 6);
    assert_true(all->low < all->mean && all->mean < all->high);
    assert_true(all->low >= 0.25 && all->high <= 0.625); /* what resampling inside the tasks can reach */
    assert_int_equal(r.n_scopes, 3 + 2);
    near(cell(&r, "r", true, "knorm", 64)->stat[KVE_M_SCORE].mean, 1.0);
    kve_report_free(&r);
}

static void put_subject(run_folder *f, const char *task, int sample, double score)
{
    char id[16];
    snprintf(id, sizeof id, "%d", sample);
    kve_record r = a_record(task, id, "knorm", 64, score);
    r.subject = strchr(task, '/') + 1;
    r.metric = "acc";
    r.acc = score;
    r.acc_norm = score / 2;
    add_record(f, &r);
}

/* Subjects weigh as many samples as they have; other suites weigh their tasks alike. */
static void test_subjects_are_pooled(void **state)
{
    run_folder *f = *state;
    for (int i = 0; i < 9; i++)
        put_subject(f, "mmlu/law", i, i < 3);
    put_subject(f, "mmlu/art", 0, 1);
    put(f, "other/a", "1", "knorm", 64, 0.25);
    kve_report r = load(f);
    near(cell(&r, "mmlu/law", false, "knorm", 64)->stat[KVE_M_SCORE].mean, 1.0 / 3);
    const kve_report_stat *all = &cell(&r, "mmlu", true, "knorm", 64)->stat[KVE_M_SCORE];
    near(all->mean, 4.0 / 10); /* not (1/3 + 1) / 2 */
    assert_int_equal(all->n, 10);
    assert_true(all->low >= 0 && all->low < 0.3 && all->high > 0.5); /* though one subject has a single sample */
    assert_int_equal(cell(&r, "mmlu", true, "knorm", 64)->stat[KVE_M_ACC].n, 0); /* it is the score itself */
    assert_true(r.scopes[scope_of(&r, "mmlu", true)].pooled);
    assert_false(r.scopes[scope_of(&r, "other", true)].pooled);
    kve_report_free(&r);
}

/* Of subjects all samples are drawn together: two constant subjects do have an interval. */
static void test_pooled_interval(void **state)
{
    run_folder *f = *state;
    for (int i = 0; i < 50; i++) {
        put_subject(f, "mmlu/law", i, 1);
        put_subject(f, "mmlu/art", i, 0);
    }
    kve_report r = load(f);
    const kve_report_stat *all = &cell(&r, "mmlu", true, "knorm", 64)->stat[KVE_M_SCORE];
    near(all->mean, 0.5);
    double width = all->high - all->low; /* 2 * 1.96 * 0.5 / sqrt(100) = 0.196 */
    assert_true(width > 0.15 && width < 0.24);
    kve_report_free(&r);
}

/* Two tasks of constant, different scores: a bootstrap over all samples together would give a wide interval. */
static void test_interval_stays_inside_tasks(void **state)
{
    run_folder *f = *state;
    char sample[16];
    for (int i = 0; i < 10; i++) {
        snprintf(sample, sizeof sample, "%d", i);
        put(f, "s/easy", sample, "knorm", 64, 1.0);
        put(f, "s/hard", sample, "knorm", 64, 0.0);
        put(f, "s/easy", sample, "tova", 64, 0.1 * i); /* and some that vary do have one */
        put(f, "s/hard", sample, "tova", 64, 0.0);
        put(f, "s/easy", sample, "twice", 64, 0.1 * i);
        put(f, "s/hard", sample, "twice", 64, 0.1 * i);
    }
    kve_report r = load(f);
    const kve_report_stat *s = &cell(&r, "s", true, "knorm", 64)->stat[KVE_M_SCORE];
    near(s->mean, 0.5);
    near(s->low, 0.5);
    near(s->high, 0.5);
    s = &cell(&r, "s", true, "tova", 64)->stat[KVE_M_SCORE];
    near(s->mean, 0.225);
    double width = s->high - s->low; /* 1.96 standard errors to both sides: 2 * 1.96 * 0.2872 / sqrt(10) / 2 = 0.178 */
    assert_true(width > 0.13 && width < 0.22);
    s = &cell(&r, "s", true, "twice", 64)->stat[KVE_M_SCORE]; /* tasks are drawn independently: sqrt(2) times as wide */
    double ratio = (s->high - s->low) / width;
    assert_true(ratio > 1.2 && ratio < 1.65); /* 2 if both tasks drew the same samples */
    kve_report_free(&r);
}

static void test_failed_and_unknown_are_counted(void **state)
{
    run_folder *f = *state;
    put(f, "t/a", "1", "knorm", 64, 0.5);
    put(f, "t/a", "2", "knorm", 64, NAN);
    kve_record bad = a_record("t/a", "3", "knorm", 64, 0.0);
    bad.status = "failed";
    bad.reason = "no memory";
    add_record(f, &bad);
    for (int i = 1; i <= 3; i++)
        put(f, "t/a", i == 1 ? "1" : i == 2 ? "2" : "3", "tova", 64, 0.25);
    kve_report r = load(f);
    const kve_report_cell *c = cell(&r, "t/a", false, "knorm", 64);
    near(c->stat[KVE_M_SCORE].mean, 0.5);
    assert_int_equal(c->stat[KVE_M_SCORE].n, 1);
    assert_int_equal(c->n_ok, 2);
    assert_int_equal(c->n_failed, 1);
    assert_int_equal(c->n_unknown, 1);
    assert_true(c->partial);
    assert_false(cell(&r, "t/a", false, "tova", 64)->partial);
    assert_true(cell(&r, "t", true, "knorm", 64)->partial);
    kve_report_free(&r);
}

static void test_missing_task_leaves_the_suite_out(void **state)
{
    run_folder *f = *state;
    put(f, "t/a", "1", "knorm", 64, 0.5);
    put(f, "t/a", "1", "knorm", 128, 0.5);
    put(f, "t/b", "1", "knorm", 64, 0.7);
    kve_report r = load(f);
    near(cell(&r, "t", true, "knorm", 64)->stat[KVE_M_SCORE].mean, 0.6);
    const kve_report_cell *c = cell(&r, "t", true, "knorm", 128);
    assert_int_equal(c->stat[KVE_M_SCORE].n, 0);
    assert_true(isnan(c->stat[KVE_M_SCORE].mean));
    assert_true(c->partial);
    assert_int_equal(c->n_tasks, 1);
    kve_report_free(&r);
}

static void put_nll(run_folder *f, const char *sample, const char *policy, int64_t budget, double sum, int64_t n)
{
    kve_record r = a_record("ppl", sample, policy, budget, 123.0); /* a sample's own perplexity is never averaged */
    r.metric = "nll";
    r.nll_sum = sum;
    r.n_scored = n;
    add_record(f, &r);
}

static void test_perplexity_weighs_tokens(void **state)
{
    run_folder *f = *state;
    put_nll(f, "1", "full", FULL, 10.0, 10);
    put_nll(f, "2", "full", FULL, 60.0, 30);
    put_nll(f, "1", "knorm", 64, 15.0, 10);
    put_nll(f, "2", "knorm", 64, 75.0, 30);
    put_nll(f, "3", "knorm", 64, 1.0, 0); /* no token: unknown, not a division by zero */
    kve_report r = load(f);
    const kve_report_cell *c = cell(&r, "ppl", true, "full", FULL);
    near(c->stat[KVE_M_NLL].mean, exp(70.0 / 40.0));
    assert_int_equal(c->stat[KVE_M_SCORE].n, 0);
    assert_true(c->stat[KVE_M_NLL].low >= exp(1.0) - 1e-9 && c->stat[KVE_M_NLL].high <= exp(2.0) + 1e-9);
    c = cell(&r, "ppl", true, "knorm", 64);
    near(c->stat[KVE_M_NLL].mean, exp(90.0 / 40.0));
    assert_int_equal(c->n_unknown, 1);
    near(c->diff[KVE_VS_FULL][KVE_M_NLL].mean, 20.0 / 40.0); /* both samples lost 0.5 nats per token */
    near(c->diff[KVE_VS_FULL][KVE_M_NLL].low, 0.5);
    kve_report_free(&r);
}

static void test_differences_pair_samples(void **state)
{
    run_folder *f = *state;
    static const double full[] = {1.0, 0.5, 0.9};
    char sample[16];
    for (int i = 0; i < 3; i++) {
        snprintf(sample, sizeof sample, "%d", i);
        put(f, "t", sample, "full", FULL, full[i]);
        put(f, "t", sample, "knorm", 64, full[i] - 0.25);
        if (i < 2)
            put(f, "t", sample, "random", 64, full[i] - 0.5);
    }
    put(f, "t", "only-here", "random", 64, 1.0); /* in no pair */
    kve_report r = load(f);
    const kve_report_stat *d = cell(&r, "t", true, "knorm", 64)->diff[KVE_VS_FULL];
    near(d[KVE_M_SCORE].mean, -0.25);
    near(d[KVE_M_SCORE].low, -0.25);
    near(d[KVE_M_SCORE].high, -0.25);
    assert_int_equal(d[KVE_M_SCORE].n, 3);
    d = cell(&r, "t", true, "random", 64)->diff[KVE_VS_FULL];
    near(d[KVE_M_SCORE].mean, -0.5);
    assert_int_equal(d[KVE_M_SCORE].n, 2);
    d = cell(&r, "t", true, "random", 64)->diff[KVE_VS_FREE]; /* knorm is the better one: 0.55 against 0.5 */
    near(d[KVE_M_SCORE].mean, -0.25);
    assert_int_equal(d[KVE_M_SCORE].n, 2);
    assert_int_equal(cell(&r, "t", true, "knorm", 64)->diff[KVE_VS_FREE][KVE_M_SCORE].n, 0);
    kve_report_free(&r);
}

static void test_last_attempt_counts(void **state)
{
    run_folder *f = *state;
    kve_record again = a_record("t", "1", "knorm", 64, 0.75), first = again;
    again.attempt = 2;
    first.status = "failed";
    add_record(f, &again);
    add_record(f, &first); /* an earlier attempt further down */
    put(f, "t", "2", "knorm", 64, 0.0);
    put(f, "t", "2", "knorm", 64, 0.25); /* the same attempt again: the later line */
    kve_report r = load(f);
    const kve_report_cell *c = cell(&r, "t", true, "knorm", 64);
    near(c->stat[KVE_M_SCORE].mean, 0.5);
    assert_int_equal(c->n_failed, 0);
    assert_int_equal(r.n_superseded, 1);
    assert_int_equal(r.n_repeated, 1);
    kve_report_free(&r);
}

static void test_kept_tokens(void **state)
{
    run_folder *f = *state;
    static const struct {
        const char *policy;
        int64_t budget, low, high;
        bool uneven, below, above, fits;
    } rows[] = {{"even", 64, 64, 64, false, false, false, false},
                {"uneven", 64, 60, 64, true, true, false, false},
                {"greedy", 64, 64, 70, true, false, true, false},
                {"short", 2048, 1000, 1000, false, false, false, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kve_record rec = a_record("t", "1", rows[i].policy, rows[i].budget, 1.0);
        rec.kept_min = rows[i].low;
        rec.kept_max = rows[i].high;
        add_record(f, &rec);
    }
    kve_report r = load(f);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const kve_report_cell *c = cell(&r, "t", true, rows[i].policy, rows[i].budget);
        assert_int_equal(c->kept_min, rows[i].low);
        assert_int_equal(c->kept_max, rows[i].high);
        assert_int_equal(c->uneven, rows[i].uneven);
        assert_int_equal(c->below, rows[i].below);
        assert_int_equal(c->above, rows[i].above);
        assert_int_equal(c->short_prompts, rows[i].fits);
        assert_int_equal(kve_report_uncompressed(c), rows[i].fits);
    }
    kve_report_free(&r);
}

static void test_times_and_rates(void **state)
{
    run_folder *f = *state;
    for (int i = 0; i < 3; i++) {
        kve_record rec = a_record("t", i == 0 ? "1" : i == 1 ? "2" : "3", "knorm", 64, 1.0);
        rec.prefill_us = 500000;
        rec.score_us = i == 2 ? KVE_NO_INT : 1000 + 500 * i; /* unknown: not in the median */
        rec.decode_us = 2000000;                             /* of a batch of 4 forks */
        rec.decode_forks = 4;
        rec.n_generated = 10;
        add_record(f, &rec);
    }
    kve_report r = load(f);
    const kve_report_cell *c = cell(&r, "t", true, "knorm", 64);
    near(c->timing[KVE_T_SCORE], 1250);
    assert_true(isnan(c->timing[KVE_T_RANK]));
    near(c->kv_bytes, 6400);
    const kve_report_scope *s = &r.scopes[scope_of(&r, "t", true)];
    near(s->prefill_rate, 2000.0);
    near(s->decode_rate, 30.0 / 1.5);
    assert_false(s->single_forks);
    kve_report_free(&r);
}

static void test_order(void **state)
{
    run_folder *f = *state;
    static const char *const order[] = {"full", "a_free", "z_free", "b_prefill", "a_second", "a_future"};
    static const char *const infos[] = {"none",        "attention-free",  "attention-free", "prefill-attention",
                                        "second-pass", "future-attention"};
    for (size_t i = 6; i-- > 0;) {
        kve_record rec = a_record("t", "1", order[i], i == 0 ? FULL : i % 2 ? 1024 : 64, 1.0);
        rec.info = infos[i];
        add_record(f, &rec);
    }
    kve_report r = load(f);
    assert_int_equal(r.n_policies, 6);
    for (size_t i = 0; i < 6; i++)
        assert_string_equal(r.policies[i].name, order[i]);
    assert_string_equal(kve_report_mark(&r.policies[2]), "");
    assert_string_equal(kve_report_mark(&r.policies[3]), "\xe2\x80\xa0");
    assert_string_equal(kve_report_mark(&r.policies[4]), "\xc2\xa7");
    assert_string_equal(kve_report_mark(&r.policies[5]), "\xe2\x80\xa1");
    assert_int_equal(r.n_slots, 3);
    assert_true(r.budgets[1] == 64 && r.budgets[2] == 1024);
    kve_report_free(&r);
}

/* Uneven lengths are a fault of a policy whose budget is every head's, and the point of one that shares it. */
static void test_shared_budgets(void **state)
{
    run_folder *f = *state;
    for (int shared = 0; shared < 2; shared++) {
        kve_record rec = a_record("t", "1", shared ? "heads" : "each", 64, 1.0);
        rec.info = "prefill-attention";
        rec.allocation = shared ? "heads" : "uniform";
        rec.n_context = 1000;
        rec.kept_min = 20;
        rec.kept_max = 100;
        add_record(f, &rec);
    }
    kve_report r = load(f);
    for (size_t p = 0; p < r.n_policies; p++) {
        const kve_report_cell *c = kve_report_at(&r, scope_of(&r, "t", false), p, 1);
        bool shared = strcmp(r.policies[p].name, "heads") == 0;
        assert_true(c->above == !shared && c->below == !shared && c->uneven == !shared && c->n_compressed == 1);
        assert_string_equal(kve_report_mark(&r.policies[p]), shared ? "\xe2\x80\xa0\xc2\xb6" : "\xe2\x80\xa0");
    }
    kve_report_free(&r);
}

#define TEST(NAME) cmocka_unit_test_setup_teardown(NAME, folder_setup, folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_means_and_suites),
        TEST(test_shared_budgets),
        TEST(test_subjects_are_pooled),
        TEST(test_pooled_interval),
        TEST(test_interval_stays_inside_tasks),
        TEST(test_failed_and_unknown_are_counted),
        TEST(test_missing_task_leaves_the_suite_out),
        TEST(test_perplexity_weighs_tokens),
        TEST(test_differences_pair_samples),
        TEST(test_last_attempt_counts),
        TEST(test_kept_tokens),
        TEST(test_times_and_rates),
        TEST(test_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
