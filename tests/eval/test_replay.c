/* KVzip's second pass against a plain restatement: the instruction and the context fed to one fork of a cache of the
 * test's own, softmax and maxima on the host in double. */
#include "eval/evaluator.h"
#include "eval/prompt.h"

#include "tests/engine/tiny.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 128 };

/* What the policy saw, [L][Hkv][n]. */
static struct {
    float *replay;
    int32_t n, n_layers;
} g_seen;

static kve_status spy(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    size_t count = (size_t)v->shape->Hkv * (size_t)v->n;
    (void)p;
    assert_non_null(v->replay);
    g_seen.n = v->n;
    g_seen.replay = realloc(g_seen.replay, (size_t)(v->i_layer + 1) * count * sizeof *g_seen.replay);
    assert_non_null(g_seen.replay);
    g_seen.n_layers++;
    KVE_TRY(v->be->vt->read(v->be, g_seen.replay + (size_t)v->i_layer * count, v->replay, count * sizeof(float)));
    return v->be->vt->copy(v->be, scores, v->replay, count * sizeof(float));
}

static const kve_policy g_spy = {.name = "spy", .needs = KVE_NEED_REPLAY, .score = spy};

static const char *const g_references[] = {"a"};

typedef struct world {
    fixture f;
    kve_tokenizer *tk;
    kve_chat chat;
    kve_prompt prompt;
    int32_t n;
} world;

/* One layer and KV head: what token i of the part gives context token j, the most over i and the group's heads. */
static void most_attention(const world *w, const float *q, const float *keys, const float *tail, int32_t n_part,
                           double *most)
{
    const kve_shape *d = &w->f.m->cfg.shape;
    double p[2 * MOST];
    int32_t G = d->Hq / d->Hkv;
    memset(most, 0, (size_t)w->n * sizeof *most);
    for (int32_t i = 0; i < n_part; i++)
        for (int32_t g = 0; g < G; g++) {
            double top = -INFINITY, sum = 0;
            for (int32_t j = 0; j < w->n + i + 1; j++) {
                const float *k = j < w->n ? keys + (ptrdiff_t)j * d->D : tail + (ptrdiff_t)(j - w->n) * d->D;
                p[j] = 0;
                for (int32_t c = 0; c < d->D; c++)
                    p[j] += (double)q[((ptrdiff_t)i * d->Hq + g) * d->D + c] * (double)k[c];
                p[j] /= sqrt((double)d->D);
                top = fmax(top, p[j]);
            }
            for (int32_t j = 0; j < w->n + i + 1; j++)
                sum += p[j] = exp(p[j] - top);
            for (int32_t j = 0; j < w->n; j++)
                most[j] = fmax(most[j], p[j] / sum);
        }
}

/* Tokens [from, to) repeated. */
static void check_part(const world *w, int32_t from, int32_t to)
{
    const kve_model *m = w->f.m;
    const kve_shape *d = &m->cfg.shape;
    kve_ids ids = {0};
    MUST(kve_prompt_replay(w->tk, &w->chat, &w->prompt.context, (size_t)from, (size_t)to, &ids));
    int32_t T = (int32_t)ids.len;
    kve_session *s = open_session(m, MOST, 1, w->n + T);
    kve_context ctx;
    kve_capture capture = {.cap = T};
    forks one = {.m = m};
    MUST(kve_context_alloc(m, w->n, &ctx));
    MUST(kve_prefill(s, w->prompt.context.p, w->n, &ctx));
    MUST(m->be->vt->alloc(m->be, (size_t)(d->L * T * d->Hq * d->D) * sizeof(float), &capture.q));
    forks_add(&one, ctx.kv, w->n, w->n, T);
    forks_begin(&one);
    MUST(kve_extend(s, &one.batch, ids.p, &T, &capture));
    for (int32_t layer = 0; layer < d->L; layer++)
        for (int32_t h = 0; h < d->Hkv; h++) { /* the cpu backend's memory is the host's */
            ptrdiff_t row = (ptrdiff_t)layer * d->Hkv + h;
            double most[MOST];
            const float *q = capture.q + ((ptrdiff_t)layer * T * d->Hq + h * (d->Hq / d->Hkv)) * d->D;
            most_attention(w, q, (const float *)ctx.kv.k + row * w->n * d->D,
                           (const float *)one.slots[0].tail.k + row * T * d->D, T, most);
            for (int32_t j = from; j < to; j++)
                if (!(fabs((double)g_seen.replay[row * w->n + j] - most[j]) <= 1e-5 * fmax(most[j], 1e-3)))
                    fail_msg("layer %d, head %d, token %d: %g instead of %g", layer, h, j,
                             (double)g_seen.replay[row * w->n + j], most[j]);
        }
    forks_end(&one);
    m->be->vt->free(m->be, capture.q);
    kve_context_free(m, &ctx);
    kve_session_close(s);
    kve_ids_free(&ids);
}

