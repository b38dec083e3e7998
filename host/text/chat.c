/* Chat templates: which family a Jinja text belongs to, and the family's turns written out. */
#include "host/text/chat.h"

#include "host/base/hash.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"plain", "chatml", "llama3", "phi3", "phi4", "mistral", "llama2"};
enum { N_FAMILIES = sizeof names / sizeof *names };

const char *kve_chat_family_name(kve_chat_family f)
{
    return (unsigned)f < N_FAMILIES ? names[f] : "?";
}

static kve_status family_by_name(const char *name, kve_chat_family *f)
{
    for (unsigned i = 0; i < N_FAMILIES; i++) {
        if (strcmp(names[i], name) == 0) {
            *f = (kve_chat_family)i;
            return KVE_OK;
        }
    }
    return kve_fail(KVE_ERR_USAGE,
                    "chat template '%s' is unknown; use plain, chatml, llama3, phi3, phi4, mistral or llama2", name);
}

/* The order matters: Phi-4's text also contains ChatML's marks, Llama 2's also Mistral's. */
static kve_status family_by_marks(const char *jinja, kve_chat_family *f)
{
    if (strstr(jinja, "<|im_sep|>"))
        *f = KVE_CHAT_PHI4;
    else if (strstr(jinja, "<|im_start|>"))
        *f = KVE_CHAT_CHATML;
    else if (strstr(jinja, "<|start_header_id|>"))
        *f = KVE_CHAT_LLAMA3;
    else if (strstr(jinja, "<|end|>") && strstr(jinja, "<|assistant|>"))
        *f = KVE_CHAT_PHI3;
    else if (strstr(jinja, "<<SYS>>"))
        *f = KVE_CHAT_LLAMA2;
    else if (strstr(jinja, "[INST]"))
        *f = KVE_CHAT_MISTRAL;
    else
        return kve_fail(KVE_ERR_USAGE,
                        "the model's chat template belongs to no known family; use --chat plain, or name "
                        "the family with --chat (chatml, llama3, phi3, phi4, mistral, llama2)");
    return KVE_OK;
}

/* ChatML's default system message is a literal between the system mark and the end mark; Jinja's \n may be spelled
 * out or be a real line end. A quote or brace right after the mark means that a variable follows, not a literal. */
static kve_status find_default_system(const char *jinja, char **out)
{
    static const char mark[] = "<|im_start|>system", stop[] = "<|im_end|>";
    for (const char *p = strstr(jinja, mark); p; p = strstr(p, mark)) {
        p += sizeof mark - 1;
        if (*p == '\n')
            p++;
        else if (strncmp(p, "\\n", 2) == 0)
            p += 2;
        else
            continue;
        const char *end = strstr(p, stop);
        if (!end || *p == '\'' || *p == '"' || *p == '{')
            continue;
        size_t len = 0;
        KVE_TRY(kve_strndup(p, (size_t)(end - p), out));
        for (char *s = *out; *s; s++) {
            if (*s == '\\' && s[1]) {
                s++;
                (*out)[len++] = *s == 'n' ? '\n' : *s == 't' ? '\t' : *s;
            } else {
                (*out)[len++] = *s;
            }
        }
        (*out)[len] = 0;
        return KVE_OK;
    }
    return KVE_OK;
}

/* Llama 3.1 and later date every system message; the date is the template's own constant, so that runs repeat. */
static kve_status find_dates(const char *jinja, kve_chat *c)
{
    if (!strstr(jinja, "Cutting Knowledge Date"))
        return KVE_OK;
    static const char set[] = "date_string = \"";
    const char *date = "26 Jul 2024";
    int len = 11;
    const char *p = strstr(jinja, set);
    const char *end = p ? strchr(p + sizeof set - 1, '"') : NULL;
    if (end && end - p < 64) {
        date = p + sizeof set - 1;
        len = (int)(end - date);
    }
    kve_str s = {0};
    kve_status st = kve_str_printf(&s, "Cutting Knowledge Date: December 2023\nToday Date: %.*s\n\n", len, date);
    c->system_prefix = s.p;
    return st != KVE_OK ? st : kve_strndup("", 0, &c->default_system);
}

kve_status kve_chat_create(const char *jinja, const char *forced, const char *bos_text, kve_chat *out)
{
    *out = (kve_chat){.family = KVE_CHAT_PLAIN};
    kve_status st = KVE_OK;
    if (forced)
        KVE_TRY(family_by_name(forced, &out->family));
    else if (jinja)
        KVE_TRY(family_by_marks(jinja, &out->family));
    bool has_text = jinja && out->family != KVE_CHAT_PLAIN;
    const char *bos = has_text && bos_text && strstr(jinja, "bos_token") ? bos_text : "";
    KVE_TRY_GOTO(st, kve_strndup(bos, strlen(bos), &out->bos), fail);
    if (!has_text)
        return KVE_OK;
    KVE_TRY_GOTO(st, kve_sha256(jinja, strlen(jinja), out->sha256), fail);
    out->inst_space = strstr(jinja, " [/INST]") != NULL;
    if (out->family == KVE_CHAT_CHATML)
        KVE_TRY_GOTO(st, find_default_system(jinja, &out->default_system), fail);
    if (out->family == KVE_CHAT_LLAMA3)
        KVE_TRY_GOTO(st, find_dates(jinja, out), fail);
    return KVE_OK;
fail:
    kve_chat_free(out);
    return st;
}

