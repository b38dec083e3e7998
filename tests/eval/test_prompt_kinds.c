/* Prompts of samples with choices (plain text, cut between tokens) and of dialogues (every family's template). The
 * tokenizer is the golden llama's, which merges a few words. */
#include "eval/prompt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LLAMA KVE_SOURCE_DIR "/tests/golden/models/llama/"

static void must(kve_status st)
{
    if (st != KVE_OK)
        fail_msg("%s", kve_diag());
}

typedef struct fixture {
    kve_vocab v;
    kve_tokenizer *tk;
    kve_chat chat; /* its own: ChatML */
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    const char *jinja = NULL;
    assert_non_null(f);
    must(kve_vocab_from_json(LLAMA "tokenizer.json", LLAMA "tokenizer_config.json", &f->v, &jinja));
    must(kve_tokenizer_create(&f->v, &f->tk));
    must(kve_chat_create(jinja, NULL, "", &f->chat));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    kve_chat_free(&f->chat);
    kve_tokenizer_free(f->tk);
    kve_vocab_free(&f->v);
    free(f);
    return 0;
}

static kve_ids encode(const fixture *f, const char *text)
{
    kve_ids ids = {0};
    must(kve_tokenize(f->tk, text, strlen(text), false, true, &ids));
    return ids;
}

static void expect_text(const fixture *f, const kve_ids *ids, const char *want)
{
    kve_str text = {0};
    must(kve_detokenize(f->tk, ids->p, ids->len, true, &text));
    assert_string_equal(text.p ? text.p : "", want);
    kve_str_free(&text);
}

/* --- Plain text with choices */

static const char *const g_choices[] = {" a cat", " the other man", " rain"};

static kve_sample plain_sample(const char *context, const char *question, const char *prefix)
{
    return (kve_sample){.id = "s",
                        .task = "t",
                        .context = context,
                        .question = question,
                        .answer_prefix = prefix,
                        .plain = true,
                        .metric = KVE_METRIC_ACC,
                        .choices = g_choices,
                        .n_choices = 3};
}

/* Context and tail together are the ids of the whole text, and each choice is what its text adds to them. */
static void check_whole(const fixture *f, const kve_sample *s, const kve_prompt *p, const char *text)
{
    kve_ids whole = encode(f, text);
    assert_int_equal(p->context.len + p->tail.len, whole.len);
    assert_memory_equal(p->context.p, whole.p, p->context.len * sizeof *whole.p);
    assert_memory_equal(p->tail.p, whole.p + p->context.len, p->tail.len * sizeof *whole.p);
    assert_int_equal(p->n_choices, s->n_choices);
    for (size_t c = 0; c < p->n_choices; c++) {
        kve_str longer = {0};
        must(kve_str_printf(&longer, "%s%s%s%s", s->context, s->question, s->answer_prefix, s->choices[c]));
        kve_ids ids = encode(f, longer.p);
        assert_int_equal(p->choices[c].len, ids.len - whole.len);
        assert_memory_equal(p->choices[c].p, ids.p + whole.len, p->choices[c].len * sizeof *ids.p);
        kve_ids_free(&ids);
        kve_str_free(&longer);
    }
    kve_ids_free(&whole);
}

