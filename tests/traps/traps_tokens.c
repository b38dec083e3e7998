/* Traps around tokens: BOS and EOS, chat templates, merges, pre-tokenizers, long texts. */
#include "tests/traps/traps.h"

#include "eval/prompt.h"
#include "host/model/checkpoint.h"
#include "tests/model/build.h"
#include "tests/traps/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define GOLDEN KVE_SOURCE_DIR "/tests/golden/"

/* The ids of a text under a GGUF file's own rule for BOS. */
static void gguf_ids(const tiny_faults *f, const char *text, kve_ids *ids, kve_config *cfg)
{
    kve_str file = {0};
    kve_checkpoint *ck = NULL;
    kve_tokenizer *tk = NULL;
    tiny_gguf(f, &file);
    trap_must(tiny_open(file.p, file.len, &ck));
    trap_must(kve_tokenizer_create(kve_checkpoint_vocab(ck), &tk));
    trap_must(kve_tokenize(tk, text, strlen(text), true, true, ids));
    *cfg = *kve_checkpoint_config(ck);
    kve_tokenizer_free(tk);
    kve_checkpoint_close(ck);
    kve_str_free(&file);
}

static void bos_from_rule_and_template(void **state)
{
    (void)state;
    kve_config cfg;
    kve_ids ids = {0};
    gguf_ids(&(tiny_faults){.spm = true}, "<s>ab", &ids, &cfg); /* the rule says BOS, the text brings its own */
    assert_true(ids.len >= 2 && ids.p[0] == 3 && ids.p[1] != 3);
    ids.len = 0;
    gguf_ids(&(tiny_faults){.spm = true}, "ab", &ids, &cfg);
    assert_true(ids.len >= 2 && ids.p[0] == 3 && ids.p[1] != 3);
    kve_ids_free(&ids);
}

/* The file names a BOS id, but the tokenizer's rule is not to use it. */
static void bos_that_is_not_used(void **state)
{
    (void)state;
    kve_config cfg;
    kve_ids ids = {0};
    gguf_ids(&(tiny_faults){0}, "ab", &ids, &cfg);
    assert_true(cfg.bos == 3 && ids.len == 1 && ids.p[0] == 2);
    kve_ids_free(&ids);
}

/* A model with an EOS and no BOS: nothing takes BOS's place, neither in plain text nor in a chat. */
static void eos_in_the_place_of_bos(void **state)
{
    (void)state;
    kve_checkpoint *ck = NULL;
    kve_tokenizer *tk = NULL;
    trap_must(kve_checkpoint_open(GOLDEN "models/llama", &ck));
    const kve_config *c = kve_checkpoint_config(ck);
    const kve_vocab *v = kve_checkpoint_vocab(ck);
    trap_must(kve_tokenizer_create(v, &tk));
    assert_true(c->bos == -1 && v->bos == -1 && v->eos >= 0 && !v->add_bos);
    for (int plain = 0; plain < 2; plain++) {
        kve_chat chat;
        kve_prompt p;
        kve_sample s = {.id = "s", .task = "t", .context = "the text", .question = "", .answer_prefix = "so"};
        trap_must(kve_chat_create(kve_checkpoint_chat_template(ck), plain ? "plain" : NULL, "", &chat));
        trap_must(kve_prompt_make(tk, &chat, &s, true, &p));
        for (int32_t i = 0; i < c->n_eos; i++)
            assert_true(p.context.p[0] != c->eos[i]);
        kve_prompt_free(&p);
        kve_chat_free(&chat);
    }
    kve_tokenizer_free(tk);
    kve_checkpoint_close(ck);
}

static void eos_as_a_list(void **state)
{
    (void)state;
    kve_checkpoint *ck = NULL;
    kve_config cfg;
    kve_ids ids = {0};
    trap_copy_model("llama");
    trap_edit("generation_config.json", "    258\n", "    258, 261\n");
    trap_must(kve_checkpoint_open(trap_dir, &ck));
    const kve_config *c = kve_checkpoint_config(ck);
    assert_true(c->n_eos == 3 && c->eos[0] == 256 && c->eos[1] == 258 && c->eos[2] == 261);
    kve_checkpoint_close(ck);
    trap_edit("config.json", "[\n    256,\n    258\n  ]", "258"); /* or a single number */
    trap_edit("generation_config.json", "[\n    256,\n    258, 261\n  ]", "258");
    trap_must(kve_checkpoint_open(trap_dir, &ck));
    assert_true(kve_checkpoint_config(ck)->n_eos == 1 && kve_checkpoint_config(ck)->eos[0] == 258);
    kve_checkpoint_close(ck);
    gguf_ids(&(tiny_faults){0}, "a", &ids, &cfg); /* GGUF names one; its other end marks count too */
    assert_true(cfg.n_eos == 2 && cfg.eos[0] == 4 && cfg.eos[1] == 6);
    kve_ids_free(&ids);
}

