/* Ready-made rows and text windows: good files, every way a row can be wrong, and the real file where it is. */
#include "host/base/json.h"
#include "tests/datasets/common.h"

#define NIAH_ROW                                                                                                       \
    "{\"index\": 4, \"input\": \"Some text.\\nThe needle is 12.\\nWhat is the special magic number for a-b mentioned " \
    "in the provided text? The special magic number for a-b mentioned in the provided text is\", \"outputs\": "        \
    "[\"12\"], \"length\": 40}"

static kve_status open_rows(const char *path, const char *task, size_t n, kve_dataset **d)
{
    kve_rows_options o = {.path = path, .task = task, .n_samples = n};
    *d = NULL;
    return kve_rows_open(&o, d);
}

static kve_dataset *rows_of(const char *name, const char *text, const char *task)
{
    kve_dataset *d;
    assert_ok(open_rows(temp_file(name, text, strlen(text)), task, 0, &d));
    return d;
}

static void expect(kve_dataset *d, size_t i, const char *id, const char *context, const char *question,
                   const char *prefix)
{
    kve_sample s;
    assert_ok(kve_dataset_sample(d, i, &s));
    assert_string_equal(s.id, id);
    assert_string_equal(s.context, context);
    assert_string_equal(s.question, question);
    assert_string_equal(s.answer_prefix, prefix);
    assert_string_equal(s.task, d->name);
    assert_string_equal(s.task_version, KVE_ROWS_VERSION);
    assert_int_equal(s.n_tok, 0);
    kve_sample_free(&s);
}

static void test_ruler_rows(void **state)
{
    (void)state;
    static const char TEXT[] =
        NIAH_ROW "\n"
                 "{\"index\": 2, \"input\": \"T.\\nWhat are all the special magic numbers for x mentioned in the "
                 "provided text?\", \"answer_prefix\": \" The special magic numbers are\", \"outputs\": [\"1\", "
                 "\"2\"], \"length\": 9}\r\n"
                 "{\"index\": 7, \"input\": \"No question here\", \"outputs\": [\"1\"]}";
    kve_dataset *d = rows_of("niah_multivalue/validation.jsonl", TEXT, NULL);
    kve_sample s;
    assert_string_equal(d->name, "niah_multivalue"); /* the folder's name */
    assert_int_equal(d->n_samples, 3);
    expect(d, 0, "niah_multivalue-4", "Some text.\nThe needle is 12.\n",
           "What is the special magic number for a-b mentioned in the provided text?",
           " The special magic number for a-b mentioned in the provided text is");
    expect(d, 1, "niah_multivalue-2", "T.\n",
           "What are all the special magic numbers for x mentioned in the provided text?",
           " The special magic numbers are");
    expect(d, 2, "niah_multivalue-7", "No question here", "", "");
    assert_ok(kve_dataset_sample(d, 2, &s));
    assert_non_null(strstr(s.note, "no question"));
    kve_sample_free(&s);
    assert_ok(kve_dataset_sample(d, 1, &s));
    assert_null(s.note);
    assert_int_equal(s.n_references, 2);
    assert_string_equal(s.references[1], "2");
    assert_int_equal(s.max_new_tokens, 128);
    assert_int_equal(s.metric, KVE_METRIC_RULER_ALL);
    kve_sample_free(&s);
    kve_dataset_close(d);
}

/* The other tasks of RULER: the last "Question:" line is the question, an example's is context. */
static void test_ruler_rows_with_examples(void **state)
{
    (void)state;
    static const char TEXT[] = "{\"index\": 0, \"input\": \"L\\nQuestion: q? Answer: x\\nL2\\nQuestion: q2? Answer: "
                               "It is\", \"outputs\": [\"a\"], \"length\": 1}\n";
    kve_dataset *d = rows_of("qa.jsonl", TEXT, "qa-1"); /* '-' equals '_' */
    kve_sample s;
    expect(d, 0, "qa_1-0", "L\nQuestion: q? Answer: x\nL2\n", "Question: q2?", " Answer: It is");
    assert_ok(kve_dataset_sample(d, 0, &s));
    assert_int_equal(s.metric, KVE_METRIC_RULER_ANY);
    assert_int_equal(s.max_new_tokens, 32);
    kve_sample_free(&s);
    kve_dataset_close(d);
}

