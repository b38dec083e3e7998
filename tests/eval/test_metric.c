/* RULER's string match against a plain reading of its definition, on texts made at random, and at its edges. The cases
 * worked out by hand are in tests/datasets/test_metric_ruler.c. */
#include "eval/metric_ruler.h"

#include "host/base/rng.h"

#include <ctype.h>
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <wchar.h>
#include <wctype.h>

#include <cmocka.h>

static double score(const char *answer, const char *const *refs, size_t n, bool any)
{
    double x = -1;
    if (kve_metric_ruler(answer, strlen(answer), refs, n, any, &x) != KVE_OK)
        fail_msg("%s", kve_diag());
    return x;
}

/* Every place of the answer, letter by letter. */
static bool contains(const char *answer, const char *ref)
{
    size_t la = strlen(answer), lr = strlen(ref);
    for (size_t at = 0; at + lr <= la; at++) {
        size_t i = 0;
        while (i < lr && tolower((unsigned char)answer[at + i]) == tolower((unsigned char)ref[i]))
            i++;
        if (i == lr)
            return true;
    }
    return false;
}

static void random_text(kve_rng *r, size_t most, char *out)
{
    static const char letters[] = "aAbB1 ";
    size_t len = kve_rng_below(r, most + 1), from = 0;
    for (size_t i = 0; i < len; i++)
        out[i] = letters[kve_rng_below(r, sizeof letters - 1)];
    while (len && out[len - 1] == ' ')
        len--;
    while (from < len && out[from] == ' ')
        from++;
    memmove(out, out + from, len - from);
    out[len - from] = 0;
}

static void against_definition(void **state)
{
    (void)state;
    kve_rng r;
    kve_rng_init(&r, 5, 0, 0, 0);
    int hits = 0, misses = 0;
    for (int trial = 0; trial < 5000; trial++) {
        char answer[40], texts[4][8];
        const char *refs[4];
        size_t n = 1 + kve_rng_below(&r, 4), found = 0;
        random_text(&r, sizeof answer - 1, answer);
        for (size_t i = 0; i < n; i++) {
            do
                random_text(&r, 5, texts[i]);
            while (!texts[i][0]);
            refs[i] = texts[i];
            found += contains(answer, refs[i]);
        }
        double all = score(answer, refs, n, false), any = score(answer, refs, n, true);
        if (all != (double)found / (double)n || any != (found > 0))
            fail_msg("'%s': %zu of %zu, %g, %g", answer, found, n, all, any);
        hits += found > 0;
        misses += found < n;
    }
    assert_true(hits > 500 && misses > 500); /* both kinds occur */
}

