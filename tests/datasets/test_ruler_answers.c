/* RULER's generated tasks: every answer is worked out again from the text alone, and compared with the references. */
#include "tests/datasets/ruler_common.h"

/* --- Needles */

enum { MAX_FOUND = 4096, MAX_WORD = 64 };
typedef struct needle {
    char noun[8], key[MAX_WORD], value[MAX_WORD];
} needle;

/* All needles of a text in its order. */
static size_t find_needles(const char *text, needle *found)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, "The secret ")); at++) {
        assert_true(n < MAX_FOUND);
        assert_int_equal(
            sscanf(at, "The secret %7s for %63s is %63[0-9a-f-].", found[n].noun, found[n].key, found[n].value), 3);
        n++;
    }
    return n;
}

static bool is_number(const char *v)
{
    return strlen(v) == 7 && strspn(v, "0123456789") == 7 && *v != '0';
}

static bool is_uuid4(const char *v)
{
    return strlen(v) == 36 && v[8] == '-' && v[13] == '-' && v[14] == '4' && v[18] == '-' && strchr("89ab", v[19]) &&
           v[23] == '-';
}

/* What each variant must hold, as in RULER's table. */
typedef struct niah_truth {
    const char *task;
    size_t n_needles; /* 0 = the haystack itself is needles */
    size_t n_references;
    bool uuid_keys, uuid_values, one_key;
} niah_truth;

static const niah_truth TRUTHS[] = {
    {"niah_single_1", 1, 1, false, false, true},    {"niah_single_2", 1, 1, false, false, true},
    {"niah_single_3", 1, 1, false, true, true},     {"niah_multikey_1", 4, 1, false, false, false},
    {"niah_multikey_2", 0, 1, false, false, false}, {"niah_multikey_3", 0, 1, true, true, false},
    {"niah_multivalue", 4, 4, false, false, true},  {"niah_multiquery", 4, 4, false, false, false},
};

static void check_needles(const kve_sample *s, int64_t length)
{
    static needle found[MAX_FOUND];
    const niah_truth *t = TRUTHS;
    size_t n = find_needles(s->context, found), n_asked = 0;
    while (strcmp(t->task, bare_task(s->task)) != 0)
        t++;
    assert_int_equal(s->n_references, t->n_references);
    if (t->n_needles)
        assert_int_equal(n, t->n_needles);
    else
        assert_true(n > (size_t)length / 16); /* needles and nothing else */
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(found[i].noun, t->uuid_values ? "UUID" : "number");
        assert_true(t->uuid_keys ? is_uuid4(found[i].key) : strchr(found[i].key, '-') && !is_uuid4(found[i].key));
        assert_true(t->uuid_values ? is_uuid4(found[i].value) : is_number(found[i].value));
        for (size_t k = 0; k < i; k++) {
            assert_string_not_equal(found[i].value, found[k].value);
            assert_int_equal(strcmp(found[i].key, found[k].key) == 0, t->one_key);
        }
        bool asked = strstr(s->question, found[i].key), listed = false;
        for (size_t k = 0; k < s->n_references; k++)
            listed |= strcmp(s->references[k], found[i].value) == 0;
        assert_int_equal(asked, listed);
        assert_true(!asked || strstr(s->answer_prefix, found[i].key));
        n_asked += asked;
    }
    assert_int_equal(n_asked, s->n_references);
}

static void test_needles(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof TRUTHS / sizeof *TRUTHS; i++)
        for_every_sample(TRUTHS[i].task, 8, check_needles);
}

/* Needles lie anywhere, and which of four is asked for says nothing about where it lies. */
static void test_needles_spread(void **state)
{
    (void)state;
    enum { N = 60 };
    static needle found[MAX_FOUND];
    size_t thirds[3] = {0}, asked[4] = {0};
    kve_dataset *one = open_task("niah_single_2", 1024, 1, N, NULL),
                *four = open_task("niah_multikey_1", 1024, 1, N, NULL);
    for (size_t i = 0; i < N; i++) {
        kve_sample s;
        assert_ok(kve_dataset_sample(one, i, &s));
        thirds[(size_t)(strstr(s.context, "The secret ") - s.context) * 3 / strlen(s.context)]++;
        kve_sample_free(&s);
        assert_ok(kve_dataset_sample(four, i, &s));
        assert_int_equal(find_needles(s.context, found), 4);
        for (size_t k = 0; k < 4; k++)
            asked[k] += strcmp(found[k].value, s.references[0]) == 0;
        kve_sample_free(&s);
    }
    for (size_t k = 0; k < 3; k++)
        assert_true(thirds[k] > 6);
    for (size_t k = 0; k < 4; k++)
        assert_true(asked[k] > 4);
    kve_dataset_close(one);
    kve_dataset_close(four);
}

