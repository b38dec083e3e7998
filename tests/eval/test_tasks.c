/* Tasks through the evaluator on a tiny model: what is ranked never saw the question or the instruction, the
 * log-likelihoods of choices are those of the whole texts, and neither memory nor batches change them. */
#include "eval/evaluator.h"
#include "eval/prompt.h"
#include "eval/scoring.h"
#include "host/base/file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL KVE_SOURCE_DIR "/tests/golden/models/llama"

static void must(kve_status st)
{
    if (st != KVE_OK)
        fail_msg("%s", kve_diag());
}

typedef struct fixture {
    kve_checkpoint *ck;
    kve_backend *be;
    kve_model *m;
    kve_tokenizer *tk;
    kve_chat chat;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    kve_backend_options opt = {.threads = 1};
    assert_non_null(f);
    must(kve_checkpoint_open(MODEL, &f->ck));
    must(kve_cpu_open(&opt, &f->be));
    must(kve_model_load(f->be, f->ck, KVE_F32, &f->m));
    must(kve_tokenizer_create(kve_checkpoint_vocab(f->ck), &f->tk));
    must(kve_chat_create(kve_checkpoint_chat_template(f->ck), NULL, "", &f->chat));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    kve_chat_free(&f->chat);
    kve_tokenizer_free(f->tk);
    kve_model_free(f->m);
    int left = (int)f->be->vt->bytes_in_use(f->be);
    f->be->vt->close(f->be);
    kve_checkpoint_close(f->ck);
    free(f);
    return left;
}

static kve_evaluator *open_evaluator(const fixture *f, kve_eval_options o)
{
    kve_evaluator *e = NULL;
    o.chunk = o.chunk ? o.chunk : 128;
    o.fork_bytes = o.fork_bytes ? o.fork_bytes : 1 << 24;
    o.recent = 2;
    o.sink = 1;
    must(kve_evaluator_open(f->m, f->tk, &f->chat, &o, &e));
    return e;
}

/* The first sample of a task whose file holds `text`. */
static kve_sample read_sample(const fixture *f, const char *task, const char *text)
{
    char path[] = "/tmp/kveval-task-XXXXXX";
    int fd = mkstemp(path);
    kve_dataset_list l = {0};
    kve_sample s;
    kve_task_options o = {.tokens = kve_prompt_token_fns(f->tk), .data_path = path};
    assert_true(fd >= 0);
    close(fd);
    must(kve_file_write(path, text, strlen(text)));
    must(kve_task_open(task, &o, &l));
    must(kve_dataset_sample(l.items[0], 0, &s));
    kve_dataset_list_close(&l); /* the sample owns what it needs, but for the task's name */
    s.task = task;
    unlink(path);
    return s;
}

/* --- What is ranked */

typedef struct seen {
    const fixture *f;
    unsigned char *bytes; /* order and ranked keys and values of every policy */
    size_t n, cap;
} seen;

static void keep(seen *s, const void *device, size_t n)
{
    if (s->n + n > s->cap) {
        s->cap = 2 * (s->n + n);
        s->bytes = realloc(s->bytes, s->cap);
        assert_non_null(s->bytes);
    }
    must(s->f->be->vt->read(s->f->be, s->bytes + s->n, device, n));
    s->n += n;
}

static kve_status rank_all(void *ctx, const kve_observation *o)
{
    seen *s = ctx;
    const kve_shape *d = &o->m->cfg.shape;
    size_t heads = (size_t)d->L * (size_t)d->Hkv, n = (size_t)o->ctx->n;
    const int32_t budget = o->ctx->n;
    kve_scoring scoring = {.m = o->m,
                           .ctx = o->ctx,
                           .sample_name = "the same",
                           .cos = o->cos,
                           .sin = o->sin,
                           .budget = budget,
                           .seed = 3,
                           .sink = 1,
                           .recent = 2};
    int32_t *lengths = calloc(heads, sizeof *lengths);
    assert_non_null(lengths);
    for (size_t i = 0; i < kve_policy_count(); i++) {
        const kve_policy *p = kve_policy_at(i);
        kve_ranking r = {.budgets = &budget, .n_budgets = 1, .lengths = lengths};
        if (p->keeps_all || (p->needs & (KVE_NEED_FUTURE | KVE_NEED_REPLAY | KVE_NEED_QUESTION)))
            continue;
        KVE_TRY(kve_rank_context(&scoring, p, &r));
        keep(s, r.ranked.order, heads * n * sizeof(int32_t));
        keep(s, r.ranked.kv.k, heads * n * (size_t)d->D * sizeof(float));
        keep(s, r.ranked.kv.v, heads * n * (size_t)d->D * sizeof(float));
        kve_ranked_free(o->m, &r.ranked);
    }
    free(lengths);
    return KVE_OK;
}

