/* OASST2: trees and flat rows give the same dialogues; filters, ranks, joining, lengths, determinism; and every way the
 * file can be wrong. */
#include "tests/datasets/items_common.h"

/* --- A made-up file: `n` trees of `pairs` question-answer pairs, each message of `words` words. */

static void put_message(kve_str *out, const char *id, const char *role, int tree, int step, int words)
{
    assert_ok(kve_str_printf(
        out, "\"message_id\": \"%s\", \"role\": \"%s\", \"lang\": \"en\", \"deleted\": false, \"text\": \"", id, role));
    for (int w = 0; w < words; w++)
        assert_ok(kve_str_printf(out, "%st%d-%d-%d", w ? " " : "", tree, step, w));
    assert_ok(kve_str_puts(out, "\""));
}

static void put_chain(kve_str *out, int tree, int step, int pairs, int words)
{
    char id[32];
    snprintf(id, sizeof id, "m%d-%d", tree, step);
    assert_ok(kve_str_puts(out, "{"));
    put_message(out, id, step % 2 ? "assistant" : "prompter", tree, step, words);
    assert_ok(kve_str_puts(out, ", \"replies\": ["));
    if (step + 1 < 2 * pairs)
        put_chain(out, tree, step + 1, pairs, words);
    assert_ok(kve_str_puts(out, "]}"));
}

static void make_trees(kve_str *out, int n, int pairs, int words)
{
    for (int t = 0; t < n; t++) {
        assert_ok(kve_str_printf(
            out, "{\"message_tree_id\": \"m%d-0\", \"tree_state\": \"ready_for_export\", \"prompt\": ", t));
        put_chain(out, t, 0, pairs, words);
        assert_ok(kve_str_puts(out, "}\n"));
    }
}

static void make_flat(kve_str *out, int n, int pairs, int words)
{
    for (int t = 0; t < n; t++)
        for (int step = 0; step < 2 * pairs; step++) {
            char id[32];
            snprintf(id, sizeof id, "m%d-%d", t, step);
            assert_ok(kve_str_puts(out, "{"));
            put_message(out, id, step % 2 ? "assistant" : "prompter", t, step, words);
            if (step)
                assert_ok(kve_str_printf(out, ", \"parent_id\": \"m%d-%d\"", t, step - 1));
            assert_ok(kve_str_puts(out, ", \"rank\": null, \"tree_state\": \"ready_for_export\"}\n"));
        }
}

static kve_status open_oasst(const char *path, const char *task, uint64_t seed, size_t n, kve_dataset_list *l)
{
    kve_task_options o = {
        .tokens = WORDS, .seed = seed, .n_samples = n, .overhead_tok = 20, .turn_tok = 3, .data_path = path};
    *l = (kve_dataset_list){0};
    return kve_task_open(task, &o, l);
}

static int64_t tokens_of(const kve_sample *s)
{
    int64_t n = 20;
    for (size_t i = 0; i < s->n_turns; i++)
        n += 3 + (int64_t)words_of(s->turns[i].text, strlen(s->turns[i].text), NULL);
    return n;
}

static void check_dialogue(const kve_sample *s, int64_t length)
{
    assert_true(s->n_turns >= 2 && s->n_turns % 2 == 0);
    for (size_t i = 0; i < s->n_turns; i++)
        assert_string_equal(s->turns[i].role, i % 2 ? "assistant" : "user");
    assert_int_equal(tokens_of(s), s->n_tok);
    assert_true(s->n_tok <= length && s->n_tok >= length - length / 4);
    assert_true(words_of(s->turns[s->n_turns - 1].text, strlen(s->turns[s->n_turns - 1].text), NULL) >= 16);
    assert_int_equal(s->metric, KVE_METRIC_NLL);
}

static uint64_t hash_dialogue(const kve_sample *s)
{
    uint64_t h = 7;
    for (size_t i = 0; i < s->n_turns; i++)
        h = h * 31 + kve_hash_text(s->turns[i].text, strlen(s->turns[i].text));
    return h;
}

