/* Any text as windows of token ids, side by side from the beginning; what is left at the end is not used. */
#include "datasets/dataset.h"
#include "host/base/file.h"
#include "host/base/json.h"

#include <stdlib.h>
#include <string.h>

typedef struct text {
    kve_dataset base; /* first: the dataset is this object */
    const char *path; /* in the arena, like the ids */
    size_t n_prefill, n_score, n_ids;
    int32_t *ids; /* the whole file */
    kve_arena arena;
} text;

static kve_status text_sample(kve_dataset *self, size_t i, kve_sample *out)
{
    const text *t = (const text *)self;
    kve_str id = {0};
    char *copy = NULL;
    int32_t *ids = NULL;
    size_t n = t->n_prefill + t->n_score;
    KVE_TRY(kve_arena_alloc(&out->arena, n, sizeof *ids, &ids));
    memcpy(ids, t->ids + i * n, n * sizeof *ids);
    kve_status st = kve_str_printf(&id, "window-%zu+%zu-%zu", t->n_prefill, t->n_score, i);
    if (st == KVE_OK)
        st = kve_arena_strndup(&out->arena, id.p, id.len, &copy);
    kve_str_free(&id);
    out->id = copy;
    out->task = self->name;
    out->task_version = KVE_TEXT_VERSION;
    out->metric = KVE_METRIC_NLL;
    out->ids = ids;
    out->n_ids = n;
    out->n_prefill = t->n_prefill;
    return st;
}

static void text_close(kve_dataset *self)
{
    text *t = (text *)self;
    kve_arena_free(&t->arena);
    free(t);
}

static kve_status read_ids(text *t, const kve_token_fns *tokens)
{
    char *s = NULL;
    size_t len = 0, bad = 0;
    KVE_TRY(kve_file_read(t->path, &s, &len));
    kve_status st = KVE_OK;
    if (!kve_utf8_valid(s, len, &bad))
        st = kve_fail(KVE_ERR_FILE, "%s: byte %zu is not UTF-8; save the text as UTF-8", t->path, bad);
    else
        st = tokens->encode(tokens->ctx, s, len, &t->arena, &t->ids, &t->n_ids);
    free(s);
    return st;
}

static kve_status fill(text *t, const kve_text_options *o)
{
    kve_str name = {0};
    char *copy = NULL;
    size_t window = o->n_prefill + o->n_score;
    KVE_TRY(kve_str_printf(&name, "text:%s", kve_path_base(o->path)));
    kve_status st = kve_arena_strndup(&t->arena, name.p, name.len, &copy);
    kve_str_free(&name);
    KVE_TRY(st);
    t->base.name = copy;
    KVE_TRY(kve_arena_strndup(&t->arena, o->path, strlen(o->path), &copy));
    t->path = copy;
    KVE_TRY(read_ids(t, &o->tokens));
    size_t n = t->n_ids / window;
    if (n == 0)
        return kve_fail(KVE_ERR_FILE, "%s: has %zu tokens, a window takes %zu; give a longer text or a shorter window",
                        o->path, t->n_ids, window);
    t->base.n_samples = o->n_samples && o->n_samples < n ? o->n_samples : n;
    return KVE_OK;
}

kve_status kve_text_open(const kve_text_options *options, kve_dataset **out)
{
    enum { MAX_WINDOW = 1 << 24 };
    text *t = NULL;
    if (options->n_prefill < 1 || options->n_prefill > MAX_WINDOW || options->n_score < 1 ||
        options->n_score > MAX_WINDOW)
        return kve_fail(KVE_ERR_USAGE, "a window of %zu tokens of context and %zu to score; each must be in 1 .. %d",
                        options->n_prefill, options->n_score, MAX_WINDOW);
    KVE_TRY(kve_alloc(1, sizeof *t, &t));
    t->base.sample = text_sample;
    t->base.close = text_close;
    t->n_prefill = options->n_prefill;
    t->n_score = options->n_score;
    kve_status st = fill(t, options);
    if (st == KVE_OK)
        *out = &t->base;
    else
        text_close(&t->base);
    return st;
}
