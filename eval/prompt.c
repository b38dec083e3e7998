/* Samples to token ids. Contract: prompt.h. */
#include "eval/prompt.h"

#include <string.h>

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
    if (!question_in || !*s->question)
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

static kve_status copy_window(const kve_sample *s, kve_prompt *p)
{
    for (size_t i = 0; i < s->n_ids; i++)
        KVE_TRY(kve_ids_push(i < s->n_prefill ? &p->context : &p->tail, s->ids[i]));
    return KVE_OK;
}

static kve_status hash_ids(kve_prompt *p)
{
    kve_ids all = {0};
    kve_status st = KVE_OK;
    for (size_t i = 0; i < p->context.len && st == KVE_OK; i++)
        st = kve_ids_push(&all, p->context.p[i]);
    if (st == KVE_OK)
        st = kve_ids_push(&all, -1);
    for (size_t i = 0; i < p->tail.len && st == KVE_OK; i++)
        st = kve_ids_push(&all, p->tail.p[i]);
    if (st == KVE_OK)
        st = kve_sha256(all.p, all.len * sizeof *all.p, p->sha256);
    kve_ids_free(&all);
    return st;
}

kve_status kve_prompt_make(const kve_tokenizer *tk, const kve_chat *chat, const kve_sample *s, bool question_in,
                           kve_prompt *out)
{
    *out = (kve_prompt){0};
    kve_status st = s->ids ? copy_window(s, out) : encode_prompt(tk, chat, s, question_in, out);
    if (st == KVE_OK && (out->context.len == 0 || out->tail.len == 0))
        st = kve_fail(KVE_ERR_FILE, "sample '%s': %zu tokens before the cut and %zu after it; both need at least one",
                      s->id, out->context.len, out->tail.len);
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
