/* The trainer on synthetic traces, whose importance is a function of the keys: it learns, it resumes bit for bit, it
 * refuses what does not belong together. */
#include "host/base/file.h"
#include "host/base/log.h"
#include "kernels/backend.h"
#include "kernels/ops.h"
#include "policies/kvp/traces.h"
#include "policies/kvp/train.h"
#include "tests/kvp/fixture.h"

#include <math.h>

enum { ALL = KVE_KVP_K | KVE_KVP_V | KVE_KVP_POS, N_TRAIN = 6, N_HELD = 3 };

static char g_train[512], g_held[512], g_out[512], g_log[512];

static void write_data(void)
{
    char path[600];
    in_dir("train", g_train);
    in_dir("held", g_held);
    in_dir("out/kvp.safetensors", g_out);
    in_dir("out/log.csv", g_log);
    for (int i = 0; i < N_TRAIN + N_HELD; i++) {
        /* folders in folders, and lengths that differ */
        snprintf(path, sizeof path, "%s/task%d/%d.safetensors", i < N_TRAIN ? g_train : g_held, i % 2, i);
        write_trace(path, &(trace_spec){.seed = (uint64_t)i, .n = 90 + 7 * i});
    }
}

static kve_kvp_train_options options(kvp_objective objective, int32_t steps)
{
    return (kve_kvp_train_options){.traces = g_train,
                                   .held_out = g_held,
                                   .out = g_out,
                                   .log = g_log,
                                   .objective = objective,
                                   .inputs = ALL,
                                   .width = 16,
                                   .steps = steps,
                                   .samples = 8,
                                   .every = 10,
                                   .threads = 1,
                                   .lr = 3e-3,
                                   .seed = 1};
}

/* Of a line of the log (0: before the first step): held-out loss over the oracle's, and the best so far. */
static void logged(int line, double *held, double *best)
{
    size_t len;
    char *text = bytes_of(g_log, &len), *at = text;
    for (int i = 0; i <= line; i++) {
        at = strchr(at, '\n');
        assert_non_null(at);
        at++;
    }
    for (int i = 0; i < 3; i++)
        at = strchr(at, ',') + 1;
    assert_int_equal(sscanf(at, "%lf,%lf", held, best), 2);
    free(text);
}

static void learns(kvp_objective objective, unsigned inputs, double from, double to)
{
    double first, held, best;
    kve_kvp_train_options o = options(objective, 300);
    o.inputs = inputs;
    o.every = 50;
    must(kve_kvp_train(&o));
    logged(0, &first, &best);
    logged(6, &held, &best);
    double left = (best - 1) / (first - 1);
    if (!(left >= from && left <= to))
        fail_msg("%s, inputs %u: held out %.4f at first, %.4f at best: %.3f of the loss above the oracle's is left, "
                 "%.2f to %.2f are due",
                 kvp_objective_name(objective), inputs, first, best, left, from, to);
    assert_true(best <= held + 1e-9);
}

static void test_learns_from_keys(void **state)
{
    (void)state;
    for (int o = 0; o <= KVP_TOPB; o++) {
        write_data();
        learns((kvp_objective)o, ALL, 0, 0.25);
        remove_dir(NULL);
        make_dir(NULL);
    }
}

static void test_cannot_learn_from_positions(void **state)
{
    (void)state;
    write_data();
    learns(KVP_RL, KVE_KVP_POS, 0.6, 1);
}

/* Where only the position tells, the file must mean by a row's position what the policy will mean: the op's ranking
 * loses what the log says. */
static void test_positions_are_the_ops(void **state)
{
    (void)state;
    enum { N = 120, M = N - KVE_KVP_SINK - KVE_KVP_RECENT, HEADS = TRACE_L * TRACE_HKV };
    char path[600];
    static float table[N * KVE_KVP_P], scores[HEADS * N], importance[HEADS * N];
    int32_t order[M];
    double held, best, measured = 0;
    kve_arena arena = {0};
    kve_kvp_net net;
    kvp_traces data;
    kvp_rank_work w;
    kve_backend *be = NULL;
    write_data();
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/position/%d.safetensors", i ? g_held : g_train, i);
        write_trace(path, &(trace_spec){.n = N, .by_position = true});
        snprintf(i ? g_held : g_train, sizeof g_held, "%s/%s/position", g_dir, i ? "held" : "train");
    }
    kve_kvp_train_options o = options(KVP_REGRESSION, 200);
    o.inputs = KVE_KVP_POS;
    must(kve_kvp_train(&o));
    logged(20, &held, &best);
    assert_true(best < 1.1);
    must(kve_kvp_net_read(g_out, &arena, &net));
    must(kve_cpu_open(&(kve_backend_options){1}, &be));
    kve_kvp_positions(N, KVE_KVP_P, table);
    must(be->vt->kvp_score(be, &(kve_kvp_score_params){.weights = net.weights,
                                                       .table = table,
                                                       .out = scores,
                                                       .n = N,
                                                       .Hkv = TRACE_HKV,
                                                       .D = TRACE_D,
                                                       .H = o.width,
                                                       .P = KVE_KVP_P,
                                                       .n_layers = TRACE_L,
                                                       .n_tables = 1,
                                                       .n_positions = N,
                                                       .inputs = KVE_KVP_POS}));
    must(kvp_traces_open(g_held, 20, &data));
    must(kvp_rank_work_create(M, 2, &w));
    for (int32_t h = 0; h < HEADS; h++) {
        must(kvp_trace_importance(&data, 0, h, importance + h * N));
        kvp_target t = kvp_target_make(importance + h * N, N, KVE_KVP_SINK, KVE_KVP_RECENT, &w);
        kvp_sort(scores + h * N + KVE_KVP_SINK, M, &w, order);
        measured += kvp_ratio(&t, order) / HEADS;
    }
    assert_true(fabs(measured - best) < 0.005);
    kvp_traces_close(&data);
    kvp_rank_work_free(&w);
    be->vt->close(be);
    kve_arena_free(&arena);
}

