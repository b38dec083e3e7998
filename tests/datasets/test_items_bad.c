/* What is wrong with a row or a file is said with file, line and field; what is only odd is read. */
#include "tests/datasets/items_common.h"

#define GOOD_BOOLQ "{\"question\": \"q\", \"answer\": true, \"passage\": \"p\"}"
#define GOOD_ARC                                                                                                       \
    "{\"id\": \"a\", \"question\": \"q\", \"choices\": {\"text\": [\"x\", \"y\", \"z\"], \"label\": [\"A\", \"B\", "   \
    "\"C\"]}, \"answerKey\": \"A\"}"
#define GOOD_MMLU "{\"question\": \"q\", \"subject\": \"s\", \"choices\": [\"a\", \"b\", \"c\", \"d\"], \"answer\": 0}"
#define GOOD_SWAG                                                                                                      \
    "{\"activity_label\": \"l\", \"ctx_a\": \"a\", \"ctx_b\": \"b\", \"endings\": [\"a\", \"b\", \"c\", \"d\"], "      \
    "\"label\": \"0\"}"
#define GOOD_GOV "{\"context\": \"c\", \"answers\": [\"two words\"], \"_id\": \"g\"}"
#define ARC_WITH(QUESTION, CHOICES, KEY)                                                                               \
    "{\"id\": \"b\", \"question\": " QUESTION ", \"choices\": " CHOICES ", \"answerKey\": " KEY "}"
#define THREE "{\"text\": [\"x\", \"y\", \"z\"], \"label\": [\"A\", \"B\", \"C\"]}"
#define OWN(CHOICES) "{\"stem\": \"q\", \"choices\": " CHOICES "}"

typedef struct bad_case {
    const char *task, *good, *row, *diag; /* the bad row is line 2 */
} bad_case;