#define PARTS(task, answer)                                                                                            \
    "{\"context\": \"C\\n\", \"question\": \"Q?\", \"answer_prefix\": \" A:\", \"answer\": " answer                    \
    ", \"task\": \"" task "\", \"max_new_tokens\": 50}\n"

static void test_rows_in_parts(void **state)
{
    (void)state;
    static const char TEXT[] = PARTS("fwe", "[\"x\", \"y\"]") PARTS("vt", "\"only\"") PARTS("fwe", "[\"z\"]");
    kve_dataset *d = rows_of("parts.jsonl", TEXT, "fwe");
    kve_sample s;
    assert_int_equal(d->n_samples, 2); /* only the rows of this task */
    expect(d, 0, "fwe-line1", "C\n", "Q?", " A:");
    expect(d, 1, "fwe-line3", "C\n", "Q?", " A:");
    kve_dataset_close(d);
    d = rows_of("parts.jsonl", TEXT, "vt");
    assert_ok(kve_dataset_sample(d, 0, &s));
    assert_int_equal(s.n_references, 1);
    assert_string_equal(s.references[0], "only");
    assert_int_equal(s.max_new_tokens, 50);
    kve_sample_free(&s);
    kve_dataset_close(d);
    const char *path = temp_file("parts.jsonl", TEXT, strlen(TEXT));
    assert_diag(KVE_ERR_USAGE, open_rows(path, NULL, 0, &d), "2 tasks");
    assert_diag(KVE_ERR_USAGE, open_rows(path, "cwe", 0, &d), "no rows of task 'cwe'; it has rows of: vt, fwe");
    assert_diag(KVE_ERR_USAGE, open_rows(path, "few", 0, &d), "did you mean 'fwe'");
    kve_dataset_list list = {0};
    kve_rows_options all = {.path = path, .n_samples = 1};
    assert_ok(kve_rows_open_all(&all, &list)); /* one dataset a task, in RULER's order; they share the file */
    assert_int_equal(list.n, 2);
    assert_string_equal(list.items[0]->name, "vt");
    assert_string_equal(list.items[1]->name, "fwe");
    assert_int_equal(list.items[1]->n_samples, 1); /* the first of two */
    expect(list.items[1], 0, "fwe-line1", "C\n", "Q?", " A:");
    kve_dataset_list_close(&list);
}

static void test_folders(void **state)
{
    (void)state;
    char dir[512];
    kve_dataset_list list = {0};
    static const char VT[] = "{\"index\": 0, \"input\": \"a\\nQuestion: b\", \"outputs\": [\"c\"]}\n";
    temp_file("out/vt/validation.jsonl", VT, strlen(VT));
    temp_file("out/niah_single_1/validation.jsonl", NIAH_ROW, strlen(NIAH_ROW));
    snprintf(dir, sizeof dir, "%s/out", temp_dir());
    kve_rows_options o = {.path = dir};
    assert_ok(kve_rows_open_all(&o, &list));
    assert_int_equal(list.n, 2);
    assert_string_equal(list.items[0]->name, "niah_single_1");
    assert_string_equal(list.items[1]->name, "vt");
    kve_dataset_list_close(&list);
    o.task = "vt";
    assert_ok(kve_rows_open_all(&o, &list));
    assert_int_equal(list.n, 1);
    kve_dataset_list_close(&list);
    o.task = "cwe";
    assert_diag(KVE_ERR_FILE, kve_rows_open_all(&o, &list), "cwe/validation.jsonl");
    kve_dataset_list_close(&list);
    /* a folder's name is not overruled */
    kve_dataset *d;
    strcat(dir, "/vt/validation.jsonl");
    assert_diag(KVE_ERR_USAGE, open_rows(dir, "cwe", 0, &d), "it has rows of: vt");
}

