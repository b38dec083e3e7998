/* Samples to token ids. Contract: prompt.h. */
#include "eval/prompt.h"

#include <stdlib.h>
#include <string.h>

bool kve_question_in(const kve_sample *s, bool asked)
{
    return s->question && *s->question &&
           (s->question_place == KVE_QUESTION_ASKED ? asked : s->question_place == KVE_QUESTION_IN);
}

static kve_status add_plain(const kve_tokenizer *tk, const char *text, bool bos, kve_ids *out)
{
    return *text || bos ? kve_tokenize(tk, text, strlen(text), false, bos, out) : KVE_OK;
}

static kve_status add_template(const kve_tokenizer *tk, const kve_str *text, bool bos, kve_ids *out)
{
    return text->len ? kve_tokenize(tk, text->p, text->len, true, bos, out) : KVE_OK;
}

/* Context and question that are prefilled together are encoded together, as the model would see them in one prompt. */
static kve_status user_text(const kve_tokenizer *tk, const kve_sample *s, bool question_in, bool bos, kve_ids *out)
{
    kve_str whole = {0};
    if (!question_in)
        return add_plain(tk, s->context, bos, out);
    kve_status st = kve_str_puts(&whole, s->context);
    if (st == KVE_OK)
        st = kve_str_puts(&whole, s->question);
    if (st == KVE_OK)
        st = add_plain(tk, whole.p, bos, out);
    kve_str_free(&whole);
    return st;
}

static kve_status encode(const kve_tokenizer *tk, const kve_sample *s, bool question_in, const kve_str *open,
                         const kve_str *close, kve_prompt *p)
{
    KVE_TRY(add_template(tk, open, true, &p->context));
    KVE_TRY(user_text(tk, s, question_in, open->len == 0, &p->context));
    if (!question_in)
        KVE_TRY(add_plain(tk, s->question, false, &p->tail));
    KVE_TRY(add_template(tk, close, false, &p->tail));
    KVE_TRY(add_plain(tk, s->answer_prefix, false, &p->tail));
    if (p->tail.len == 0 && p->context.len > 1) /* plain text without an answer prefix: something must be fed */
        KVE_TRY(kve_ids_push(&p->tail, p->context.p[--p->context.len]));
    return KVE_OK;
}

static kve_status encode_prompt(const kve_tokenizer *tk, const kve_chat *chat, const kve_sample *s, bool question_in,
                                kve_prompt *p)
{
    kve_str open = {0}, close = {0};
    kve_status st = kve_chat_single(chat, &open, &close);
    if (st == KVE_OK)
        st = encode(tk, s, question_in, &open, &close, p);
    kve_str_free(&open);
    kve_str_free(&close);
    return st;
}

/* --- Plain text with choices */

/* White space at the end of a prompt is encoded with what follows. */
static size_t trimmed(const kve_str *text)
{
    size_t len = text->len;
    while (len && strchr(" \t\r\n\f\v", text->p[len - 1]))
        len--;
    return len;
}

static kve_status encode_choice(const kve_tokenizer *tk, const kve_str *text, const char *choice, size_t n_text,
                                kve_ids *out)
{
    kve_str whole = {0};
    kve_ids ids = {0};
    kve_status st = kve_str_append(&whole, text->p, text->len);
    if (st == KVE_OK)
        st = kve_str_puts(&whole, choice);
    if (st == KVE_OK)
        st = add_plain(tk, whole.p, true, &ids);
    if (st == KVE_OK && ids.len <= n_text)
        st = kve_fail(KVE_ERR_FILE, "choice '%s' adds no token to its prompt", choice);
    for (size_t i = n_text; i < ids.len && st == KVE_OK; i++)
        st = kve_ids_push(out, ids.p[i]);
    kve_str_free(&whole);
    kve_ids_free(&ids);
    return st;
}

static kve_status cut_plain(const kve_ids *whole, const kve_ids *head, kve_prompt *p)
{
    size_t cut = 0;
    while (cut < head->len && cut < whole->len && head->p[cut] == whole->p[cut])
        cut++;
    cut -= cut && cut == whole->len;
    for (size_t i = 0; i < whole->len; i++)
        KVE_TRY(kve_ids_push(i < cut ? &p->context : &p->tail, whole->p[i]));
    return KVE_OK;
}

