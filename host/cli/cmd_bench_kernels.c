/* kveval bench kernels: every op at the sizes of a known model, on any backend, against what the same device does at
 * its best in copying and in matrix products. Times only; no model is needed. */
#include "host/base/text.h"
#include "host/cli/bench_kernels.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    kve_shape shape;
} g_shapes[] = {
    {"smollm2", {.L = 30, .Hq = 9, .Hkv = 3, .D = 64, .R = 64, .E = 576, .F = 1536, .V = 49152}},
    {"qwen2.5-7b", {.L = 28, .Hq = 28, .Hkv = 4, .D = 128, .R = 128, .E = 3584, .F = 18944, .V = 152064}},
    {"llama-3.1-8b", {.L = 32, .Hq = 32, .Hkv = 8, .D = 128, .R = 128, .E = 4096, .F = 14336, .V = 128256}},
};
enum { N_SHAPES = sizeof g_shapes / sizeof *g_shapes, MAX_OPS = 32 };

enum {
    SHAPE,
    OP,
    TOKENS,
    LENGTH,
    BUDGET,
    MIN_SAMPLES,
    MAX_NOISE,
    MIN_TIME,
    TIMEOUT,
    FORMAT,
    BACKEND,
    DTYPE,
    THREADS,
    N_FLAGS
};

static const kve_flag g_flags[N_FLAGS] = {
    [SHAPE] = {"--shape", "NAME", "smollm2, qwen2.5-7b or llama-3.1-8b", "smollm2"},
    [OP] = {"--op", "LIST", "ops of kernels/ops.h by name", "all"},
    [TOKENS] = {"--tokens", "LIST", "rows of one call, T; logits: 64 at the most, as in the engine", "1,48,512"},
    [LENGTH] = {"--length", "LIST", "context tokens, n; default 512,4096, and for rank 4096,32768,131072", NULL},
    [BUDGET] = {"--budget", "LIST", "tokens kept, b", "512,4096"},
    [MIN_SAMPLES] = {"--min-samples", "N", "a row is measured at least so often (-r)", "3"},
    [MAX_NOISE] = {"--max-noise", "PCT", "then it ends when the noise (1.4826 MAD / median) is below this", "5"},
    [MIN_TIME] = {"--min-time", "S", "but not before so many seconds", "0.1"},
    [TIMEOUT] = {"--timeout", "S", "and in any case after these", "1"},
    [FORMAT] = {"--format", "F", "md, csv, json or jsonl (-o)", "md"},
    [BACKEND] = {"--backend", "B", KVE_BACKEND_HELP, "auto"},
    [DTYPE] = {"--dtype", "T", "bf16 or f32: weights and KV cache", "bf16"},
    [THREADS] = {"--threads", "N", "0 = one per core", "0"},
};

static kve_status find_shape(const kve_flag *f, kve_kbench *b)
{
    const char *names[N_SHAPES];
    for (size_t i = 0; i < N_SHAPES; i++) {
        names[i] = g_shapes[i].name;
        if (kve_same_name(f->value, names[i])) {
            b->shape_name = names[i];
            b->shape = g_shapes[i].shape;
            return KVE_OK;
        }
    }
    return kve_fail(KVE_ERR_USAGE, "%s: '%s' is unknown; did you mean %s? There are smollm2, qwen2.5-7b, llama-3.1-8b",
                    f->name, f->value, kve_nearest(f->value, names, N_SHAPES));
}

/* The ops of this program, and which of them were asked for. */
typedef struct selection {
    kve_kbench_op ops[MAX_OPS];
    bool wanted[MAX_OPS];
    size_t n;
} selection;

static void collect(selection *s, const kve_kbench_op *ops)
{
    for (; ops->name; ops++)
        s->ops[s->n++] = *ops;
}

