/* The tokenizer against golden ids (tests/golden/make_tokenizer.py), the way back, and its edges. */
#include "host/text/tokenizer.h"

#include "host/base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN KVE_SOURCE_DIR "/tests/golden/tokenizer/"

static void load(const char *name, kve_vocab *v, kve_tokenizer **tk)
{
    char path[512];
    snprintf(path, sizeof path, GOLDEN "%s.json", name);
    if (kve_vocab_from_json(path, NULL, v, NULL) != KVE_OK || kve_tokenizer_create(v, tk) != KVE_OK)
        fail_msg("%s", kve_diag());
}

static size_t from_hex(char *line)
{
    size_t n = strcspn(line, "\n") / 2;
    for (size_t i = 0; i < n; i++) {
        char two[3] = {line[2 * i], line[2 * i + 1], 0};
        line[i] = (char)strtol(two, NULL, 16);
    }
    return n;
}

/* One case: the ids are equal, and the ids give the text back. */
static int case_fails(const kve_tokenizer *tk, const char *text, size_t len, bool specials, char *ids_line)
{
    kve_ids ids = {0};
    kve_str back = {0};
    if (kve_tokenize(tk, text, len, specials, false, &ids) != KVE_OK)
        fail_msg("%s", kve_diag());
    size_t k = 0;
    bool same = true;
    for (char *t = strtok(ids_line, " \n"); t; t = strtok(NULL, " \n"), k++)
        same = same && k < ids.len && ids.p[k] == (int32_t)atoi(t);
    same = same && k == ids.len;
    assert_int_equal(kve_detokenize(tk, ids.p, ids.len, true, &back), KVE_OK);
    /* SPM writes a space in front of each stretch after an added token, so those texts do not come back exactly. */
    bool lossy = kve_tokenizer_vocab(tk)->kind == KVE_VOCAB_SPM_BPE && memmem(text, len, "<|im_end|>", 10);
    bool round = lossy || (back.len == len && (len == 0 || memcmp(back.p, text, len) == 0));
    if (!same || !round)
        print_error("%s: '%.*s'\n", same ? "round trip" : "ids", (int)len, text);
    kve_ids_free(&ids);
    kve_str_free(&back);
    return !same || !round;
}

static void check_golden(const char *name)
{
    kve_vocab v;
    kve_tokenizer *tk;
    load(name, &v, &tk);
    FILE *f = fopen(GOLDEN "ids.txt", "r");
    assert_non_null(f);
    char *head = NULL, *text = NULL, *ids = NULL;
    size_t c1 = 0, c2 = 0, c3 = 0;
    int cases = 0, failed = 0;
    while (getline(&head, &c1, f) > 0 && getline(&text, &c2, f) > 0 && getline(&ids, &c3, f) > 0) {
        size_t n = strlen(name);
        if (strncmp(head, name, n) != 0 || head[n] != ' ')
            continue;
        size_t len = from_hex(text);
        failed += case_fails(tk, text, len, head[n + 1] == '1', ids);
        cases++;
    }
    free(head);
    free(text);
    free(ids);
    fclose(f);
    kve_tokenizer_free(tk);
    kve_vocab_free(&v);
    assert_true(cases > 100);
    assert_int_equal(failed, 0);
}

static void golden_gpt2(void **state)
{
    (void)state;
    check_golden("gpt2");
}

static void golden_qwen2(void **state)
{
    (void)state;
    check_golden("qwen2");
}

static void golden_smollm(void **state)
{
    (void)state;
    check_golden("smollm");
}

static void golden_spm(void **state)
{
    (void)state;
    check_golden("spm");
}