static void same_files(const char *a, const char *b)
{
    size_t len_a, len_b;
    char *text_a = bytes_of(a, &len_a), *text_b = bytes_of(b, &len_b);
    assert_int_equal(len_a, len_b);
    assert_memory_equal(text_a, text_b, len_a);
    free(text_a);
    free(text_b);
}

/* All of a log's lines but their last field, the time. */
static void same_logs(const char *a, const char *b)
{
    size_t len;
    char *text[2] = {bytes_of(a, &len), bytes_of(b, &len)}, *save[2], *line[2];
    for (int i = 0; i < 2; i++)
        line[i] = strtok_r(text[i], "\n", &save[i]);
    while (line[0] && line[1]) {
        for (int i = 0; i < 2; i++) {
            *strrchr(line[i], ',') = 0;
        }
        assert_string_equal(line[0], line[1]);
        for (int i = 0; i < 2; i++)
            line[i] = strtok_r(NULL, "\n", &save[i]);
    }
    assert_true(!line[0] && !line[1]);
    free(text[0]);
    free(text[1]);
}

/* Stopped after every single step, each time with another thread count: the same file and log as in one go. */
static void resumes(kvp_objective objective)
{
    char whole[512], log[512];
    volatile sig_atomic_t stop = 1;
    kve_kvp_train_options o = options(objective, 130); /* past step 100, where the EMA begins */
    o.out = in_dir("whole.safetensors", whole);
    o.log = in_dir("whole.csv", log);
    o.every = 30;
    must(kve_kvp_train(&o));
    o.out = g_out;
    o.log = g_log;
    o.stop = &stop;
    kve_status st = KVE_ERR_STOPPED;
    int runs = 0;
    for (; st == KVE_ERR_STOPPED; runs++) {
        o.threads = 1 + runs % 3;
        st = kve_kvp_train(&o);
        assert_true(st == KVE_OK || strstr(kve_diag(), "goes on from here"));
    }
    must(st);
    assert_int_equal(runs, 130);
    same_files(whole, g_out);
    same_logs(log, g_log);
    char checkpoint[600];
    snprintf(checkpoint, sizeof checkpoint, "%s.checkpoint", g_out);
    assert_false(kve_path_exists(checkpoint));
}

static void test_resumes_bit_for_bit(void **state)
{
    (void)state;
    for (int o = 0; o <= KVP_TOPB; o++) {
        write_data();
        resumes((kvp_objective)o);
        remove_dir(NULL);
        make_dir(NULL);
    }
}

static void test_seed_and_order(void **state)
{
    (void)state;
    char other[512];
    size_t len_a, len_b;
    write_data();
    kve_kvp_train_options o = options(KVP_RL, 5);
    must(kve_kvp_train(&o));
    o.out = in_dir("other.safetensors", other);
    o.seed = 2;
    must(kve_kvp_train(&o));
    char *a = bytes_of(g_out, &len_a), *b = bytes_of(other, &len_b);
    assert_true(len_a != len_b || memcmp(a, b, len_a) != 0);
    free(a);
    free(b);
}

/* --- Refusals */

/* Every setting, changed by itself, against the file that the plain settings made. */
static void refuses_changes(const kve_kvp_train_options *plain, const char *file)
{
    static const char *const names[] = {"objective", "inputs", "width", "steps", "samples", "every", "lr", "seed"};
    char words[64];
    for (size_t i = 0; i < COUNT(names); i++) {
        kve_kvp_train_options o = *plain;
        o.objective = i == 0 ? KVP_TOPB : o.objective;
        o.inputs = i == 1 ? KVE_KVP_K : o.inputs;
        o.width += i == 2 ? 16 : 0;
        o.steps += i == 3;
        o.samples += i == 4;
        o.every += i == 5;
        o.lr *= i == 6 ? 2 : 1;
        o.seed += i == 7;
        snprintf(words, sizeof words, "was made with %s = ", names[i]);
        must_fail(kve_kvp_train(&o), KVE_ERR_USAGE, words);
        assert_non_null(strstr(kve_diag(), file));
    }
    kve_kvp_train_options o = *plain;
    o.held_out = NULL;
    must_fail(kve_kvp_train(&o), KVE_ERR_USAGE, "held_out = 3, the command says 0");
    o = *plain;
    o.traces = plain->held_out;
    o.held_out = plain->traces;
    must_fail(kve_kvp_train(&o), KVE_ERR_USAGE, "traces = 6, the command says 3");
}

