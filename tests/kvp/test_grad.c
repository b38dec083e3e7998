/* The trainer's network: forward against the op of the cpu backend and against the oracle, backward against central
 * differences of the oracle, which computes in double. */
#include "kernels/backend.h"
#include "policies/kvp/grad.h"
#include "tests/kvp/fixture.h"
#include "tests/ops/oracle.h"

#include <math.h>

enum { ALL = KVE_KVP_K | KVE_KVP_V | KVE_KVP_POS };

/* A head with its rows, in the forms that trainer, op and oracle take. */
typedef struct net {
    kve_kvp_shape s;
    int32_t n;
    unsigned inputs;
    float *weights, *keys, *values, *table, *rows;
} net;

static net make_net(kve_kvp_shape s, int32_t n, unsigned inputs, const kvp_math *math)
{
    net x = {.s = s, .n = n, .inputs = inputs};
    size_t D = (size_t)s.D, P = (size_t)s.P, N = (size_t)n;
    kve_rng rng;
    kve_rng_init(&rng, 5, (uint64_t)n, inputs, 0);
    must(kve_alloc(kve_kvp_count(s), sizeof(float), &x.weights));
    must(kve_alloc(N * D, sizeof(float), &x.keys));
    must(kve_alloc(N * D, sizeof(float), &x.values));
    must(kve_alloc(N * P, sizeof(float), &x.table));
    must(kve_alloc(N * P, sizeof(float), &x.rows));
    random_weights(s, &rng, x.weights);
    for (size_t i = 0; i < N * D; i++) {
        x.keys[i] = (float)uniform(&rng, 2);
        x.values[i] = (float)uniform(&rng, 0.5);
    }
    kve_kvp_positions(n, s.P, x.table);
    must(kvp_position_rows(math, n, s.P, x.rows));
    return x;
}

static void free_net(net *x)
{
    free(x->weights);
    free(x->keys);
    free(x->values);
    free(x->table);
    free(x->rows);
}

static kve_kvp_score_params params_of(const net *x, float *out)
{
    return (kve_kvp_score_params){.kv = {x->keys, x->values, x->n},
                                  .weights = x->weights,
                                  .table = x->table,
                                  .out = out,
                                  .n = x->n,
                                  .Hkv = 1,
                                  .D = x->s.D,
                                  .H = x->s.H,
                                  .P = x->s.P,
                                  .n_layers = 1,
                                  .n_tables = 1,
                                  .n_positions = x->n,
                                  .inputs = x->inputs,
                                  .kv_dtype = KVE_F32};
}

static kvp_rows rows_of(const net *x)
{
    return (kvp_rows){(const unsigned char *)x->keys, (const unsigned char *)x->values, x->rows, x->n};
}

static void close_to_op(kve_backend *be, const kvp_math *math, kve_kvp_shape s, int32_t n, unsigned inputs)
{
    net x = make_net(s, n, inputs, math);
    const kvp_head head = {math, s, inputs, x.weights};
    const kvp_rows rows = rows_of(&x);
    kvp_work *work = NULL;
    float *mine = NULL, *op = NULL;
    double *oracle = NULL;
    must(kvp_work_create(s, n, &work));
    must(kve_alloc((size_t)n, sizeof *mine, &mine));
    must(kve_alloc((size_t)n, sizeof *op, &op));
    must(kve_alloc((size_t)n, sizeof *oracle, &oracle));
    const kve_kvp_score_params p = params_of(&x, op);
    kvp_forward(&head, &rows, work, mine);
    must(be->vt->kvp_score(be, &p));
    oracle_kvp_score(&p, oracle);
    for (int32_t j = 0; j < n; j++) {
        if (fabs((double)mine[j] - (double)op[j]) > 1e-5 || fabs((double)mine[j] - oracle[j]) > 1e-5)
            fail_msg("%s, H %d, inputs %u, row %d of %d: %.8g; op %.8g, oracle %.8g", math->name, s.H, inputs, j, n,
                     (double)mine[j], (double)op[j], oracle[j]);
    }
    assert_true(fabs(oracle[0] - oracle[n - 1]) > 1e-3); /* rows differ: a constant would pass above */
    kvp_work_free(work);
    free(mine);
    free(op);
    free(oracle);
    free_net(&x);
}

static void test_forward_is_the_op(void **state)
{
    (void)state;
    static const kve_kvp_shape shapes[] = {{64, 64, 32}, {16, 32, 32}, {128, 256, 32}, {80, 48, 16}};
    static const unsigned inputs[] = {ALL, KVE_KVP_K, KVE_KVP_K | KVE_KVP_V, KVE_KVP_POS};
    const kvp_math *maths[] = {&kvp_math_portable, kvp_math_pick()};
    kve_backend *be = NULL;
    must(kve_cpu_open(&(kve_backend_options){1}, &be));
    for (size_t m = 0; m < COUNT(maths); m++)
        for (size_t i = 0; i < COUNT(shapes); i++)
            for (size_t k = 0; k < COUNT(inputs); k++)
                close_to_op(be, maths[m], shapes[i], i ? 37 : 205, inputs[k]);
    be->vt->close(be);
}

/* sum of factor[j] x score[j] in double. */
static double loss(const net *x, const double *factor, double *scores)
{
    const kve_kvp_score_params p = params_of(x, NULL);
    double sum = 0;
    oracle_kvp_score(&p, scores);
    for (int32_t j = 0; j < x->n; j++)
        sum += factor[j] * scores[j];
    return sum;
}