/* --- Building */

static void test_joining(void **state)
{
    (void)state;
    kve_str trees = {0}, flat = {0};
    kve_dataset_list a, b;
    make_trees(&trees, 40, 2, 20);
    make_flat(&flat, 40, 2, 20);
    const char *dir = fresh_dir();
    char path[512];
    snprintf(path, sizeof path, "%s", put_file(dir, "trees.jsonl", trees.p));
    assert_ok(open_oasst(path, "oasst2-1k", 5, 0, &a));
    assert_ok(open_oasst(put_file(dir, "flat.jsonl", flat.p), "oasst2-1k", 5, 0, &b));
    assert_string_equal(a.items[0]->name, "oasst2-1k");
    assert_int_equal(a.items[0]->n_samples, 4); /* 40 trees of 4 (20 + 3) tokens, 10 to a dialogue */
    assert_int_equal(b.items[0]->n_samples, a.items[0]->n_samples);
    for (size_t i = 0; i < a.items[0]->n_samples; i++) {
        kve_sample s = sample_at(&a, 0, i), f = sample_at(&b, 0, i);
        check_dialogue(&s, 1024);
        assert_int_equal(s.n_turns, 40);
        assert_int_equal(hash_dialogue(&s), hash_dialogue(&f));
        assert_string_equal(s.id, f.id);
        assert_non_null(strstr(s.source, "trees.jsonl: the trees of lines "));
        kve_sample_free(&s);
        kve_sample_free(&f);
    }
    kve_dataset_list_close(&a);
    kve_dataset_list_close(&b);
    assert_ok(open_oasst(dir, "oasst2-1k", 5, 0, &a)); /* the folder: trees say more */
    kve_sample s = sample_at(&a, 0, 0);
    assert_non_null(strstr(s.source, "trees.jsonl"));
    kve_sample_free(&s);
    kve_dataset_list_close(&a);
    kve_str_free(&trees);
    kve_str_free(&flat);
}

/* No tree twice; the same seed the same dialogues, also when fewer are asked for; another seed others. */
static void test_determinism(void **state)
{
    (void)state;
    kve_str trees = {0};
    kve_dataset_list l;
    uint64_t first[2][4];
    make_trees(&trees, 60, 2, 17);
    const char *path = put_file(fresh_dir(), "t.jsonl", trees.p);
    for (uint64_t seed = 0; seed < 2; seed++) {
        char seen[60] = {0};
        assert_ok(open_oasst(path, "oasst2_1k", seed, 0, &l));
        assert_true(l.items[0]->n_samples >= 4);
        for (size_t i = 0; i < l.items[0]->n_samples; i++) {
            kve_sample s = sample_at(&l, 0, i);
            for (size_t t = 0; t < s.n_turns; t += 4) {
                int tree = atoi(s.turns[t].text + 1);
                assert_int_equal(seen[tree], 0);
                seen[tree] = 1;
            }
            if (i < 4)
                first[seed][i] = hash_dialogue(&s);
            kve_sample_free(&s);
        }
        kve_dataset_list_close(&l);
        assert_ok(open_oasst(path, "oasst2-1k", seed, 2, &l));
        assert_int_equal(l.items[0]->n_samples, 2);
        for (size_t i = 0; i < 2; i++) {
            kve_sample s = sample_at(&l, 0, i);
            assert_int_equal(hash_dialogue(&s), first[seed][i]);
            kve_sample_free(&s);
        }
        kve_dataset_list_close(&l);
    }
    assert_true(first[0][0] != first[1][0]);
    kve_str_free(&trees);
}