static kve_status encode_choices(const kve_tokenizer *tk, const kve_sample *s, const kve_str *text, size_t n_text,
                                 kve_prompt *p)
{
    KVE_TRY(kve_alloc(s->n_choices, sizeof *p->choices, &p->choices));
    for (; p->n_choices < s->n_choices; p->n_choices++) {
        kve_ids *ids = &p->choices[p->n_choices];
        kve_status st = encode_choice(tk, text, s->choices[p->n_choices], n_text, ids);
        if (st != KVE_OK) {
            kve_ids_free(ids);
            return st;
        }
    }
    return KVE_OK;
}

static kve_status encode_plain(const kve_tokenizer *tk, const kve_sample *s, bool question_in, kve_prompt *p)
{
    kve_str text = {0}, shown = {0};
    kve_ids whole = {0}, head = {0};
    kve_status st = kve_str_printf(&text, "%s%s%s", s->context, s->question, s->answer_prefix);
    if (st == KVE_OK)
        st = kve_str_append(&shown, text.p, trimmed(&text));
    if (st == KVE_OK)
        st = add_plain(tk, shown.p, true, &whole);
    if (st == KVE_OK)
        st = user_text(tk, s, question_in, true, &head);
    if (st == KVE_OK)
        st = cut_plain(&whole, &head, p);
    if (st == KVE_OK)
        st = encode_choices(tk, s, &text, whole.len, p);
    kve_str_free(&text);
    kve_str_free(&shown);
    kve_ids_free(&whole);
    kve_ids_free(&head);
    return st;
}

/* --- Dialogues */

/* The template around `n` turns, with a 0x01 where each one's text goes. */
static kve_status render_marks(const kve_chat *chat, size_t n, kve_str *out)
{
    kve_chat_message *m = NULL;
    if (chat->family == KVE_CHAT_PLAIN) { /* nothing between turns would run words together */
        for (size_t i = 0; i < n; i++)
            KVE_TRY(kve_str_puts(out, i ? "\n\n\x01" : "\x01"));
        return KVE_OK;
    }
    KVE_TRY(kve_alloc(n, sizeof *m, &m));
    for (size_t i = 0; i < n; i++)
        m[i] = (kve_chat_message){i % 2 ? "assistant" : "user", "\x01"};
    kve_status st = kve_chat_render(chat, m, n, 0, out);
    free(m);
    return st;
}

/* The template's ids before turn `i`'s text; *at goes behind the mark. */
static kve_status add_marks(const kve_tokenizer *tk, const char **at, size_t i, kve_ids *out)
{
    size_t len = strcspn(*at, "\x01");
    kve_status st = len ? kve_tokenize(tk, *at, len, true, i == 0, out) : KVE_OK;
    *at += len + ((*at)[len] != '\0');
    return st;
}

static kve_status encode_dialogue(const kve_tokenizer *tk, const kve_chat *chat, const kve_sample *s, kve_prompt *p)
{
    kve_str marks = {0};
    kve_status st = render_marks(chat, s->n_turns, &marks);
    const char *at = marks.p;
    for (size_t i = 0; i < s->n_turns && st == KVE_OK; i++) {
        bool last = i + 1 == s->n_turns;
        st = add_marks(tk, &at, i, &p->context);
        if (st == KVE_OK)
            st = add_plain(tk, s->turns[i].text, p->context.len == 0, last ? &p->tail : &p->context);
    }
    kve_str_free(&marks);
    return st;
}

static kve_status count_marks(const kve_tokenizer *tk, const kve_chat *chat, size_t n_turns, size_t *n_tok)
{
    kve_str marks = {0};
    kve_ids ids = {0};
    kve_status st = render_marks(chat, n_turns, &marks);
    const char *at = marks.p;
    for (size_t i = 0; i < n_turns && st == KVE_OK; i++)
        st = add_marks(tk, &at, i, &ids);
    *n_tok = ids.len;
    kve_str_free(&marks);
    kve_ids_free(&ids);
    return st;
}

kve_status kve_prompt_turn_overhead(const kve_tokenizer *tk, const kve_chat *chat, int64_t *n_tok)
{
    size_t two = 0, four = 0;
    KVE_TRY(count_marks(tk, chat, 2, &two));
    KVE_TRY(count_marks(tk, chat, 4, &four));
    *n_tok = (int64_t)(four - two + 1) / 2;
    return KVE_OK;
}

/* --- All of them */

