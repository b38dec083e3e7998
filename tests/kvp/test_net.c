/* The weight file and the policy that it becomes. */
#include "host/base/file.h"
#include "host/model/safetensors.h"
#include "policies/kvp/kvp.h"
#include "tests/kvp/fixture.h"

#include <math.h>

enum { L = 3, HKV = 2, D = 16, H = 32, P = 32, N = 70 };
static const kve_kvp_shape g_shape = {D, H, P};
static const kve_shape g_model = {.L = L, .Hq = 4, .Hkv = HKV, .D = D, .R = D};

static kve_kvp_net make_net(unsigned inputs)
{
    size_t each = kve_kvp_count(g_shape);
    kve_rng rng;
    kve_kvp_net net = {.shape = g_shape,
                       .L = L,
                       .Hkv = HKV,
                       .inputs = inputs,
                       .model = "tiny",
                       .model_sha256 = "abc",
                       .objective = "rl",
                       .recipe = "{\"lr\":0.5}",
                       .data_sha256 = "def",
                       .seed = "7",
                       .step = "40"};
    kve_rng_init(&rng, 4, 0, 0, 0);
    must(kve_alloc((size_t)L * HKV * each, sizeof(float), &net.weights));
    for (int h = 0; h < L * HKV; h++)
        random_weights(g_shape, &rng, net.weights + (size_t)h * each);
    return net;
}

/* A file with these inputs, under a name in the test's folder. */
static const char *write_net(const char *name, unsigned inputs, char path[512])
{
    kve_kvp_net net = make_net(inputs);
    must(kve_kvp_net_write(in_dir(name, path), &net));
    free(net.weights);
    return path;
}

static void test_round_trip(void **state)
{
    (void)state;
    char path[512];
    kve_arena arena = {0};
    kve_kvp_net net = make_net(KVE_KVP_K | KVE_KVP_V | KVE_KVP_POS), got;
    net.weights[3] = 1e-7f;           /* subnormal as F16 */
    net.weights[4] = -1e-9f;          /* nothing as F16 */
    net.weights[5] = 2048.9f;         /* between 2048 and 2050 */
    net.weights[6] = 1.0f + 0x1p-11f; /* half way: the even one */
    must(kve_kvp_net_write(in_dir("a.safetensors", path), &net));
    must(kve_kvp_net_read(path, &arena, &got));
    assert_true(got.L == L && got.Hkv == HKV && got.shape.D == D && got.shape.H == H && got.shape.P == P);
    assert_true(got.inputs == net.inputs && !got.table);
    assert_string_equal(got.model, "tiny");
    assert_string_equal(got.objective, "rl");
    assert_string_equal(got.recipe, net.recipe);
    assert_string_equal(got.data_sha256, "def");
    assert_string_equal(got.seed, "7");
    assert_string_equal(got.step, "40");
    for (size_t i = 0; i < (size_t)L * HKV * kve_kvp_count(g_shape); i++)
        assert_true(fabsf(got.weights[i] - net.weights[i]) <= fabsf(net.weights[i]) * 0x1p-11f + 0x1p-25f);
    assert_true(got.weights[3] == 2 * 0x1p-24f && got.weights[4] == 0);
    assert_true(got.weights[5] == 2048 && got.weights[6] == 1);
    free(net.weights);
    kve_arena_free(&arena);
}

static void test_learned_table(void **state)
{
    (void)state;
    enum { POSITIONS = 9 };
    char path[512];
    kve_arena arena = {0};
    kve_kvp_net net = make_net(KVE_KVP_POS), got;
    float table[POSITIONS * P];
    for (int i = 0; i < POSITIONS * P; i++)
        table[i] = (float)i * 0.37f;
    net.table = table;
    net.n_tables = 1;
    net.n_positions = POSITIONS;
    must(kve_kvp_net_write(in_dir("a.safetensors", path), &net));
    must(kve_kvp_net_read(path, &arena, &got));
    assert_true(got.n_tables == 1 && got.n_positions == POSITIONS);
    assert_memory_equal(got.table, table, sizeof table);
    free(net.weights);
    kve_arena_free(&arena);
}