/* The names that GGUF files use give the same patterns as the steps in tokenizer.json. */
static void names_equal_steps(void **state)
{
    (void)state;
    static const char *const pairs[] = {"gpt2", "qwen2", "smollm"};
    static const char text[] = "It's 12345 x\xe1\xa0\x8ey \r\n\r\n  WE'LL \xc2\xa0 go__\t1\n";
    for (size_t i = 0; i < 3; i++) {
        kve_vocab v;
        kve_tokenizer *by_steps, *by_name;
        load(pairs[i], &v, &by_steps);
        v.pre_name = pairs[i];
        assert_int_equal(kve_tokenizer_create(&v, &by_name), KVE_OK);
        kve_ids a = {0}, b = {0};
        assert_int_equal(kve_tokenize(by_steps, text, sizeof text - 1, true, false, &a), KVE_OK);
        assert_int_equal(kve_tokenize(by_name, text, sizeof text - 1, true, false, &b), KVE_OK);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.p, b.p, a.len * sizeof *a.p);
        kve_ids_free(&a);
        kve_ids_free(&b);
        kve_tokenizer_free(by_steps);
        kve_tokenizer_free(by_name);
        kve_vocab_free(&v);
    }
}

static void edges(void **state)
{
    (void)state;
    kve_vocab v;
    kve_tokenizer *tk, *none;
    kve_ids ids = {0};
    load("gpt2", &v, &tk);
    assert_int_equal(kve_tokenize(tk, "ab\xff", 3, true, false, &ids), KVE_ERR_FILE);
    assert_non_null(strstr(kve_diag(), "offset 2"));
    assert_int_equal(kve_token_id(tk, "<|im_end|>"), 2);
    assert_int_equal(kve_token_id(tk, "no such token"), -1);
    v.bos = 0;
    v.add_bos = true;
    assert_int_equal(kve_tokenize(tk, "a", 1, true, true, &ids), KVE_OK);
    assert_true(ids.len == 2 && ids.p[0] == 0);
    ids.len = 0;
    assert_int_equal(kve_tokenize(tk, "<|endoftext|>a", 14, true, true, &ids), KVE_OK);
    assert_true(ids.len == 2 && ids.p[0] == 0);
    enum { MEGA = 1 << 20 };
    char *big = malloc(MEGA);
    memset(big, 'a', MEGA);
    ids.len = 0;
    assert_int_equal(kve_tokenize(tk, big, MEGA, true, false, &ids), KVE_OK);
    memset(big, ' ', MEGA);
    assert_int_equal(kve_tokenize(tk, big, MEGA, true, false, &ids), KVE_OK);
    free(big);
    v.pre_name = "nonsense";
    assert_int_equal(kve_tokenizer_create(&v, &none), KVE_ERR_FILE);
    assert_non_null(strstr(kve_diag(), "smollm"));
    assert_int_equal(kve_utf8_complete_len("a\xf0\x9f\x98", 4), 1);
    assert_int_equal(kve_utf8_complete_len("a\xc3\xa9", 3), 3);
    kve_ids_free(&ids);
    kve_tokenizer_free(tk);
    kve_vocab_free(&v);
}

/* A template and a user's words as one text: the ids are those of the whole text, whatever the seam; a forged control
 * token in the words stays letters; what continues another text gets no space in front. */
static void texts_of_several_origins(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2", "qwen2", "smollm", "spm"}, open[] = "[INST] <<SYS>>\n",
                             words[] = "Hello there,  it is 42", control[] = "<|im_end|>";
    for (size_t i = 0; i < 4; i++) {
        kve_vocab v;
        kve_tokenizer *tk;
        kve_ids whole = {0}, parts = {0}, forged = {0};
        char text[128];
        load(names[i], &v, &tk);
        snprintf(text, sizeof text, "%s%s", open, words);
        kve_text_rules rules = {.special_to = sizeof open - 1};
        assert_int_equal(kve_tokenize(tk, text, strlen(text), true, false, &whole), KVE_OK);
        assert_int_equal(kve_tokenize_as(tk, text, strlen(text), &rules, &parts), KVE_OK);
        assert_int_equal(parts.len, whole.len);
        assert_memory_equal(parts.p, whole.p, whole.len * sizeof *whole.p);
        snprintf(text, sizeof text, "%s%s%s", control, words, control);
        rules.special_to = sizeof control - 1;
        assert_int_equal(kve_tokenize_as(tk, text, strlen(text), &rules, &forged), KVE_OK);
        int32_t id = kve_token_id(tk, control);
        if (id >= 0 && v.tokens[id].type == KVE_TOKEN_CONTROL) {
            size_t n = 0;
            for (size_t k = 0; k < forged.len; k++)
                n += forged.p[k] == id;
            assert_int_equal(n, 1);
            assert_int_equal(forged.p[0], id);
        }
        whole.len = parts.len = 0;
        rules = (kve_text_rules){.continues = true};
        assert_int_equal(kve_tokenize(tk, words, strlen(words), false, false, &whole), KVE_OK);
        assert_int_equal(kve_tokenize_as(tk, words, strlen(words), &rules, &parts), KVE_OK);
        bool spm = v.kind == KVE_VOCAB_SPM_BPE && v.spm_strip_extra;
        assert_int_equal(parts.p[0] != whole.p[0], spm);
        kve_ids_free(&whole);
        kve_ids_free(&parts);
        kve_ids_free(&forged);
        kve_tokenizer_free(tk);
        kve_vocab_free(&v);
    }
}