static seen rank_sample(const fixture *f, kve_sample *s)
{
    kve_evaluator *e =
        open_evaluator(f, (kve_eval_options){.question_in = true, .all_queries = true}); /* asked to put it in */
    seen out = {.f = f};
    must(kve_observe(e, s, rank_all, &out));
    kve_evaluator_close(e);
    assert_true(out.n > 10000);
    return out;
}

static bool same_ranking(const fixture *f, kve_sample *a, kve_sample *b)
{
    seen x = rank_sample(f, a), y = rank_sample(f, b);
    bool same = x.n == y.n && memcmp(x.bytes, y.bytes, x.n) == 0;
    free(x.bytes);
    free(y.bytes);
    return same;
}

#define BOOLQ(QUESTION, PASSAGE) "{\"question\": \"" QUESTION "\", \"answer\": true, \"passage\": \"" PASSAGE "\"}\n"

static void boolq_question_is_unseen(void **state)
{
    const fixture *f = *state;
    static const char *const questions[] = {"is the sea blue", "are the other hats on", "x"};
    kve_sample a = read_sample(f, "boolq", BOOLQ("is it that", "The hat is on the mat.")),
               c = read_sample(f, "boolq", BOOLQ("is it that", "The hat is on the hat."));
    for (size_t i = 0; i < 3; i++) {
        char row[256];
        snprintf(row, sizeof row, BOOLQ("%s", "The hat is on the mat."), questions[i]);
        kve_sample b = read_sample(f, "boolq", row);
        assert_true(same_ranking(f, &a, &b));
        kve_sample_free(&b);
    }
    assert_false(same_ranking(f, &a, &c)); /* another passage does change it */
    a.question_place = KVE_QUESTION_ASKED; /* and so does a question that is let in */
    kve_sample d = read_sample(f, "boolq", BOOLQ("is it this", "The hat is on the mat."));
    d.question_place = KVE_QUESTION_ASKED;
    assert_false(same_ranking(f, &a, &d));
    kve_sample_free(&a);
    kve_sample_free(&c);
    kve_sample_free(&d);
}

static void instruction_is_unseen(void **state)
{
    const fixture *f = *state;
    static const char ROW[] = "{\"context\": \"the cat and the hat\", \"answers\": [\"a cat\"]}\n";
    kve_sample a = read_sample(f, "gov-report", ROW), b = read_sample(f, "gov-report", ROW);
    a.max_new_tokens = b.max_new_tokens = 4; /* the tiny model's context is short */
    a.question = "\n\nNow sum it up.";
    assert_non_null(strstr(b.question, "Now, write a one-page summary"));
    b.question = "\n\nCount the hats.";
    assert_true(same_ranking(f, &a, &b));
    kve_prompt p;
    must(kve_prompt_make(f->tk, &f->chat, &a, true, &p));
    kve_str context = {0}, tail = {0};
    must(kve_detokenize(f->tk, p.context.p, p.context.len, true, &context));
    must(kve_detokenize(f->tk, p.tail.p, p.tail.len, true, &tail));
    assert_string_equal(context.p, "<|im_start|>user\nthe cat and the hat"); /* and no word in front of the report */
    assert_memory_equal(tail.p, "\n\nNow sum it up.<|im_end|>", 25);
    kve_str_free(&context);
    kve_str_free(&tail);
    kve_prompt_free(&p);
    b.question_place = a.question_place = KVE_QUESTION_ASKED;
    assert_false(same_ranking(f, &a, &b));
    kve_sample_free(&a);
    kve_sample_free(&b);
}

/* --- Log-likelihoods */

#define ARC                                                                                                            \
    "{\"id\": \"q\", \"question\": \"what is on the mat?\", \"choices\": {\"text\": [\"the cat\", \"a hat and a "      \
    "man\","                                                                                                           \
    " \"rain\", \"it\", \"the other man\"], \"label\": [\"A\", \"B\", \"C\", \"D\", \"E\"]}, \"answerKey\": \"C\"}\n"

enum { MOST_CELLS = 64 };

typedef struct cells {
    kve_cell cell[MOST_CELLS];
    size_t n;
} cells;