static const bad_case g_cases[] = {
    /* JSON */
    {"boolq", GOOD_BOOLQ, "", ":2: the line is empty"},
    {"boolq", GOOD_BOOLQ, "[1]", ":2: the row is not an object"},
    {"boolq", GOOD_BOOLQ, "{\"question\": \"q\", \"answer\": true, \"passage\": \"cut o", ":2: not valid JSON"},
    {"boolq", GOOD_BOOLQ, "{\"question\": \"q\xff\", \"answer\": true, \"passage\": \"p\"}",
     ":2: byte 15 (0xff) is not valid UTF-8"},
    {"boolq", GOOD_BOOLQ, "{\"question\": \"\\ud800\", \"answer\": true, \"passage\": \"p\"}", ":2: not valid JSON"},
    {"boolq", GOOD_BOOLQ, "{\"question\": \"q\", \"question\": \"r\", \"answer\": true, \"passage\": \"p\"}",
     ":2: field 'question' stands twice"},
    /* BoolQ */
    {"boolq", GOOD_BOOLQ, "{\"answer\": true, \"passage\": \"p\"}", ":2: field 'question' is missing"},
    {"boolq", GOOD_BOOLQ, "{\"question\": \"q\", \"answer\": true}", ":2: field 'passage' is missing"},
    {"boolq", GOOD_BOOLQ, "{\"question\": \"q\", \"passage\": \"p\"}", ":2: field 'answer' is missing"},
    {"boolq", GOOD_BOOLQ, "{\"question\": \"q\", \"answer\": true, \"passage\": \"\"}", ":2: field 'passage' is empty"},
    {"boolq", GOOD_BOOLQ, "{\"question\": \"q\", \"answer\": true, \"passage\": \" \\n \"}",
     ":2: field 'passage' is empty"},
    {"boolq", GOOD_BOOLQ, "{\"question\": 4, \"answer\": true, \"passage\": \"p\"}",
     ":2: field 'question' is not a text"},
    {"boolq", GOOD_BOOLQ, "{\"question\": \"q\", \"answer\": \"yes\", \"passage\": \"p\"}",
     ":2: field 'answer' is not true or false"},
    {"boolq", GOOD_BOOLQ, "{\"question\": \"q\", \"label\": 2, \"passage\": \"p\"}",
     ":2: field 'label' is 2, outside the 2 choices"},
    {"boolq", GOOD_BOOLQ, "{\"question\": \"q\", \"label\": -1, \"passage\": \"p\"}",
     ":2: field 'label' is -1, outside the 2 choices"},
    {"boolq", "{\"question\": \"q\", \"label\": 1, \"idx\": 5, \"passage\": \"p\"}",
     "{\"question\": \"r\", \"label\": 1, \"idx\": 5, \"passage\": \"p\"}", ":2: field 'id' is 'idx-5', as in line 1"},
    /* ARC */
    {"arc-challenge", GOOD_ARC, "{\"question\": \"q\", \"choices\": " THREE ", \"answerKey\": \"A\"}",
     ":2: field 'id' is missing"},
    {"arc-challenge", GOOD_ARC, GOOD_ARC, ":2: field 'id' is 'a', as in line 1"},
    {"arc-challenge", GOOD_ARC, "{\"id\": \"b\", \"choices\": " THREE ", \"answerKey\": \"A\"}",
     ":2: field 'question' is missing"},
    {"arc-challenge", GOOD_ARC, ARC_WITH("\"q\"", THREE, "\"D\""),
     ":2: field 'answerKey' is 'D', none of the 3 labels ('A' to 'C')"},
    {"arc-challenge", GOOD_ARC, ARC_WITH("\"q\"", THREE, "\"1\""), ":2: field 'answerKey' is '1', none of"},
    {"arc-challenge", GOOD_ARC, ARC_WITH("\"q\"", THREE, "1"), ":2: field 'answerKey' is not a text"},
    {"arc-challenge", GOOD_ARC, ARC_WITH("\"q\"", THREE, "\"\""), ":2: field 'answerKey' is empty"},
    {"arc-challenge", GOOD_ARC, ARC_WITH("\"q\"", "[\"x\"]", "\"A\""), ":2: field 'choices' is missing, or no object"},
    {"arc-challenge", GOOD_ARC, ARC_WITH("\"q\"", "{\"text\": [\"x\"], \"label\": [\"A\"]}", "\"A\""),
     ":2: field 'text' has 1 texts; 2 to 26 are due"},
    {"arc-challenge", GOOD_ARC, ARC_WITH("\"q\"", "{\"text\": [\"x\", \"y\"], \"label\": [\"A\"]}", "\"A\""),
     ":2: field 'label' has 1 texts"},
    {"arc-challenge", GOOD_ARC,
     ARC_WITH("\"q\"", "{\"text\": [\"x\", \"y\", \"z\"], \"label\": [\"A\", \"B\"]}", "\"A\""),
     ":2: field 'choices' has 3 texts and 2 labels"},
    {"arc-challenge", GOOD_ARC, ARC_WITH("\"q\"", "{\"text\": [\"x\", \"y\"], \"label\": [\"A\", \"A\"]}", "\"A\""),
     ":2: field 'label': 'A' stands twice"},
    {"arc-challenge", GOOD_ARC, ARC_WITH("\"q\"", "{\"text\": [\"x\", \"\"], \"label\": [\"A\", \"B\"]}", "\"A\""),
     ":2: field 'text': item 1 is not a text, or is empty"},
    {"arc-challenge", GOOD_ARC, ARC_WITH(OWN("5"), "0", "\"A\""), ":2: field 'choices' is no list of 2 to 26"},
    {"arc-challenge", GOOD_ARC, ARC_WITH(OWN("[{\"text\": \"x\"}, {\"text\": \"y\"}]"), "0", "\"A\""),
     ":2: field 'label' is missing"},
    {"arc-challenge", GOOD_ARC, ARC_WITH("{\"choices\": []}", "0", "\"A\""), ":2: field 'stem' is missing"},
    /* MMLU */
    {"mmlu", GOOD_MMLU, "{\"question\": \"q\", \"subject\": \"s\", \"choices\": [\"a\", \"b\", \"c\"], \"answer\": 0}",
     ":2: field 'choices' has 3 texts; 4 are due"},
    {"mmlu", GOOD_MMLU,
     "{\"question\": \"q\", \"subject\": \"s\", \"choices\": [\"a\", \"b\", \"c\", \"d\", \"e\"], \"answer\": 0}",
     ":2: field 'choices' has 5 texts; 4 are due"},
    {"mmlu", GOOD_MMLU, "{\"question\": \"q\", \"choices\": [\"a\", \"b\", \"c\", \"d\"], \"answer\": 0}",
     ":2: field 'subject' is missing"},
    {"mmlu", GOOD_MMLU, "{\"question\": \"q\", \"subject\": \"s\", \"choices\": [\"a\", \"b\", \"c\", \"d\"]}",
     ":2: field 'answer' is missing"},
    {"mmlu", GOOD_MMLU,
     "{\"question\": \"q\", \"subject\": \"s\", \"choices\": [\"a\", \"b\", \"c\", \"d\"], \"answer\": 4}",
     ":2: field 'answer' is 4, outside the 4 choices (0 to 3)"},
    {"mmlu", GOOD_MMLU,
     "{\"question\": \"q\", \"subject\": \"s\", \"choices\": [\"a\", \"b\", \"c\", \"d\"], \"answer\": 1.5}",
     ":2: field 'answer' is 1.5, outside"},
    {"mmlu", GOOD_MMLU,
     "{\"question\": \"q\", \"subject\": \"s\", \"choices\": [\"a\", \"b\", \"c\", \"d\"], \"answer\": \"E\"}",
     ":2: field 'answer' is E, outside"},
    {"mmlu", GOOD_MMLU,
     "{\"question\": \"q\", \"subject\": \"s\", \"choices\": [\"a\", \"b\", \"c\", \"d\"], \"answer\": [0]}",
     ":2: field 'answer' is neither a number nor a text"},
    {"mmlu", GOOD_MMLU,
     "{\"question\": \"q\", \"subject\": \"s\", \"choices\": [\"a\", \"b\", 3, \"d\"], \"answer\": 0}",
     ":2: field 'choices': item 2 is not a text"},
    /* HellaSwag */
    {"hellaswag", GOOD_SWAG,
     "{\"activity_label\": \"l\", \"ctx_a\": \"a\", \"ctx_b\": \"b\", \"endings\": [\"a\"], \"label\": 0}",
     ":2: field 'endings' has 1 texts; 4 are due"},
    {"hellaswag", GOOD_SWAG,
     "{\"activity_label\": \"l\", \"ctx_a\": \"a\", \"ctx_b\": \"b\", \"endings\": [\"a\", \"b\", \"c\", \"d\"], "
     "\"label\": \"\"}",
     ":2: field 'label' is empty: this split has no labels"},
    {"hellaswag", GOOD_SWAG,
     "{\"activity_label\": \"l\", \"ctx_a\": \"a\", \"ctx_b\": \"b\", \"endings\": [\"a\", \"b\", \"c\", \"d\"], "
     "\"label\": \"4\"}",
     ":2: field 'label' is 4, outside"},
    {"hellaswag", GOOD_SWAG,
     "{\"activity_label\": \"l\", \"ctx_a\": \"a\", \"ctx_b\": \"b\", \"endings\": [\"a\", \"b\", \"c\", \"[x]\"], "
     "\"label\": 0}",
     ":2: field 'endings': item 3 is nothing but brackets"},
    {"hellaswag", GOOD_SWAG,
     "{\"activity_label\": \"l\", \"ctx_a\": \"a\", \"endings\": [\"a\", \"b\", \"c\", \"d\"], \"label\": 0}",
     ":2: field 'ctx_b' is missing"},
    {"hellaswag", GOOD_SWAG,
     "{\"ctx_a\": \"a\", \"ctx_b\": \"\", \"endings\": [\"a\", \"b\", \"c\", \"d\"], \"label\": 0}",
     ":2: field 'activity_label' is missing"},
    /* GovReport */
    {"gov-report", GOOD_GOV, "{\"context\": \"\", \"answers\": [\"two words\"]}", ":2: field 'context' is empty"},
    {"gov-report", GOOD_GOV, "{\"context\": \"c\", \"answers\": []}", ":2: field 'answers' has 0 texts"},
    {"gov-report", GOOD_GOV, "{\"context\": \"c\", \"answers\": \"two words\"}", ":2: field 'answers' is not a list"},
    {"gov-report", GOOD_GOV, "{\"context\": \"c\", \"answers\": [\"word\"]}",
     ":2: field 'answers': item 0 has fewer than 2 words"},
    {"gov-report", GOOD_GOV, "{\"report\": \"c\", \"summary\": \"...\"}",
     ":2: field 'summary': item 0 has fewer than 2 words"},
    {"gov-report", GOOD_GOV, "{\"report\": \"c\"}", ":2: field 'summary' is missing"},
    {"gov-report", GOOD_GOV, "{\"report\": \"c\", \"summary\": \"two words\", \"id\": \"\"}",
     ":2: field 'id' is empty"},
    {"gov-report", GOOD_GOV, GOOD_GOV, ":2: field 'id' is 'g', as in line 1"},
};
enum { N_CASES = sizeof g_cases / sizeof *g_cases };