/* It is a substring that counts: not a word, not a number by value, and not only once. */
static void substrings(void **state)
{
    (void)state;
    static const struct {
        const char *answer, *ref;
        double want;
    } cases[] = {
        {"the number is 1234567.", "1234567", 1},
        {"91234567x", "1234567", 1}, /* inside a longer number */
        {"1,234,567", "1234567", 0},
        {"1234567", "12345678", 0},
        {"seven", "7", 0},
        {"New  York", "new york", 0}, /* two spaces */
        {"new\nyork", "new york", 0},
        {"x new york y", " new york ", 1}, /* the reference is taken as it is */
        {"new york", " new york ", 0},
        {"don\xe2\x80\x99t", "don't", 0},
        {"aaaa", "aaaaa", 0},
        {"STRASSE",
         "stra\xc3\x9f"
         "e",
         0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (score(cases[i].answer, &cases[i].ref, 1, false) != cases[i].want)
            fail_msg("'%s' in '%s'", cases[i].ref, cases[i].answer);
    static const char *const same[] = {"one", "one", "ONE", "two"};
    assert_true(score("one", same, 4, false) == 0.75); /* a reference that is there twice counts twice */
}

static void empty_and_missing(void **state)
{
    (void)state;
    static const char *const refs[] = {"x", NULL}, *const empty[] = {""}, *const space[] = {" "};
    double x = 7;
    assert_true(score("", refs, 1, false) == 0 && score("", refs, 1, true) == 0);
    assert_true(score(" \n\t ", refs, 1, true) == 0);
    assert_true(score("a b", space, 1, false) == 1 && score(" a ", space, 1, false) == 0); /* trimmed away */
    for (int any = 0; any < 2; any++) {
        assert_int_equal(kve_metric_ruler("x", 1, refs, 0, any, &x), KVE_ERR_FILE);
        assert_int_equal(kve_metric_ruler("x", 1, NULL, 0, any, &x), KVE_ERR_FILE);
        assert_int_equal(kve_metric_ruler("x", 1, refs, 2, any, &x), KVE_ERR_FILE);
        assert_non_null(strstr(kve_diag(), "reference 2 of 2"));
        assert_int_equal(kve_metric_ruler("", 0, empty, 1, any, &x), KVE_ERR_FILE);
        assert_non_null(strstr(kve_diag(), "reference 1 of 1"));
    }
    assert_true(x == 7);
}

/* Each control character parts words, none glues them; what follows it is scored too. */
static void control_characters(void **state)
{
    (void)state;
    for (int c = 0; c < 0x20; c++) {
        const char answer[] = {'a', 'b', (char)c, 'c', 'd'};
        static const char *const glued[] = {"abcd"}, *const parts[] = {"ab", "cd", "b\nc"};
        double x = -1;
        assert_int_equal(kve_metric_ruler(answer, 5, glued, 1, false, &x), KVE_OK);
        assert_true(x == 0);
        assert_int_equal(kve_metric_ruler(answer, 5, parts, 3, false, &x), KVE_OK);
        if (x != 1)
            fail_msg("control character 0x%02x: %g", c, x);
    }
}

/* An answer can end inside a character; the bytes around the broken one are left as they are. */
static void broken_utf8(void **state)
{
    (void)state;
    static const char *const word[] = {"Paris"};
    static const char *const answers[] = {"Paris\xc3",           "\xc3Paris",     "\xc3 Paris",
                                          "\xf0\x9f Paris \xf0", "\xff\xfeparis", "\xc3\xc3PARIS\xc3"};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (score(answers[i], word, 1, false) != 1)
            fail_msg("answer %zu", i);
}

/* Upper and lower case as the C library's Unicode tables have them, for every letter that metric_ruler.h promises. */
static void unicode_case(void **state)
{
    (void)state;
    static const struct {
        wint_t from, to;
    } ranges[] = {{0x80, 0x17f}, {0x386, 0x3ce}, {0x400, 0x52f}};
    int pairs = 0;
    if (!setlocale(LC_CTYPE, "C.UTF-8")) {
        print_message("skipped: this system has no C.UTF-8 locale\n");
        skip();
    }
    for (size_t k = 0; k < sizeof ranges / sizeof *ranges; k++)
        for (wint_t c = ranges[k].from; c <= ranges[k].to; c++) {
            wint_t low = towlower(c);
            char big[8], small[8];
            if (low < 0x80 || low > 0x7ff || c == 0x130) /* a lower case of another length */
                continue;
            snprintf(big, sizeof big, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 0x3f)));
            snprintf(small, sizeof small, "%c%c", (int)(0xc0 | low >> 6), (int)(0x80 | (low & 0x3f)));
            const char *const a[] = {big}, *const b[] = {small};
            if (score(small, a, 1, false) != 1 || score(big, b, 1, false) != 1)
                fail_msg("U+%04X and U+%04X differ", (unsigned)c, (unsigned)low);
            char next[8]; /* and is not folded further than that */
            snprintf(next, sizeof next, "%c%c", (int)(0xc0 | (low + 2) >> 6), (int)(0x80 | ((low + 2) & 0x3f)));
            if (towlower(low + 2) != low && score(next, b, 1, false) != 0)
                fail_msg("U+%04X and U+%04X are the same", (unsigned)low + 2, (unsigned)low);
            pairs += low != c;
        }
    setlocale(LC_CTYPE, "C");
    assert_true(pairs > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_definition), cmocka_unit_test(substrings),  cmocka_unit_test(empty_and_missing),
        cmocka_unit_test(control_characters), cmocka_unit_test(broken_utf8), cmocka_unit_test(unicode_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
