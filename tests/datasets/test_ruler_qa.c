/* RULER's question tasks, on small files made here and (where they are) on the real ones. */
#include "datasets/ruler/ruler.h"
#include "tests/datasets/common.h"

#include "host/base/json.h"

enum { ARTICLES = 6, PARAGRAPHS = 5, OVERHEAD = 10 };

/* Paragraph p of article a: 30 words, the answer among them. */
static void put_paragraph(kve_str *out, int a, int p)
{
    assert_ok(kve_str_printf(out, "The town of Place%d has a well%d.", a, p));
    for (int k = 0; k < 21; k++)
        assert_ok(kve_str_printf(out, " w%d", (a * 7 + p * 3 + k) % 97));
    assert_ok(kve_str_printf(out, " It is answer%dx%d deep.", a, p));
}

/* Two questions a paragraph, the second of which has no answer in every other article. */
static const char *make_squad(const char *name)
{
    kve_str s = {0};
    assert_ok(kve_str_puts(&s, "{\"version\": \"v2.0\", \"data\": ["));
    for (int a = 0; a < ARTICLES; a++) {
        assert_ok(kve_str_printf(&s, "%s{\"title\": \"T%d\", \"paragraphs\": [", a ? "," : "", a));
        for (int p = 0; p < PARAGRAPHS; p++) {
            assert_ok(kve_str_printf(&s, "%s{\"context\": \"", p ? "," : ""));
            put_paragraph(&s, a, p);
            assert_ok(kve_str_printf(&s,
                                     "\", \"qas\": [{\"question\": \"How deep is well%d of Place%d?\", \"answers\": "
                                     "[{\"text\": \"answer%dx%d\"}, {\"text\": \"answer%dx%d deep\"}, {\"text\": "
                                     "\"answer%dx%d\"}], \"is_impossible\": false}, {\"question\": \"Never asked?\", "
                                     "\"answers\": [], \"is_impossible\": true}]}",
                                     p, a, a, p, a, p, a, p));
        }
        assert_ok(kve_str_puts(&s, "]}"));
    }
    assert_ok(kve_str_puts(&s, "]}"));
    const char *path = temp_file(name, s.p, s.len);
    kve_str_free(&s);
    return path;
}

/* Question i: its paragraphs 2 and 4 support it; paragraph 0 is the same for all questions. */
static const char *make_hotpot(const char *name)
{
    kve_str s = {0};
    assert_ok(kve_str_puts(&s, "["));
    for (int a = 0; a < ARTICLES; a++) {
        assert_ok(kve_str_printf(&s,
                                 "%s{\"question\": \"Which is deeper, Q%d?\", \"answer\": \"answer%dx2\", "
                                 "\"supporting_facts\": [[\"T%dx2\", 0], [\"T%dx4\", 1]], \"context\": [",
                                 a ? "," : "", a, a, a, a));
        for (int p = 0; p < PARAGRAPHS; p++) {
            int owner = p ? a : 99;
            assert_ok(kve_str_printf(&s, "%s[\"T%dx%d\", [\"", p ? "," : "", owner, p));
            put_paragraph(&s, owner, p);
            assert_ok(kve_str_puts(&s, "\", \" Second.\"]]"));
        }
        assert_ok(kve_str_puts(&s, "]}"));
    }
    assert_ok(kve_str_puts(&s, "]"));
    const char *path = temp_file(name, s.p, s.len);
    kve_str_free(&s);
    return path;
}

static kve_dataset *open_qa(const char *task, const char *path, int64_t length, uint64_t seed, size_t n)
{
    kve_dataset *d = NULL;
    kve_ruler_options o = {.task = task,
                           .length_tok = length,
                           .overhead_tok = OVERHEAD,
                           .seed = seed,
                           .n_samples = n,
                           .data_path = path,
                           .tokens = WORDS};
    assert_ok(kve_ruler_open(&o, &d));
    return d;
}

/* "Document 1:" ... "Document n:" in this order and no other; returns n. */
static size_t check_numbering(const kve_sample *s)
{
    char head[32];
    size_t n = 0;
    for (const char *at = s->context;; n++) {
        snprintf(head, sizeof head, "Document %zu:\n", n + 1);
        at = strstr(at, head);
        if (!at)
            break;
    }
    assert_int_equal(occurrences_of(s->context, "\n\nDocument "), n);
    return n;
}