static void unknown_chat_template(void **state)
{
    (void)state;
    kve_chat chat;
    trap_refused(kve_chat_create("{% for m in messages %}@@{{ m.content }}@@{% endfor %}", NULL, "", &chat),
                 "--chat plain");
    trap_must(kve_chat_create("{% for m in messages %}@@{{ m.content }}@@{% endfor %}", "plain", "", &chat));
    assert_true(chat.family == KVE_CHAT_PLAIN && chat.sha256[0] == 0);
    kve_chat_free(&chat);
}

/* Without a template the text goes in plainly; with one, the model's own wins unless another is asked for by name. */
static void wrong_chat_template(void **state)
{
    (void)state;
    kve_chat chat;
    kve_str open = {0}, close = {0};
    trap_must(kve_chat_create(NULL, NULL, "", &chat));
    assert_true(chat.family == KVE_CHAT_PLAIN);
    kve_chat_free(&chat);
    trap_must(kve_chat_create("<|im_start|> {{ bos_token }} <|im_sep|>", NULL, "", &chat));
    assert_true(chat.family == KVE_CHAT_PHI4 && strlen(chat.sha256) == 64); /* not ChatML, whose mark it contains */
    trap_must(kve_chat_single(&chat, &open, &close));
    assert_string_equal(open.p, "<|im_start|>user<|im_sep|>");
    kve_chat_free(&chat);
    trap_must(kve_chat_create("<|im_start|>", "llama3", "", &chat));
    assert_true(chat.family == KVE_CHAT_LLAMA3);
    kve_chat_free(&chat);
    trap_refused(kve_chat_create("<|im_start|>", "lama3", "", &chat), "llama3");
    kve_str_free(&open);
    kve_str_free(&close);
}

static void refuse_gguf(const tiny_faults *f, const char *word)
{
    kve_str file = {0};
    kve_checkpoint *ck = NULL;
    tiny_gguf(f, &file);
    trap_refused(tiny_open(file.p, file.len, &ck), word);
    kve_str_free(&file);
}

static void pre_tokenizer_missing(void **state)
{
    (void)state;
    refuse_gguf(&(tiny_faults){.skip_key = "tokenizer.ggml.pre"}, "tokenizer.ggml.pre");
}

static void pre_tokenizer_unknown(void **state)
{
    (void)state;
    kve_str file = {0};
    kve_checkpoint *ck = NULL;
    kve_tokenizer *tk = NULL;
    tiny_gguf(&(tiny_faults){.text_key = "tokenizer.ggml.pre", .text_value = "next-year"}, &file);
    trap_must(tiny_open(file.p, file.len, &ck));
    trap_refused(kve_tokenizer_create(kve_checkpoint_vocab(ck), &tk), "'next-year'");
    assert_non_null(strstr(kve_diag(), "llama-bpe")); /* the known ones are listed */
    kve_checkpoint_close(ck);
    kve_str_free(&file);
}

static void load_tokenizer(const char *merges, kve_vocab *v, kve_tokenizer **tk)
{
    trap_must(kve_vocab_from_json(trap_tokenizer(merges), NULL, v, NULL));
    trap_must(kve_tokenizer_create(v, tk));
}

static const char *const g_merges[] = {"[\"a a\",\"aa aa\",\"aaaa aaaa\"]",
                                       "[[\"a\",\"a\"],[\"aa\",\"aa\"],[\"aaaa\",\"aaaa\"]]"};