/* A path that is longer than a dialogue loses its end; the scored message is never a short one. */
static void test_lengths(void **state)
{
    (void)state;
    kve_str trees = {0};
    kve_dataset_list l;
    make_trees(&trees, 1, 30, 20); /* 60 messages of 23 tokens: 43 fit, of which 42 make pairs */
    assert_ok(open_oasst(put_file(fresh_dir(), "t.jsonl", trees.p), "oasst2-1k", 1, 0, &l));
    kve_sample s = sample_at(&l, 0, 0);
    check_dialogue(&s, 1024);
    assert_int_equal(s.n_turns, 42);
    kve_sample_free(&s);
    kve_dataset_list_close(&l);
    kve_str_clear(&trees);
    make_trees(&trees, 3, 5, 20);
    for (int t = 3; t < 33; t++) { /* short ones, which may not come last */
        assert_ok(kve_str_puts(&trees, "{\"message_tree_id\": \"x\", \"prompt\": "));
        put_chain(&trees, t, 0, 1, 9);
        assert_ok(kve_str_puts(&trees, "}\n"));
    }
    assert_ok(open_oasst(put_file(fresh_dir(), "t.jsonl", trees.p), "oasst2-1k", 1, 0, &l));
    s = sample_at(&l, 0, 0);
    check_dialogue(&s, 1024);
    kve_sample_free(&s);
    kve_dataset_list_close(&l);
    kve_str_free(&trees);
}

/* --- Which reply */

#define MESSAGE(ID, ROLE, TEXT, MORE, REPLIES)                                                                         \
    "{\"message_id\": \"" ID "\", \"role\": \"" ROLE "\", \"text\": \"" TEXT "\", \"lang\": \"en\"" MORE               \
    ", \"replies\": [" REPLIES "]}"
#define TREE(STATE, PROMPT) "{\"message_tree_id\": \"t\", \"tree_state\": \"" STATE "\", \"prompt\": " PROMPT "}\n"
#define LONG                                                                                                           \
    "w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w " \
    "w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w"

/* Long enough to be a dialogue by itself: the root is padded. */
static void pad(kve_str *out, const char *tree)
{
    const char *mark = strstr(tree, "PAD");
    assert_ok(kve_str_append(out, tree, (size_t)(mark - tree)));
    for (int i = 0; i < 3; i++)
        assert_ok(kve_str_puts(out, LONG " "));
    assert_ok(kve_str_puts(out, mark + 3));
}

static void test_replies(void **state)
{
    (void)state;
    static const struct {
        const char *tree, *last; /* NULL: the tree gives nothing */
    } CASES[] = {
        {TREE("ready_for_export", MESSAGE("p", "prompter", "PAD", "",
                                          MESSAGE("a", "assistant", "second " LONG, ", \"rank\": 1", "") "," MESSAGE(
                                              "b", "assistant", "first " LONG, ", \"rank\": 0", ""))),
         "first"},
        {TREE("ready_for_export",
              MESSAGE("p", "prompter", "PAD", "",
                      MESSAGE("a", "assistant", "unranked " LONG, ", \"rank\": null",
                              "") "," MESSAGE("b", "assistant", "ranked " LONG, ", \"rank\": 7", ""))),
         "ranked"},
        {TREE("ready_for_export",
              MESSAGE("p", "prompter", "PAD", "",
                      MESSAGE("a", "assistant", "gone " LONG, ", \"rank\": 0, \"deleted\": true",
                              "") "," MESSAGE("b", "assistant", "there " LONG, ", \"rank\": 1", ""))),
         "there"},
        {TREE("ready_for_export",
              MESSAGE("p", "prompter", "PAD", "",
                      MESSAGE("a", "assistant", "refused " LONG, ", \"rank\": 0, \"review_result\": false",
                              "") "," MESSAGE("b", "assistant", "passed " LONG,
                                              ", \"rank\": 1, \"review_result\": true", ""))),
         "passed"},
        {TREE("ready_for_export",
              MESSAGE("p", "prompter", "PAD", "",
                      MESSAGE("a", "assistant", "answer", ", \"rank\": 0",
                              MESSAGE("c", "prompter", "unanswered", "", "") "," MESSAGE(
                                  "d", "prompter", "more?", "", MESSAGE("e", "assistant", "deep " LONG, "", ""))))),
         "deep"},
        {TREE("ready_for_export", MESSAGE("p", "prompter", "PAD", "",
                                          MESSAGE("a", "assistant", "answer " LONG, ", \"rank\": 0",
                                                  MESSAGE("c", "prompter", "last word", "", "")))),
         "answer"},
        {TREE("prompt_lottery_waiting",
              MESSAGE("p", "prompter", "PAD", "", MESSAGE("a", "assistant", "x " LONG, "", ""))),
         NULL},
        {TREE("ready_for_export",
              MESSAGE("p", "prompter", "PAD", ", \"deleted\": true", MESSAGE("a", "assistant", "x " LONG, "", ""))),
         NULL},
        {TREE("ready_for_export", MESSAGE("p", "prompter", "PAD", "", "")), NULL},
        {"{\"message_tree_id\": \"t\", \"prompt\": {\"message_id\": \"p\", \"role\": \"prompter\", \"text\": \"PAD\", "
         "\"lang\": \"de\", "
         "\"replies\": [" MESSAGE("a", "assistant", "x " LONG, "", "") "]}}\n",
         NULL},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kve_str text = {0};
        kve_dataset_list l;
        pad(&text, CASES[i].tree);
        kve_status st = open_oasst(put_file(fresh_dir(), "t.jsonl", text.p), "oasst2-512", 1, 0, &l);
        kve_str_free(&text);
        if (!CASES[i].last) {
            assert_int_equal(st, KVE_ERR_FILE);
            assert_non_null(strstr(kve_diag(), "1 trees, 0 of them usable"));
            continue;
        }
        if (st != KVE_OK)
            fail_msg("case %zu: %s", i, kve_diag());
        kve_sample s = sample_at(&l, 0, 0);
        assert_memory_equal(s.turns[s.n_turns - 1].text, CASES[i].last, strlen(CASES[i].last));
        kve_sample_free(&s);
        kve_dataset_list_close(&l);
    }
}

