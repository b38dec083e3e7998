/* Records as lines of JSON: every field there and back, unknown stays unknown, hostile lines, the order of a merge. */
#include "eval/record.h"

#include "host/base/json.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The test's own list of fields. A field that is missing here shows up as a null in `every_field`. */
/* clang-format off */
#define TEXTS(X)                                                                                                       \
    X(sample_id)                                                                                                       \
    X(task) X(task_version) X(policy) X(status) X(reason) X(info) X(allocation) X(note) X(prompt_sha256) X(prediction) X(metric) \
    X(subject)
#define INTS(X)                                                                                                        \
    X(budget)                                                                                                          \
    X(n_context)                                                                                                       \
    X(kept_min)                                                                                                        \
    X(kept_max)                                                                                                        \
    X(kv_bytes)                                                                                                        \
    X(sink)                                                                                                            \
    X(recent) X(evict_every) X(n_evictions)                                                                                                          \
    X(n_scored)                                                                                                        \
    X(n_future)                                                                                                        \
    X(n_prefills)                                                                                                      \
    X(prefill_us)                                                                                                      \
    X(score_us) X(rank_us) X(compact_us) X(decode_us) X(decode_forks) X(n_generated) X(attempt) X(unix_time)   \
    X(gold) X(shots)
#define NUMS(X)                                                                                                        \
    X(prefill_flops) X(score_flops)                                                                                    \
    X(score)                                                                                                           \
    X(nll_sum)                                                                                                         \
    X(reward_lost) X(reward_norm) X(reward_sum) X(reward_sum_norm) X(acc) X(acc_norm) X(rouge_l_longbench)
/* clang-format on */

#define LINE "records.jsonl:17"
static const char KEY[] = "\"sample_id\":\"s\",\"task\":\"t\",\"policy\":\"p\",\"status\":\"ok\"";

static void must(kve_status st)
{
    if (st != KVE_OK)
        fail_msg("%s", kve_diag());
}

static kve_status parse(const char *line, kve_arena *arena, kve_record *out)
{
    return kve_record_parse(line, strlen(line), LINE, arena, out);
}

static void same_double(double a, double b)
{
    if (memcmp(&a, &b, sizeof a) != 0)
        fail_msg("%a is not %a", a, b);
}

static void same_text(const char *a, const char *b)
{
    if (a && b)
        assert_string_equal(a, b);
    assert_true(!a == !b);
}

static void same_record(const kve_record *a, const kve_record *b)
{
#define SAME_TEXT(f) same_text(a->f, b->f);
#define SAME_INT(f) assert_int_equal(a->f, b->f);
#define SAME_NUM(f) same_double(a->f, b->f);
    TEXTS(SAME_TEXT)
    INTS(SAME_INT)
    NUMS(SAME_NUM)
    assert_int_equal(a->question_in_prefill, b->question_in_prefill);
    assert_int_equal(a->n_references, b->n_references);
    for (size_t i = 0; i < a->n_references; i++)
        assert_string_equal(a->references[i], b->references[i]);
    assert_int_equal(a->n_reward_heads, b->n_reward_heads);
    for (size_t i = 0; i < a->n_reward_heads; i++)
        same_double(a->reward_heads[i], b->reward_heads[i]);
    assert_true(!a->reward_heads == !b->reward_heads);
    assert_int_equal(a->n_choices, b->n_choices);
    for (size_t i = 0; i < a->n_choices; i++)
        same_double(a->loglik[i], b->loglik[i]);
    assert_true(!a->loglik == !b->loglik);
}

/* Writes, checks that it is one line, reads, compares, writes again: the bytes are the same. */
static void round_trip(const kve_record *r)
{
    kve_str text = {0}, again = {0};
    kve_arena arena = {0};
    kve_record back;
    must(kve_record_write(r, &text));
    assert_int_equal(strlen(text.p), text.len);
    assert_null(strpbrk(text.p, "\r\n"));
    must(parse(text.p, &arena, &back));
    same_record(r, &back);
    assert_int_equal(kve_record_compare(r, &back), 0);
    must(kve_record_write(&back, &again));
    assert_string_equal(text.p, again.p);
    kve_str_free(&text);
    kve_str_free(&again);
    kve_arena_free(&arena);
}

static kve_record keyed(const char *task, const char *sample, const char *policy, int64_t budget)
{
    kve_record r;
    kve_record_clear(&r);
    r.task = task;
    r.sample_id = sample;
    r.policy = policy;
    r.budget = budget;
    r.status = "ok";
    return r;
}

