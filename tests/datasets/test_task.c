/* Task names, and the datasets they stand for. */
#include "tests/datasets/common.h"

static void expect(const char *name, kve_task_family family, int64_t length, const char *sub, const char *path)
{
    kve_task_spec s = {0};
    assert_ok(kve_task_parse(name, &s));
    assert_int_equal(s.family, family);
    assert_int_equal(s.length_tok, length);
    if (sub)
        assert_string_equal(s.sub, sub);
    else
        assert_null(s.sub);
    if (path)
        assert_string_equal(s.path, path);
    else
        assert_null(s.path);
}

static void test_names(void **state)
{
    (void)state;
    expect("ruler-4k", KVE_TASK_RULER, 4096, NULL, NULL);
    expect("ruler_4k", KVE_TASK_RULER, 4096, NULL, NULL);
    expect("ruler-1K", KVE_TASK_RULER, 1024, NULL, NULL);
    expect("ruler-512", KVE_TASK_RULER, 512, NULL, NULL);
    expect("ruler-128k", KVE_TASK_RULER, 131072, NULL, NULL);
    expect("ruler-8k/niah_single_1", KVE_TASK_RULER, 8192, "niah_single_1", NULL);
    expect("ruler-8k/niah-single-1", KVE_TASK_RULER, 8192, "niah_single_1", NULL);
    expect("ruler-4k/qa_1", KVE_TASK_RULER, 4096, "qa_1", NULL);
    expect("ruler", KVE_TASK_ROWS, 0, NULL, NULL);
    expect("ruler/vt", KVE_TASK_ROWS, 0, "vt", NULL);
    expect("text:a/b.txt", KVE_TASK_TEXT, 0, NULL, "a/b.txt");
    expect("boolq", KVE_TASK_ITEMS, 0, NULL, NULL);
    expect("arc-challenge", KVE_TASK_ITEMS, 0, NULL, NULL);
    expect("arc_challenge", KVE_TASK_ITEMS, 0, NULL, NULL);
    expect("gov_report", KVE_TASK_ITEMS, 0, NULL, NULL);
    expect("mmlu", KVE_TASK_ITEMS, 0, NULL, NULL);
    expect("mmlu/abstract_algebra", KVE_TASK_ITEMS, 0, "abstract_algebra", NULL);
    expect("oasst2-4k", KVE_TASK_OASST, 4096, NULL, NULL);
    expect("oasst2_1k", KVE_TASK_OASST, 1024, NULL, NULL);
}