static void check_length(const kve_sample *s, int64_t length, int64_t longest_document)
{
    const char *const parts[] = {s->context, s->question, s->answer_prefix};
    int64_t n = OVERHEAD + 32;
    for (size_t i = 0; i < 3; i++)
        n += (int64_t)words_of(parts[i], strlen(parts[i]), NULL);
    assert_int_equal(s->n_tok, n);
    assert_true(n <= length && (n > length - longest_document || s->note));
    assert_int_equal(s->max_new_tokens, 32);
    assert_int_equal(s->metric, KVE_METRIC_RULER_ANY);
    assert_int_equal(occurrences_of(s->context, "Question:"), 0);
}

static void test_squad(void **state)
{
    (void)state;
    kve_dataset *d = open_qa("qa_1", make_squad("squad.json"), 512, 3, 0);
    size_t first_places = 0;
    assert_int_equal(d->n_samples, ARTICLES * PARAGRAPHS); /* fewer than 500, and none without an answer */
    for (size_t i = 0; i < d->n_samples; i++) {
        int a = (int)i / PARAGRAPHS, p = (int)i % PARAGRAPHS; /* the file's order */
        char text[64];
        kve_sample s;
        kve_str golden = {0};
        assert_ok(kve_dataset_sample(d, i, &s));
        put_paragraph(&golden, a, p);
        snprintf(text, sizeof text, "well%d of Place%d?", p, a);
        assert_non_null(strstr(s.question, text));
        snprintf(text, sizeof text, "answer%dx%d", a, p);
        assert_int_equal(s.n_references, 2); /* a repeated answer counts once */
        assert_string_equal(s.references[0], text);
        assert_int_equal(occurrences_of(s.context, golden.p), 1);
        size_t n = check_numbering(&s);
        assert_true(n > PARAGRAPHS + 2 && n < ARTICLES * PARAGRAPHS);
        snprintf(text, sizeof text, "of Place%d has", a);
        assert_int_equal(occurrences_of(s.context, text), PARAGRAPHS); /* the article's own come first */
        first_places += strncmp(strstr(s.context, "Document 1:\n") + 12, golden.p, golden.len) == 0;
        check_length(&s, 512, 34);
        kve_str_free(&golden);
        kve_sample_free(&s);
    }
    assert_true(first_places < d->n_samples / 2);
    kve_dataset_close(d);
}

static void test_hotpot(void **state)
{
    (void)state;
    kve_dataset *d = open_qa("qa_2", make_hotpot("hotpotqa.json"), 512, 3, 0);
    assert_int_equal(d->n_samples, ARTICLES);
    for (size_t i = 0; i < d->n_samples; i++) {
        char text[64];
        kve_sample s;
        assert_ok(kve_dataset_sample(d, i, &s));
        for (int p = 0; p < PARAGRAPHS; p++) { /* title, line break, sentences as they are */
            kve_str golden = {0};
            int owner = p ? (int)i : 99;
            assert_ok(kve_str_printf(&golden, ":\nT%dx%d\n", owner, p));
            put_paragraph(&golden, owner, p);
            assert_ok(kve_str_puts(&golden, " Second."));
            assert_int_equal(occurrences_of(s.context, golden.p), 1); /* the shared one is not repeated */
            kve_str_free(&golden);
        }
        snprintf(text, sizeof text, "answer%zux2", i);
        assert_int_equal(s.n_references, 1);
        assert_string_equal(s.references[0], text);
        check_numbering(&s);
        check_length(&s, 512, 40);
        kve_sample_free(&s);
    }
    kve_dataset_close(d);
}

/* The supporting paragraphs are kept when little else fits; a length that cannot hold them is an error. */
static void test_short(void **state)
{
    (void)state;
    const char *path = make_hotpot("hotpotqa.json");
    kve_dataset *d = NULL;
    kve_sample s;
    kve_ruler_options o = {
        .task = "qa_2", .length_tok = 512, .overhead_tok = 370, .data_path = path, .tokens = WORDS, .n_samples = 2};
    assert_ok(kve_ruler_open(&o, &d));
    assert_int_equal(d->n_samples, 2);
    assert_ok(kve_dataset_sample(d, 1, &s));
    assert_int_equal(check_numbering(&s), 2);
    assert_non_null(strstr(s.context, ":\nT1x2\n"));
    assert_non_null(strstr(s.context, ":\nT1x4\n"));
    kve_sample_free(&s);
    kve_dataset_close(d);
    o.overhead_tok = 420;
    assert_ok(kve_ruler_open(&o, &d));
    assert_diag(KVE_ERR_USAGE, kve_dataset_sample(d, 1, &s), "too short");
    kve_dataset_close(d);
}

