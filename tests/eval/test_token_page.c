/* The page of coloured tokens on a vocabulary made by hand: what each kind of token looks like, names that would break
 * a page, and the numbers behind it. */
#include "eval/token_page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BAR "\xe2\x96\x81"
#define TOKEN(TEXT, TYPE)                                                                                              \
    {                                                                                                                  \
        .text = TEXT, .len = sizeof TEXT - 1, .type = TYPE                                                             \
    }

static kve_vocab_token g_tokens[] = {TOKEN("<s>", KVE_TOKEN_CONTROL),  TOKEN(BAR "the", KVE_TOKEN_NORMAL),
                                     TOKEN("<0xE2>", KVE_TOKEN_BYTE),  TOKEN("<0x00>", KVE_TOKEN_BYTE),
                                     TOKEN("<0x0A>", KVE_TOKEN_BYTE),  TOKEN("", KVE_TOKEN_UNUSED),
                                     TOKEN("&<'\"", KVE_TOKEN_NORMAL), TOKEN("\xc3\xa9", KVE_TOKEN_NORMAL)};
enum { N = sizeof g_tokens / sizeof *g_tokens, L = 2, HKV = 1 };

static const int32_t g_ids[] = {0, 1, 1, 2, 3, 4, 5, 6, 7};
enum { N_IDS = sizeof g_ids / sizeof *g_ids };
/* Layer 1 reverses what layer 0 says. */
static const int32_t g_order[L * HKV * N_IDS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1, 0};

static const kve_token_column g_column = {"<b>&amp;", NULL, "all heads", g_order};

static kve_status make(kve_str *out)
{
    kve_vocab vocab = {.kind = KVE_VOCAB_SPM_BPE,
                       .tokens = g_tokens,
                       .n_tokens = N,
                       .add_space_prefix = true,
                       .byte_fallback = true,
                       .bos = -1,
                       .eos = -1,
                       .unk = -1};
    kve_tokenizer *tk = NULL;
    KVE_TRY(kve_tokenizer_create(&vocab, &tk));
    const kve_token_page page = {.tk = tk,
                                 .sample = "</title><script>alert(1)</script>",
                                 .model = "<m>",
                                 .tokens = g_ids,
                                 .L = L,
                                 .Hkv = HKV,
                                 .n = N_IDS,
                                 .sink = 1,
                                 .recent = 0,
                                 .columns = &g_column,
                                 .n_columns = 1};
    kve_status st = kve_token_page_html(&page, out);
    kve_tokenizer_free(tk);
    return st;
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

static void has(const char *text, const char *what)
{
    if (count(text, what) != 1)
        fail_msg("'%s' is there %zu times:\n%s", what, count(text, what), text);
}

static void test_tokens(void **state)
{
    (void)state;
    kve_str html = {0};
    assert_int_equal(make(&html), KVE_OK);
    assert_int_equal(strlen(html.p), html.len);
    has(html.p, "<i class='r0 k' data-s title='position 0, id 0, rank 1'>&lt;s&gt;</i>");
    has(html.p, "title='position 1, id 1, rank 2'> the</i>"); /* with its space, as the second one */
    has(html.p, "title='position 2, id 1, rank 3'> the</i>");
    has(html.p, "title='position 3, id 2, rank 4'>\xe2\x9f\xa8"
                "E2\xe2\x9f\xa9</i>");
    has(html.p, "title='position 4, id 3, rank 5'>\xe2\x9f\xa8"
                "00\xe2\x9f\xa9</i>");
    has(html.p, "title='position 5, id 4, rank 6'>\xe2\x86\xb5\n</i>");
    has(html.p, "title='position 6, id 5, rank 7'>\xe2\x9f\xa8"
                "5\xe2\x9f\xa9</i>");
    has(html.p, "title='position 7, id 6, rank 8'>&amp;&lt;&#39;&quot;</i>");
    has(html.p, "<i class='r31' title='position 8, id 7, rank 9'>\xc3\xa9</i>");
    assert_int_equal(count(html.p, " k'"), 2 + 1); /* 9 / 4 tokens, and the legend's; the styles have none */
    kve_str_free(&html);
}

static void test_hostile_names(void **state)
{
    (void)state;
    kve_str html = {0};
    assert_int_equal(make(&html), KVE_OK);
    has(html.p, "<title>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;</title>");
    has(html.p, "<h2>&lt;b&gt;&amp;amp;</h2>");
    has(html.p, "what it may see is not known; its budget is shared over all heads");
    assert_int_equal(count(html.p, "<script"), 3);
    assert_int_equal(count(html.p, "</script>"), 3);
    assert_int_equal(count(html.p, "<m>") + count(html.p, "<b>") + count(html.p, "<s>"), 0);
    kve_str_free(&html);
}

/* Two layers of nine ranks: 0 to 8, and back. */
static void test_data(void **state)
{
    (void)state;
    kve_str html = {0};
    assert_int_equal(make(&html), KVE_OK);
    has(html.p, "id='ranks0'>AAABAAIAAwAEAAUABgAHAAgACAAHAAYABQAEAAMAAgABAAAA</script>");
    has(html.p, "id='ids'>AAAAAAEAAAABAAAAAgAAAAMAAAAEAAAABQAAAAYAAAAHAAAA</script>");
    has(html.p, "<main data-heads='1'>");
    kve_str_free(&html);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    kve_status st = KVE_ERR_MEMORY;
    for (long n = 1; st != KVE_OK && n < 100000; n += 1 + n / 32) {
        kve_str html = {0};
        kve_alloc_fail_after(n);
        st = make(&html);
        assert_true(st == KVE_OK || st == KVE_ERR_MEMORY);
        kve_str_free(&html);
    }
    kve_alloc_fail_after(0);
    assert_int_equal(st, KVE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_hostile_names),
        cmocka_unit_test(test_data),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
