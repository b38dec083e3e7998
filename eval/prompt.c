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

/* Template, user's words and answer prefix before and after the cut are each encoded as one text: a tokenizer that
 * joins characters across their seams does so in the reference's prompts, too. Control tokens are the template's only.
 */
static kve_status encode_before(const kve_tokenizer *tk, const kve_sample *s, bool question_in, const kve_str *open,
                                kve_ids *out)
{
    kve_str text = {0};
    const kve_text_rules rules = {.special_to = open->len, .add_bos = true};
    kve_status st = kve_str_printf(&text, "%s%s%s", open->p ? open->p : "", s->context, question_in ? s->question : "");
    if (st == KVE_OK)
        st = kve_tokenize_as(tk, text.p, text.len, &rules, out);
    kve_str_free(&text);
    return st;
}

static kve_status encode_after(const kve_tokenizer *tk, const kve_sample *s, bool question_in, const kve_str *close,
                               kve_ids *out)
{
    kve_str text = {0};
    const char *question = question_in ? "" : s->question;
    size_t from = strlen(question);
    const kve_text_rules rules = {.special_from = from, .special_to = from + close->len, .continues = true};
    kve_status st = kve_str_printf(&text, "%s%s%s", question, close->p ? close->p : "", s->answer_prefix);
    if (st == KVE_OK)
        st = kve_tokenize_as(tk, text.p, text.len, &rules, out);
    kve_str_free(&text);
    return st;
}

/* The context's tokens from the first that is not there without the question. */
static kve_status count_question(const kve_tokenizer *tk, const kve_sample *s, const kve_str *open, kve_prompt *p)
{
    kve_ids without = {0};
    size_t same = 0;
    kve_status st = encode_before(tk, s, false, open, &without);
    while (same < without.len && same < p->context.len && without.p[same] == p->context.p[same])
        same++;
    p->n_question = p->context.len - same;
    kve_ids_free(&without);
    return st;
}

static kve_status encode(const kve_tokenizer *tk, const kve_sample *s, bool question_in, const kve_str *open,
                         const kve_str *close, kve_prompt *p)
{
    KVE_TRY(encode_before(tk, s, question_in, open, &p->context));
    if (question_in)
        KVE_TRY(count_question(tk, s, open, p));
    KVE_TRY(encode_after(tk, s, question_in, close, &p->tail));
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
        st = encode_before(tk, s, question_in, &(kve_str){0}, &head);
    if (st == KVE_OK)
        st = cut_plain(&whole, &head, p);
    if (st == KVE_OK && question_in)
        st = count_question(tk, s, &(kve_str){0}, p);
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

/* The template before turn `i`'s text and that text, as one; *at goes behind the mark. */
static kve_status add_turn(const kve_tokenizer *tk, const char **at, const char *words, bool first, kve_ids *out)
{
    kve_str text = {0};
    size_t len = strcspn(*at, "\x01");
    const kve_text_rules rules = {.special_to = len, .add_bos = first, .continues = !first};
    kve_status st = kve_str_append(&text, *at, len);
    if (st == KVE_OK)
        st = kve_str_puts(&text, words);
    if (st == KVE_OK)
        st = kve_tokenize_as(tk, text.p, text.len, &rules, out);
    *at += len + ((*at)[len] != '\0');
    kve_str_free(&text);
    return st;
}

/* The scored message comes after the cut, so that what is prefilled does not depend on it. */
static kve_status encode_dialogue(const kve_tokenizer *tk, const kve_chat *chat, const kve_sample *s, kve_prompt *p)
{
    kve_str marks = {0};
    const kve_text_rules rules = {.continues = true};
    kve_status st = render_marks(chat, s->n_turns, &marks);
    const char *at = marks.p;
    for (size_t i = 0; i < s->n_turns && st == KVE_OK; i++)
        st = add_turn(tk, &at, i + 1 < s->n_turns ? s->turns[i].text : "", i == 0, &p->context);
    if (st == KVE_OK && s->n_turns)
        st =
            kve_tokenize_as(tk, s->turns[s->n_turns - 1].text, strlen(s->turns[s->n_turns - 1].text), &rules, &p->tail);
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
        st = add_turn(tk, &at, "", i == 0, &ids);
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

kve_status kve_prompt_replay(const kve_tokenizer *tk, const kve_chat *chat, const kve_ids *context, size_t from,
                             size_t to, kve_ids *ids)
{
    enum { REMINDER = 8 };
    kve_str open = {0}, close = {0};
    const char *ask = from ? "\n\nRepeat the part of the previous context exactly, starting with"
                           : "\n\nRepeat the previous context exactly.";
    const kve_text_rules words = {.continues = true};
    kve_status st = kve_tokenize_as(tk, ask, strlen(ask), &words, ids);
    for (size_t i = from > REMINDER ? from - REMINDER : 0; i < from && st == KVE_OK; i++)
        st = kve_ids_push(ids, context->p[i]);
    if (st == KVE_OK)
        st = kve_chat_single(chat, &open, &close);
    const kve_text_rules marks = {.special_to = close.len, .continues = true};
    if (st == KVE_OK && close.len)
        st = kve_tokenize_as(tk, close.p, close.len, &marks, ids);
    for (size_t i = from; i < to && st == KVE_OK; i++)
        st = kve_ids_push(ids, context->p[i]);
    kve_str_free(&open);
    kve_str_free(&close);
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
    const kve_sample empty = {.context = "", .question = "", .answer_prefix = ""};
    kve_status st = kve_chat_single(chat, &open, &close);
    if (st == KVE_OK)
        st = encode_before(tk, &empty, false, &open, &ids);
    if (st == KVE_OK)
        st = encode_after(tk, &empty, false, &close, &ids);
    *n_tok = (int64_t)ids.len;
    kve_str_free(&open);
    kve_str_free(&close);
    kve_ids_free(&ids);
    return st;
}