static cells make_cells(const char *policies, int step)
{
    cells out = {0};
    char copy[64], *rest = copy;
    snprintf(copy, sizeof copy, "%s", policies);
    for (char *name; (name = strsep(&rest, ",")) != NULL;) {
        const kve_policy *p = NULL;
        must(kve_policy_find(name, &p));
        if (p->keeps_all)
            out.cell[out.n++] = (kve_cell){p, KVE_NO_INT};
        else
            for (int64_t b = 4; b < 4 + 10 * step; b += step)
                out.cell[out.n++] = (kve_cell){p, b};
    }
    return out;
}

static void evaluate(const fixture *f, kve_eval_options o, const kve_sample *s, const cells *c, kve_arena *arena,
                     kve_record *records)
{
    kve_evaluator *e = open_evaluator(f, o);
    must(kve_evaluate(e, s, c->cell, c->n, arena, records));
    kve_evaluator_close(e);
}

/* The same text as a window whose scored part is the choice alone. */
static double window_loglik(const fixture *f, const kve_prompt *p, size_t choice)
{
    int32_t ids[128];
    size_t n = 0;
    kve_arena arena = {0};
    kve_record r;
    cells full = make_cells("full", 1);
    for (size_t i = 0; i < p->context.len; i++)
        ids[n++] = p->context.p[i];
    for (size_t i = 0; i < p->tail.len; i++)
        ids[n++] = p->tail.p[i];
    kve_sample w = {.id = "w", .task = "t", .question = "", .metric = KVE_METRIC_NLL, .ids = ids, .n_prefill = n};
    for (size_t i = 0; i < p->choices[choice].len; i++)
        ids[n++] = p->choices[choice].p[i];
    w.n_ids = n;
    evaluate(f, (kve_eval_options){0}, &w, &full, &arena, &r);
    double sum = r.nll_sum;
    kve_arena_free(&arena);
    return -sum;
}

static void choices_are_whole_texts(void **state)
{
    const fixture *f = *state;
    kve_sample s = read_sample(f, "arc-challenge", ARC);
    kve_arena arena = {0};
    kve_record r[2];
    kve_prompt p;
    cells c = make_cells("full", 1);
    c.cell[c.n++] = (kve_cell){make_cells("knorm", 1).cell[0].policy, 1000}; /* above n: the full cache */
    evaluate(f, (kve_eval_options){0}, &s, &c, &arena, r);
    must(kve_prompt_make(f->tk, &f->chat, &s, false, &p));
    assert_int_equal(p.n_choices, 5);
    size_t best = 0, best_norm = 0;
    for (size_t i = 0; i < 5; i++) {
        double want = window_loglik(f, &p, i);
        if (!(fabs(r[0].loglik[i] - want) <= 1e-4 * fabs(want)))
            fail_msg("choice %zu: %.9g instead of %.9g", i, r[0].loglik[i], want);
        assert_true(r[1].loglik[i] >= r[0].loglik[i] && r[1].loglik[i] <= r[0].loglik[i]);
        best = r[0].loglik[i] > r[0].loglik[best] ? i : best;
        best_norm = r[0].loglik[i] / (double)(strlen(s.choices[i]) - 1) >
                            r[0].loglik[best_norm] / (double)(strlen(s.choices[best_norm]) - 1)
                        ? i
                        : best_norm;
    }
    assert_int_equal(r[0].n_choices, 5);
    assert_int_equal(r[0].gold, 2);
    assert_true(r[0].acc == (best == 2) && r[0].acc_norm == (best_norm == 2) && r[0].score == r[0].acc_norm);
    assert_string_equal(r[0].prediction, s.choices[best_norm] + 1);
    assert_string_equal(r[0].metric, "acc_norm");
    assert_true(r[0].question_in_prefill && r[0].shots == 0);
    assert_true(isnan(r[0].nll_sum) && r[0].n_generated == KVE_NO_INT);
    kve_prompt_free(&p);
    kve_arena_free(&arena);
    kve_sample_free(&s);
}

static void same_logliks(const kve_record *a, const kve_record *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < a[i].n_choices; c++)
            if (memcmp(&a[i].loglik[c], &b[i].loglik[c], sizeof(double)) != 0)
                fail_msg("cell %zu, choice %zu: %.17g and %.17g", i, c, a[i].loglik[c], b[i].loglik[c]);
}

