/* kveval info: what a model file contains, or what memory a run with it takes; loads no weights. */
#include "host/cli/eval_setup.h"
#include "host/engine/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

enum { MODEL, TENSORS, PLAN, LENGTH, TAIL, BUDGET, POLICIES, CHUNK, BACKEND, DTYPE, N_FLAGS };

static const kve_flag g_flags[N_FLAGS] = {
    [MODEL] = {"--model", "PATH", "a .gguf file, a folder, org/name or smollm2", "smollm2"},
    [TENSORS] = {"--tensors", NULL, "list every tensor", NULL},
    [PLAN] = {"--plan", NULL, "the memory of a run with this model instead; nothing is loaded", NULL},
    [LENGTH] = {"--length", "N", "plan: tokens of the context", "4096"},
    [TAIL] = {"--tail", "N", "plan: tokens of question and answer", "128"},
    [BUDGET] = {"--budget", "LIST", "plan: tokens kept per layer and KV head", "128,256,512,1024,2048"},
    [POLICIES] = {"--policies", "N", "plan: policies that evict", "8"},
    [CHUNK] = {"--chunk", "N", "plan: rows of one forward pass", "512"},
    [BACKEND] = {"--backend", "B", KVE_BACKEND_HELP, "auto"},
    [DTYPE] = {"--dtype", "T", "plan: bf16 or f32", "bf16"},
};

static kve_status print_plan(const kve_flag *f, const kve_checkpoint *ck, kve_backend *be, const kve_eval_setup *s)
{
    kve_plan_request r = {.cfg = kve_checkpoint_config(ck)};
    kve_tensor_info t;
    kve_plan p;
    const double mib = 1024.0 * 1024.0;
    KVE_TRY(kve_flag_dtype(&f[DTYPE], &r.dtype));
    KVE_TRY(kve_flag_int(&f[LENGTH], 1, 1 << 24, &r.n));
    KVE_TRY(kve_flag_int(&f[TAIL], 1, 1 << 24, &r.n_tail));
    KVE_TRY(kve_flag_int(&f[POLICIES], 1, KVE_MAX_POLICIES, &r.n_policies));
    KVE_TRY(kve_flag_int(&f[CHUNK], 64, 1 << 16, &r.chunk));
    KVE_TRY(be->vt->free_bytes(be, &r.free_bytes));
    r.n_budgets = (int32_t)s->n_budgets;
    r.b_max = s->budgets[s->n_budgets - 1] < r.n ? s->budgets[s->n_budgets - 1] : r.n;
    for (size_t i = 0; kve_checkpoint_tensor(ck, i, &t); i++)
        r.weight_bytes += (size_t)(t.rows * t.cols) * (t.rows > 1 ? kve_dtype_bytes(r.dtype) : sizeof(float));
    kve_plan_make(&r, &p);
    printf("device         %s\nfree           %10.1f MiB\nweights        %10.1f MiB (%s)\n", be->vt->describe(be),
           (double)r.free_bytes / mib, (double)p.weights / mib, f[DTYPE].value);
    printf("scratch        %10.1f MiB (%d rows of a forward pass)\n", (double)p.scratch / mib, r.chunk);
    printf("context        %10.1f MiB (%d tokens)\n", (double)p.context / mib, r.n);
    printf("ranked cache   %10.1f MiB for each policy (%d tokens and the ranking)\n", (double)p.ranked / mib, r.b_max);
    printf("fork           %10.1f MiB for each of %d budgets of a policy (%d tokens)\n", (double)p.fork / mib,
           r.n_budgets, r.n_tail);
    printf("all at once    %10.1f MiB (%d policies, %d forks)\n", (double)p.all / mib, r.n_policies,
           r.n_policies * r.n_budgets);
    if (p.policies_at_once > 0)
        printf("fits           %d policies with %d forks as one batch\n", p.policies_at_once, p.forks_at_once);
    else
        printf("fits           not: weights, scratch, context and one policy take %.1f MiB\n",
               (double)(p.fixed + p.ranked + (size_t)r.n_budgets * p.fork) / mib);
    return KVE_OK;
}

static kve_status plan(const kve_flag *f)
{
    kve_eval_setup s = {0};
    kve_checkpoint *ck = NULL;
    kve_backend *be = NULL;
    kve_status st = kve_setup_budgets(f[BUDGET].value, &s);
    if (st == KVE_OK)
        st = kve_checkpoint_open(f[MODEL].value, &ck);
    if (st == KVE_OK)
        st = kve_open_backend(f[BACKEND].value, 0, &be);
    if (st == KVE_OK)
        st = print_plan(f, ck, be, &s);
    if (be)
        be->vt->close(be);
    kve_checkpoint_close(ck);
    kve_eval_setup_free(&s);
    return st;
}

kve_status kve_cmd_info(int argc, char **argv)
{
    kve_flag f[N_FLAGS];
    bool help;
    memcpy(f, g_flags, sizeof f);
    KVE_TRY(kve_flags_parse(argc, argv, f, N_FLAGS, &help));
    if (help) {
        kve_flags_print("kveval info [--model PATH] [--tensors | --plan [flags]]", f, N_FLAGS);
        return KVE_OK;
    }
    return f[PLAN].value ? plan(f) : print_info(f[MODEL].value, f[TENSORS].value != NULL);
}