static void test_changed_settings(void **state)
{
    (void)state;
    char extra[600];
    size_t len, len_after;
    volatile sig_atomic_t stop = 1;
    write_data();
    kve_kvp_train_options o = options(KVP_RL, 20);
    o.stop = &stop;
    must_fail(kve_kvp_train(&o), KVE_ERR_STOPPED, "after step 1 of 20");
    o.stop = NULL;
    refuses_changes(&o, "kvp.safetensors.checkpoint");
    must(kve_kvp_train(&o));
    refuses_changes(&o, "kvp.safetensors");
    char *before = bytes_of(g_out, &len);
    must(kve_kvp_train(&o)); /* the same again: nothing is done */
    char *after = bytes_of(g_out, &len_after);
    assert_int_equal(len, len_after);
    assert_memory_equal(before, after, len);
    free(before);
    free(after);
    /* one trace of the same name with another content */
    snprintf(extra, sizeof extra, "%s/task0/0.safetensors", g_train);
    write_trace(extra, &(trace_spec){.seed = 77});
    must_fail(kve_kvp_train(&o), KVE_ERR_USAGE, "data_sha256");
}

static void test_damaged_checkpoint(void **state)
{
    (void)state;
    char checkpoint[600];
    size_t len;
    volatile sig_atomic_t stop = 1;
    write_data();
    kve_kvp_train_options o = options(KVP_RL, 20);
    o.stop = &stop;
    must_fail(kve_kvp_train(&o), KVE_ERR_STOPPED, "step 1");
    snprintf(checkpoint, sizeof checkpoint, "%s.checkpoint", g_out);
    free(bytes_of(checkpoint, &len));
    cut_file(checkpoint, len / 2);
    must_fail(kve_kvp_train(&o), KVE_ERR_FILE, "kvp.safetensors.checkpoint");
}

/* A trace more in the training folder, and what the trainer says to it. */
static void refused_trace(const trace_spec *spec, kve_status want, const char *words)
{
    char path[600];
    write_data();
    snprintf(path, sizeof path, "%s/zz.safetensors", g_train);
    write_trace(path, spec);
    kve_kvp_train_options o = options(KVP_REGRESSION, 20);
    must_fail(kve_kvp_train(&o), want, words);
    assert_non_null(strstr(kve_diag(), "zz.safetensors"));
    assert_false(kve_path_exists(g_out));
    remove_dir(NULL);
    make_dir(NULL);
}

static void test_refused_traces(void **state)
{
    (void)state;
    float nan = NAN, negative = -1, infinite = INFINITY;
    refused_trace(&(trace_spec){.seed = 50, .sha256 = "bb"}, KVE_ERR_FILE, "one model's traces");
    refused_trace(&(trace_spec){.seed = 50, .n = 20}, KVE_ERR_FILE, "20 tokens; at least 21");
    refused_trace(&(trace_spec){.seed = 50, .spoil_key = &nan}, KVE_ERR_FILE, "'keys', layer 1, KV head 0, token 40");
    refused_trace(&(trace_spec){.seed = 50, .spoil_key = &infinite}, KVE_ERR_FILE, "token 40");
    refused_trace(&(trace_spec){.seed = 50, .spoil_importance = &negative}, KVE_ERR_FILE,
                  "'importance', layer 1, KV head 0, token 40 is -1");
    refused_trace(&(trace_spec){.seed = 50, .spoil_importance = &nan}, KVE_ERR_FILE, "token 40 is nan");
}

static void test_held_out_is_held_out(void **state)
{
    (void)state;
    char path[600];
    write_data();
    kve_kvp_train_options o = options(KVP_RL, 5);
    o.held_out = g_train;
    must_fail(kve_kvp_train(&o), KVE_ERR_USAGE, "may not be trained on");
    o = options(KVP_RL, 5);
    must(kve_mkdirs(in_dir("empty", path)));
    o.traces = path;
    must_fail(kve_kvp_train(&o), KVE_ERR_FILE, "no .safetensors file");
    in_dir("nowhere", path);
    must_fail(kve_kvp_train(&o), KVE_ERR_FILE, "nowhere");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_learns_from_keys, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_cannot_learn_from_positions, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_positions_are_the_ops, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_resumes_bit_for_bit, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_seed_and_order, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_changed_settings, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_damaged_checkpoint, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_refused_traces, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_held_out_is_held_out, make_dir, remove_dir),
    };
    kve_log_quiet(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