static kve_status open_bad(const bad_case *c, bool skip, kve_dataset_list *l)
{
    kve_str text = {0};
    assert_ok(kve_str_printf(&text, "%s\n%s\n", c->good, c->row));
    kve_task_options o = {.tokens = WORDS, .has_shots = true, .skip_bad = skip};
    o.data_path = temp_file("bad.jsonl", text.p, text.len);
    *l = (kve_dataset_list){0};
    kve_status st = kve_task_open(c->task, &o, l);
    kve_str_free(&text);
    return st;
}

static void test_bad_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        const bad_case *c = &g_cases[i];
        kve_dataset_list l;
        kve_status st = open_bad(c, false, &l);
        if (st != KVE_ERR_FILE || !strstr(kve_diag(), c->diag) || !strstr(kve_diag(), "bad.jsonl:2"))
            fail_msg("case %zu: status %d, wanted '%s', got: %s", i, (int)st, c->diag, kve_diag());
        assert_int_equal(l.n, 0);
    }
}

/* With skip_bad the good row is read, and the bad one is counted and said. A duplicate is never skipped: which of the
 * two is right is not known. */
static void test_skipped_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        const bad_case *c = &g_cases[i];
        kve_dataset_list l;
        kve_status st = open_bad(c, true, &l);
        if (strstr(c->diag, "as in line")) {
            assert_int_equal(st, KVE_ERR_FILE);
            continue;
        }
        if (st != KVE_OK)
            fail_msg("case %zu: %s", i, kve_diag());
        assert_int_equal(l.n, 1);
        assert_int_equal(l.items[0]->n_samples, 1);
        assert_int_equal(l.n_bad_rows, 1);
        assert_int_equal(l.n_skipped, 1);
        assert_non_null(strstr(l.skipped[0].name, "1 bad rows"));
        assert_non_null(strstr(l.skipped[0].reason, c->diag));
        kve_dataset_list_close(&l);
    }
}