/* --- Variable tracking */

/* Follows the assignments of text; the names that end up with `value`, in the text's order. */
static size_t follow(const char *text, const char *end, const char *value, char names[][8])
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, "VAR ")) && at < end; at++) {
        char name[8], right[8];
        if (sscanf(at, "VAR %7[A-Z] = VAR %7[A-Z].", name, right) == 2) {
            if (n && strcmp(names[n - 1], right) == 0) /* a chain, not a star: each hop is from the one before */
                strcpy(names[n++], name);
        } else if (sscanf(at, "VAR %7[A-Z] = %7[0-9].", name, right) == 2 && strcmp(right, value) == 0) {
            strcpy(names[n++], name);
        }
        assert_true(n < 16);
    }
    return n;
}

static void check_chain(const kve_sample *s, int64_t length)
{
    static const char INSTRUCTION[] = "Keep track of the variables";
    char names[16][8], value[8], listed[64];
    const char *example = strstr(s->context, INSTRUCTION), *body = strstr(example + 1, INSTRUCTION);
    assert_ptr_equal(example, s->context);
    assert_non_null(body);
    assert_null(strstr(body + 1, INSTRUCTION));
    assert_int_equal(sscanf(strstr(s->question, "the value "), "the value %7[0-9]", value), 1);
    assert_int_equal(strlen(value), 5);
    assert_int_equal(s->n_references, 5);
    assert_int_equal(follow(body, s->context + strlen(s->context), value, names), 5);
    for (size_t k = 0; k < 5; k++)
        assert_string_equal(names[k], s->references[k]);
    assert_int_equal(occurrences_of(body, "VAR "), 9);
    /* the example is right, too, and shares no name with the task */
    const char *question = strstr(example, "Question:");
    assert_true(question < body);
    assert_int_equal(sscanf(strstr(question, "the value "), "the value %7[0-9]", value), 1);
    assert_int_equal(follow(example, question, value, names), 5);
    snprintf(listed, sizeof listed, "are: %s %s %s %s %s\n\n", names[0], names[1], names[2], names[3], names[4]);
    assert_non_null(strstr(question, listed));
    for (size_t k = 0; k < 5; k++)
        assert_null(strstr(body, names[k]));
    assert_int_equal(occurrences_of(example, "The kettle is warm.") - occurrences_of(body, "The kettle is warm."),
                     length < 1024 ? 2 : 5);
}

static void test_variable_tracking(void **state)
{
    (void)state;
    kve_sample s;
    kve_dataset *d = NULL;
    kve_ruler_options o = {.task = "vt", .length_tok = 1024, .overhead_tok = 800, .n_samples = 1, .tokens = WORDS};
    for_every_sample("vt", 12, check_chain);
    assert_ok(kve_ruler_open(&o, &d)); /* little room is left: a shorter example, and the sample says so */
    assert_ok(kve_dataset_sample(d, 0, &s));
    assert_non_null(strstr(s.note, "the example has 6 sentences"));
    kve_sample_free(&s);
    kve_dataset_close(d);
}

/* --- Word counts */

typedef struct tally {
    char word[MAX_WORD];
    size_t n;
} tally;

static size_t count_word(tally *t, size_t n, const char *word, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(t[i].word) == len && memcmp(t[i].word, word, len) == 0) {
            t[i].n++;
            return n;
        }
    assert_true(n < MAX_FOUND && len < MAX_WORD);
    memcpy(t[n].word, word, len);
    t[n].word[len] = '\0';
    t[n].n = 1;
    return n + 1;
}

/* Reads "1. word 2. word ..." up to the first thing that is not the next number; *end is behind the list. */
static size_t tally_list(const char *text, tally *t, const char **end)
{
    size_t n = 0;
    char number[24];
    for (size_t k = 1;; k++) {
        snprintf(number, sizeof number, "%s%zu. ", k > 1 ? " " : "", k);
        if (strncmp(text, number, strlen(number)) != 0)
            break;
        text += strlen(number);
        size_t len = strcspn(text, " \n");
        n = count_word(t, n, text, len);
        text += len;
    }
    *end = text;
    return n;
}

/* Ten words `often` times, all others `rarely`; the ten are `expected`, in any order. */
static void check_counts(const tally *t, size_t n, size_t often, size_t rarely, const char *const *expected)
{
    size_t n_common = 0;
    assert_true(n >= 15);
    for (size_t i = 0; i < n; i++) {
        bool listed = false;
        for (size_t k = 0; k < 10; k++)
            listed |= strcmp(expected[k], t[i].word) == 0;
        assert_int_equal(t[i].n, listed ? often : rarely);
        n_common += listed;
    }
    assert_int_equal(n_common, 10);
}