static kve_status copy_window(const kve_sample *s, kve_prompt *p)
{
    for (size_t i = 0; i < s->n_ids; i++)
        KVE_TRY(kve_ids_push(i < s->n_prefill ? &p->context : &p->tail, s->ids[i]));
    return KVE_OK;
}

static kve_status encode_any(const kve_tokenizer *tk, const kve_chat *chat, const kve_sample *s, bool question_in,
                             kve_prompt *p)
{
    if (s->ids)
        return copy_window(s, p);
    if (s->n_turns)
        return encode_dialogue(tk, chat, s, p);
    return s->plain ? encode_plain(tk, s, question_in, p) : encode_prompt(tk, chat, s, question_in, p);
}

static kve_status append_ids(kve_ids *all, const kve_ids *more)
{
    for (size_t i = 0; i < more->len; i++)
        KVE_TRY(kve_ids_push(all, more->p[i]));
    return KVE_OK;
}

static kve_status hash_ids(kve_prompt *p)
{
    kve_ids all = {0};
    kve_status st = append_ids(&all, &p->context);
    for (size_t i = 0; i <= p->n_choices && st == KVE_OK; i++) {
        st = kve_ids_push(&all, -1);
        if (st == KVE_OK)
            st = append_ids(&all, i ? &p->choices[i - 1] : &p->tail);
    }
    if (st == KVE_OK)
        st = kve_sha256(all.p, all.len * sizeof *all.p, p->sha256);
    kve_ids_free(&all);
    return st;
}

kve_status kve_prompt_make(const kve_tokenizer *tk, const kve_chat *chat, const kve_sample *s, bool question_in,
                           kve_prompt *out)
{
    *out = (kve_prompt){0};
    kve_status st = encode_any(tk, chat, s, kve_question_in(s, question_in), out);
    if (st == KVE_OK && (out->context.len == 0 || out->tail.len == 0))
        st = kve_fail(KVE_ERR_FILE,
                      "%s%ssample '%s': %zu tokens before the cut and %zu after it; both need at least one",
                      s->source ? s->source : "", s->source ? ": " : "", s->id, out->context.len, out->tail.len);
    if (st == KVE_OK)
        st = hash_ids(out);
    if (st != KVE_OK)
        kve_prompt_free(out);
    return st;
}

void kve_prompt_free(kve_prompt *p)
{
    kve_ids_free(&p->context);
    kve_ids_free(&p->tail);
    for (size_t i = 0; i < p->n_choices; i++)
        kve_ids_free(&p->choices[i]);
    free(p->choices);
    *p = (kve_prompt){0};
}

static kve_status count_tokens(void *ctx, const char *text, size_t len, size_t *n_tok)
{
    kve_ids ids = {0};
    kve_status st = kve_tokenize(ctx, text, len, false, false, &ids);
    *n_tok = ids.len;
    kve_ids_free(&ids);
    return st;
}

static kve_status encode_tokens(void *ctx, const char *text, size_t len, kve_arena *arena, int32_t **ids, size_t *n_ids)
{
    kve_ids made = {0};
    kve_status st = kve_tokenize(ctx, text, len, false, false, &made);
    if (st == KVE_OK)
        st = kve_arena_alloc(arena, made.len, sizeof **ids, ids);
    if (st == KVE_OK && made.len)
        memcpy(*ids, made.p, made.len * sizeof **ids);
    *n_ids = made.len;
    kve_ids_free(&made);
    return st;
}

kve_token_fns kve_prompt_token_fns(const kve_tokenizer *tk)
{
    return (kve_token_fns){(void *)(uintptr_t)tk, count_tokens, encode_tokens};
}

kve_status kve_prompt_overhead(const kve_tokenizer *tk, const kve_chat *chat, int64_t *n_tok)
{
    kve_str open = {0}, close = {0};
    kve_ids ids = {0};
    kve_status st = kve_chat_single(chat, &open, &close);
    if (st == KVE_OK) /* without an opening it is the user's text that begins with BOS */
        st = open.len ? add_template(tk, &open, true, &ids) : add_plain(tk, "", true, &ids);
    if (st == KVE_OK)
        st = add_template(tk, &close, false, &ids);
    *n_tok = (int64_t)ids.len;
    kve_str_free(&open);
    kve_str_free(&close);
    kve_ids_free(&ids);
    return st;
}