static kve_record filled(void)
{
    static const char *const refs[] = {"Paris", "", "a \"b\" \\ c"};
    static const double heads[] = {0, 0.25, 1.0 / 3, 1};
    kve_record r;
    int64_t next = 1000;
    kve_record_clear(&r);
#define FILL_TEXT(f) r.f = "text of " #f;
#define FILL_INT(f) r.f = next++;
#define FILL_NUM(f) r.f = 1.0 / (double)next++;
    TEXTS(FILL_TEXT)
    INTS(FILL_INT)
    NUMS(FILL_NUM)
    r.question_in_prefill = true;
    r.references = refs;
    r.n_references = 3;
    r.reward_heads = heads;
    r.n_reward_heads = 4;
    r.loglik = heads;
    r.n_choices = 2;
    return r;
}

static void every_field(void **state)
{
    (void)state;
    kve_record r = filled();
    kve_str text = {0};
    cJSON *obj = NULL;
    round_trip(&r);
    must(kve_record_write(&r, &text));
    must(kve_json_parse(text.p, text.len, LINE, &obj));
    for (const cJSON *e = obj->child; e; e = e->next)
        if (cJSON_IsNull(e))
            fail_msg("this test does not fill '%s'", e->string);
    cJSON_Delete(obj);
    kve_str_free(&text);
}

static void unknown_is_null(void **state)
{
    (void)state;
    kve_record r;
    kve_str text = {0};
    cJSON *obj = NULL;
    kve_record_clear(&r);
#define NO_TEXT(f) assert_null(r.f);
#define NO_INT(f) assert_true(r.f == KVE_NO_INT);
#define NO_NUM(f) assert_true(isnan(r.f));
    TEXTS(NO_TEXT)
    INTS(NO_INT)
    NUMS(NO_NUM)
    must(kve_record_write(&r, &text));
    must(kve_json_parse(text.p, text.len, LINE, &obj));
    for (const cJSON *e = obj->child; e; e = e->next) {
        bool may = strcmp(e->string, "question_in_prefill") == 0 || strcmp(e->string, "references") == 0;
        if (!may && !cJSON_IsNull(e))
            fail_msg("'%s' is unknown, but not written as null", e->string);
    }
    assert_null(strchr(text.p, '0'));
    cJSON_Delete(obj);
    kve_str_free(&text);
    r = keyed("t", "s", "p", KVE_NO_INT);
    round_trip(&r);
}

static void extreme_values(void **state)
{
    (void)state;
    static const double nums[] = {0,   -0.0,      DBL_MAX, -DBL_MAX, DBL_MIN, DBL_TRUE_MIN, DBL_EPSILON,
                                  0.1, 1.0 / 3.0, 1e-300,  5e-324,   1e22,    123456789.5,  2e15 / 3};
    static const int64_t ints[] = {
        0, 1, -1, INT32_MAX, INT32_MIN, (int64_t)INT32_MAX + 1, (int64_t)1 << 53, -((int64_t)1 << 53)};
    kve_record r = filled();
    for (size_t i = 0; i < sizeof nums / sizeof *nums; i++) {
        r.score = r.reward_sum = nums[i];
        r.reward_heads = &nums[i];
        r.n_reward_heads = 1;
        round_trip(&r);
    }
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        r.kv_bytes = r.budget = ints[i];
        round_trip(&r);
    }
    r.n_reward_heads = 0; /* measured, of no head: not the same as not measured */
    round_trip(&r);
    r.kv_bytes = INT64_MAX; /* a double cannot hold it: refused when it is read, not rounded */
    kve_str text = {0};
    kve_arena arena = {0};
    must(kve_record_write(&r, &text));
    assert_non_null(strstr(text.p, "9223372036854775807"));
    assert_int_equal(parse(text.p, &arena, &r), KVE_ERR_FILE);
    assert_non_null(strstr(kve_diag(), "kv_bytes"));
    kve_str_free(&text);
    kve_arena_free(&arena);
}

static void not_a_number(void **state)
{
    (void)state;
    static const double bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const double heads[] = {0.5, bad[i]};
        kve_str text = {0};
        kve_arena arena = {0};
        kve_record r = filled(), back;
        r.score = r.nll_sum = bad[i];
        r.reward_heads = heads;
        r.n_reward_heads = 2;
        must(kve_record_write(&r, &text));
        assert_non_null(strstr(text.p, "\"score\":null"));
        assert_non_null(strstr(text.p, "\"reward_heads\":[0.5,null]"));
        must(parse(text.p, &arena, &back));
        assert_true(isnan(back.score) && isnan(back.nll_sum) && isnan(back.reward_heads[1]));
        assert_true(back.reward_heads[0] == 0.5 && back.n_reward_heads == 2);
        kve_str_free(&text);
        kve_arena_free(&arena);
    }
}