static void test_bad_names(void **state)
{
    (void)state;
    static const struct {
        const char *name, *diag;
    } CASES[] = {
        {"", "is unknown"},
        {"rular-4k", "did you mean 'ruler-4k'"},
        {"Ruler", "did you mean 'ruler'"},
        {"test:file", "did you mean 'text:'"},
        {"text", "did you mean 'text:'"},
        {"rulers", "did you mean 'ruler'"},
        {"text:", "names no file"},
        {"ruler-", "'' is no length"},
        {"ruler-k", "'k' is no length"},
        {"ruler-4kk", "'4kk' is no length"},
        {"ruler--4k", "'-4k' is no length"},
        {"ruler-4096.0", "'4096.0' is no length"},
        {"ruler- 4k", "is no length"},
        {"ruler-99999999999999999999", "is no length"},
        {"ruler-511", "511 tokens is outside 512 .. 131072"},
        {"ruler-0", "0 tokens is outside"},
        {"ruler-129k", "132096 tokens is outside"},
        {"ruler-999999999999k", "is outside"},
        {"ruler-4k/", "task 'ruler-4k/': '' is no RULER task"},
        {"ruler-4k/niah_singel_2", "did you mean 'niah_single_2'"},
        {"ruler-4k/qa", "did you mean 'qa_1'"},
        {"ruler/cew", "did you mean 'cwe'"},
        {"ruler-4k/vt/cwe", "is no RULER task"},
        {"bool", "did you mean 'boolq'"},
        {"hella-swag", "did you mean 'hellaswag'"},
        {"arc", "Known: ruler-LENGTH"},
        {"boolq/a", "boolq has no parts; write 'boolq'"},
        {"mmlu/", "names no subject"},
        {"oasst2", "did you mean 'oasst2-4k'"},
        {"oasst2-", "'' is no length; write oasst2-4k"},
        {"oasst2-100", "100 tokens is outside"},
        {"oasst2-4k/x", "is unknown"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kve_task_spec s = {.length_tok = -5};
        assert_diag(KVE_ERR_USAGE, kve_task_parse(CASES[i].name, &s), CASES[i].diag);
        assert_int_equal(s.length_tok, -5);
    }
}

static const char SQUAD[] =
    "{\"data\": [{\"paragraphs\": [{\"context\": \"The sky is grey.\", \"qas\": [{\"question\": \"Which colour has the "
    "sky?\", \"answers\": [{\"text\": \"grey\"}]}]}]}]}";

static void test_file_tasks(void **state)
{
    (void)state;
    assert_int_equal(kve_file_task_count(), 6);
    for (size_t i = 0; i < kve_file_task_count(); i++) {
        kve_task_spec s;
        kve_task_options o = {.tokens = WORDS};
        kve_dataset_list l;
        assert_ok(kve_task_parse(kve_file_task_name(i), &s));
        assert_non_null(strchr(kve_file_task_about(i), ' '));
        assert_diag(KVE_ERR_USAGE, kve_task_open(kve_file_task_name(i), &o, &l), "needs --data");
    }
}

/* Without data, the two qa tasks are left out, and the list says so. */
static void test_all_of_ruler(void **state)
{
    (void)state;
    kve_dataset_list l = {0};
    kve_task_options o = {.tokens = WORDS, .seed = 3, .n_samples = 2, .overhead_tok = 7};
    assert_ok(kve_task_open("ruler-1k", &o, &l));
    assert_int_equal(l.n, 11);
    assert_int_equal(l.n_skipped, 2);
    assert_string_equal(l.skipped[0].name, "ruler-1k/qa_1");
    assert_string_equal(l.skipped[1].name, "ruler-1k/qa_2");
    assert_non_null(strstr(l.skipped[0].reason, "needs --data: SQuAD"));
    assert_non_null(strstr(l.skipped[1].reason, "needs --data: HotpotQA"));
    for (size_t i = 0; i < l.n; i++) {
        kve_sample s;
        assert_memory_equal(l.items[i]->name, "ruler-1k/", 9);
        assert_string_equal(l.items[i]->name + 9, kve_ruler_task_name(i));
        assert_int_equal(l.items[i]->n_samples, 2);
        assert_ok(kve_dataset_sample(l.items[i], 1, &s));
        assert_non_null(strstr(s.id, "-1024-s3-1"));
        assert_true(s.n_tok <= 1024);
        kve_sample_free(&s);
    }
    kve_dataset_list_close(&l);
    assert_int_equal(l.n, 0);
}

/* With one of the two files, one of the two tasks is there. */
static void test_some_data(void **state)
{
    (void)state;
    kve_dataset_list l = {0};
    kve_task_options o = {.tokens = WORDS, .n_samples = 1};
    o.data_path = temp_file("squad.json", SQUAD, strlen(SQUAD));
    for (int folder = 0; folder < 2; folder++) {
        assert_ok(kve_task_open("ruler-4k", &o, &l));
        assert_int_equal(l.n, 12);
        assert_string_equal(l.items[11]->name, "ruler-4k/qa_1");
        assert_int_equal(l.n_skipped, 1);
        assert_string_equal(l.skipped[0].name, "ruler-4k/qa_2");
        assert_non_null(strstr(l.skipped[0].reason, temp_dir()));
        kve_dataset_list_close(&l);
        o.data_path = temp_dir();
    }
    temp_file("hotpotqa.json", "[{}]", 4); /* there, but broken: an error, not a reason to leave it out */
    assert_diag(KVE_ERR_FILE, kve_task_open("ruler-4k", &o, &l), "hotpotqa.json");
    assert_int_equal(l.n, 0);
    o.data_path = "/nonexistent/data";
    assert_diag(KVE_ERR_FILE, kve_task_open("ruler-4k", &o, &l), "/nonexistent/data");
}

static void test_one_task(void **state)
{
    (void)state;
    kve_dataset_list l = {0};
    kve_task_options o = {.tokens = WORDS};
    assert_ok(kve_task_open("ruler-512/niah-multikey-2", &o, &l));
    assert_int_equal(l.n, 1);
    assert_int_equal(l.n_skipped, 0);
    assert_string_equal(l.items[0]->name, "ruler-512/niah_multikey_2");
    assert_int_equal(l.items[0]->n_samples, 500);
    kve_dataset_list_close(&l);
    assert_diag(KVE_ERR_USAGE, kve_task_open("ruler-4k/qa_1", &o, &l), "needs --data");
    o.data_path = temp_file("other/squad.json", SQUAD, strlen(SQUAD));
    assert_diag(KVE_ERR_FILE, kve_task_open("ruler-4k/qa_2", &o, &l), "no questions for qa_2");
    assert_ok(kve_task_open("ruler-4k/qa_1", &o, &l));
    assert_int_equal(l.items[0]->n_samples, 1);
    kve_dataset_list_close(&l);
    temp_file("deep/a/b/squad.json", SQUAD, strlen(SQUAD));
    char deep[512];
    snprintf(deep, sizeof deep, "%s/deep", temp_dir());
    o.data_path = deep; /* a folder is searched as for any other task */
    assert_ok(kve_task_open("ruler-4k/qa_1", &o, &l));
    assert_int_equal(l.items[0]->n_samples, 1);
    kve_dataset_list_close(&l);
    o.haystack_path = "/nonexistent/essay";
    assert_diag(KVE_ERR_FILE, kve_task_open("ruler-4k", &o, &l), "/nonexistent/essay");
    assert_null(l.items);
}

static void test_rows_and_text(void **state)
{
    (void)state;
    static const char ROW[] = "{\"context\": \"c\", \"question\": \"q\", \"answer\": [\"a\"], \"task\": \"vt\"}\n";
    kve_dataset_list l = {0};
    kve_task_options o = {.tokens = WORDS};
    assert_diag(KVE_ERR_USAGE, kve_task_open("ruler", &o, &l), "needs --data");
    o.data_path = temp_file("rows.jsonl", ROW, strlen(ROW));
    assert_ok(kve_task_open("ruler", &o, &l));
    assert_int_equal(l.n, 1);
    assert_string_equal(l.items[0]->name, "vt");
    kve_dataset_list_close(&l);
    assert_diag(KVE_ERR_USAGE, kve_task_open("ruler/cwe", &o, &l), "no rows of task 'cwe'");

    char name[600];
    static const size_t WINDOWS[][2] = {{2, 1}, {3, 2}, {4, 3}, {5, 3}, {10, 7}};
    snprintf(name, sizeof name, "text:%s", temp_file("w.txt", "a b c d e f g h i j k l", 23));
    for (size_t i = 0; i < sizeof WINDOWS / sizeof *WINDOWS; i++) {
        kve_sample s;
        o.window_tok = WINDOWS[i][0];
        assert_ok(kve_task_open(name, &o, &l));
        assert_int_equal(l.items[0]->n_samples, 12 / WINDOWS[i][0]);
        assert_ok(kve_dataset_sample(l.items[0], 0, &s));
        assert_int_equal(s.n_ids, WINDOWS[i][0]);
        assert_int_equal(s.n_prefill, WINDOWS[i][1]); /* three quarters, rounded down */
        kve_sample_free(&s);
        kve_dataset_list_close(&l);
    }
    o.window_tok = 1;
    assert_diag(KVE_ERR_USAGE, kve_task_open(name, &o, &l), "--window");
    o.window_tok = SIZE_MAX;
    assert_diag(KVE_ERR_USAGE, kve_task_open(name, &o, &l), "each must be in");
}

static void test_no_memory(void **state)
{
    (void)state;
    kve_status st = KVE_ERR_MEMORY;
    for (long n = 1; st != KVE_OK && n < 3000; n++) {
        kve_dataset_list l = {0};
        kve_task_options o = {.tokens = WORDS};
        kve_alloc_fail_after(n);
        st = kve_task_open("ruler-4k", &o, &l);
        kve_alloc_fail_after(0);
        assert_true(st == KVE_OK || (st == KVE_ERR_MEMORY && l.n == 0 && !l.arena.head));
        kve_dataset_list_close(&l);
    }
    assert_int_equal(st, KVE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),         cmocka_unit_test(test_bad_names), cmocka_unit_test(test_file_tasks),
        cmocka_unit_test(test_all_of_ruler),  cmocka_unit_test(test_some_data), cmocka_unit_test(test_one_task),
        cmocka_unit_test(test_rows_and_text), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, remove_temp_dir);
}