/* When the file has no more documents, the sample says so and does not repeat any. */
static void test_all_documents(void **state)
{
    (void)state;
    kve_sample s;
    kve_dataset *d = open_qa("qa_1", make_squad("squad.json"), 4096, 3, 1);
    assert_ok(kve_dataset_sample(d, 0, &s));
    assert_int_equal(check_numbering(&s), ARTICLES * PARAGRAPHS);
    assert_non_null(strstr(s.note, "all 30 documents"));
    kve_sample_free(&s);
    kve_dataset_close(d);
}

static void test_seeds(void **state)
{
    (void)state;
    const char *path = make_squad("squad.json");
    kve_dataset *a = open_qa("qa_1", path, 512, 1, 3), *b = open_qa("qa_1", path, 512, 1, 9),
                *c = open_qa("qa_1", path, 512, 2, 3);
    uint64_t h[3];
    kve_dataset *const sets[] = {a, b, c};
    for (size_t i = 0; i < 3; i++) {
        kve_sample s;
        assert_ok(kve_dataset_sample(sets[i], 2, &s));
        s.id = "";
        h[i] = hash_sample(&s);
        kve_sample_free(&s);
        kve_dataset_close(sets[i]);
    }
    assert_true(h[0] == h[1] && h[0] != h[2]);
    assert_true(h[0] == 0x599f37e7908ffa30); /* a change of this is a change of KVE_RULER_VERSION */
}

/* --- Files */

static kve_status try_open(const char *task, const char *path)
{
    kve_dataset *d = NULL;
    kve_ruler_options o = {.task = task, .length_tok = 4096, .data_path = path, .tokens = WORDS};
    kve_status st = kve_ruler_open(&o, &d);
    kve_dataset_close(d);
    return st;
}

static void test_folders(void **state)
{
    (void)state;
    char dir[512];
    make_squad("folder/dev-v1.1.json");
    make_hotpot("folder/hotpot_dev_distractor_v1.json");
    snprintf(dir, sizeof dir, "%s/folder", temp_dir());
    assert_ok(try_open("qa_1", dir));
    assert_ok(try_open("qa_2", dir));
    temp_file("nothing/else.txt", "", 0);
    snprintf(dir, sizeof dir, "%s/nothing", temp_dir());
    assert_diag(KVE_ERR_FILE, try_open("qa_1", dir), "dev-v2.0.json");
    assert_diag(KVE_ERR_FILE, try_open("qa_1", make_hotpot("h.json")), "no questions for qa_1");
    assert_diag(KVE_ERR_FILE, try_open("qa_2", make_squad("s.json")), "no questions for qa_2");
    assert_diag(KVE_ERR_FILE, try_open("qa_1", "/nonexistent/squad.json"), "/nonexistent/squad.json");
}