/* Whole files. `folder`: whether the case is the same inside a folder that is searched. */
static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *task, *text, *diag;
    } CASES[] = {
        {"boolq", "", "has no rows; rows with question, passage and answer"},
        {"boolq", "\xef\xbb\xbf", "has no rows"},
        {"boolq", "[" GOOD_BOOLQ "]\n", ":1: the row is not an object; one object a line is due"},
        {"boolq", "PAR1\x15\x04", "is a Parquet file; convert it for task 'boolq': python3 -c"},
        {"boolq", "PAR1", "is a Parquet file"},
        {"boolq", "\x1f\x8b\x08", "is compressed (gzip)"},
        {"mmlu", "q,a,b,c,d,E\n", ":1: field 'answer' is E, outside the 4 choices"},
        {"mmlu", "q,a,b,c,D\n", ":1: has 5 columns; 6 are due"},
        {"mmlu", "q,a,b,c,d,A\nq,a,,c,d,A\n", ":2: field 'B' is empty"},
        {"mmlu", "\"q,a,b,c,d,A\n", ":1: a quote is never closed"},
        {"mmlu", "q,a,b,c,d,A\n\"q\"x,a,b,c,d,A\n", ":2: text follows a closed quote"},
        {"mmlu", "q,a,b,c,d,A\nq\xff,a,b,c,d,A\n", ":2: byte 13 of the file (0xff) is not valid UTF-8"},
        {"mmlu", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17\n", ":1: has more than 16 fields"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kve_dataset_list l;
        kve_task_options o = {.tokens = WORDS, .has_shots = true};
        o.data_path = temp_file("whole/bad.data", CASES[i].text, strlen(CASES[i].text));
        kve_status st = kve_task_open(CASES[i].task, &o, &l);
        if (st != KVE_ERR_FILE || !strstr(kve_diag(), CASES[i].diag) || !strstr(kve_diag(), "bad.data"))
            fail_msg("case %zu: status %d, wanted '%s', got: %s", i, (int)st, CASES[i].diag, kve_diag());
    }
    kve_dataset_list l;
    const char *dir = fresh_dir();
    kve_task_options o = {.tokens = WORDS, .data_path = dir};
    put_file(dir, "x/validation.parquet", "PAR1 and so on");
    assert_diag(KVE_ERR_FILE, kve_task_open("boolq", &o, &l), "x/validation.parquet: is a Parquet file; convert it");
    put_file(dir, "dev.jsonl", GOOD_MMLU "\n");
    assert_diag(KVE_ERR_FILE, kve_task_open("mmlu", &o, &l), "holds only the dev split of task 'mmlu'");
    o.data_path = "/nonexistent/file";
    assert_diag(KVE_ERR_FILE, kve_task_open("boolq", &o, &l), "/nonexistent/file");
    o.data_path = temp_file("all-bad.jsonl", "{}\n", 3);
    o.skip_bad = true;
    assert_diag(KVE_ERR_FILE, kve_task_open("boolq", &o, &l), "every row of task 'boolq' is bad; first: ");
}