/* A byte-level tokenizer.json with this vocabulary and this pre-tokenizer pattern. */
static kve_status small(const char *vocab, const char *regex, kve_vocab *v, kve_tokenizer **tk)
{
    char path[] = "/tmp/kveval-tokenizer-XXXXXX";
    kve_str text = {0};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(
        kve_str_printf(&text,
                       "{\"model\":{\"vocab\":%s,\"merges\":[\"a a\"]},\"pre_tokenizer\":{\"type\":\"Sequence\","
                       "\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":"
                       "{\"Regex\":\"%s\"}},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                       "\"use_regex\":false}]}}",
                       vocab, regex),
        KVE_OK);
    assert_int_equal(kve_file_write(path, text.p, text.len), KVE_OK);
    kve_str_free(&text);
    *tk = NULL;
    kve_status st = kve_vocab_from_json(path, NULL, v, NULL);
    if (st == KVE_OK && (st = kve_tokenizer_create(v, tk)) != KVE_OK)
        kve_vocab_free(v);
    unlink(path);
    return st;
}

/* What the fuzzer found, and what it might have. */
static void refuses(void **state)
{
    (void)state;
    static const struct {
        const char *vocab, *regex, *words;
    } bad[] = {{"[1]", "a", "model.vocab is not an object"},
               {"{\"a\":16777215}", "a", "highest id is 16777215, but only 1 "},
               {"{\"a\":0.5}", "a", "'a' has no id"},
               {"{\"a\":0,\"aa\":1}", "\\\\C", "\\C"},
               {"{\"a\":0,\"aa\":1}", "(?=a\\\\K)", "\\K"}};
    kve_vocab v;
    kve_tokenizer *tk;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(small(bad[i].vocab, bad[i].regex, &v, &tk), KVE_ERR_FILE);
        if (!strstr(kve_diag(), bad[i].words))
            fail_msg("%s", kve_diag());
    }
    static const struct {
        const char *regex, *words;
    } late[] = {{"(a|aa)+$", "match limit"}, {"(?(DEFINE)(?<x>aa\\\\K))(?=(?&x))a", "start back"}};
    static const char text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab";
    for (size_t i = 0; i < sizeof late / sizeof *late; i++) {
        kve_ids ids = {0};
        assert_int_equal(small("{\"a\":0,\"aa\":1}", late[i].regex, &v, &tk), KVE_OK);
        assert_int_equal(kve_tokenize(tk, text, sizeof text - 1, true, false, &ids), KVE_ERR_FILE);
        if (!strstr(kve_diag(), late[i].words))
            fail_msg("%s", kve_diag());
        kve_ids_free(&ids);
        kve_tokenizer_free(tk);
        kve_vocab_free(&v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_gpt2),       cmocka_unit_test(golden_qwen2),
        cmocka_unit_test(golden_smollm),     cmocka_unit_test(golden_spm),
        cmocka_unit_test(names_equal_steps), cmocka_unit_test(edges),
        cmocka_unit_test(refuses),           cmocka_unit_test(texts_of_several_origins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
