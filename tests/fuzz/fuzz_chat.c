/* Fuzzes chat templates. The input is texts with NUL between them: the template, BOS, then messages, of which each
 * begins with s, u or a: system, user, assistant. */
#include "host/text/chat.h"

#include "tests/fuzz/fuzz.h"

enum { MAX_MESSAGES = 6 };

static void render(const char *jinja, const char *forced, const char *bos, const kve_chat_message *m, size_t n)
{
    kve_chat chat;
    kve_str open = {0}, close = {0}, all = {0}, single = {0};
    if (!accepted(kve_chat_create(jinja, forced, bos, &chat)))
        return;
    must(kve_chat_render(&chat, m, n, 1, &all) == KVE_OK);
    must(kve_chat_single(&chat, &open, &close) == KVE_OK);
    const kve_chat_message user = {"user", "text"};
    must(kve_chat_render(&chat, &user, 1, 1, &single) == KVE_OK);
    must(single.len == open.len + 4 + close.len);
    must(open.len == 0 || memcmp(single.p, open.p, open.len) == 0);
    must(close.len == 0 || memcmp(single.p + open.len + 4, close.p, close.len) == 0);
    kve_str_free(&open);
    kve_str_free(&close);
    kve_str_free(&all);
    kve_str_free(&single);
    kve_chat_free(&chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *jinja = fuzz_text(&data, &size), *bos = fuzz_text(&data, &size), *texts[MAX_MESSAGES];
    kve_chat_message m[MAX_MESSAGES];
    size_t n = 0;
    while (size && n < MAX_MESSAGES) {
        texts[n] = fuzz_text(&data, &size);
        char first = *texts[n];
        m[n].role = first == 's' ? "system" : first == 'a' ? "assistant" : "user";
        m[n].text = texts[n] + (first != '\0');
        n++;
    }
    render(jinja, NULL, bos, m, n);
    render(NULL, NULL, bos, m, n);
    for (int f = KVE_CHAT_PLAIN; f <= KVE_CHAT_LLAMA2; f++) {
        render(jinja, kve_chat_family_name((kve_chat_family)f), bos, m, n);
        render(NULL, kve_chat_family_name((kve_chat_family)f), bos, m, n);
    }
    while (n > 0)
        free(texts[--n]);
    free(jinja);
    free(bos);
    return 0;
}