static void test_bad_rows(void **state)
{
    (void)state;
    static const char GOOD[] = NIAH_ROW "\n";
    static const struct {
        const char *row, *diag;
    } CASES[] = {
        {"", ":2: the line is empty"},
        {"[]", ":2: the row is not an object"},
        {"{\"index\": 1, \"input\": \"x\"", ":2: not valid JSON"},
        {"{} {}", ":2: text after the JSON value"},
        {"{\"index\": 1}", ":2: has neither field 'input'"},
        {"{\"input\": \"x\", \"outputs\": [\"y\"]}", ":2: field 'index' is missing"},
        {"{\"index\": -1, \"input\": \"x\", \"outputs\": [\"y\"]}", ":2: field 'index' is -1"},
        {"{\"index\": 1.5, \"input\": \"x\", \"outputs\": [\"y\"]}", ":2: field 'index' is not a whole number"},
        {"{\"index\": 1e30, \"input\": \"x\", \"outputs\": [\"y\"]}", ":2: field 'index' is not a whole number"},
        {"{\"index\": 4, \"input\": \"x\", \"outputs\": [\"y\"]}",
         ":2: field 'index' is 4 for task 'niah_single_1', as in line 1"},
        {"{\"index\": 1, \"input\": 5, \"outputs\": [\"y\"]}", ":2: field 'input' is not a text"},
        {"{\"index\": 1, \"input\": \"\", \"outputs\": [\"y\"]}", ":2: field 'input' is empty"},
        {"{\"index\": 1, \"input\": \"x\"}", ":2: field 'outputs' is missing"},
        {"{\"index\": 1, \"input\": \"x\", \"outputs\": \"y\"}", ":2: field 'outputs' is no list"},
        {"{\"index\": 1, \"input\": \"x\", \"outputs\": []}", ":2: field 'outputs' is no list of texts with one"},
        {"{\"index\": 1, \"input\": \"x\", \"outputs\": [\"y\", \"\"]}", ":2: field 'outputs': item 1"},
        {"{\"index\": 1, \"input\": \"x\", \"outputs\": [3]}", ":2: field 'outputs': item 0"},
        {"{\"index\": 1, \"input\": \"x\", \"outputs\": [\"y\"], \"length\": 0}", ":2: field 'length' is 0"},
        {"{\"index\": 1, \"input\": \"x\", \"outputs\": [\"y\"], \"answer_prefix\": 1}",
         ":2: field 'answer_prefix' is not"},
        {"{\"index\": 1, \"input\": \"x\", \"outputs\": [\"y\"], \"task\": \"vtt\"}",
         ":2: field 'task': 'vtt' is no RULER task"},
        {"{\"context\": \"\"}", ":2: field 'context' is empty"},
        {"{\"context\": \"c\"}", ":2: field 'question' is missing"},
        {"{\"context\": \"c\", \"question\": \"q\"}", ":2: field 'answer' is missing"},
        {"{\"context\": \"c\", \"question\": \"q\", \"answer\": 3}", ":2: field 'answer' is no list"},
        {"{\"context\": \"c\", \"question\": \"q\", \"answer\": \"\"}", ":2: field 'answer': item 0"},
        {"{\"context\": \"c\", \"question\": \"q\", \"answer\": [\"a\"], \"max_new_tokens\": 0}",
         "'max_new_tokens' is 0"},
        {"{\"context\": \"c\", \"question\": \"q\", \"answer\": [\"a\"], \"max_new_tokens\": 4097}",
         "is 4097, outside 1 .. 4096"},
        {"{\"context\": \"c\", \"question\": \"q\", \"answer\": [\"a\"], \"index\": -3}", ":2: field 'index' is -3"},
        {"{\"context\": \"\xff\"}", ":2: byte"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kve_str text = {0};
        kve_dataset *d;
        assert_ok(kve_str_printf(&text, "%s%s\n", GOOD, CASES[i].row));
        kve_status st = open_rows(temp_file("bad.jsonl", text.p, text.len), "niah_single_1", 0, &d);
        if (st != KVE_ERR_FILE || !strstr(kve_diag(), CASES[i].diag) || !strstr(kve_diag(), "bad.jsonl:2"))
            fail_msg("row %zu: status %d, wanted '%s', got: %s", i, (int)st, CASES[i].diag, kve_diag());
        assert_null(d);
        kve_str_free(&text);
    }
}

static void test_bad_files(void **state)
{
    (void)state;
    kve_dataset *d;
    assert_diag(KVE_ERR_FILE, open_rows(temp_file("none.jsonl", "", 0), "vt", 0, &d), "has no rows");
    assert_diag(KVE_ERR_FILE, open_rows("/nonexistent/rows.jsonl", "vt", 0, &d), "/nonexistent/rows.jsonl");
    assert_diag(KVE_ERR_FILE, open_rows(temp_file("x.jsonl", NIAH_ROW, strlen(NIAH_ROW)), NULL, 0, &d),
                ":1: field 'task' is missing and the folder is not named after a task");
    assert_diag(KVE_ERR_FILE, open_rows(temp_file("my_vt/x.jsonl", NIAH_ROW, strlen(NIAH_ROW)), NULL, 0, &d),
                "not named after a task"); /* the end of a name is not the name */
}

static void test_no_memory(void **state)
{
    (void)state;
    static const char TEXT[] = PARTS("fwe", "[\"x\", \"y\"]") PARTS("vt", "\"only\"");
    const char *path = temp_file("parts.jsonl", TEXT, strlen(TEXT));
    kve_status st = KVE_ERR_MEMORY;
    for (long n = 1; st != KVE_OK && n < 500; n++) {
        kve_dataset_list list = {0};
        kve_sample s = {0};
        kve_rows_options o = {.path = path};
        kve_alloc_fail_after(n);
        st = kve_rows_open_all(&o, &list);
        if (st == KVE_OK)
            st = kve_dataset_sample(list.items[0], 0, &s);
        kve_alloc_fail_after(0);
        assert_true(st == KVE_OK || st == KVE_ERR_MEMORY);
        kve_sample_free(&s);
        kve_dataset_list_close(&list);
    }
    assert_int_equal(st, KVE_OK);
}

/* RULER's own file: the three pieces are the input, byte by byte, and the question is the question. */
static void test_real_rows(void **state)
{
    (void)state;
    const char *path = real_data("ruler/niah_multikey_3/validation.jsonl");
    kve_dataset *d;
    char *text = NULL;
    size_t len = 0;
    assert_ok(open_rows(path, NULL, 0, &d));
    assert_string_equal(d->name, "niah_multikey_3");
    assert_int_equal(d->n_samples, 60);
    assert_ok(kve_file_read(path, &text, &len));
    const char *line = text;
    for (size_t i = 0; i < d->n_samples; i++) {
        kve_sample s;
        kve_str whole = {0};
        cJSON *row = NULL;
        const char *input = NULL;
        size_t n = strcspn(line, "\n");
        assert_ok(kve_json_parse(line, n, "row", &row));
        assert_ok(kve_json_str(row, "input", "row", &input));
        assert_ok(kve_dataset_sample(d, i, &s));
        assert_ok(kve_str_printf(&whole, "%s%s%s", s.context, s.question, s.answer_prefix));
        assert_string_equal(whole.p, input);
        assert_int_equal(strncmp(s.question, "What is the special magic uuid for ", 35), 0);
        assert_int_equal(s.question[strlen(s.question) - 1], '?');
        assert_int_equal(strncmp(s.answer_prefix, " The special magic uuid for ", 28), 0);
        assert_non_null(strstr(s.context, s.references[0]));
        assert_null(s.note);
        kve_str_free(&whole);
        cJSON_Delete(row);
        kve_sample_free(&s);
        line += n + 1;
    }
    free(text);
    kve_dataset_close(d);
}

/* --- Text */

static kve_status open_text(const char *path, size_t n_prefill, size_t n_score, size_t n, kve_dataset **d)
{
    kve_text_options o = {.path = path, .n_prefill = n_prefill, .n_score = n_score, .n_samples = n, .tokens = WORDS};
    *d = NULL;
    return kve_text_open(&o, d);
}

static void test_text(void **state)
{
    (void)state;
    static const char TEXT[] = "a b c d e f g h i j k\n";
    int32_t want[16];
    kve_dataset *d;
    kve_sample s;
    words_of(TEXT, strlen(TEXT), want);
    const char *path = temp_file("text.txt", TEXT, strlen(TEXT));
    assert_ok(open_text(path, 3, 2, 0, &d));
    assert_int_equal(d->n_samples, 2); /* "k" is left over */
    assert_string_equal(d->name, "text:text.txt");
    for (size_t i = 0; i < 2; i++) {
        char id[32];
        snprintf(id, sizeof id, "window-3+2-%zu", i);
        assert_ok(kve_dataset_sample(d, i, &s));
        assert_string_equal(s.id, id);
        assert_string_equal(s.task, d->name);
        assert_string_equal(s.task_version, KVE_TEXT_VERSION);
        assert_int_equal(s.metric, KVE_METRIC_NLL);
        assert_int_equal(s.n_ids, 5);
        assert_int_equal(s.n_prefill, 3);
        assert_memory_equal(s.ids, want + 5 * i, 5 * sizeof *want);
        kve_sample_free(&s);
    }
    kve_dataset_close(d);
    assert_ok(open_text(path, 3, 2, 1, &d));
    assert_int_equal(d->n_samples, 1);
    kve_dataset_close(d);
    assert_ok(open_text(path, 10, 1, 9, &d)); /* exactly one window */
    assert_int_equal(d->n_samples, 1);
    kve_dataset_close(d);
}

static void test_bad_text(void **state)
{
    (void)state;
    kve_dataset *d;
    const char *path = temp_file("text.txt", "a b c", 5);
    assert_diag(KVE_ERR_FILE, open_text(path, 3, 1, 0, &d), "has 3 tokens, a window takes 4");
    assert_diag(KVE_ERR_USAGE, open_text(path, 0, 1, 0, &d), "0 tokens of context");
    assert_diag(KVE_ERR_USAGE, open_text(path, 1, 0, 0, &d), "0 to score");
    assert_diag(KVE_ERR_USAGE, open_text(path, SIZE_MAX, 2, 0, &d), "each must be in");
    assert_diag(KVE_ERR_FILE, open_text(temp_file("bad.txt", "a \xc3(", 4), 1, 1, 0, &d), "byte 2 is not UTF-8");
    assert_diag(KVE_ERR_FILE, open_text(temp_file("none.txt", "", 0), 1, 1, 0, &d), "has 0 tokens");
    assert_diag(KVE_ERR_FILE, open_text("/nonexistent/text", 1, 1, 0, &d), "/nonexistent/text");
    assert_null(d);
}

static void test_real_text(void **state)
{
    (void)state;
    const char *path = real_data("wikitext2/test.txt");
    kve_dataset *d;
    kve_sample s;
    assert_ok(open_text(path, 3072, 1024, 5, &d));
    assert_int_equal(d->n_samples, 5);
    assert_ok(kve_dataset_sample(d, 4, &s));
    assert_int_equal(s.n_ids, 4096);
    kve_sample_free(&s);
    kve_dataset_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ruler_rows),    cmocka_unit_test(test_ruler_rows_with_examples),
        cmocka_unit_test(test_rows_in_parts), cmocka_unit_test(test_folders),
        cmocka_unit_test(test_bad_rows),      cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_no_memory),     cmocka_unit_test(test_real_rows),
        cmocka_unit_test(test_text),          cmocka_unit_test(test_bad_text),
        cmocka_unit_test(test_real_text),
    };
    return cmocka_run_group_tests(tests, NULL, remove_temp_dir);
}