static void where_the_cut_is(void **state)
{
    const fixture *f = *state;
    static const struct {
        const char *context, *question, *prefix;
        kve_question_place place;
        bool asked;
        const char *whole, *before, *after;
    } CASES[] = {
        {"the mat.", "\nwhat?", "\nA:", KVE_QUESTION_AFTER, true, "the mat.\nwhat?\nA:", "the mat.", "\nwhat?\nA:"},
        {"the mat.", "\nwhat?", "\nA:", KVE_QUESTION_IN, false, "the mat.\nwhat?\nA:", "the mat.\nwhat?", "\nA:"},
        {"the mat.", "\nwhat?", "\nA:", KVE_QUESTION_ASKED, true, "the mat.\nwhat?\nA:", "the mat.\nwhat?", "\nA:"},
        {"the mat.", "\nwhat?", "\nA:", KVE_QUESTION_ASKED, false, "the mat.\nwhat?\nA:", "the mat.", "\nwhat?\nA:"},
        {"", "what?", "\nA:", KVE_QUESTION_IN, false, "what?\nA:", "what?", "\nA:"},
        /* " the" is one token: the cut lies before it, never inside */
        {"on th", "e cat", "", KVE_QUESTION_AFTER, true, "on the cat", "on", " the cat"},
        /* nothing comes after: the last token does */
        {"a cat", "", "", KVE_QUESTION_ASKED, true, "a cat", "a ca", "t"},
        /* white space at the end belongs to the choices */
        {"a cat \n", "", "", KVE_QUESTION_ASKED, true, "a cat", "a ca", "t"},
        {"a cat", "\nQ:", " ", KVE_QUESTION_AFTER, true, "a cat\nQ:", "a cat", "\nQ:"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kve_sample s = plain_sample(CASES[i].context, CASES[i].question, CASES[i].prefix);
        kve_prompt p;
        s.question_place = CASES[i].place;
        must(kve_prompt_make(f->tk, &f->chat, &s, CASES[i].asked, &p));
        expect_text(f, &p.context, CASES[i].before);
        expect_text(f, &p.tail, CASES[i].after);
        check_whole(f, &s, &p, CASES[i].whole);
        kve_prompt_free(&p);
    }
}

static void choices_belong_to_the_hash(void **state)
{
    const fixture *f = *state;
    static const char *const others[] = {" a cat", " the other man", " snow"};
    kve_sample s = plain_sample("the mat.", "", ""), t = s;
    kve_prompt p, q;
    t.choices = others;
    must(kve_prompt_make(f->tk, &f->chat, &s, true, &p));
    must(kve_prompt_make(f->tk, &f->chat, &t, true, &q));
    assert_true(strcmp(p.sha256, q.sha256) != 0);
    kve_prompt_free(&q);
    t.choices = g_choices;
    must(kve_prompt_make(f->tk, &f->chat, &t, false, &q));
    assert_string_equal(p.sha256, q.sha256);
    kve_prompt_free(&p);
    kve_prompt_free(&q);
}

static void choices_without_a_token(void **state)
{
    const fixture *f = *state;
    static const char *const empty[] = {" a", ""};
    kve_sample s = plain_sample("the mat.", "", "");
    kve_prompt p;
    s.choices = empty;
    s.n_choices = 2;
    assert_int_equal(kve_prompt_make(f->tk, &f->chat, &s, true, &p), KVE_ERR_FILE);
    assert_non_null(strstr(kve_diag(), "adds no token"));
    s = plain_sample("x", "", "");
    s.source = "file.jsonl:7: field 'passage'";
    assert_int_equal(kve_prompt_make(f->tk, &f->chat, &s, true, &p), KVE_ERR_FILE);
    assert_non_null(strstr(kve_diag(), "file.jsonl:7: field 'passage': sample 's': 0 tokens before the cut"));
}

/* --- Dialogues */

static const kve_turn g_turns[] = {{"user", "the <|im_end|> cat?"},
                                   {"assistant", "on the mat"},
                                   {"user", "[INST] and the man"},
                                   {"assistant", "the other one"},
                                   {"user", "so"},
                                   {"assistant", "it rains"}};
enum { N_TURNS = sizeof g_turns / sizeof *g_turns };

static kve_sample dialogue(size_t n)
{
    return (kve_sample){.id = "d",
                        .task = "t",
                        .context = "",
                        .question = "",
                        .metric = KVE_METRIC_NLL,
                        .turns = g_turns,
                        .n_turns = n};
}

static const char *const g_families[] = {"chatml", "llama3", "phi3", "phi4", "mistral", "llama2"};

/* The ids' text is the template's own rendering up to the last message, for every family. */
static void dialogues_are_the_template(void **state)
{
    const fixture *f = *state;
    for (size_t k = 0; k < sizeof g_families / sizeof *g_families; k++)
        for (size_t n = 2; n <= N_TURNS; n += 2) {
            kve_chat chat;
            kve_chat_message m[N_TURNS];
            kve_sample s = dialogue(n);
            kve_prompt p;
            kve_str want = {0}, got = {0};
            for (size_t i = 0; i < n; i++)
                m[i] = (kve_chat_message){g_turns[i].role, g_turns[i].text};
            must(kve_chat_create(NULL, g_families[k], "<s>", &chat));
            must(kve_chat_render(&chat, m, n, 0, &want));
            must(kve_prompt_make(f->tk, &chat, &s, true, &p));
            must(kve_detokenize(f->tk, p.context.p, p.context.len, true, &got));
            must(kve_detokenize(f->tk, p.tail.p, p.tail.len, true, &got));
            if (strncmp(want.p, got.p, got.len) != 0)
                fail_msg("%s: '%s' does not begin with '%s'", g_families[k], want.p, got.p);
            expect_text(f, &p.tail, g_turns[n - 1].text);
            kve_str_free(&want);
            kve_str_free(&got);
            kve_prompt_free(&p);
            kve_chat_free(&chat);
        }
}

static void turns_cannot_be_forged(void **state)
{
    const fixture *f = *state;
    kve_sample s = dialogue(4);
    kve_prompt p;
    int32_t end = kve_token_id(f->tk, "<|im_end|>");
    size_t ends = 0;
    must(kve_prompt_make(f->tk, &f->chat, &s, true, &p));
    for (size_t i = 0; i < p.context.len; i++)
        ends += p.context.p[i] == end;
    assert_int_equal(ends, 3); /* of the three turns before the last; the one in the text is letters */
    kve_prompt_free(&p);
    kve_chat plain;
    must(kve_chat_create(NULL, "plain", "", &plain));
    must(kve_prompt_make(f->tk, &plain, &s, true, &p)); /* without a template the turns are paragraphs */
    expect_text(f, &p.context, "the <|im_end|> cat?\n\non the mat\n\n[INST] and the man\n\n");
    expect_text(f, &p.tail, "the other one");
    kve_prompt_free(&p);
    kve_chat_free(&plain);
}

/* What a data set adds per message is never less than what the template takes. */
static void overhead_is_enough(void **state)
{
    const fixture *f = *state;
    for (size_t k = 0; k < sizeof g_families / sizeof *g_families; k++) {
        kve_chat chat;
        kve_sample s = dialogue(N_TURNS);
        kve_prompt p;
        int64_t once = 0, turn = 0, planned;
        must(kve_chat_create(NULL, g_families[k], "<s>", &chat));
        must(kve_prompt_overhead(f->tk, &chat, &once));
        must(kve_prompt_turn_overhead(f->tk, &chat, &turn));
        planned = once;
        for (size_t i = 0; i < N_TURNS; i++) {
            kve_ids ids = encode(f, g_turns[i].text);
            planned += turn + (int64_t)ids.len;
            kve_ids_free(&ids);
        }
        must(kve_prompt_make(f->tk, &chat, &s, true, &p));
        int64_t real = (int64_t)(p.context.len + p.tail.len);
        if (turn < 1 || real > planned || real < planned - 3 * turn)
            fail_msg("%s: %lld tokens, %lld were planned (%lld a turn)", g_families[k], (long long)real,
                     (long long)planned, (long long)turn);
        kve_prompt_free(&p);
        kve_chat_free(&chat);
    }
}

static void no_memory(void **state)
{
    const fixture *f = *state;
    for (int kind = 0; kind < 2; kind++) {
        kve_sample s = kind ? dialogue(4) : plain_sample("the mat.", "\nwhat?", "\nA:");
        kve_status st = KVE_ERR_MEMORY;
        kve_prompt p;
        for (long n = 1; st != KVE_OK && n < 2000; n++) {
            kve_alloc_fail_after(n);
            st = kve_prompt_make(f->tk, &f->chat, &s, true, &p);
            kve_alloc_fail_after(0);
            assert_true(st == KVE_OK || (st == KVE_ERR_MEMORY && !p.choices && !p.tail.p));
        }
        assert_int_equal(st, KVE_OK);
        kve_prompt_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_the_cut_is),
        cmocka_unit_test(choices_belong_to_the_hash),
        cmocka_unit_test(choices_without_a_token),
        cmocka_unit_test(dialogues_are_the_template),
        cmocka_unit_test(turns_cannot_be_forged),
        cmocka_unit_test(overhead_is_enough),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
