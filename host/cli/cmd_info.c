/* kveval info: prints what a model file contains, without loading the weights. */
#include "host/cli/cli.h"

#include <inttypes.h>
#include <stdio.h>

static kve_status print_info(const char *path, bool tensors)
{
    kve_checkpoint *ck = NULL;
    KVE_TRY(kve_checkpoint_open(path, &ck));
    const kve_config *c = kve_checkpoint_config(ck);
    const kve_shape *s = &c->shape;
    char sha[KVE_SHA256_HEX] = "";
    kve_tensor_info t;
    int64_t n_tensors = 0, bytes = 0;
    for (size_t i = 0; kve_checkpoint_tensor(ck, i, &t); i++, n_tensors++)
        bytes += t.bytes;
    kve_status st = kve_checkpoint_sha256(ck, sha);
    printf("path        %s\nformat      %s\nname        %s\narch        %s\n", kve_checkpoint_path(ck),
           kve_checkpoint_format(ck), c->name, kve_arch_name(c->arch));
    printf("layers      %d\nheads       %d query, %d key/value, %d dimensions (%d rotary)\n", s->L, s->Hq, s->Hkv, s->D,
           s->R);
    printf("width       %d, feed-forward %d\nvocabulary  %d\ncontext     %d tokens\nrope theta  %g\n", s->E, s->F, s->V,
           c->max_context, c->rope_theta);
    printf("tensors     %" PRId64 ", %" PRId64 " bytes\nkv cache    %d bytes a token (bf16)\nsha256      %s\n",
           n_tensors, bytes, 4 * s->L * s->Hkv * s->D, sha);
    for (size_t i = 0; tensors && kve_checkpoint_tensor(ck, i, &t); i++)
        printf("  %-28s %-5s [%" PRId64 "][%" PRId64 "]\n", t.name, t.type, t.rows, t.cols);
    kve_checkpoint_close(ck);
    return st;
}

kve_status kve_cmd_info(int argc, char **argv)
{
    kve_flag flags[] = {{"--model", "PATH", "a .gguf file, a folder, org/name or smollm2", "smollm2"},
                        {"--tensors", NULL, "list every tensor", NULL}};
    bool help;
    KVE_TRY(kve_flags_parse(argc, argv, flags, 2, &help));
    if (help) {
        kve_flags_print("kveval info [--model PATH] [--tensors]", flags, 2);
        return KVE_OK;
    }
    return print_info(flags[0].value, flags[1].value != NULL);
}
