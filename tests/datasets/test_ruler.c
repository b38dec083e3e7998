/* RULER's generated tasks as a whole: lengths, frames, seeds, words, essays, errors. The answers: test_ruler_answers.c.
 */
#include "tests/datasets/ruler_common.h"

/* The tasks that need no data. */
static bool generated(size_t i)
{
    return strncmp(kve_ruler_task_name(i), "qa_", 3) != 0;
}

static int64_t generated_tokens(const char *task)
{
    return strncmp(task, "niah", 4) == 0 ? 128 : strcmp(task, "vt") == 0 ? 30 : strcmp(task, "cwe") == 0 ? 120 : 50;
}

/* Words that one more unit may add: the gap that a fitted context may leave. */
static int64_t unit_words(const char *task)
{
    if (strcmp(task, "niah_single_1") == 0 || strcmp(task, "vt") == 0)
        return 8; /* the longest noise sentence */
    if (strcmp(task, "niah_multikey_2") == 0 || strcmp(task, "niah_multikey_3") == 0)
        return 7; /* a needle */
    if (strncmp(task, "niah", 4) == 0)
        return 60; /* the longest sentence of an essay */
    return 6;      /* cwe: "12. word" three times; fwe: a few counts rise at once */
}

/* --- What holds for all */

static void check_frame(const kve_sample *s, int64_t length)
{
    const char *const parts[] = {s->context, s->question, s->answer_prefix};
    int64_t n = OVERHEAD + s->max_new_tokens;
    for (size_t i = 0; i < 3; i++)
        n += (int64_t)words_of(parts[i], strlen(parts[i]), NULL);
    assert_int_equal(s->n_tok, n);
    assert_true(n <= length);
    assert_true(n > length - unit_words(bare_task(s->task)));
    assert_int_equal(s->max_new_tokens, generated_tokens(bare_task(s->task)));
    assert_int_equal(s->metric, KVE_METRIC_RULER_ALL);
    assert_string_equal(s->task_version, KVE_RULER_VERSION);
    assert_int_equal(s->n_ids, 0);
    /* at 4k every task has its official counts; counted in words, though, the built-in essay is too short */
    assert_true(s->note == NULL || length < 4096 || strstr(s->note, "repeats"));
    assert_true(*s->answer_prefix && s->answer_prefix[strlen(s->answer_prefix) - 1] != ' ');
    assert_null(strstr(s->context, s->question)); /* the question comes after the context and nowhere else ... */
    bool example = strcmp(bare_task(s->task), "vt") == 0 ||
                   (strcmp(bare_task(s->task), "cwe") == 0 && !(s->note && strstr(s->note, "no ex")));
    if (strcmp(bare_task(s->task), "cwe") !=
        0) /* ... but an example has one of its own, which in cwe has the same words */
        assert_int_equal(occurrences_of(s->context, "Question:"), example);
}

static void check_cwe_frame(const kve_sample *s, int64_t length)
{
    (void)length;
    bool example = !(s->note && strstr(s->note, "no example"));
    assert_int_equal(occurrences_of(s->context, s->question), example);
    assert_int_equal(occurrences_of(s->context, s->answer_prefix), example);
}

static void test_frame(void **state)
{
    (void)state;
    assert_int_equal(kve_ruler_n_tasks(), 13);
    for (size_t i = 0; i < kve_ruler_n_tasks(); i++)
        if (generated(i))
            for_every_sample(kve_ruler_task_name(i), 6,
                             strcmp(kve_ruler_task_name(i), "cwe") == 0 ? check_cwe_frame : check_frame);
}

static void check_length(const kve_sample *s, int64_t length)
{
    assert_true(s->n_tok <= length && s->n_tok > length - unit_words(bare_task(s->task)));
}

static void test_cwe_length(void **state)
{
    (void)state;
    for_every_sample("cwe", 6, check_length);
}

/* --- Seeds and versions */

/* A sample is a function of seed, task and index (and length and tokenizer). A change of any of these hashes is a
 * change of the task: give KVE_RULER_VERSION a new number. */