static void texts(void **state)
{
    (void)state;
    static const char *const all[] = {"",
                                      " ",
                                      "\"\\/\b\f\n\r\t",
                                      "\x01\x1f\x7f",
                                      "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\x8b",
                                      "\xe2\x80\xa8 line separator",
                                      "{\"task\":\"other\"}",
                                      "</script>\\u0000",
                                      "\n{\"task\":\"forged\"}\n"};
    kve_record r = filled();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        r.prediction = r.reason = r.sample_id = all[i];
        r.references = &all[i];
        r.n_references = 1;
        round_trip(&r);
    }
    kve_str text = {0};
    kve_arena arena = {0};
    kve_record back;
    r.prediction = "cut \xf0\x9f\x90 here \xff"; /* an answer may end inside a character */
    must(kve_record_write(&r, &text));
    must(parse(text.p, &arena, &back));
    assert_true(kve_utf8_valid(back.prediction, strlen(back.prediction), NULL));
    assert_non_null(strstr(back.prediction, " here \xef\xbf\xbd"));
    kve_str_free(&text);
    kve_arena_free(&arena);
}

static void refused(const char *body, const char *word)
{
    kve_str line = {0};
    kve_arena arena = {0};
    kve_record r;
    must(kve_str_printf(&line, "{%s,%s}", KEY, body));
    kve_status st = parse(line.p, &arena, &r);
    if (st != KVE_ERR_FILE || !strstr(kve_diag(), LINE) || !strstr(kve_diag(), word))
        fail_msg("status %d, '%s' or the line is not in: %s, for %s", st, word, kve_diag(), line.p);
    kve_str_free(&line);
    kve_arena_free(&arena);
}

static void hostile_lines(void **state)
{
    (void)state;
    static const char *const lines[] = {"",   " ",    "null", "7",       "[]",  "\"text\"",    "{",      "{}",
                                        "{]", "[{}]", "nul",  "{\"a\"}", "{,}", "{\"task\":}", "\xff{}", "{} {}"};
    kve_arena arena = {0};
    kve_record r;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        if (parse(lines[i], &arena, &r) != KVE_ERR_FILE || !strstr(kve_diag(), LINE))
            fail_msg("accepted or without a place: %s (%s)", lines[i], kve_diag());
        kve_arena_free(&arena);
    }
    refused("\"budget\":1.5", "budget");
    refused("\"budget\":\"4\"", "budget");
    refused("\"budget\":9007199254740994", "budget");
    refused("\"budget\":[4]", "budget");
    refused("\"budget\":4,\"budget\":5", "budget");
    refused("\"score\":1e999", "score");
    refused("\"score\":true", "score");
    refused("\"score\":01", "number");
    refused("\"prediction\":7", "prediction");
    refused("\"prediction\":\"a\\u0000b\"", "NUL");
    refused("\"prediction\":\"a\nb\"", "control");
    refused("\"question_in_prefill\":1", "question_in_prefill");
    refused("\"references\":\"Paris\"", "references");
    refused("\"references\":[\"a\",7]", "'references'[1]");
    refused("\"references\":[null]", "'references'[0]");
    refused("\"reward_heads\":0.5", "reward_heads");
    refused("\"reward_heads\":[0.5,\"x\"]", "'reward_heads'[1]");
    for (const char *name = "sample_id\0task\0policy\0status\0"; *name; name += strlen(name) + 1) {
        kve_str line = {0};
        must(kve_str_printf(&line, "{%s}", KEY));
        char *key = strstr(line.p, name);
        key[0] = (char)(key[0] - 32); /* names are exact, also in case: a "Task" is no task */
        assert_int_equal(parse(line.p, &arena, &r), KVE_ERR_FILE);
        assert_non_null(strstr(kve_diag(), "needs sample_id, task, policy and status"));
        kve_str_free(&line);
        kve_arena_free(&arena);
    }
}