static void check_common_words(const kve_sample *s, int64_t length)
{
    static tally t[MAX_FOUND];
    size_t often = 30, rarely = 3, n;
    const char *at = s->context, *end = NULL;
    char words[10][MAX_WORD];
    const char *answers[10];
    assert_int_equal(s->n_references, 10);
    if (length < 4096)
        assert_int_equal(sscanf(s->note, "words occur %zu and %zu times", &often, &rarely), 2);
    else
        assert_null(s->note);
    assert_true(often > rarely);
    at = strstr(at, "1. ");
    if (!s->note || !strstr(s->note, "no example")) {
        n = tally_list(at, t, &end);
        size_t shot_often = 0, shot_rarely = SIZE_MAX;
        for (size_t i = 0; i < n; i++) {
            shot_often = t[i].n > shot_often ? t[i].n : shot_often;
            shot_rarely = t[i].n < shot_rarely ? t[i].n : shot_rarely;
        }
        assert_true(strncmp(end, s->question, strlen(s->question)) == 0);
        end += strlen(s->question);
        assert_true(strncmp(end, s->answer_prefix, strlen(s->answer_prefix)) == 0);
        end += strlen(s->answer_prefix) + 1;
        for (size_t k = 0; k < 10; k++) {
            int used = 0;
            assert_int_equal(sscanf(end, "%*u. %63s%n", words[k], &used), 1);
            end += used;
            answers[k] = words[k];
        }
        check_counts(t, n, shot_often, shot_rarely, answers);
        if (length >= 4096) {
            assert_int_equal(n, 40);
            assert_int_equal(shot_often, 10);
            assert_int_equal(shot_rarely, 3);
        }
        at = strstr(end, "1. ");
    }
    n = tally_list(at, t, &end);
    assert_int_equal(*end, '\0'); /* the list ends the context */
    check_counts(t, n, often, rarely, s->references);
}

static void test_common_words(void **state)
{
    (void)state;
    for_every_sample("cwe", 8, check_common_words);
}

/* Beyond the single words there are pairs, and the sample says so. */
static void test_common_words_long(void **state)
{
    (void)state;
    kve_sample s;
    kve_dataset *d = open_task("cwe", 16384, 1, 1, NULL);
    assert_ok(kve_dataset_sample(d, 0, &s));
    assert_non_null(s.note);
    assert_non_null(strstr(s.note, "pairs instead of single words"));
    assert_non_null(strchr(s.references[0], '-'));
    assert_true(s.n_tok <= 16384 && s.n_tok > 16384 - 6);
    kve_sample_free(&s);
    kve_dataset_close(d);
}

static int by_count(const void *a, const void *b)
{
    size_t x = ((const tally *)a)->n, y = ((const tally *)b)->n;
    return (x < y) - (x > y);
}

static void check_frequent_words(const kve_sample *s, int64_t length)
{
    static tally t[MAX_FOUND];
    const char *at = strstr(s->context, "\n\n") + 2;
    size_t n = 0, total = 0;
    (void)length;
    for (size_t len; *at; at += len + (at[len] == ' ')) {
        len = strcspn(at, " ");
        n = count_word(t, n, at, len);
        total++;
    }
    qsort(t, n, sizeof *t, by_count);
    assert_string_equal(t[0].word, "...");
    assert_int_equal(s->n_references, 3);
    for (size_t k = 0; k < 3; k++)
        assert_string_equal(t[k + 1].word, s->references[k]);
    for (size_t k = 1; k <= 4; k++)
        assert_true(t[k - 1].n > t[k].n); /* no ties around the answer */
    /* counts fall as rank^-2: rank k has a quarter of rank k / 2, up to rounding down */
    assert_true(t[0].n / 4 >= t[1].n && t[0].n / 4 <= t[1].n + 1);
    assert_true(t[0].n / 9 >= t[2].n && t[0].n / 9 <= t[2].n + 1);
    /* rank 1 has 6/pi^2 of the words that the counts were made for; rounding down loses some of them */
    assert_true((double)t[0].n / (double)total > 0.6079 && (double)t[0].n / (double)total < 0.72);
    assert_true(t[n - 1].n >= 1 && n > 8);
    for (size_t k = 1; k < n; k++)
        assert_true(strlen(t[k].word) == 6 && strspn(t[k].word, "abcdefghijklmnopqrstuvwxyz") == 6);
}

static void test_frequent_words(void **state)
{
    (void)state;
    for_every_sample("fwe", 8, check_frequent_words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_needles),           cmocka_unit_test(test_needles_spread),
        cmocka_unit_test(test_variable_tracking), cmocka_unit_test(test_common_words),
        cmocka_unit_test(test_common_words_long), cmocka_unit_test(test_frequent_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