static void test_golden(void **state)
{
    (void)state;
    static const uint64_t GOLDEN[] = {
        0xe8fa431ae2470f7c, 0x01283b3fa3e8c385, 0xce2044b200d0523d, 0x7a789e4327d30631,
        0x8071302ae840d62a, 0x2b7d66d03fb6e755, 0x5bb3acf624743934, 0xdb632394845d91d5,
        0xd95b657d357a003e, 0x92eefaf701647a92, 0x33241df7572809fe,
    };
    for (size_t i = 0, k = 0; i < kve_ruler_n_tasks(); i++) {
        kve_sample s;
        if (!generated(i))
            continue;
        kve_dataset *d = open_task(kve_ruler_task_name(i), 1024, 7, 9, NULL);
        assert_ok(kve_dataset_sample(d, 3, &s));
        if (hash_sample(&s) != GOLDEN[k])
            fail_msg("%s: the hash is 0x%016llx", s.task, (unsigned long long)hash_sample(&s));
        kve_sample_free(&s);
        kve_dataset_close(d);
        k++;
    }
}

static uint64_t hash_of(kve_dataset *d, size_t i)
{
    kve_sample s;
    assert_ok(kve_dataset_sample(d, i, &s));
    s.id = ""; /* an id names the seed, so it would differ anyway */
    uint64_t h = hash_sample(&s);
    kve_sample_free(&s);
    return h;
}

static void test_seeds(void **state)
{
    (void)state;
    for (size_t i = 0; i < kve_ruler_n_tasks(); i++) {
        if (!generated(i))
            continue;
        const char *name = kve_ruler_task_name(i);
        kve_dataset *a = open_task(name, 1024, 1, 4, NULL), *b = open_task(name, 1024, 1, 0, NULL),
                    *c = open_task(name, 1024, 2, 4, NULL);
        assert_int_equal(b->n_samples, 500); /* RULER's own */
        uint64_t third = hash_of(a, 3);
        assert_true(hash_of(b, 499) != third);
        assert_true(hash_of(b, 3) == third); /* neither n_samples nor what was drawn before matters */
        assert_true(hash_of(a, 2) != third);
        assert_true(hash_of(c, 3) != third);
        assert_true(hash_of(a, 3) == third);
        kve_dataset_close(a);
        kve_dataset_close(b);
        kve_dataset_close(c);
    }
}

/* A count means tokenizing the whole context, so there must be few. */
static void test_few_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < kve_ruler_n_tasks(); i++) {
        size_t n_counts = 0;
        if (!generated(i))
            continue;
        kve_dataset *d = open_task(kve_ruler_task_name(i), 4096, 1, 10, &n_counts);
        for (size_t k = 0; k < 10; k++)
            (void)hash_of(d, k);
        assert_true(n_counts <= 10 * 14);
        kve_dataset_close(d);
    }
}

/* --- Words, essays, errors */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void test_word_lists(void **state)
{
    (void)state;
    size_t n = kve_n_adjectives + kve_n_nouns;
    const char **all = NULL;
    assert_ok(kve_alloc(n, sizeof *all, &all));
    memcpy(all, kve_adjectives, kve_n_adjectives * sizeof *all);
    memcpy(all + kve_n_adjectives, kve_nouns, kve_n_nouns * sizeof *all);
    qsort(all, n, sizeof *all, by_text);
    for (size_t i = 0; i < n; i++) {
        assert_true(*all[i] && strspn(all[i], "abcdefghijklmnopqrstuvwxyz") == strlen(all[i]));
        assert_true(i == 0 || strcmp(all[i - 1], all[i]) != 0); /* cwe counts words: a repeat would count twice */
    }
    free(all);
    assert_true(kve_n_word_pairs() > 131072 + 8); /* as many keys as the longest haystack of needles takes */
}

static void test_essay_files(void **state)
{
    (void)state;
    static const char PLAIN[] = "One  two\tthree. \"Four five!\" Six\nseven? Eight\n\nnine ten.";
    kve_arena arena = {0};
    kve_sentences s = {0};
    assert_ok(kve_sentences_load(temp_file("essay.txt", PLAIN, strlen(PLAIN)), &arena, &s));
    static const char *const WANT[] = {"One two three.", "\"Four five!\"", "Six seven?", "Eight", "nine ten."};
    assert_int_equal(s.n, 5);
    for (size_t i = 0; i < 5; i++)
        assert_string_equal(s.items[i], WANT[i]);
    static const char JSON[] = "{\"text\": \"A b. C d.\"}";
    assert_ok(kve_sentences_load(temp_file("essay.json", JSON, strlen(JSON)), &arena, &s));
    assert_int_equal(s.n, 2);
    assert_string_equal(s.items[1], "C d.");
    assert_diag(KVE_ERR_FILE, kve_sentences_load(temp_file("bad.json", "{}", 2), &arena, &s), "'text' is missing");
    assert_diag(KVE_ERR_FILE, kve_sentences_load(temp_file("empty.txt", " \n", 2), &arena, &s), "has no words");
    assert_diag(KVE_ERR_FILE, kve_sentences_load(temp_file("latin.txt", "caf\xe9 x", 6), &arena, &s), "byte 3 is not");
    assert_diag(KVE_ERR_FILE, kve_sentences_load(temp_file("nul.txt", "a\0b", 3), &arena, &s), "NUL");
    assert_diag(KVE_ERR_FILE, kve_sentences_load("/nonexistent/essay", &arena, &s), "/nonexistent/essay");
    kve_arena_free(&arena);
}