static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *task, *text, *diag;
    } CASES[] = {
        {"qa_1", "{}", "'data' is not a list"},
        {"qa_1", "{\"data\": [1]}", "data[0]: is not an object"},
        {"qa_1", "{\"data\": [{}]}", "data[0]: field 'paragraphs' is not a list"},
        {"qa_1", "{\"data\": [{\"paragraphs\": [{}]}]}", "data[0].paragraphs[0]: field 'context' is missing"},
        {"qa_1", "{\"data\": [{\"paragraphs\": [{\"context\": \"\"}]}]}", "field 'context' is empty"},
        {"qa_1", "{\"data\": [{\"paragraphs\": [{\"context\": \"a\"}]}]}", "paragraphs[0]: field 'qas' is not a list"},
        {"qa_1", "{\"data\": [{\"paragraphs\": [{\"context\": \"a\", \"qas\": [{}]}]}]}",
         "qas[0]: field 'question' is missing"},
        {"qa_1", "{\"data\": [{\"paragraphs\": [{\"context\": \"a\", \"qas\": [{\"question\": \"q\"}]}]}]}",
         "qas[0]: field 'answers' is not a list"},
        {"qa_1",
         "{\"data\": [{\"paragraphs\": [{\"context\": \"a\", \"qas\": [{\"question\": \"q\", \"answers\": []}]}]}]}",
         "qas[0]: field 'answers' is empty"},
        {"qa_1",
         "{\"data\": [{\"paragraphs\": [{\"context\": \"a\", \"qas\": [{\"question\": \"q\", \"answers\": [{\"text\": "
         "\"\"}]}]}]}]}",
         "qas[0].answers[0]: field 'text' is empty"},
        {"qa_1", "{\"data\": []}", "no question"},
        {"qa_1", "{\"data\": [", "not valid JSON"},
        {"qa_2", "[]", "no question"},
        {"qa_2", "[3]", " [0]: is not an object"},
        {"qa_2", "[{}]", "[0]: field 'context' is not a list"},
        {"qa_2", "[{\"context\": [[\"t\"]]}]", "'context'[0] is not [title"},
        {"qa_2", "[{\"context\": [[\"t\", [1]]]}]", "'context'[0] has a sentence"},
        {"qa_2", "[{\"context\": [[\"t\", [\"s\"]]]}]", "field 'question' is missing"},
        {"qa_2", "[{\"context\": [[\"t\", [\"s\"]]], \"question\": \"q\"}]", "field 'answer' is missing"},
        {"qa_2",
         "[{\"context\": [[\"t\", [\"s\"]]], \"question\": \"q\", \"answer\": \"a\", \"supporting_facts\": [[\"u\", "
         "0]]}]",
         "'supporting_facts' names no title"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const char *path = temp_file("bad.json", CASES[i].text, strlen(CASES[i].text));
        assert_diag(KVE_ERR_FILE, try_open(CASES[i].task, path), CASES[i].diag);
        assert_non_null(strstr(kve_diag(), "bad.json"));
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    char path[512];
    for (int task = 1; task <= 2; task++) {
        kve_status st = KVE_ERR_MEMORY;
        snprintf(path, sizeof path, "%s", task == 1 ? make_squad("squad.json") : make_hotpot("hotpotqa.json"));
        for (long n = 1; st != KVE_OK && n < 5000; n++) {
            kve_dataset *d = NULL;
            kve_sample s = {0};
            kve_ruler_options o = {
                .task = task == 1 ? "qa_1" : "qa_2", .length_tok = 512, .data_path = path, .tokens = WORDS};
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

/* --- The real files: golden paragraphs read with the JSON reader and looked up in the context. */

static void check_real(const char *task, const char *path, int64_t longest_document, size_t n)
{
    kve_dataset *d = open_qa(task, path, 4096, 11, n);
    assert_int_equal(d->n_samples, n);
    for (size_t i = 0; i < n; i++) {
        kve_sample s;
        size_t found = 0;
        assert_ok(kve_dataset_sample(d, i, &s));
        for (size_t k = 0; k < s.n_references; k++)
            found += strstr(s.context, s.references[k]) != NULL;
        bool yes_no = strcmp(s.references[0], "yes") == 0 || strcmp(s.references[0], "no") == 0;
        assert_true(found > 0 || yes_no);
        assert_true(check_numbering(&s) > 5);
        check_length(&s, 4096, longest_document);
        kve_sample_free(&s);
    }
    kve_dataset_close(d);
}

static void test_real_squad(void **state)
{
    (void)state;
    check_real("qa_1", real_data("ruler/qa"), 700, 300);
}

static void test_real_hotpot(void **state)
{
    (void)state;
    cJSON *root = NULL;
    const cJSON *item, *fact;
    const char *path = real_data("ruler/qa/hotpotqa.json");
    check_real("qa_2", path, 1320, 100);
    kve_dataset *d = open_qa("qa_2", path, 1024, 11, 0);
    size_t i = 0;
    assert_ok(kve_json_parse_file(path, &root));
    cJSON_ArrayForEach(item, root)
    {
        kve_sample s;
        kve_status st = kve_dataset_sample(d, i++, &s);
        if (st != KVE_OK) { /* some pairs of paragraphs are longer than that */
            assert_non_null(strstr(kve_diag(), "too short"));
            continue;
        }
        cJSON_ArrayForEach(fact, kve_json_get(item, "supporting_facts"))
        {
            kve_str title = {0};
            assert_ok(kve_str_printf(&title, ":\n%s\n", cJSON_GetArrayItem(fact, 0)->valuestring));
            assert_int_equal(occurrences_of(s.context, title.p), 1);
            kve_str_free(&title);
        }
        kve_sample_free(&s);
    }
    cJSON_Delete(root);
    kve_dataset_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_squad),         cmocka_unit_test(test_hotpot),    cmocka_unit_test(test_short),
        cmocka_unit_test(test_all_documents), cmocka_unit_test(test_seeds),     cmocka_unit_test(test_folders),
        cmocka_unit_test(test_bad_files),     cmocka_unit_test(test_no_memory), cmocka_unit_test(test_real_squad),
        cmocka_unit_test(test_real_hotpot),
    };
    return cmocka_run_group_tests(tests, NULL, remove_temp_dir);
}