/* --- Bad files: the second line is wrong. */

#define FLAT(ID, PARENT, ROLE, MORE)                                                                                   \
    "{\"message_id\": \"" ID "\", \"parent_id\": " PARENT ", \"role\": \"" ROLE "\", \"text\": \"x\", \"lang\": "      \
    "\"en\"" MORE "}\n"

static void test_bad_rows(void **state)
{
    (void)state;
    static const struct {
        const char *text, *diag;
    } CASES[] = {
        {"{}\n", ":2: field 'prompt' (a tree) or 'message_id' (a message) is missing"},
        {FLAT("m1", "null", "prompter", ""), ":2: field 'message_id' is 'm1', as in line 1"},
        {FLAT("m2", "\"none\"", "assistant", ""), ":2: field 'parent_id' is 'none', which is no message of the file"},
        {FLAT("m2", "null", "assistant", ""), ":2: message m2: field 'role': a tree begins with a prompter's message"},
        {FLAT("m2", "\"m1\"", "prompter", ""), ":2: message m2: field 'role': a reply has the role of its parent"},
        {FLAT("m2", "\"m1\"", "system", ""), ":2: message m2: field 'role' is 'system', neither"},
        {FLAT("m2", "\"m3\"", "assistant", "") FLAT("m3", "\"m2\"", "prompter", ""), "is its own ancestor"},
        {FLAT("m2", "\"m1\"", "assistant", ", \"rank\": \"best\""),
         ":2: message m2: field 'rank' is not a whole number"},
        {FLAT("m2", "\"m1\"", "assistant", ", \"deleted\": 1"), ":2: message m2: field 'deleted' is not true or false"},
        {"{\"message_id\": \"m2\", \"parent_id\": \"m1\", \"role\": \"assistant\", \"text\": \" \", \"lang\": "
         "\"en\"}\n",
         ":2: message m2: field 'text' is empty"},
        {"{\"message_id\": \"m2\", \"parent_id\": \"m1\", \"role\": \"assistant\", \"lang\": \"en\"}\n",
         ":2: message m2: field 'text' is missing"},
        {"{\"message_id\": \"m2\", \"parent_id\": \"m1\", \"role\": \"assistant\", \"text\": \"x\"}\n",
         ":2: message m2: field 'lang' is missing"},
        {"{\"message_tree_id\": \"t\", \"prompt\": 5}\n", ":2: field 'prompt' holds something that is not a message"},
        {"{\"message_tree_id\": \"t\", \"prompt\": {\"message_id\": \"m2\", \"role\": \"prompter\", \"text\": \"x\", "
         "\"lang\": \"en\", \"replies\": 3}}\n",
         ":2: message m2: field 'replies' is not a list"},
        {"{\"message_tree_id\": \"t\", \"prompt\": {\"message_id\": \"m2\", \"role\": \"prompter\", \"text\": \"x\", "
         "\"lang\": \"en\", \"replies\": [3]}}\n",
         ":2: field 'replies' holds something that is not a message"},
        {"{\"message_id\": \"m2\"", ":2: not valid JSON"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kve_str text = {0};
        kve_dataset_list l;
        assert_ok(kve_str_printf(&text, "%s%s", FLAT("m1", "null", "prompter", ""), CASES[i].text));
        kve_status st = open_oasst(temp_file("bad.jsonl", text.p, text.len), "oasst2-4k", 1, 0, &l);
        if (st != KVE_ERR_FILE || !strstr(kve_diag(), CASES[i].diag) || !strstr(kve_diag(), "bad.jsonl:"))
            fail_msg("case %zu: status %d, wanted '%s', got: %s", i, (int)st, CASES[i].diag, kve_diag());
        kve_str_free(&text);
    }
    kve_dataset_list l;
    assert_diag(KVE_ERR_FILE,
                open_oasst(temp_file("few.jsonl", FLAT("m1", "null", "prompter", ""),
                                     strlen(FLAT("m1", "null", "prompter", ""))),
                           "oasst2-4k", 1, 0, &l),
                "1 trees, 0 of them usable (English, not deleted, answered), do not fill one dialogue of 4096");
    assert_diag(KVE_ERR_USAGE, open_oasst(NULL, "oasst2-4k", 1, 0, &l), "needs --data");
}

static void test_no_memory(void **state)
{
    (void)state;
    kve_str trees = {0};
    make_trees(&trees, 12, 2, 20);
    const char *path = put_file(fresh_dir(), "t.jsonl", trees.p);
    kve_status st = KVE_ERR_MEMORY;
    for (long n = 1; st != KVE_OK && n < 3000; n++) {
        kve_dataset_list l = {0};
        kve_sample s = {0};
        kve_alloc_fail_after(n);
        st = open_oasst(path, "oasst2-1k", 1, 0, &l);
        if (st == KVE_OK)
            st = kve_dataset_sample(l.items[0], 0, &s);
        kve_alloc_fail_after(0);
        assert_true(st == KVE_OK || st == KVE_ERR_MEMORY);
        kve_sample_free(&s);
        kve_dataset_list_close(&l);
    }
    assert_int_equal(st, KVE_OK);
    kve_str_free(&trees);
}

static void test_real(void **state)
{
    (void)state;
    char dir[512], flat[600];
    kve_dataset_list l;
    snprintf(dir, sizeof dir, "%s", real_data("oasst2"));
    snprintf(flat, sizeof flat, "%s/hf_flat.jsonl", dir);
    const char *const paths[] = {dir, flat};
    for (size_t i = 0; i < 2; i++) {
        assert_ok(open_oasst(paths[i], "oasst2-4k", 42, 0, &l));
        assert_true(l.items[0]->n_samples >= 2);
        for (size_t k = 0; k < l.items[0]->n_samples; k++) {
            kve_sample s = sample_at(&l, 0, k);
            check_dialogue(&s, 4096);
            kve_sample_free(&s);
        }
        kve_dataset_list_close(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joining), cmocka_unit_test(test_determinism), cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_replies), cmocka_unit_test(test_bad_rows),    cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_real),
    };
    return cmocka_run_group_tests(tests, NULL, remove_temp_dir);
}