void kve_chat_free(kve_chat *c)
{
    free(c->default_system);
    free(c->system_prefix);
    free(c->bos);
    *c = (kve_chat){.family = KVE_CHAT_PLAIN};
}

/* Families whose turns are head + role + neck + text + tail; the generation prompt is an open assistant turn. */
static const struct {
    const char *head, *neck, *tail;
    bool trims;
} turns[N_FAMILIES] = {
    [KVE_CHAT_CHATML] = {"<|im_start|>", "\n", "<|im_end|>\n", false},
    [KVE_CHAT_LLAMA3] = {"<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", true},
    [KVE_CHAT_PHI3] = {"<|", "|>\n", "<|end|>\n", false},
    [KVE_CHAT_PHI4] = {"<|im_start|>", "<|im_sep|>", "<|im_end|>", false},
};

static kve_status put_trimmed(kve_str *out, const char *text, bool trims)
{
    static const char space[] = " \t\n\v\f\r";
    size_t len = strlen(text);
    if (trims) {
        size_t skip = strspn(text, space);
        text += skip;
        len -= skip;
        while (len > 0 && strchr(space, text[len - 1]))
            len--;
    }
    return kve_str_append(out, text, len);
}

static kve_status render_turn(const kve_chat *c, const char *role, const char *text, kve_str *out)
{
    KVE_TRY(kve_str_printf(out, "%s%s%s", turns[c->family].head, role, turns[c->family].neck));
    if (c->system_prefix && strcmp(role, "system") == 0)
        KVE_TRY(kve_str_puts(out, c->system_prefix));
    KVE_TRY(put_trimmed(out, text, turns[c->family].trims));
    return kve_str_puts(out, turns[c->family].tail);
}

static kve_status render_turns(const kve_chat *c, const kve_chat_message *m, size_t n, int generate, kve_str *out)
{
    KVE_TRY(kve_str_puts(out, c->bos));
    if (c->default_system && (n == 0 || strcmp(m[0].role, "system") != 0))
        KVE_TRY(render_turn(c, "system", c->default_system, out));
    for (size_t i = 0; i < n; i++)
        KVE_TRY(render_turn(c, m[i].role, m[i].text, out));
    if (generate)
        return kve_str_printf(out, "%sassistant%s", turns[c->family].head, turns[c->family].neck);
    return KVE_OK;
}

/* Mistral puts the system text into the last user turn, Llama 2 into the first, where it also repeats BOS per turn. */
static kve_status render_inst(const kve_chat *c, const kve_chat_message *m, size_t n, kve_str *out)
{
    bool llama2 = c->family == KVE_CHAT_LLAMA2;
    const char *system = NULL;
    size_t with_system = n;
    for (size_t i = 0; i < n; i++) {
        if (i == 0 && strcmp(m[i].role, "system") == 0)
            system = m[i].text;
        else if (strcmp(m[i].role, "user") == 0 && (!llama2 || with_system == n))
            with_system = i;
    }
    if (!llama2)
        KVE_TRY(kve_str_puts(out, c->bos));
    for (size_t i = system ? 1 : 0; i < n; i++) {
        if (strcmp(m[i].role, "user") != 0) {
            KVE_TRY(kve_str_puts(out, " "));
            KVE_TRY(put_trimmed(out, m[i].text, llama2));
            KVE_TRY(kve_str_puts(out, llama2 ? " </s>" : "</s>"));
            continue;
        }
        KVE_TRY(kve_str_printf(out, "%s[INST] ", llama2 ? c->bos : ""));
        if (system && i == with_system)
            KVE_TRY(kve_str_printf(out, llama2 ? "<<SYS>>\n%s\n<</SYS>>\n\n" : "%s\n\n", system));
        KVE_TRY(put_trimmed(out, m[i].text, llama2));
        KVE_TRY(kve_str_puts(out, llama2 || c->inst_space ? " [/INST]" : "[/INST]"));
    }
    return KVE_OK;
}

kve_status kve_chat_render(const kve_chat *c, const kve_chat_message *messages, size_t n, int generate, kve_str *out)
{
    switch (c->family) {
    case KVE_CHAT_PLAIN:
        for (size_t i = 0; i < n; i++)
            KVE_TRY(kve_str_puts(out, messages[i].text));
        return KVE_OK;
    case KVE_CHAT_MISTRAL:
    case KVE_CHAT_LLAMA2:
        return render_inst(c, messages, n, out);
    default:
        return render_turns(c, messages, n, generate, out);
    }
}

/* Renders a marker that no template contains, and cuts there. */
kve_status kve_chat_single(const kve_chat *c, kve_str *open, kve_str *close)
{
    const kve_chat_message m = {"user", "\x01"};
    kve_str all = {0};
    kve_status st = kve_chat_render(c, &m, 1, 1, &all);
    const char *at = st == KVE_OK ? strrchr(all.p, 1) : NULL;
    if (at)
        st = kve_str_append(open, all.p, (size_t)(at - all.p));
    if (at && st == KVE_OK)
        st = kve_str_puts(close, at + 1);
    kve_str_free(&all);
    return st;
}