/* 31 cells of 5 choices are 155 forks: alone, in batches of 64, or policy by policy, the numbers are the same. */
static void batches_change_nothing(void **state)
{
    const fixture *f = *state;
    kve_sample s = read_sample(f, "arc-challenge", ARC);
    kve_arena arena = {0};
    kve_record all[MOST_CELLS], small[MOST_CELLS], poor[MOST_CELLS], one[1];
    cells c = make_cells("full,knorm,streaming_llm,snapkv", 1);
    assert_int_equal(c.n, 31);
    evaluate(f, (kve_eval_options){.chunk = 512}, &s, &c, &arena, all);
    evaluate(f, (kve_eval_options){.chunk = 64}, &s, &c, &arena, small);
    evaluate(f, (kve_eval_options){.chunk = 512, .fork_bytes = 1}, &s, &c, &arena, poor);
    same_logliks(all, small, c.n);
    same_logliks(all, poor, c.n);
    assert_int_equal(all[0].decode_forks, 155);
    assert_true(small[0].decode_forks <= 64 && poor[0].decode_forks < 155);
    assert_true(all[1].kept_max == 4 && all[1].kept_min == 4);
    for (size_t i = 0; i < c.n; i += 7) {
        cells alone = {.cell = {c.cell[i]}, .n = 1};
        evaluate(f, (kve_eval_options){0}, &s, &alone, &arena, one);
        same_logliks(&all[i], one, 1);
    }
    bool differ = false; /* and evicting does change them */
    for (size_t i = 0; i < 5; i++)
        differ = differ || fabs(all[1].loglik[i] - all[0].loglik[i]) > 1e-3;
    assert_true(differ);
    kve_arena_free(&arena);
    kve_sample_free(&s);
}

/* The future of a sample with choices is its tail and its right choice; the choices' numbers do not depend on it. */
static void future_of_choices(void **state)
{
    const fixture *f = *state;
    kve_sample s = read_sample(f, "arc-challenge", ARC);
    kve_arena arena = {0};
    kve_record with[MOST_CELLS], without[MOST_CELLS];
    kve_prompt p;
    cells c = make_cells("full,knorm,oracle", 1), plain = make_cells("full,knorm", 1);
    evaluate(f, (kve_eval_options){.reward = true}, &s, &c, &arena, with);
    evaluate(f, (kve_eval_options){0}, &s, &plain, &arena, without);
    same_logliks(with, without, plain.n);
    must(kve_prompt_make(f->tk, &f->chat, &s, false, &p));
    for (size_t i = 0; i < c.n; i++)
        assert_int_equal(with[i].n_future, p.tail.len + p.choices[2].len);
    for (size_t i = 0; i < 10; i++) /* nothing beats the oracle */
        assert_true(with[1 + i].reward_lost >= with[11 + i].reward_lost - 1e-9);
    kve_prompt_free(&p);
    kve_arena_free(&arena);
    kve_sample_free(&s);
}

static void summaries_have_both_rouges(void **state)
{
    const fixture *f = *state;
    kve_sample s = read_sample(f, "gov-report", "{\"context\": \"the cat\", \"answers\": [\"a cat\", \"the man\"]}\n");
    kve_arena arena = {0};
    kve_record r;
    cells c = make_cells("full", 1);
    s.max_new_tokens = 6;
    s.question = " so:";
    evaluate(f, (kve_eval_options){0}, &s, &c, &arena, &r);
    assert_string_equal(r.metric, "rouge_l");
    assert_true(r.score >= 0 && r.score <= 1 && r.rouge_l_longbench >= 0 && r.rouge_l_longbench <= 1);
    assert_true(r.n_generated <= 6 && r.prediction && isnan(r.acc) && !r.loglik && r.shots == KVE_NO_INT);
    assert_false(r.question_in_prefill);
    kve_arena_free(&arena);
    kve_sample_free(&s);
}

/* What does not fit the model names the file, the line and the field that is too long. */
static void too_long(void **state)
{
    const fixture *f = *state;
    char row[1024], passage[512];
    memset(passage, 'x', sizeof passage - 1);
    passage[sizeof passage - 1] = 0;
    snprintf(row, sizeof row, BOOLQ("q", "%s"), passage);
    kve_sample s = read_sample(f, "boolq", row);
    kve_evaluator *e = open_evaluator(f, (kve_eval_options){0});
    cells c = make_cells("full", 1);
    kve_arena arena = {0};
    kve_record r;
    assert_int_equal(kve_evaluate(e, &s, c.cell, c.n, &arena, &r), KVE_ERR_USAGE);
    assert_non_null(strstr(kve_diag(), ":1: field 'passage'"));
    assert_non_null(strstr(kve_diag(), "context"));
    kve_evaluator_close(e);
    kve_arena_free(&arena);
    kve_sample_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boolq_question_is_unseen),
        cmocka_unit_test(instruction_is_unseen),
        cmocka_unit_test(choices_are_whole_texts),
        cmocka_unit_test(batches_change_nothing),
        cmocka_unit_test(future_of_choices),
        cmocka_unit_test(summaries_have_both_rouges),
        cmocka_unit_test(too_long),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