static void test_numbers_that_do_not_fit(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, 70000, -65504};
    char path[512];
    in_dir("a.safetensors", path);
    for (size_t i = 0; i < COUNT(bad); i++) {
        kve_kvp_net net = make_net(KVE_KVP_K);
        net.weights[100] = bad[i];
        must_fail(kve_kvp_net_write(path, &net), KVE_ERR_INTERNAL, "weight 100");
        assert_false(kve_path_exists(path)); /* nothing is left behind */
        free(net.weights);
    }
}

/* NaN as F16 in the file: found when it is read. */
static void test_nan_in_a_file(void **state)
{
    (void)state;
    char path[512];
    size_t len;
    kve_arena arena = {0};
    kve_kvp_net got;
    char *text = bytes_of(write_net("a.safetensors", KVE_KVP_K, path), &len);
    text[len - 201] = 0x7e; /* the high byte of a number near the end: NaN or a large one's neighbourhood */
    text[len - 202] = 0x01;
    must(kve_file_write(path, text, len));
    must_fail(kve_kvp_net_read(path, &arena, &got), KVE_ERR_FILE, "nan");
    free(text);
    kve_arena_free(&arena);
}

static void test_damaged_files(void **state)
{
    (void)state;
    char path[512];
    size_t len;
    kve_arena arena = {0};
    kve_kvp_net got;
    free(bytes_of(write_net("a.safetensors", KVE_KVP_K, path), &len));
    for (size_t cut = 0; cut < len; cut = cut < 2000 ? cut + 97 : cut + len / 9) {
        write_net("a.safetensors", KVE_KVP_K, path);
        cut_file(path, cut);
        must_fail(kve_kvp_net_read(path, &arena, &got), KVE_ERR_FILE, "a.safetensors");
    }
    kve_arena_free(&arena);
}