static double difference(net *x, size_t i, const double *factor, double *scores)
{
    const float was = x->weights[i], up = was + 0x1p-10f, down = was - 0x1p-10f;
    x->weights[i] = up;
    double high = loss(x, factor, scores);
    x->weights[i] = down;
    double low = loss(x, factor, scores);
    x->weights[i] = was;
    return (high - low) / ((double)up - (double)down);
}

static bool is_used(unsigned inputs, kve_kvp_tensor t)
{
    if (t >= KVE_KVP_K_WEIGHT && t <= KVE_KVP_K_SHIFT)
        return inputs & KVE_KVP_K;
    if (t >= KVE_KVP_V_WEIGHT && t <= KVE_KVP_V_SHIFT)
        return inputs & KVE_KVP_V;
    return (t != KVE_KVP_POS_GAIN && t != KVE_KVP_POS_SHIFT) || (inputs & KVE_KVP_POS);
}

/* Every stride-th weight of every tensor; the error counts against the tensor's own largest gradient. */
static void check_tensor(net *x, kve_kvp_tensor t, size_t stride, const float *grad, const double *factor,
                         double *scores)
{
    double most = 0, worst = 0;
    for (size_t i = kve_kvp_offset(x->s, t); i < kve_kvp_offset(x->s, t + 1); i += stride) {
        double want = difference(x, i, factor, scores);
        most = fmax(most, fabs(want));
        worst = fmax(worst, fabs(want - (double)grad[i]));
    }
    if (is_used(x->inputs, t) != (most > 0) || worst > 1e-3 * most)
        fail_msg("inputs %u, %d rows, tensor %d: gradients up to %.6g are wrong by up to %.3g", x->inputs, x->n, (int)t,
                 most, worst);
}

static void gradients(const kvp_math *math, kve_kvp_shape s, int32_t n, unsigned inputs, size_t stride)
{
    net x = make_net(s, n, inputs, math);
    const kvp_head head = {math, s, inputs, x.weights};
    const kvp_rows rows = rows_of(&x);
    kvp_work *work = NULL;
    float *grad = NULL, *d_scores = NULL, *scores = NULL;
    double *factor = NULL, *buffer = NULL;
    kve_rng rng;
    kve_rng_init(&rng, 6, 0, 0, 0);
    must(kvp_work_create(s, n, &work));
    must(kve_alloc(kve_kvp_count(s), sizeof *grad, &grad));
    must(kve_alloc((size_t)n, sizeof *d_scores, &d_scores));
    must(kve_alloc((size_t)n, sizeof *scores, &scores));
    must(kve_alloc((size_t)n, sizeof *factor, &factor));
    must(kve_alloc((size_t)n, sizeof *buffer, &buffer));
    for (int32_t j = 0; j < n; j++)
        factor[j] = (double)(d_scores[j] = (float)uniform(&rng, 1));
    kvp_forward(&head, &rows, work, scores);
    kvp_backward(&head, &rows, work, d_scores, grad);
    for (int t = 0; t < KVE_KVP_TENSORS; t++)
        check_tensor(&x, (kve_kvp_tensor)t, stride, grad, factor, buffer);
    for (size_t i = kve_kvp_offset(s, KVE_KVP_TENSORS); i < kve_kvp_count(s); i++)
        assert_true(grad[i] == 0); /* the blob's end stays zero */
    kvp_work_free(work);
    free(grad);
    free(d_scores);
    free(scores);
    free(factor);
    free(buffer);
    free_net(&x);
}

static void test_every_gradient(void **state)
{
    (void)state;
    static const unsigned inputs[] = {ALL, KVE_KVP_K, KVE_KVP_K | KVE_KVP_V, KVE_KVP_POS};
    const kvp_math *maths[] = {&kvp_math_portable, kvp_math_pick()};
    for (size_t m = 0; m < COUNT(maths); m++)
        for (size_t k = 0; k < COUNT(inputs); k++)
            gradients(maths[m], (kve_kvp_shape){16, 16, 16}, 11, inputs[k], 1);
}

/* More rows than a block holds, other widths: some weights of every tensor. */
static void test_gradients_over_blocks(void **state)
{
    (void)state;
    gradients(kvp_math_pick(), (kve_kvp_shape){32, 16, 32}, 203, ALL, 13);
    gradients(kvp_math_pick(), (kve_kvp_shape){64, 64, 32}, 5, ALL, 29);
}

/* Every feature of the position stays in a range that training has seen, and neighbours differ. */
static void test_positions_at_any_length(void **state)
{
    (void)state;
    enum { N = 70000, P = 32 };
    float *x = NULL;
    must(kve_alloc((size_t)N * P, sizeof *x, &x));
    kve_kvp_positions(N, P, x);
    for (size_t i = 0; i < (size_t)N * P; i++)
        assert_true(fabsf(x[i]) <= 3.0f);
    for (int32_t j = 0; j + 1 < N; j += 997) {
        double apart = 0;
        for (int32_t i = 0; i < P; i++)
            apart += fabs((double)x[j * P + i] - (double)x[(j + 1) * P + i]);
        assert_true(apart > 0.5);
    }
    assert_true(fabs((double)x[8 * P] - (double)x[0]) < 1e-6); /* the shortest wave: 8 tokens */
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward_is_the_op),
        cmocka_unit_test(test_every_gradient),
        cmocka_unit_test(test_gradients_over_blocks),
        cmocka_unit_test(test_positions_at_any_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