/* Every beginning of a line is refused, and so is a line that nests without end. */
static void cut_and_deep_lines(void **state)
{
    (void)state;
    kve_record r = filled(), back;
    kve_str text = {0};
    kve_arena arena = {0};
    must(kve_record_write(&r, &text));
    for (size_t len = 0; len < text.len; len++) {
        char *cut = malloc(len ? len : 1); /* exact, so that the sanitizer sees a read behind the end */
        assert_non_null(cut);
        memcpy(cut, text.p, len);
        assert_int_equal(kve_record_parse(cut, len, LINE, &arena, &back), KVE_ERR_FILE);
        free(cut);
        kve_arena_free(&arena);
    }
    kve_str_clear(&text);
    must(kve_str_printf(&text, "{%s,\"x\":", KEY));
    for (int i = 0; i < 100000; i++)
        must(kve_str_puts(&text, "["));
    assert_int_equal(parse(text.p, &arena, &back), KVE_ERR_FILE);
    assert_non_null(strstr(kve_diag(), "nested"));
    kve_str_free(&text);
    kve_arena_free(&arena);
}

/* What a newer version may write, and an older one has not. */
static void other_versions(void **state)
{
    (void)state;
    kve_arena arena = {0};
    kve_record r;
    kve_str line = {0};
    must(kve_str_printf(&line, "{%s,\"new_field\":{\"deep\":[1]},\"Budget\":9,\"score\":null,\"references\":null}",
                        KEY));
    must(parse(line.p, &arena, &r));
    assert_true(r.budget == KVE_NO_INT && isnan(r.score) && r.n_references == 0 && !r.reward_heads);
    kve_str_free(&line);
    kve_arena_free(&arena);
}

/* Every pair of this list, in order: less, equal only to itself, greater. */
static void order(void **state)
{
    (void)state;
    const kve_record list[] = {
        keyed("a", "s-1", "full", KVE_NO_INT),
        keyed("a", "s-1", "knorm", 4),
        keyed("a", "s-1", "knorm", 16),
        keyed("a", "s-1", "knorm", 1000000000000),
        keyed("a", "s-2", "full", KVE_NO_INT),
        keyed("a", "s-2", "knorm", KVE_NO_INT),
        keyed("a", "s-2", "knorm", -1),
        keyed("a", "s-2", "knorm", 0),
        keyed("a", "s-9", "knorm", 4),
        keyed("a", "s-09", "knorm", 4) /* as a number the same, but another sample */,
        keyed("a", "s-10", "knorm", 4),
        keyed("a", "s-10-2", "knorm", 4),
        keyed("a", "s-10-10", "knorm", 4),
        keyed("a", "s-99999999999999999999999998", "knorm", 4),
        keyed("a", "s-99999999999999999999999999", "knorm", 4),
        keyed("a", "s-a", "knorm", 4),
        keyed("a07", "s", "knorm", 4),
        keyed("a7", "s", "knorm", 4) /* two tasks */,
        keyed("a10", "s", "knorm", 4),
        keyed("b", "", "knorm", 4),
        keyed("b", "0", "knorm", 4),
        keyed("b", "00", "knorm", 4),
        keyed("b", "\xc3\xa4", "knorm", 4),
    };
    int n = sizeof list / sizeof *list, expected, got;
    int at9 = 8, at09 = 9;
    assert_true(kve_record_compare(&list[at9], &list[at09]) != 0);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            bool pair = (i == at9 && j == at09) || (i == at09 && j == at9);
            expected = (i > j) - (i < j);
            got = kve_record_compare(&list[i], &list[j]);
            if (!pair && (got > 0) - (got < 0) != expected)
                fail_msg("entries %d and %d: %d", i, j, got);
            int back = kve_record_compare(&list[j], &list[i]);
            assert_true((got > 0) == (back < 0) && (got == 0) == (i == j));
        }
}

static void no_memory(void **state)
{
    (void)state;
    kve_record r = filled(), back;
    kve_str text = {0};
    kve_arena arena = {0};
    long n = 1;
    for (;; n++) {
        kve_alloc_fail_after(n);
        kve_status st = kve_record_write(&r, &text);
        kve_alloc_fail_after(0);
        if (st == KVE_OK)
            break;
        assert_int_equal(st, KVE_ERR_MEMORY);
        kve_str_free(&text);
    }
    assert_true(n > 2);
    for (n = 1;; n++) {
        kve_alloc_fail_after(n);
        kve_status st = parse(text.p, &arena, &back);
        kve_alloc_fail_after(0);
        kve_arena_free(&arena);
        if (st == KVE_OK)
            break;
        assert_int_equal(st, KVE_ERR_MEMORY);
    }
    assert_true(n > 1);
    kve_str_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field),        cmocka_unit_test(unknown_is_null), cmocka_unit_test(extreme_values),
        cmocka_unit_test(not_a_number),       cmocka_unit_test(texts),           cmocka_unit_test(hostile_lines),
        cmocka_unit_test(cut_and_deep_lines), cmocka_unit_test(other_versions),  cmocka_unit_test(order),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