static kve_sample sample_of(const char *text)
{
    return (kve_sample){.id = "1",
                        .task = "t",
                        .context = text,
                        .question = "",
                        .answer_prefix = "",
                        .max_new_tokens = 1,
                        .references = g_references,
                        .n_references = 1};
}

static void open_world(world *w, const kve_sample *s)
{
    *w = (world){0};
    tiny_open(g_tiny[0], KVE_F32, 1, &w->f);
    MUST(kve_tokenizer_create(kve_checkpoint_vocab(w->f.ck), &w->tk));
    MUST(kve_chat_create(NULL, "plain", "", &w->chat));
    MUST(kve_prompt_make(w->tk, &w->chat, s, true, &w->prompt));
    w->n = (int32_t)w->prompt.context.len;
}

static void close_world(world *w)
{
    kve_prompt_free(&w->prompt);
    kve_chat_free(&w->chat);
    kve_tokenizer_free(w->tk);
    fixture_close(&w->f);
}

/* The context is repeated in n_parts parts, as the room behind it allows. */
static void check_text(const char *text, int32_t chunk, int32_t n_parts)
{
    world w;
    kve_arena arena = {0};
    kve_evaluator *e = NULL;
    kve_record record;
    const kve_cell cell = {&g_spy, 5};
    const kve_eval_options opt = {.sink = 1, .recent = 1, .chunk = chunk, .fork_bytes = 1 << 24};
    const kve_sample s = sample_of(text);
    open_world(&w, &s);
    MUST(kve_evaluator_open(w.f.m, w.tk, &w.chat, &opt, &e));
    g_seen.n_layers = 0;
    MUST(kve_evaluate(e, &s, &cell, 1, &arena, &record));
    assert_string_equal(record.status, "ok");
    assert_true(g_seen.n == w.n && g_seen.n_layers == w.f.m->cfg.shape.L);
    assert_int_equal(record.n_prefills, 1);
    kve_ids later = {0};
    MUST(kve_prompt_replay(w.tk, &w.chat, &w.prompt.context, (size_t)w.n, (size_t)w.n, &later));
    int32_t room = w.f.m->cfg.max_context - w.n - (int32_t)later.len, part = room < w.n ? room : w.n;
    kve_ids_free(&later);
    assert_int_equal((w.n + part - 1) / part, n_parts);
    for (int32_t from = 0; from < w.n; from += part)
        check_part(&w, from, from + part < w.n ? from + part : w.n);
    kve_evaluator_close(e);
    kve_arena_free(&arena);
    close_world(&w);
}

static void test_one_part(void **state)
{
    (void)state;
    check_text("abc de fgh ijk", 128, 1);
    check_text("abc de fgh ijk", 7, 1); /* fed in chunks */
}

static void test_parts(void **state)
{
    (void)state;
    check_text("abc de fgh ijk lmn opq abc de fghi jkl", 128, 2);
}

/* No room behind the cache: the policy's cells fail and say why, the others do not. */
static void test_no_room(void **state)
{
    world w;
    kve_arena arena = {0};
    kve_evaluator *e = NULL;
    kve_record records[2];
    char text[101];
    const kve_cell cells[] = {{&g_spy, 5}, {&kve_policy_knorm, 5}};
    const kve_eval_options opt = {.chunk = 64, .fork_bytes = 1 << 24};
    (void)state;
    for (int i = 0; i < 100; i++)
        text[i] = (char)('a' + i * 7 % 10);
    text[100] = '\0';
    const kve_sample s = sample_of(text);
    open_world(&w, &s);
    MUST(kve_evaluator_open(w.f.m, w.tk, &w.chat, &opt, &e));
    MUST(kve_evaluate(e, &s, cells, 2, &arena, records));
    assert_string_equal(records[0].status, "failed");
    assert_non_null(strstr(records[0].reason, "second pass"));
    assert_string_equal(records[1].status, "ok");
    kve_evaluator_close(e);
    kve_arena_free(&arena);
    close_world(&w);
}

static int free_seen(void **state)
{
    (void)state;
    free(g_seen.replay);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_part),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, free_seen);
}