/* A given essay is used, and one that is too short for the length says that it repeats. */
static void test_own_essay(void **state)
{
    (void)state;
    static const char TEXT[] = "Grey geese fly over the moor. Brown owls sleep in the barn.";
    kve_dataset *d = NULL;
    kve_sample s;
    kve_ruler_options o = {.task = "niah_single_2",
                           .length_tok = 512,
                           .n_samples = 1,
                           .tokens = WORDS,
                           .haystack_path = temp_file("own.txt", TEXT, strlen(TEXT))};
    assert_ok(kve_ruler_open(&o, &d));
    assert_ok(kve_dataset_sample(d, 0, &s));
    assert_true(occurrences_of(s.context, "Grey geese fly over the moor.") > 10);
    assert_non_null(strstr(s.note, "repeats"));
    kve_sample_free(&s);
    kve_dataset_close(d);
}

static void test_bad_options(void **state)
{
    (void)state;
    kve_dataset *d = NULL;
    kve_ruler_options good = {.task = "vt", .length_tok = 4096, .tokens = WORDS}, o;
    o = good, o.task = "niah_singel_1";
    assert_diag(KVE_ERR_USAGE, kve_ruler_open(&o, &d), "did you mean 'niah_single_1'");
    o = good, o.length_tok = 511;
    assert_diag(KVE_ERR_USAGE, kve_ruler_open(&o, &d), "511");
    o = good, o.length_tok = 131073;
    assert_diag(KVE_ERR_USAGE, kve_ruler_open(&o, &d), "131073");
    o = good, o.overhead_tok = -1;
    assert_diag(KVE_ERR_USAGE, kve_ruler_open(&o, &d), "-1");
    o = good, o.task = "qa_1";
    assert_diag(KVE_ERR_USAGE, kve_ruler_open(&o, &d), "--data");
    assert_null(d);
    o = good, o.length_tok = 512, o.overhead_tok = 400;
    assert_ok(kve_ruler_open(&o, &d));
    kve_sample s;
    assert_diag(KVE_ERR_USAGE, kve_dataset_sample(d, 0, &s),
                "task 'vt', sample 0: a length of 512 tokens is too short");
    assert_null(s.arena.head);
    kve_dataset_close(d);
}

/* Whatever allocation fails, the status says so and nothing leaks (the sanitizer build sees to that). */
static void test_no_memory(void **state)
{
    (void)state;
    static const char *const TASKS[] = {"niah_multiquery", "vt", "cwe", "fwe"};
    for (size_t i = 0; i < 4; i++) {
        kve_status st = KVE_ERR_MEMORY;
        for (long n = 1; st != KVE_OK && n < 2000; n++) {
            kve_dataset *d = NULL;
            kve_sample s = {0};
            kve_ruler_options o = {.task = TASKS[i], .length_tok = 512, .n_samples = 1, .tokens = WORDS};
            kve_alloc_fail_after(n);
            st = kve_ruler_open(&o, &d);
            if (st == KVE_OK)
                st = kve_dataset_sample(d, 0, &s);
            kve_alloc_fail_after(0);
            assert_true(st == KVE_OK || st == KVE_ERR_MEMORY);
            kve_sample_free(&s);
            kve_dataset_close(d);
        }
        assert_int_equal(st, KVE_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frame),       cmocka_unit_test(test_cwe_length), cmocka_unit_test(test_golden),
        cmocka_unit_test(test_seeds),       cmocka_unit_test(test_few_counts), cmocka_unit_test(test_word_lists),
        cmocka_unit_test(test_essay_files), cmocka_unit_test(test_own_essay),  cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, remove_temp_dir);
}
