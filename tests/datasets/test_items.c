/* BoolQ, ARC, MMLU, HellaSwag, GovReport: every official layout gives the prompt that the task defines, files are found
 * by what is in them, examples come from the split that is not evaluated, and what is left out is said. */
#include "tests/datasets/items_common.h"

/* --- One row of each layout. All rows are made up. */

#define BOOLQ(Q, ANSWER, PASSAGE) "{\"question\": \"" Q "\", " ANSWER ", \"passage\": \"" PASSAGE "\"}\n"
#define ARC(ID, Q, KEY)                                                                                                \
    "{\"id\": \"" ID "\", \"question\": \"" Q "\", \"choices\": {\"text\": [\"stone\", \"warm air\", \"ice\"], "       \
    "\"label\": [\"A\", \"B\", \"C\"]}, \"answerKey\": \"" KEY "\"}\n"
#define ARC_OWN(ID, Q, KEY)                                                                                            \
    "{\"id\": \"" ID "\", \"question\": {\"stem\": \"" Q "\", \"choices\": [{\"text\": \"one\", \"label\": \"1\"}, "   \
    "{\"text\": \"two\", \"label\": \"2\"}, {\"text\": \"three\", \"label\": \"3\"}, {\"text\": \"four\", "            \
    "\"label\": \"4\"}, {\"text\": \"five\", \"label\": \"5\"}]}, \"answerKey\": \"" KEY "\"}\n"
#define MMLU(Q, SUBJECT, ANSWER)                                                                                       \
    "{\"question\": \"" Q "\", \"subject\": \"" SUBJECT "\", \"choices\": [\"p\", \"q\", \"r\", \"s\"], \"answer\": "  \
    "" ANSWER "}\n"
#define SWAG(LABEL)                                                                                                    \
    "{\"ind\": 4, \"activity_label\": \"Rowing\", \"ctx_a\": \"A boat leaves.\", \"ctx_b\": \"the MAN\", \"ctx\": "    \
    "\"x\", \"endings\": [\"rows  away.\", \"sinks [step] it.\", \"[header] sings.\", \"stops.\"], \"label\": " LABEL  \
    "}\n"

static void test_boolq(void **state)
{
    (void)state;
    static const char TEXT[] = BOOLQ("is snow cold", "\"answer\": true", "Snow is frozen.")
        BOOLQ("is fire cold", "\"title\": \"Fire\", \"answer\": false", "Fire is hot.")
            BOOLQ("is tea a drink", "\"idx\": 7, \"label\": 1", "Tea is drunk.");
    kve_dataset_list l;
    open_task("boolq", put_file(fresh_dir(), "anything.txt", TEXT), &l);
    assert_int_equal(l.n, 1);
    assert_string_equal(l.items[0]->name, "boolq");
    assert_int_equal(l.items[0]->n_samples, 3);
    kve_sample s = sample_at(&l, 0, 0);
    assert_string_equal(s.context, "Snow is frozen.");
    assert_string_equal(s.question, "\nQuestion: is snow cold?");
    assert_string_equal(s.answer_prefix, "\nAnswer:");
    assert_int_equal(s.question_place, KVE_QUESTION_AFTER);
    assert_true(s.plain);
    assert_int_equal(s.metric, KVE_METRIC_ACC);
    assert_int_equal(s.n_choices, 2);
    assert_string_equal(s.choices[0], " no");
    assert_string_equal(s.choices[1], " yes");
    assert_int_equal(s.gold, 1);
    assert_string_equal(s.references[0], "yes");
    assert_string_equal(s.id, "line-1");
    assert_int_equal(s.n_shots, 0);
    assert_non_null(strstr(s.source, "anything.txt:1: field 'passage'"));
    kve_sample_free(&s);
    s = sample_at(&l, 0, 1);
    assert_int_equal(s.gold, 0);
    kve_sample_free(&s);
    s = sample_at(&l, 0, 2);
    assert_int_equal(s.gold, 1);
    assert_string_equal(s.id, "idx-7");
    kve_sample_free(&s);
    kve_dataset_list_close(&l);
}