static void merges_as_texts_or_pairs(void **state)
{
    (void)state;
    static const int32_t want[] = {4, 3, 2, 0, 1};
    for (int i = 0; i < 2; i++) {
        kve_vocab v;
        kve_tokenizer *tk = NULL;
        kve_ids ids = {0};
        load_tokenizer(g_merges[i], &v, &tk);
        trap_must(kve_tokenize(tk, "aaaaaaaaaaaaaaab", 16, false, false, &ids));
        assert_int_equal(ids.len, 5);
        assert_memory_equal(ids.p, want, sizeof want);
        kve_ids_free(&ids);
        kve_tokenizer_free(tk);
        kve_vocab_free(&v);
    }
    kve_vocab v;
    static const char *const odd[] = {"[\"aa\"]", "[[\"a\"]]", "[[\"a\",\"a\",\"a\"]]", "[\"a \"]", "[7]"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        trap_refused(kve_vocab_from_json(trap_tokenizer(odd[i]), NULL, &v, NULL), "merges[0]");
}

static void no_merges(void **state)
{
    (void)state;
    kve_vocab v;
    static const char *const none[] = {"[]", "null", NULL};
    for (size_t i = 0; i < 3; i++)
        trap_refused(kve_vocab_from_json(trap_tokenizer(none[i]), NULL, &v, NULL), "merges");
    refuse_gguf(&(tiny_faults){.skip_key = "tokenizer.ggml.merges"}, "merges");
}

static void token_types_missing(void **state)
{
    (void)state;
    refuse_gguf(&(tiny_faults){.skip_key = "tokenizer.ggml.token_type"}, "token_type");
}

/* Processor seconds, the least of three. */
static double cost(const kve_tokenizer *tk, const char *text, size_t len, size_t *n_ids)
{
    double best = 1e9;
    for (int i = 0; i < 3; i++) {
        kve_ids ids = {0};
        clock_t start = clock();
        trap_must(kve_tokenize(tk, text, len, false, false, &ids));
        double s = (double)(clock() - start) / CLOCKS_PER_SEC;
        best = s < best ? s : best;
        *n_ids = ids.len;
        kve_ids_free(&ids);
    }
    return best;
}

enum { MEGABYTE = 1 << 20, LINEAR = 8, QUADRATIC = LINEAR * LINEAR };

/* Eight times the text may cost eight times the time and a good bit more, but not sixty-four times. */
static void grows_linearly(const kve_tokenizer *tk, const char *unit, size_t tokens_per_megabyte)
{
    char *text = malloc(MEGABYTE);
    size_t n = 0, len = strlen(unit);
    assert_non_null(text);
    for (size_t i = 0; i < MEGABYTE; i++)
        text[i] = unit[i % len];
    double eighth = cost(tk, text, MEGABYTE / LINEAR, &n), whole = cost(tk, text, MEGABYTE, &n);
    assert_int_equal(n, tokens_per_megabyte);
    if (whole > (eighth + 2e-3) * QUADRATIC / 2)
        fail_msg("1 MB of '%s...' takes %g s, an eighth of it %g s", unit, whole, eighth);
    free(text);
}

static void a_megabyte_of_words(void **state)
{
    (void)state;
    kve_vocab v;
    kve_tokenizer *tk = NULL;
    load_tokenizer(g_merges[0], &v, &tk);
    grows_linearly(tk, "b ", MEGABYTE); /* half a million matches of the pattern in one text */
    kve_tokenizer_free(tk);
    kve_vocab_free(&v);
}

static void a_megabyte_of_one_letter(void **state)
{
    (void)state;
    kve_vocab v;
    kve_tokenizer *tk = NULL;
    load_tokenizer(g_merges[0], &v, &tk);
    grows_linearly(tk, "a", MEGABYTE / 8);
    grows_linearly(tk, " ", MEGABYTE);
    kve_tokenizer_free(tk);
    kve_vocab_free(&v);
}

trap_rows traps_tokens(void)
{
    static const trap_row rows[] = {
        {"BOS by the rule and by the text: one of them", bos_from_rule_and_template},
        {"a BOS id that the tokenizer does not use", bos_that_is_not_used},
        {"EOS where a BOS would stand", eos_in_the_place_of_bos},
        {"EOS as a list of ids", eos_as_a_list},
        {"a chat template that nobody knows", unknown_chat_template},
        {"no chat template, and another family's", wrong_chat_template},
        {"GGUF without the pre-tokenizer's name", pre_tokenizer_missing},
        {"GGUF with a new pre-tokenizer's name", pre_tokenizer_unknown},
        {"merges as texts and as pairs", merges_as_texts_or_pairs},
        {"no merges at all", no_merges},
        {"GGUF without token types", token_types_missing},
        {"UTF-8 checked once, not once per match", a_megabyte_of_words},
        {"merging a megabyte of one letter", a_megabyte_of_one_letter},
    };
    return (trap_rows){rows, sizeof rows / sizeof *rows};
}
