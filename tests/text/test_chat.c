/* Chat templates: the family found in a template's text, its default system message, and the turns written out. */
#include "host/text/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const kve_chat_message user[] = {{"user", "Hi"}};
static const kve_chat_message talk[] = {{"system", "S"}, {"user", "A"}, {"assistant", "B"}, {"user", "C"}};

static void expect(const char *jinja, const char *bos, kve_chat_family family, const char *one, const char *four)
{
    kve_chat c;
    if (kve_chat_create(jinja, NULL, bos, &c) != KVE_OK)
        fail_msg("%s", kve_diag());
    assert_int_equal(c.family, family);
    kve_str s = {0}, open = {0}, close = {0};
    assert_int_equal(kve_chat_render(&c, user, 1, 1, &s), KVE_OK);
    assert_string_equal(s.p, one);
    assert_int_equal(kve_chat_single(&c, &open, &close), KVE_OK);
    assert_int_equal(kve_str_puts(&open, "Hi"), KVE_OK);
    assert_int_equal(kve_str_puts(&open, close.p ? close.p : ""), KVE_OK);
    assert_string_equal(open.p, one);
    kve_str_clear(&s);
    assert_int_equal(kve_chat_render(&c, talk, 4, 1, &s), KVE_OK);
    assert_string_equal(s.p, four);
    kve_str_free(&s);
    kve_str_free(&open);
    kve_str_free(&close);
    kve_chat_free(&c);
}

static void chatml(void **state)
{
    (void)state;
    static const char four[] = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n"
                               "B<|im_end|>\n<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n";
    /* A real line end inside the literal, as SmolLM2 has it. */
    expect("{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe small<|im_end|>\n' }}{% endif %}"
           "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}",
           "<|im_start|>", KVE_CHAT_CHATML,
           "<|im_start|>system\nBe small<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", four);
    /* The spelled-out \n of Qwen 2.5, with other system openings before the literal. */
    expect("{{- '<|im_start|>system\\n' }}{{- messages[0]['content'] }}"
           "{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
           "{{- '<|im_start|>system\\nBe \\'big\\'.<|im_end|>\\n' }}",
           "", KVE_CHAT_CHATML,
           "<|im_start|>system\nBe 'big'.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", four);
    expect("{{'<|im_start|>' + message['role']}}", "", KVE_CHAT_CHATML,
           "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", four);
}

static void others(void **state)
{
    (void)state;
    expect(
        "{{ bos_token }}'<|start_header_id|>'", "<B>", KVE_CHAT_LLAMA3,
        "<B><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "<B><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA"
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|><|start_header_id|>user"
        "<|end_header_id|>\n\nC<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
    expect("'<|user|>\n' '<|end|>\n<|assistant|>\n'", "", KVE_CHAT_PHI3, "<|user|>\nHi<|end|>\n<|assistant|>\n",
           "<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n<|assistant|>\nB<|end|>\n<|user|>\nC<|end|>\n<|assistant|>\n");
    expect("'<|im_start|>user<|im_sep|>'", "", KVE_CHAT_PHI4,
           "<|im_start|>user<|im_sep|>Hi<|im_end|><|im_start|>assistant<|im_sep|>",
           "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>A<|im_end|><|im_start|>assistant<|im_sep|>"
           "B<|im_end|><|im_start|>user<|im_sep|>C<|im_end|><|im_start|>assistant<|im_sep|>");
    expect("{{ bos_token }} '[INST] ' + c + '[/INST]'", "<s>", KVE_CHAT_MISTRAL, "<s>[INST] Hi[/INST]",
           "<s>[INST] A[/INST] B</s>[INST] S\n\nC[/INST]");
    expect("<<SYS>> {{ bos_token + '[INST] ' }}", "<s>", KVE_CHAT_LLAMA2, "<s>[INST] Hi [/INST]",
           "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]");
    expect(NULL, "<s>", KVE_CHAT_PLAIN, "Hi", "SABC");
}

static void choice(void **state)
{
    (void)state;
    kve_chat c;
    assert_int_equal(kve_chat_create("{{ strange }}", NULL, "", &c), KVE_ERR_USAGE);
    assert_non_null(strstr(kve_diag(), "--chat plain"));
    assert_int_equal(kve_chat_create("{{ strange }}", "plain", "", &c), KVE_OK);
    assert_string_equal(c.sha256, "");
    kve_chat_free(&c);
    assert_int_equal(kve_chat_create(NULL, "chatml", "", &c), KVE_OK);
    assert_int_equal(c.family, KVE_CHAT_CHATML);
    kve_chat_free(&c);
    assert_int_equal(kve_chat_create(NULL, "klingon", "", &c), KVE_ERR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chatml), cmocka_unit_test(others), cmocka_unit_test(choice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