static void test_arc(void **state)
{
    (void)state;
    kve_dataset_list l;
    open_task("arc_challenge",
              put_file(fresh_dir(), "a.jsonl", ARC("M_1", "What rises?", "B") ARC_OWN("M_2", "How many?", "5")), &l);
    kve_sample s = sample_at(&l, 0, 0);
    assert_string_equal(l.items[0]->name, "arc-challenge");
    assert_string_equal(prompt_of(&s), "Question: What rises?\nAnswer:");
    assert_string_equal(s.context, "");
    assert_int_equal(s.question_place, KVE_QUESTION_IN);
    assert_int_equal(s.n_choices, 3);
    assert_string_equal(s.choices[1], " warm air");
    assert_int_equal(s.gold, 1);
    assert_string_equal(s.id, "M_1");
    assert_int_equal(s.metric, KVE_METRIC_ACC_NORM);
    kve_sample_free(&s);
    s = sample_at(&l, 0, 1);
    assert_int_equal(s.n_choices, 5);
    assert_string_equal(s.choices[4], " five");
    assert_int_equal(s.gold, 4);
    kve_sample_free(&s);
    kve_dataset_list_close(&l);
}

static void test_hellaswag(void **state)
{
    (void)state;
    kve_dataset_list l;
    open_task("hellaswag", put_file(fresh_dir(), "h.jsonl", SWAG("2") SWAG("\"3\"")), &l);
    for (size_t i = 0; i < 2; i++) {
        kve_sample s = sample_at(&l, 0, i);
        assert_string_equal(prompt_of(&s), "Rowing: A boat leaves. The man");
        assert_string_equal(s.context, "Rowing: A boat leaves. The man");
        assert_int_equal(s.gold, 2 + i);
        assert_string_equal(s.choices[0], " rows away.");
        assert_string_equal(s.choices[1], " sinks it.");
        assert_string_equal(s.choices[2], "  sings."); /* the bracket goes, its blank stays */
        kve_sample_free(&s);
    }
    kve_dataset_list_close(&l);
}

/* The generated form asks for a word; examples show it; what is never prefilled stays so. */
static void test_generate(void **state)
{
    (void)state;
    static const struct {
        const char *task, *text, *context, *question, *reference, *version;
        kve_question_place place;
    } CASES[] = {
        {"boolq", BOOLQ("is snow cold", "\"answer\": true", "Snow is frozen."), "Snow is frozen.",
         "\nQuestion: is snow cold?\nAnswer with yes or no.\nAnswer:", "yes", "boolq-generate-1", KVE_QUESTION_AFTER},
        {"arc-challenge", ARC("M_1", "What rises?", "B"), "",
         "Question: What rises?\nA. stone\nB. warm air\nC. ice\nAnswer with the letter of the right choice.\nAnswer:",
         "B", "arc-generate-1", KVE_QUESTION_IN},
        {"arc-challenge", ARC_OWN("M_2", "How many?", "5"), "",
         "Question: How many?\nA. one\nB. two\nC. three\nD. four\nE. five\nAnswer with the letter of the right "
         "choice.\nAnswer:",
         "E", "arc-generate-1", KVE_QUESTION_IN},
        {"mmlu", MMLU("Which?", "dry_law", "2"),
         "The following are multiple choice questions (with answers) about dry law.\n\n",
         "Which?\nA. p\nB. q\nC. r\nD. s\nAnswer with the letter of the right choice.\nAnswer:", "C", "mmlu-generate-1",
         KVE_QUESTION_IN},
        {"hellaswag", SWAG("3"), "Rowing: A boat leaves. The man",
         "\nHow does it go on?\nA. rows away.\nB. sinks it.\nC.  sings.\nD. stops.\nAnswer with the letter of the "
         "right choice.\nAnswer:",
         "D", "hellaswag-generate-1", KVE_QUESTION_AFTER},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kve_dataset_list l = {0};
        kve_task_options o = {.tokens = WORDS, .has_shots = true, .generate = true};
        o.data_path = put_file(fresh_dir(), "rows.jsonl", CASES[i].text);
        assert_ok(kve_task_open(CASES[i].task, &o, &l));
        kve_sample s = sample_at(&l, 0, 0);
        assert_string_equal(s.context, CASES[i].context);
        assert_string_equal(s.question, CASES[i].question);
        assert_string_equal(s.answer_prefix, "");
        assert_string_equal(s.references[0], CASES[i].reference);
        assert_string_equal(s.task_version, CASES[i].version);
        assert_int_equal(s.question_place, CASES[i].place);
        assert_int_equal(s.n_references, 1);
        assert_int_equal(s.n_choices, 0);
        assert_int_equal(s.metric, KVE_METRIC_EXACT);
        assert_int_equal(s.max_new_tokens, 8);
        assert_false(s.plain);
        kve_sample_free(&s);
        kve_dataset_list_close(&l);
    }
}

