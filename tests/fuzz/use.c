/* Contract: use.h. */
#include "tests/fuzz/use.h"

#include "host/text/chat.h"
#include "host/text/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>

static void use_text(const kve_tokenizer *tk, const char *text, size_t len, bool specials)
{
    int32_t n_tokens = kve_tokenizer_vocab(tk)->n_tokens;
    kve_ids ids = {0};
    kve_str back = {0};
    if (accepted(kve_tokenize(tk, text, len, specials, true, &ids))) {
        for (size_t i = 0; i < ids.len; i++)
            must(ids.p[i] >= 0 && ids.p[i] < n_tokens);
        must(kve_detokenize(tk, ids.p, ids.len, specials, &back) == KVE_OK);
        must(kve_utf8_complete_len(back.p ? back.p : "", back.len) <= back.len);
    }
    kve_ids_free(&ids);
    kve_str_free(&back);
}

void use_vocab(const kve_vocab *v, const char *text, size_t len)
{
    kve_tokenizer *tk = NULL;
    if (!accepted(kve_tokenizer_create(v, &tk)))
        return;
    use_text(tk, text, len, false);
    use_text(tk, text, len, true);
    kve_str all = {0};
    for (int32_t id = 0; id < v->n_tokens && id < 300; id++) /* special ids and holes among them */
        must(kve_detokenize(tk, &id, 1, true, &all) == KVE_OK);
    must(kve_token_id(tk, "<s>") < v->n_tokens);
    kve_str_free(&all);
    kve_tokenizer_free(tk);
}

static void use_tensor(const kve_checkpoint *ck, const kve_tensor_info *t)
{
    int64_t rows = 0, cols = 0, some = t->rows < 4 ? t->rows : 4;
    must(kve_checkpoint_has(ck, t->name) && kve_checkpoint_dims(ck, t->name, &rows, &cols) == KVE_OK);
    must(rows == t->rows && cols == t->cols && rows > 0 && cols > 0 && t->bytes > 0);
    float *x = malloc((size_t)(some * cols) * sizeof *x);
    must(x);
    (void)accepted(kve_checkpoint_read(ck, t->name, 0, some, x));
    (void)accepted(kve_checkpoint_read(ck, t->name, rows - some, some, x));
    free(x);
}

static void use_template(const char *jinja)
{
    kve_chat chat;
    kve_str open = {0}, close = {0};
    if (accepted(kve_chat_create(jinja, NULL, "<s>", &chat))) {
        must(kve_chat_single(&chat, &open, &close) == KVE_OK);
        kve_chat_free(&chat);
    }
    kve_str_free(&open);
    kve_str_free(&close);
}

static void use_rope(const kve_config *c)
{
    enum { POSITIONS = 3 };
    float cosines[POSITIONS * KVE_MAX_ROPE_DIMS / 2], sines[POSITIONS * KVE_MAX_ROPE_DIMS / 2];
    for (int32_t long_text = 0; long_text < 2; long_text++) {
        must(kve_rope_tables(c, POSITIONS, long_text ? c->max_context : 1, cosines, sines) == KVE_OK);
        for (int32_t i = 0; i < POSITIONS * c->shape.R / 2; i++)
            must(isfinite(cosines[i]) && isfinite(sines[i]));
    }
}

void use_checkpoint(const kve_checkpoint *ck)
{
    static const char text[] = "ab c<|im_start|>user\n 12\xc3\xa9\xe2\x96\x81<0x0A>  <|im_end|>";
    kve_tensor_info t;
    for (size_t i = 0; kve_checkpoint_tensor(ck, i, &t); i++)
        use_tensor(ck, &t);
    must(kve_checkpoint_vocab(ck)->n_tokens == kve_checkpoint_config(ck)->shape.V);
    use_vocab(kve_checkpoint_vocab(ck), text, sizeof text - 1);
    use_template(kve_checkpoint_chat_template(ck));
    use_rope(kve_checkpoint_config(ck));
}