/* One metadata entry changed, in place and of the same length. */
static void refused_text(const char *from, const char *to, const char *words)
{
    char path[512];
    size_t len;
    kve_arena arena = {0};
    kve_kvp_net got;
    assert_int_equal(strlen(from), strlen(to));
    char *text = bytes_of(write_net("a.safetensors", KVE_KVP_K | KVE_KVP_V, path), &len);
    char *at = memmem(text, len, from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    must(kve_file_write(path, text, len));
    must_fail(kve_kvp_net_read(path, &arena, &got), KVE_ERR_FILE, words);
    free(text);
    kve_arena_free(&arena);
}

static void test_wrong_metadata(void **state)
{
    (void)state;
    refused_text("kveval-kvp-1", "kveval-kvp-9", "reads kveval-kvp-1");
    refused_text("\"layers\":\"3\"", "\"layers\":\"2\"", "[2][2]");
    refused_text("\"layers\":\"3\"", "\"layers\":\"x\"", "layers is 'x'");
    refused_text("\"kv_heads\"", "\"kv_hexds\"", "no metadata 'kv_heads'");
    refused_text("\"width\":\"32\"", "\"width\":\"33\"", "multiples of 16");
    refused_text("\"inputs\":\"kv\"", "\"inputs\":\"vk\"", "kvpos, kv, k or pos");
    refused_text("\"analytic\"", "\"analytix\"", "'table'");
    refused_text("\"position\":\"analytic\"", "\"pxsition\":\"analytic\"", "no metadata 'position'");
    refused_text("\"model_sha256\"", "\"model_sha512\"", "no metadata 'model_sha256'");
    refused_text("\"weights\":", "\"wexghts\":", "'weights'");
}

static void test_another_model(void **state)
{
    (void)state;
    char path[512];
    kve_arena arena = {0};
    const kve_policy *p = NULL;
    must(kve_kvp_policy(write_net("a.safetensors", KVE_KVP_K, path), NULL, &arena, &p));
    must(p->fits(p, &g_model, "abc"));
    must(p->fits(p, &g_model, NULL));
    must_fail(p->fits(p, &g_model, "abd"), KVE_ERR_FILE, "another model file: tiny with SHA-256 abc; this one has abd");
    kve_shape other = g_model;
    other.L = 4;
    must_fail(p->fits(p, &other, "abc"), KVE_ERR_FILE,
              "3 layers, 2 KV heads of 16 dimensions; this one has 4, 2 and 16");
    other = g_model;
    other.D = 32;
    must_fail(p->fits(p, &other, NULL), KVE_ERR_FILE, "another model");
    kve_arena_free(&arena);
}

static void test_needs_and_names(void **state)
{
    (void)state;
    static const struct {
        unsigned inputs, needs;
    } want[] = {{KVE_KVP_K | KVE_KVP_V | KVE_KVP_POS, KVE_NEED_KEYS | KVE_NEED_VALUES},
                {KVE_KVP_K | KVE_KVP_V, KVE_NEED_KEYS | KVE_NEED_VALUES},
                {KVE_KVP_K, KVE_NEED_KEYS},
                {KVE_KVP_POS, 0}};
    char path[512];
    kve_arena arena = {0};
    const kve_policy *p = NULL;
    for (size_t i = 0; i < COUNT(want); i++) {
        must(kve_kvp_policy(write_net("some-name.v2.safetensors", want[i].inputs, path), NULL, &arena, &p));
        assert_int_equal(p->needs, want[i].needs);
        assert_string_equal(kve_policy_info(p), "attention-free");
        assert_string_equal(p->name, "kvp:some-name.v2");
        assert_int_equal(strlen(kve_kvp_policy_sha256(p)), 64);
    }
    assert_null(kve_kvp_policy_sha256(&kve_policy_knorm));
    must_fail(kve_kvp_policy(in_dir("none.safetensors", path), NULL, &arena, &p), KVE_ERR_FILE, "none.safetensors");
    kve_arena_free(&arena);
}

/* --- Scores */

typedef struct scene {
    kve_backend *be;
    float *keys, *values; /* device [L][Hkv][N][D] */
} scene;

static scene open_scene(void)
{
    const size_t count = (size_t)L * HKV * N * D;
    scene s = {0};
    float *host = NULL;
    kve_rng rng;
    kve_rng_init(&rng, 6, 0, 0, 0);
    must(kve_cpu_open(&(kve_backend_options){1}, &s.be));
    must(kve_alloc(count, sizeof *host, &host));
    must(s.be->vt->alloc(s.be, count * sizeof *host, &s.keys));
    must(s.be->vt->alloc(s.be, count * sizeof *host, &s.values));
    for (int i = 0; i < 2; i++) {
        for (size_t j = 0; j < count; j++)
            host[j] = (float)uniform(&rng, 1);
        must(s.be->vt->write(s.be, i ? s.values : s.keys, host, count * sizeof *host));
    }
    free(host);
    return s;
}

static void close_scene(scene *s)
{
    s->be->vt->free(s->be, s->keys);
    s->be->vt->free(s->be, s->values);
    assert_int_equal(s->be->vt->bytes_in_use(s->be), 0); /* nothing of the policy is left */
    s->be->vt->close(s->be);
}

/* Through the gate, as an evaluation does. */
static void score_layer(const scene *s, const kve_policy *p, int32_t i_layer, float *out)
{
    float *scores = NULL;
    must(s->be->vt->alloc(s->be, (size_t)HKV * N * sizeof *out, &scores));
    const kve_policy_view v = {
        .be = s->be, .shape = &g_model, .kv = {s->keys, s->values, N}, .n = N, .i_layer = i_layer, .kv_dtype = KVE_F32};
    must(kve_policy_score(p, &v, scores));
    must(s->be->vt->read(s->be, out, scores, (size_t)HKV * N * sizeof *out));
    s->be->vt->free(s->be, scores);
}

/* All layers in one call, straight from the file. */
static void score_all(const scene *s, const kve_kvp_net *net, const float *table, int32_t n_tables, int32_t n_positions,
                      float *out)
{
    float *device = NULL;
    must(s->be->vt->alloc(s->be, (size_t)L * HKV * N * sizeof *out, &device));
    const kve_kvp_score_params p = {.kv = {s->keys, s->values, N},
                                    .weights = net->weights, /* the cpu backend's memory is ours */
                                    .table = table,
                                    .out = device,
                                    .n = N,
                                    .Hkv = HKV,
                                    .D = D,
                                    .H = H,
                                    .P = P,
                                    .n_layers = L,
                                    .n_tables = n_tables,
                                    .n_positions = n_positions,
                                    .inputs = net->inputs,
                                    .kv_dtype = KVE_F32};
    must(s->be->vt->kvp_score(s->be, &p));
    must(s->be->vt->read(s->be, out, device, (size_t)L * HKV * N * sizeof *out));
    s->be->vt->free(s->be, device);
}

static void policy_is_the_op(const char *path, const float *table, int32_t n_tables, int32_t n_positions)
{
    float want[L * HKV * N], got[L * HKV * N];
    kve_arena arena = {0};
    kve_kvp_net net;
    const kve_policy *p = NULL;
    scene s = open_scene();
    must(kve_kvp_net_read(path, &arena, &net));
    must(kve_kvp_policy(path, NULL, &arena, &p));
    score_all(&s, &net, table, n_tables, n_positions, want);
    for (int32_t i = L - 1; i >= 0; i--) /* in any order */
        score_layer(&s, p, i, got + (size_t)i * HKV * N);
    assert_memory_equal(got, want, sizeof want);
    assert_memory_not_equal(got, got + HKV * N, HKV * N * sizeof *got);
    p->close(p);
    score_layer(&s, p, 1, got); /* it loads again */
    assert_memory_equal(got, want + HKV * N, HKV * N * sizeof *got);
    p->close(p);
    p->close(p);
    close_scene(&s);
    kve_arena_free(&arena);
}

static void test_policy_is_the_op(void **state)
{
    (void)state;
    enum { TABLES = L * HKV, POSITIONS = 20 };
    static const unsigned inputs[] = {KVE_KVP_K | KVE_KVP_V | KVE_KVP_POS, KVE_KVP_K | KVE_KVP_V, KVE_KVP_K};
    char path[512];
    static float table[N * P], learned[TABLES * POSITIONS * P];
    kve_rng rng;
    kve_rng_init(&rng, 9, 0, 0, 0);
    kve_kvp_positions(N, P, table);
    for (size_t i = 0; i < COUNT(inputs); i++)
        policy_is_the_op(write_net("a.safetensors", inputs[i], path), table, 1, N);
    for (size_t i = 0; i < COUNT(learned); i++)
        learned[i] = (float)uniform(&rng, 1);
    kve_kvp_net net = make_net(KVE_KVP_K | KVE_KVP_V | KVE_KVP_POS);
    net.table = learned;
    net.n_positions = POSITIONS;
    for (net.n_tables = 1; net.n_tables <= TABLES; net.n_tables += TABLES - 1) {
        must(kve_kvp_net_write(in_dir("b.safetensors", path), &net));
        policy_is_the_op(path, learned, net.n_tables, POSITIONS);
    }
    free(net.weights);
}

/* A network of positions alone is shown neither keys nor values. */
static void test_positions_alone(void **state)
{
    (void)state;
    char path[512];
    float got[HKV * N], other[HKV * N];
    kve_arena arena = {0};
    const kve_policy *p = NULL;
    scene s = open_scene(), t = s;
    must(kve_kvp_policy(write_net("a.safetensors", KVE_KVP_POS, path), NULL, &arena, &p));
    score_layer(&s, p, 0, got);
    t.keys = s.values;
    score_layer(&t, p, 0, other);
    assert_memory_equal(got, other, sizeof got);
    assert_true(got[3] != got[4]);
    p->close(p);
    close_scene(&s);
    kve_arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_learned_table, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_numbers_that_do_not_fit, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_nan_in_a_file, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_damaged_files, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_wrong_metadata, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_another_model, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_needs_and_names, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_policy_is_the_op, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_positions_alone, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
