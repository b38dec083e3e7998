/* One file per sample. Contract: sample_log.h. */
#include "eval/sample_log.h"

#include "host/base/file.h"
#include "host/base/json.h"

#include <string.h>

kve_status kve_sample_texts(const kve_tokenizer *tk, const kve_prompt *p, kve_str *context, kve_str *tail)
{
    KVE_TRY(kve_detokenize(tk, p->context.p, p->context.len, true, context));
    return kve_detokenize(tk, p->tail.p, p->tail.len, true, tail);
}

static void write_list(kve_jw *w, const kve_ids *ids)
{
    kve_jw_begin(w, '[');
    for (size_t i = 0; i < ids->len; i++)
        kve_jw_int(w, ids->p[i]);
    kve_jw_end(w, ']');
}

static void write_ids(kve_jw *w, const char *key, const kve_ids *ids)
{
    kve_jw_key(w, key);
    write_list(w, ids);
}

static void write_text(kve_jw *w, const char *key, const char *text)
{
    kve_jw_key(w, key);
    kve_jw_str(w, text);
}

static kve_status write_json(const kve_sample_log *log, const kve_sample *s, const kve_prompt *p, kve_str *out)
{
    kve_str context = {0}, tail = {0};
    kve_jw w = {.out = out};
    kve_status st = kve_sample_texts(log->tk, p, &context, &tail);
    kve_jw_begin(&w, '{');
    write_text(&w, "task", s->task);
    write_text(&w, "sample_id", s->id);
    write_text(&w, "prompt_sha256", p->sha256);
    write_text(&w, "chat_template_sha256", s->plain ? "" : log->chat->sha256);
    write_text(&w, "context", context.p ? context.p : "");
    write_text(&w, "tail", tail.p ? tail.p : "");
    write_ids(&w, "context_ids", &p->context);
    write_ids(&w, "tail_ids", &p->tail);
    kve_jw_key(&w, "choice_ids");
    kve_jw_begin(&w, '[');
    for (size_t i = 0; i < p->n_choices; i++)
        write_list(&w, &p->choices[i]);
    kve_jw_end(&w, ']');
    kve_jw_end(&w, '}');
    kve_str_free(&context);
    kve_str_free(&tail);
    if (st == KVE_OK)
        st = w.status;
    return st == KVE_OK ? kve_str_puts(out, "\n") : st;
}

/* DIR/samples/TASK/ID.json, its folder made. */
static kve_status make_path(const kve_sample_log *log, const kve_sample *s, kve_str *path)
{
    kve_str below = {0}, name = {0};
    kve_status st = kve_path_join(&below, log->dir, "samples");
    if (st == KVE_OK)
        st = kve_str_printf(&name, "%s/%s", s->task, s->id);
    if (st == KVE_OK)
        st = kve_path_below(below.p, name.p, ".json", path);
    if (st == KVE_OK)
        st = kve_make_parents(path->p);
    kve_str_free(&below);
    kve_str_free(&name);
    return st;
}

kve_status kve_sample_log_write(const kve_sample_log *log, const kve_sample *s)
{
    kve_prompt p;
    kve_str path = {0}, text = {0};
    KVE_TRY(kve_prompt_make(log->tk, log->chat, s, log->question_in, &p));
    kve_status st = make_path(log, s, &path);
    if (st == KVE_OK)
        st = write_json(log, s, &p, &text);
    if (st == KVE_OK)
        st = kve_file_write(path.p, text.p, text.len);
    kve_str_free(&path);
    kve_str_free(&text);
    kve_prompt_free(&p);
    return st;
}