static void test_generate_shots(void **state)
{
    (void)state;
    const char *dir = fresh_dir();
    kve_dataset_list l = {0};
    kve_task_options o = {.tokens = WORDS, .data_path = dir, .has_shots = true, .shots = 1, .generate = true};
    put_file(dir, "test.jsonl", ARC("M_1", "What rises?", "B"));
    put_file(dir, "train.jsonl", ARC("M_2", "What falls?", "A"));
    assert_ok(kve_task_open("arc-challenge", &o, &l));
    kve_sample s = sample_at(&l, 0, 0);
    assert_string_equal(s.context,
                        "Question: What falls?\nA. stone\nB. warm air\nC. ice\nAnswer with the letter of the "
                        "right choice.\nAnswer: A\n\n");
    assert_int_equal(s.n_shots, 1);
    kve_sample_free(&s);
    kve_dataset_list_close(&l);
}

/* What cleaning does, one step at a time. */
static void test_hellaswag_cleaning(void **state)
{
    (void)state;
    static const struct {
        const char *activity, *a, *b, *want;
    } CASES[] = {
        {"Cook", "How to cook [title] Boil [substeps] it.", "", "Cook: How to cook. Boil it."},
        {"Cook", "Go [a [b] c] on", "", "Cook: Go c] on"},
        {"Cook", "An [open end", "", "Cook: An [open end"},
        {"Cook", "Two [lines\\nof] text", "", "Cook: Two [lines\nof] text"},
        {"Cook", "Four    blanks", "", "Cook: Four  blanks"},
        {" Cook", "[title] Start", "oNE mORE", "Cook:. Start One more"},
        {"Cook", "It ends [step]", "", "Cook: It ends "},
        {"Cook", "A", "\xc3\xa9T\xc3\x89", "Cook: A \xc3\xa9t\xc3\x89"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char row[512];
        kve_dataset_list l;
        snprintf(
            row, sizeof row,
            "{\"activity_label\": \"%s\", \"ctx_a\": \"%s\", \"ctx_b\": \"%s\", \"endings\": [\"a\", \"b\", \"c\", "
            "\"d\"], \"label\": 0}\n",
            CASES[i].activity, CASES[i].a, CASES[i].b);
        open_task("hellaswag", put_file(fresh_dir(), "h.jsonl", row), &l);
        kve_sample s = sample_at(&l, 0, 0);
        assert_string_equal(s.context, CASES[i].want);
        kve_sample_free(&s);
        kve_dataset_list_close(&l);
    }
}

static void test_gov_report(void **state)
{
    (void)state;
    static const char TEXT[] =
        "{\"input\": \"\", \"context\": \"A long report.\", \"answers\": [\"Short summary.\", \"Other summary.\"], "
        "\"dataset\": \"gov_report\", \"_id\": \"f00\"}\n"
        "{\"report\": \"Another report.\", \"summary\": \"Its summary.\"}\n";
    kve_dataset_list l;
    open_task("gov-report", put_file(fresh_dir(), "g.jsonl", TEXT), &l);
    kve_sample s = sample_at(&l, 0, 0);
    assert_string_equal(s.context, "A long report.");
    assert_string_equal(s.question, "\n\nNow, write a one-page summary of the report.\n\nSummary:");
    assert_string_equal(s.answer_prefix, "");
    assert_int_equal(s.question_place, KVE_QUESTION_AFTER);
    assert_false(s.plain);
    assert_int_equal(s.metric, KVE_METRIC_ROUGE_L);
    assert_int_equal(s.max_new_tokens, 512);
    assert_int_equal(s.n_references, 2);
    assert_string_equal(s.references[1], "Other summary.");
    assert_string_equal(s.id, "f00");
    assert_int_equal(s.n_choices, 0);
    assert_int_equal(s.n_shots, -1);
    assert_non_null(s.note);
    kve_sample_free(&s);
    s = sample_at(&l, 0, 1);
    assert_string_equal(s.context, "Another report.");
    assert_string_equal(s.references[0], "Its summary.");
    assert_non_null(strstr(s.source, "g.jsonl:2: field 'report'"));
    kve_sample_free(&s);
    kve_dataset_list_close(&l);
}

/* --- MMLU: subjects and examples */

#define DEV5(SUBJECT)                                                                                                  \
    MMLU("e1", SUBJECT, "0")                                                                                           \
    MMLU("e2", SUBJECT, "1")                                                                                           \
    MMLU("e3", SUBJECT, "2") MMLU("e4", SUBJECT, "3") MMLU("e5", SUBJECT, "0") MMLU("e6", SUBJECT, "0")

static void test_mmlu(void **state)
{
    (void)state;
    const char *dir = fresh_dir();
    put_file(dir, "test.jsonl",
             MMLU(" one? ", "old_art", "3") MMLU("two?", "law", "0") MMLU("three?", "old_art", "\"B\""));
    put_file(dir, "dev.jsonl", DEV5("law") DEV5("old_art"));
    kve_dataset_list l;
    open_task("mmlu", dir, &l);
    assert_int_equal(l.n, 2);
    assert_string_equal(l.items[0]->name, "mmlu/old_art");
    assert_string_equal(l.items[1]->name, "mmlu/law");
    assert_int_equal(l.items[0]->n_samples, 2);
    kve_sample s = sample_at(&l, 0, 0);
    assert_string_equal(prompt_of(&s), "The following are multiple choice questions (with answers) about old art.\n\n"
                                       "e1\nA. p\nB. q\nC. r\nD. s\nAnswer: A\n\n"
                                       "e2\nA. p\nB. q\nC. r\nD. s\nAnswer: B\n\n"
                                       "e3\nA. p\nB. q\nC. r\nD. s\nAnswer: C\n\n"
                                       "e4\nA. p\nB. q\nC. r\nD. s\nAnswer: D\n\n"
                                       "e5\nA. p\nB. q\nC. r\nD. s\nAnswer: A\n\n"
                                       "one?\nA. p\nB. q\nC. r\nD. s\nAnswer:");
    assert_string_equal(s.subject, "old_art");
    assert_int_equal(s.n_shots, 5);
    assert_string_equal(s.choices[3], " D");
    assert_int_equal(s.gold, 3);
    kve_sample_free(&s);
    s = sample_at(&l, 0, 1);
    assert_int_equal(s.gold, 1);
    assert_string_equal(s.id, "line-3");
    kve_sample_free(&s);
    kve_dataset_list_close(&l);
    open_task("mmlu/law", dir, &l);
    assert_int_equal(l.n, 1);
    assert_string_equal(l.items[0]->name, "mmlu/law");
    kve_dataset_list_close(&l);
    kve_task_options o = {.tokens = WORDS, .data_path = dir};
    assert_diag(KVE_ERR_USAGE, kve_task_open("mmlu/lore", &o, &l), "no rows of subject 'lore'");
}

/* The original layout: one headerless CSV a subject; quotes hold commas, line breaks and quotes. */
static void test_mmlu_csv(void **state)
{
    (void)state;
    static const char TEST[] = "\"Which, of\nthese?\",\"a \"\"b\"\"\",c,d,e,C\r\nPlain?,1,2,3,4,A\r\n";
    static const char DEV[] = "Dev?,1,2,3,4,D\n";
    const char *dir = fresh_dir();
    put_file(dir, "csv/test/food_law_test.csv", TEST);
    put_file(dir, "csv/dev/food_law_dev.csv", DEV);
    put_file(dir, "csv/test/readme.txt", "nothing, of, this\n");
    kve_dataset_list l;
    kve_task_options o = {.tokens = WORDS, .data_path = dir, .has_shots = true, .shots = 1};
    assert_ok(kve_task_open("mmlu", &o, &l));
    assert_int_equal(l.n, 1);
    assert_string_equal(l.items[0]->name, "mmlu/food_law");
    assert_int_equal(l.items[0]->n_samples, 2);
    kve_sample s = sample_at(&l, 0, 0);
    assert_string_equal(prompt_of(&s), "The following are multiple choice questions (with answers) about food law.\n\n"
                                       "Dev?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: D\n\n"
                                       "Which, of\nthese?\nA. a \"b\"\nB. c\nC. d\nD. e\nAnswer:");
    assert_int_equal(s.gold, 2);
    assert_string_equal(s.id, "line-1");
    kve_sample_free(&s);
    s = sample_at(&l, 0, 1);
    assert_string_equal(s.id, "line-3"); /* a record of two lines was before it */
    kve_sample_free(&s);
    kve_dataset_list_close(&l);
    o.shots = 2;
    assert_diag(KVE_ERR_FILE, kve_task_open("mmlu", &o, &l), "1 examples of subject food_law for --shots 2");
    o.shots = 0;
    assert_ok(kve_task_open("mmlu", &o, &l));
    s = sample_at(&l, 0, 1);
    assert_string_equal(prompt_of(&s), "The following are multiple choice questions (with answers) about food law.\n\n"
                                       "Plain?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:");
    kve_sample_free(&s);
    kve_dataset_list_close(&l);
}

/* A subject that two files have is taken once; the other file is named. */
static void test_subject_twice(void **state)
{
    (void)state;
    const char *dir = fresh_dir();
    put_file(dir, "test.jsonl", MMLU("one?", "law", "0"));
    put_file(dir, "csv/law_test.csv", "Two?,1,2,3,4,A\nThree?,1,2,3,4,A\n");
    put_file(dir, "csv/food_test.csv", "Four?,1,2,3,4,A\n");
    kve_dataset_list l;
    kve_task_options o = {.tokens = WORDS, .data_path = dir, .has_shots = true};
    assert_ok(kve_task_open("mmlu", &o, &l));
    assert_int_equal(l.n, 2);
    assert_int_equal(l.n_skipped, 1);
    assert_non_null(strstr(l.skipped[0].name, "law_test.csv"));
    assert_non_null(strstr(l.skipped[0].reason, "test.jsonl, which is read"));
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(l.items[i]->n_samples, 1);
    kve_dataset_list_close(&l);
}

/* --- Which file, which examples */

static void test_finding(void **state)
{
    (void)state;
    const char *dir = fresh_dir();
    put_file(dir, "a/ARC-Challenge-Dev.jsonl", ARC("d1", "Dev?", "A"));
    put_file(dir, "a/test.jsonl", ARC("t1", "Test?", "A"));
    put_file(dir, "a/train.jsonl", ARC("s1", "Shot?", "C") ARC("s2", "Shot 2?", "B"));
    put_file(dir, "b/whatever.json", BOOLQ("q", "\"answer\": true", "p"));
    put_file(dir, "b/other-val.json", BOOLQ("v", "\"answer\": true", "p"));
    put_file(dir, "b/valid.txt", BOOLQ("w", "\"answer\": true", "a longer p"));
    put_file(dir, ".hidden/test.jsonl", ARC("x", "Hidden?", "A"));
    put_file(dir, "notes.txt", "text\n");
    put_file(dir, "empty.jsonl", "");
    put_file(dir, "broken.jsonl", "{\"question\": ");
    kve_dataset_list l;
    open_task("arc-challenge", dir, &l);
    kve_sample s = sample_at(&l, 0, 0);
    assert_string_equal(s.id, "t1"); /* the test split is the standard one */
    assert_int_equal(l.n_skipped, 0);
    kve_sample_free(&s);
    kve_dataset_list_close(&l);
    open_task("boolq", dir, &l); /* of two validation files the larger one, and it is said */
    s = sample_at(&l, 0, 0);
    assert_string_equal(s.question, "\nQuestion: w?");
    assert_int_equal(l.n_skipped, 1);
    assert_non_null(strstr(l.skipped[0].name, "other-val.json"));
    kve_sample_free(&s);
    kve_dataset_list_close(&l);

    kve_task_options o = {.tokens = WORDS, .data_path = dir, .has_shots = true, .shots = 2};
    assert_ok(kve_task_open("arc-challenge", &o, &l));
    s = sample_at(&l, 0, 0);
    assert_string_equal(prompt_of(&s), "Question: Shot?\nAnswer: ice\n\nQuestion: Shot 2?\nAnswer: warm air\n\n"
                                       "Question: Test?\nAnswer:");
    assert_string_equal(s.context, "Question: Shot?\nAnswer: ice\n\nQuestion: Shot 2?\nAnswer: warm air\n\n");
    assert_int_equal(s.n_shots, 2);
    kve_sample_free(&s);
    kve_dataset_list_close(&l);
    o.shots = 3;
    assert_diag(KVE_ERR_FILE, kve_task_open("arc-challenge", &o, &l),
                "2 examples for --shots 3 of task 'arc-challenge'");
    o.has_shots = false;
    assert_diag(KVE_ERR_FILE, kve_task_open("hellaswag", &o, &l),
                "none of the 9 files in this folder is one of task 'hellaswag'");
    assert_diag(KVE_ERR_FILE, kve_task_open("gov-report", &o, &l), "context and answers");
    o.data_path = NULL;
    assert_diag(KVE_ERR_USAGE, kve_task_open("boolq", &o, &l), "task 'boolq' needs --data");
}

/* BoolQ's shots are whole items, and stand in front of the passage. */
static void test_boolq_shots(void **state)
{
    (void)state;
    const char *dir = fresh_dir();
    put_file(dir, "train.jsonl", BOOLQ("s", "\"answer\": false", "Shot."));
    put_file(dir, "dev.jsonl", BOOLQ("q", "\"answer\": true", "Own."));
    kve_dataset_list l;
    kve_task_options o = {.tokens = WORDS, .data_path = dir, .has_shots = true, .shots = 1};
    assert_ok(kve_task_open("boolq", &o, &l));
    kve_sample s = sample_at(&l, 0, 0);
    assert_string_equal(s.context, "Shot.\nQuestion: s?\nAnswer: no\n\nOwn.");
    kve_sample_free(&s);
    kve_dataset_list_close(&l);
}

static void test_limits(void **state)
{
    (void)state;
    const char *dir = fresh_dir();
    put_file(dir, "test.jsonl", MMLU("1?", "law", "0") MMLU("2?", "law", "0") MMLU("3?", "art", "0"));
    kve_dataset_list l;
    kve_task_options o = {.tokens = WORDS, .data_path = dir, .has_shots = true, .n_samples = 1};
    assert_ok(kve_task_open("mmlu", &o, &l));
    assert_int_equal(l.n, 2);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(l.items[i]->n_samples, 1);
    kve_dataset_list_close(&l);
}

static void test_no_memory(void **state)
{
    (void)state;
    const char *dir = fresh_dir();
    put_file(dir, "test.jsonl", MMLU("1?", "law", "0") MMLU("3?", "art", "0"));
    put_file(dir, "dev.jsonl", DEV5("law") DEV5("art"));
    kve_status st = KVE_ERR_MEMORY;
    for (long n = 1; st != KVE_OK && n < 3000; n++) {
        kve_dataset_list l = {0};
        kve_sample s = {0};
        kve_task_options o = {.tokens = WORDS, .data_path = dir};
        kve_alloc_fail_after(n);
        st = kve_task_open("mmlu", &o, &l);
        if (st == KVE_OK)
            st = kve_dataset_sample(l.items[1], 0, &s);
        kve_alloc_fail_after(0);
        /* a file that cannot be looked at for lack of memory is one that is not known */
        assert_true(st == KVE_OK || st == KVE_ERR_MEMORY || st == KVE_ERR_FILE);
        kve_sample_free(&s);
        kve_dataset_list_close(&l);
    }
    assert_int_equal(st, KVE_OK);
}

/* --- Real files */

static void test_real(void **state)
{
    (void)state;
    static const struct {
        const char *task, *path;
        size_t n_sets, n_first;
    } CASES[] = {
        {"boolq", "boolq", 1, 250},
        {"arc-challenge", "arc_challenge", 1, 300},
        {"arc-challenge", "arc_challenge/validation.jsonl", 1, 299},
        {"arc-challenge", "arc_challenge/ARC-Challenge-Dev.jsonl", 1, 100},
        {"mmlu", "mmlu", 57, 4},
        {"mmlu/high_school_chemistry", "mmlu/csv", 1, 203},
        {"hellaswag", "hellaswag", 1, 250},
        {"hellaswag", "hellaswag/val_original.jsonl", 1, 100},
        {"gov-report", "gov_report", 1, 6},
    };
    const char *root = real_data("");
    char own[512];
    snprintf(own, sizeof own, "%s", root);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char path[768];
        kve_dataset_list l;
        snprintf(path, sizeof path, "%s/%s", own, CASES[i].path);
        open_task(CASES[i].task, path, &l);
        assert_int_equal(l.n, CASES[i].n_sets);
        assert_int_equal(l.items[0]->n_samples, CASES[i].n_first);
        for (size_t d = 0; d < l.n; d++)
            for (size_t k = 0; k < l.items[d]->n_samples; k++) {
                kve_sample s = sample_at(&l, d, k);
                assert_true(s.gold < s.n_choices || s.metric == KVE_METRIC_ROUGE_L);
                kve_sample_free(&s);
            }
        kve_dataset_list_close(&l);
        /* the folder of all tasks gives the same */
        if (strchr(CASES[i].path, '/'))
            continue;
        open_task(CASES[i].task, own, &l);
        assert_int_equal(l.n, CASES[i].n_sets);
        assert_int_equal(l.items[0]->n_samples, CASES[i].n_first);
        kve_dataset_list_close(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boolq),      cmocka_unit_test(test_arc),
        cmocka_unit_test(test_hellaswag),  cmocka_unit_test(test_hellaswag_cleaning),
        cmocka_unit_test(test_generate),   cmocka_unit_test(test_generate_shots),
        cmocka_unit_test(test_gov_report), cmocka_unit_test(test_mmlu),
        cmocka_unit_test(test_mmlu_csv),   cmocka_unit_test(test_subject_twice),
        cmocka_unit_test(test_finding),    cmocka_unit_test(test_boolq_shots),
        cmocka_unit_test(test_limits),     cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_real),
    };
    return cmocka_run_group_tests(tests, NULL, remove_temp_dir);
}