static kve_status want(void *ctx, const char *item)
{
    selection *s = ctx;
    const char *names[MAX_OPS];
    bool found = false;
    for (size_t i = 0; i < s->n; i++) {
        names[i] = s->ops[i].name;
        if (kve_same_name(item, "all") || kve_same_name(item, names[i])) {
            s->wanted[i] = true;
            found = true;
        }
    }
    if (found)
        return KVE_OK;
    kve_str all = {0};
    kve_status st = KVE_OK;
    for (size_t i = 0; i < s->n && st == KVE_OK; i++)
        st = kve_str_printf(&all, "%s%s", i ? ", " : "", names[i]);
    if (st == KVE_OK)
        st = kve_fail(KVE_ERR_USAGE, "--op: '%s' is unknown; did you mean %s? There are %s", item,
                      kve_nearest(item, names, s->n), all.p);
    kve_str_free(&all);
    return st;
}

typedef struct numbers {
    const kve_flag *flag;
    int32_t most;
    kve_kbench_list *out;
} numbers;

static kve_status add_number(void *ctx, const char *item)
{
    const numbers *x = ctx;
    const kve_flag one = {.name = x->flag->name, .value = item};
    if (x->out->n == KVE_KBENCH_LIST)
        return kve_fail(KVE_ERR_USAGE, "%s: more than %d sizes", one.name, KVE_KBENCH_LIST);
    return kve_flag_int(&one, 1, x->most, &x->out->v[x->out->n++]);
}

static kve_status parse_list(const kve_flag *f, const char *fallback, int32_t most, kve_kbench_list *out)
{
    numbers x = {f, most, out};
    return kve_flag_each(f->name, f->value ? f->value : fallback, add_number, &x);
}

static kve_status run_ops(kve_kbench *b, const selection *s)
{
    for (size_t i = 0; i < s->n; i++) {
        if (!s->wanted[i])
            continue;
        kve_status st = s->ops[i].run(b);
        kve_kbench_release(b);
        if (st != KVE_OK)
            return kve_fail_context(st, "%s at the sizes of %s", s->ops[i].name, b->shape_name);
    }
    return KVE_OK;
}

static kve_status run(const kve_flag *f)
{
    kve_kbench b = {.own_lengths = f[LENGTH].value != NULL};
    selection s = {0};
    kve_bench_format format;
    int32_t threads;
    collect(&s, kve_kbench_dense);
    collect(&s, kve_kbench_cache);
    KVE_TRY(find_shape(&f[SHAPE], &b));
    KVE_TRY(kve_flag_each(f[OP].name, f[OP].value, want, &s));
    KVE_TRY(parse_list(&f[TOKENS], NULL, 1 << 16, &b.tokens));
    KVE_TRY(parse_list(&f[LENGTH], "512,4096", 1 << 20, &b.lengths));
    KVE_TRY(parse_list(&f[BUDGET], NULL, 1 << 19, &b.budgets));
    KVE_TRY(kve_bench_rules_parse(&f[MIN_SAMPLES], &f[MAX_NOISE], &f[MIN_TIME], &f[TIMEOUT], &b.rules));
    KVE_TRY(kve_bench_format_parse(&f[FORMAT], &format));
    KVE_TRY(kve_flag_dtype(&f[DTYPE], &b.dtype));
    KVE_TRY(kve_flag_int(&f[THREADS], 0, 1024, &threads));
    KVE_TRY(kve_open_backend(f[BACKEND].value, threads, &b.be));
    kve_status st = kve_kbench_open(&b, format, f[DTYPE].value, threads);
    if (st == KVE_OK)
        st = run_ops(&b, &s);
    kve_kbench_close(&b);
    b.be->vt->close(b.be);
    return st;
}

kve_status kve_cmd_bench_kernels(int argc, char **argv)
{
    kve_flag f[N_FLAGS];
    bool help;
    memcpy(f, g_flags, sizeof f);
    KVE_TRY(kve_flags_parse(argc, argv, f, N_FLAGS, &help));
    if (!help)
        return run(f);
    kve_flags_print("kveval bench kernels [flags]", f, N_FLAGS);
    return KVE_OK;
}