/* CRLF, a byte order mark, and no last line break are as good as none. */
static void test_odd_files(void **state)
{
    (void)state;
    static const char *const FILES[][2] = {
        {"boolq", "\xef\xbb\xbf" GOOD_BOOLQ "\r\n" GOOD_BOOLQ "\r\n"},
        {"boolq", GOOD_BOOLQ "\n" GOOD_BOOLQ},
        {"hellaswag", GOOD_SWAG "\r\n" GOOD_SWAG},
        {"mmlu", "\xef\xbb\xbf\"q\",a,b,c,d,A\r\nr,a,b,c,d,B"},
        {"arc-challenge", "\xef\xbb\xbf" GOOD_ARC "\r\n" ARC_WITH("\"q\"", THREE, "\"C\"")},
    };
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++)
        for (int folder = 0; folder < 2; folder++) {
            kve_dataset_list l;
            const char *dir = fresh_dir(), *file = put_file(dir, "odd_test.x", FILES[i][1]);
            kve_task_options o = {.tokens = WORDS, .has_shots = true, .data_path = folder ? dir : file};
            assert_ok(kve_task_open(FILES[i][0], &o, &l));
            assert_int_equal(l.items[0]->n_samples, 2);
            kve_sample s = sample_at(&l, 0, 0);
            assert_null(strchr(prompt_of(&s), '\r'));
            assert_null(strchr(s.choices[s.n_choices - 1], '\r'));
            kve_sample_free(&s);
            kve_dataset_list_close(&l);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_rows),
        cmocka_unit_test(test_skipped_rows),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_odd_files),
    };
    return cmocka_run_group_tests(tests, NULL, remove_temp_dir);
}
