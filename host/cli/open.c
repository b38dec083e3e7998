/* Opens a model for a subcommand: checkpoint, backend, weights, tokenizer, chat template. */
#include "host/cli/cli.h"

#include <string.h>

static kve_status open_text(kve_opened *o, const char *chat)
{
    const kve_vocab *v = kve_checkpoint_vocab(o->ck);
    const char *bos = "";
    kve_str bos_text = {0};
    if (v->bos >= 0 && v->bos < v->n_tokens && v->tokens[v->bos].text) {
        KVE_TRY(kve_str_append(&bos_text, v->tokens[v->bos].text, v->tokens[v->bos].len));
        bos = bos_text.p;
    }
    kve_status st = kve_tokenizer_create(v, &o->tk);
    if (st == KVE_OK)
        st = kve_chat_create(kve_checkpoint_chat_template(o->ck), chat, bos, &o->chat);
    kve_str_free(&bos_text);
    return st;
}

static kve_status open_parts(const kve_open_options *opt, kve_dtype dtype, kve_opened *o)
{
    KVE_TRY(kve_checkpoint_open(opt->model, &o->ck));
    KVE_TRY(open_text(o, opt->chat));
    KVE_TRY(kve_open_backend(opt->backend, opt->threads, &o->be));
    return kve_model_load(o->be, o->ck, dtype, &o->model);
}

kve_status kve_open_model(const kve_open_options *opt, kve_opened *out)
{
    const kve_flag flag = {.name = "--dtype", .value = opt->dtype};
    kve_dtype dtype;
    KVE_TRY(kve_flag_dtype(&flag, &dtype));
    *out = (kve_opened){0};
    kve_status st = open_parts(opt, dtype, out);
    if (st != KVE_OK)
        kve_close_model(out);
    return st;
}

void kve_close_model(kve_opened *o)
{
    kve_model_free(o->model);
    if (o->be)
        o->be->vt->close(o->be);
    kve_chat_free(&o->chat);
    kve_tokenizer_free(o->tk);
    kve_checkpoint_close(o->ck);
    *o = (kve_opened){0};
}
