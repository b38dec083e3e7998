/* Data, timing, floors and rows of kveval bench kernels. Contract: bench_kernels.h. Knows no op but the probes'. */
#include "host/cli/bench_kernels.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 42, FILLER_WIDTH = 4096 };

/* --- data */

kve_status kve_kbench_alloc(kve_kbench *b, size_t n, size_t size, void *out_ptr)
{
    void *p = NULL;
    if (b->n_owned == KVE_KBENCH_OWNED)
        return kve_fail(KVE_ERR_INTERNAL, "bench kernels: an op has more than %d buffers", KVE_KBENCH_OWNED);
    KVE_TRY(b->be->vt->alloc(b->be, n * size, &p));
    b->owned[b->n_owned++] = p;
    memcpy(out_ptr, &p, sizeof p);
    return KVE_OK;
}

/* Where the next `n` numbers are cut from, and how many there are in a row. */
static size_t cut(kve_kbench *b, size_t n, size_t *from)
{
    size_t half = KVE_KBENCH_NOISE / 2;
    *from = (size_t)kve_rng_below(&b->rng, half);
    return n < half ? n : half;
}

static kve_status fill(kve_kbench *b, void *device, size_t n, kve_dtype dtype)
{
    for (size_t at = 0, from, count; at < n; at += count) {
        count = cut(b, n - at, &from);
        const void *host = dtype == KVE_F32 ? (const void *)(b->noise + from) : (const void *)(b->noise_bf16 + from);
        size_t size = kve_dtype_bytes(dtype);
        KVE_TRY(b->be->vt->write(b->be, (char *)device + at * size, host, count * size));
    }
    return KVE_OK;
}

kve_status kve_kbench_floats(kve_kbench *b, int64_t n, void *out_ptr)
{
    void *p = NULL;
    KVE_TRY(kve_kbench_alloc(b, (size_t)n, sizeof(float), &p));
    memcpy(out_ptr, &p, sizeof p);
    return fill(b, p, (size_t)n, KVE_F32);
}

kve_status kve_kbench_upload(kve_kbench *b, const void *host, size_t n, size_t size, void *out_ptr)
{
    void *p = NULL;
    KVE_TRY(kve_kbench_alloc(b, n, size, &p));
    memcpy(out_ptr, &p, sizeof p);
    return b->be->vt->write(b->be, p, host, n * size);
}

kve_status kve_kbench_weight(kve_kbench *b, kve_dtype dtype, int32_t N, int32_t K, kve_weight **out)
{
    kve_backend *be = b->be;
    int32_t most = KVE_KBENCH_NOISE / 2 / K;
    if (b->n_weights == KVE_KBENCH_OWNED || most < 1)
        return kve_fail(KVE_ERR_INTERNAL, "bench kernels: no room for a weight of %d x %d", N, K);
    KVE_TRY(be->vt->weight_create(be, dtype, N, K, out));
    b->weights[b->n_weights++] = *out;
    for (int32_t row = 0, count; row < N; row += count) {
        size_t from;
        count = N - row < most ? N - row : most;
        cut(b, (size_t)count * (size_t)K, &from);
        KVE_TRY(be->vt->weight_fill(be, *out, row, count, b->noise + from));
    }
    return be->vt->weight_seal(be, *out);
}

kve_status kve_kbench_caches(kve_kbench *b, int32_t count, int32_t rows, kve_kv *out, size_t *bytes)
{
    size_t n = (size_t)b->shape.Hkv * (size_t)rows * (size_t)b->shape.D, size = kve_dtype_bytes(b->dtype);
    char *block = NULL;
    KVE_TRY(kve_kbench_alloc(b, 2 * n * (size_t)count, size, &block));
    for (int32_t i = 0; i < count; i++) {
        char *k = block + 2 * n * size * (size_t)i;
        out[i] = (kve_kv){.k = k, .v = k + n * size, .cap = rows};
    }
    if (bytes)
        *bytes = 2 * n * (size_t)count * size;
    return fill(b, block, 2 * n * (size_t)count, b->dtype);
}

kve_status kve_kbench_layers(kve_kbench *b, int32_t layers, int32_t rows, kve_kv *out)
{
    size_t n = (size_t)layers * (size_t)b->shape.Hkv * (size_t)rows * (size_t)b->shape.D;
    void **half[] = {&out->k, &out->v};
    *out = (kve_kv){.cap = rows};
    for (int i = 0; i < 2; i++) {
        KVE_TRY(kve_kbench_alloc(b, n, kve_dtype_bytes(b->dtype), half[i]));
        KVE_TRY(fill(b, *half[i], n, b->dtype));
    }
    return KVE_OK;
}

void kve_kbench_release(kve_kbench *b)
{
    while (b->n_owned)
        b->be->vt->free(b->be, b->owned[--b->n_owned]);
    while (b->n_weights)
        b->be->vt->weight_free(b->be, b->weights[--b->n_weights]);
}

/* --- timing */

/* Every worker or processor of the device writes its part of something larger than the cache. */
static kve_status chill(kve_kbench *b)
{
    kve_rmsnorm_params p = {b->filler, b->ones, b->filler, 1e-6f, b->filler_rows, FILLER_WIDTH};
    return b->be->vt->rmsnorm(b->be, &p);
}

typedef struct timing {
    kve_kbench *b;
    const kve_kbench_call *call;
    bool cold;
    int32_t calls; /* in one stretch of time; the time is divided by it */
} timing;

/* Nothing waits between the cold caches and the call, so that a device never stands idle before it: what is timed is
 * the device's work, not the way to it. */
static kve_status time_once(void *ctx, double *us)
{
    const timing *t = ctx;
    kve_backend *be = t->b->be;
    if (t->call->restore_bytes)
        KVE_TRY(be->vt->copy(be, t->call->restore, t->call->pristine, t->call->restore_bytes));
    if (t->cold)
        KVE_TRY(chill(t->b));
    KVE_TRY(be->vt->timer_start(be));
    for (int32_t i = 0; i < t->calls; i++)
        KVE_TRY(t->call->run(be, t->call->params));
    KVE_TRY(be->vt->timer_stop(be, us));
    *us /= t->calls;
    return KVE_OK;
}

/* How often a call is repeated, back to back, in one stretch: until that is well above what a timer can tell. */
static kve_status choose_calls(timing *t)
{
    enum { STRETCH_US = 200, MOST = 64 };
    double us;
    KVE_TRY(time_once(t, &us)); /* grows scratch memory and warms up */
    if (us < STRETCH_US)
        KVE_TRY(time_once(t, &us));
    if (!t->cold && t->call->restore_bytes == 0 && us < STRETCH_US)
        t->calls = us * MOST < STRETCH_US ? MOST : (int32_t)(STRETCH_US / us) + 1;
    return KVE_OK;
}

/* --- rows */

static kve_status print_row(const timing *t, const char *size, const kve_bench_series *s, const char *stop)
{
    kve_kbench *b = t->b;
    const kve_cost *c = &t->call->cost;
    double us = s->median * 1e3, by_copy = c->bytes / b->bytes_per_us, by_gemm = c->flops / b->flops_per_us;
    double floor_us = by_gemm > by_copy ? by_gemm : by_copy;
    const kve_bench_field own[] = {
        {"op", KVE_BENCH_TEXT, .text = t->call->op, .title = "op", .width = 17},
        {"size", KVE_BENCH_TEXT, .text = size, .title = "size", .width = 32},
        {"cache", KVE_BENCH_TEXT, .text = t->cold ? "cold" : "hot", .title = "cache", .width = 5},
        {"bytes", KVE_BENCH_INT, .integer = (int64_t)c->bytes},
        {NULL, KVE_BENCH_NUM, .number = c->bytes * 1e-6, .title = "MB", .width = 9, .decimals = -1},
        {"flops", KVE_BENCH_INT, .integer = (int64_t)c->flops},
        {NULL, KVE_BENCH_NUM, .number = c->flops * 1e-6, .title = "MFLOP", .width = 9, .decimals = -1},
        {NULL, KVE_BENCH_NUM, .number = us, .title = "time us", .width = 10, .decimals = 2},
        {"gb_per_s", KVE_BENCH_NUM, .number = c->bytes / us * 1e-3, .title = "GB/s", .width = 8, .decimals = 2},
        {"tflop_per_s", KVE_BENCH_NUM, .number = c->flops / us * 1e-6, .title = "TFLOP/s", .width = 9, .decimals = -1},
        {"floor_ms", KVE_BENCH_NUM, .number = floor_us * 1e-3},
        {NULL, KVE_BENCH_NUM, .number = floor_us, .title = "floor us", .width = 10, .decimals = 2},
        {"bound", KVE_BENCH_TEXT, .text = by_gemm > by_copy ? "gemm" : "copy", .title = "bound", .width = 5},
        {"share_pct", KVE_BENCH_NUM, .number = 100 * floor_us / us, .title = "share %", .width = 7, .decimals = 1},
        {"calls", KVE_BENCH_INT, .integer = t->calls},
        {"shape", KVE_BENCH_TEXT, .text = b->shape_name},
    };
    return kve_bench_print(&b->table, own, sizeof own / sizeof *own, s, stop);
}

static kve_status measure_one(kve_kbench *b, const kve_kbench_call *call, bool cold, const char *size)
{
    timing t = {b, call, cold, 1};
    kve_bench_result r;
    KVE_TRY(choose_calls(&t));
    KVE_TRY(kve_bench_measure(&b->rules, time_once, &t, 1, &r));
    return print_row(&t, size, &r.series[0], r.stop);
}

kve_status kve_kbench_measure(kve_kbench *b, const kve_kbench_call *call, const char *size_fmt, ...)
{
    char size[64];
    va_list args;
    va_start(args, size_fmt);
    vsnprintf(size, sizeof size, size_fmt, args);
    va_end(args);
    kve_status st = call->hot_only ? KVE_OK : measure_one(b, call, true, size);
    if (st == KVE_OK)
        st = measure_one(b, call, false, size);
    return st == KVE_OK ? st : kve_fail_context(st, "%s, %s", call->op, size);
}

/* --- probes: as large as it takes for a call to last PROBE_US, so that launching it does not count */

enum { PROBE_US = 1000, PROBE_SAMPLES = 5 };

/* Measures the probe with hot caches; *best is its shortest time in microseconds. All floors hang on it, so that it is
 * repeated even where the rules would have one sample do. */
static kve_status probe(timing *t, double *best, kve_bench_result *r)
{
    kve_bench_rules rules = t->b->rules;
    rules.min_samples = rules.min_samples > PROBE_SAMPLES ? rules.min_samples : PROBE_SAMPLES;
    rules.timeout_s = rules.timeout_s > 0.5 ? rules.timeout_s : 0.5;
    KVE_TRY(kve_bench_measure(&rules, time_once, t, 1, r));
    *best = r->series[0].min * 1e3;
    return KVE_OK;
}

typedef struct copying {
    void *to;
    const void *from;
    size_t bytes;
} copying;

static kve_status call_copy(kve_backend *be, const void *params)
{
    const copying *c = params;
    return be->vt->copy(be, c->to, c->from, c->bytes);
}

static kve_status probe_copy(kve_kbench *b)
{
    const size_t most = (size_t)1 << 30;
    size_t least = 2 * b->be->vt->cache_bytes(b->be), bytes = (size_t)32 << 20;
    while (bytes < least && bytes < most)
        bytes *= 2;
    for (;; bytes *= 2) {
        copying c = {.bytes = bytes};
        kve_kbench_call call = {"probe copy", {2 * (double)bytes, 0}, call_copy, &c, true, NULL, NULL, 0};
        timing t = {b, &call, false, 1};
        kve_bench_result r;
        char size[64];
        double us;
        KVE_TRY(kve_kbench_floats(b, (int64_t)(bytes / sizeof(float)), &c.from));
        KVE_TRY(kve_kbench_floats(b, (int64_t)(bytes / sizeof(float)), &c.to));
        KVE_TRY(time_once(&t, &us));
        KVE_TRY(time_once(&t, &us));
        if (us >= PROBE_US || bytes >= most) {
            KVE_TRY(probe(&t, &us, &r));
            b->bytes_per_us = call.cost.bytes / us;
            b->flops_per_us = HUGE_VAL; /* not known yet */
            snprintf(size, sizeof size, "%zu MiB", bytes >> 20);
            return print_row(&t, size, &r.series[0], r.stop);
        }
        kve_kbench_release(b);
    }
}

KVE_KBENCH_CALL(matmul)

static kve_status probe_gemm(kve_kbench *b, kve_dtype dtype)
{
    for (int32_t N = 512;; N *= 2) {
        kve_matmul_params p = {.T = N};
        kve_weight *w = NULL;
        kve_kbench_call call = {.op = dtype == KVE_F32 ? "probe gemm f32" : "probe gemm bf16",
                                .run = call_matmul,
                                .params = &p,
                                .hot_only = true};
        timing t = {b, &call, false, 1};
        kve_bench_result r;
        char size[64];
        double us;
        KVE_TRY(kve_kbench_weight(b, dtype, N, N, &w));
        KVE_TRY(kve_kbench_floats(b, (int64_t)N * N, &p.x));
        KVE_TRY(kve_kbench_floats(b, (int64_t)N * N, &p.y));
        p.w = w;
        call.cost = kve_cost_matmul(&p, N, N, dtype);
        KVE_TRY(time_once(&t, &us));
        KVE_TRY(time_once(&t, &us));
        if (us >= PROBE_US || N >= 8192) {
            KVE_TRY(probe(&t, &us, &r));
            b->flops_per_us = call.cost.flops / us;
            snprintf(size, sizeof size, "T=%d N=%d K=%d", N, N, N);
            return print_row(&t, size, &r.series[0], r.stop);
        }
        kve_kbench_release(b);
    }
}

/* --- opening */

static kve_status make_noise(kve_kbench *b)
{
    KVE_TRY(kve_alloc(KVE_KBENCH_NOISE, sizeof *b->noise, &b->noise));
    KVE_TRY(kve_alloc(KVE_KBENCH_NOISE, sizeof *b->noise_bf16, &b->noise_bf16));
    kve_rng_init(&b->rng, SEED, 0, 0, 0);
    for (size_t i = 0; i < KVE_KBENCH_NOISE; i++) {
        uint32_t bits;
        b->noise[i] = 2 * kve_rng_float(&b->rng) - 1;
        memcpy(&bits, &b->noise[i], sizeof bits);
        b->noise_bf16[i] = (uint16_t)(bits >> 16);
    }
    return KVE_OK;
}

/* Half as much again as the cache holds, and never so little that a call of nothing would be timed. */
static kve_status make_filler(kve_kbench *b)
{
    size_t row = FILLER_WIDTH * sizeof(float), bytes = b->be->vt->cache_bytes(b->be) / 2 * 3;
    float ones[FILLER_WIDTH];
    b->filler_rows = (int32_t)(bytes / row) + 64;
    for (int i = 0; i < FILLER_WIDTH; i++)
        ones[i] = 1;
    KVE_TRY(b->be->vt->alloc(b->be, (size_t)b->filler_rows * row, &b->filler));
    KVE_TRY(b->be->vt->alloc(b->be, sizeof ones, &b->ones));
    KVE_TRY(b->be->vt->write(b->be, b->ones, ones, sizeof ones));
    return fill(b, b->filler, (size_t)b->filler_rows * FILLER_WIDTH, KVE_F32);
}

kve_status kve_kbench_open(kve_kbench *b, kve_bench_format format, const char *dtype, int32_t threads)
{
    const kve_shape *s = &b->shape;
    kve_bench_table_open(b->be, format, dtype, threads, &b->table);
    b->table.brief = true;
    snprintf(
        b->table.subject, sizeof b->table.subject,
        "shape %s (L=%d Hq=%d Hkv=%d D=%d E=%d F=%d V=%d), one layer; the floor is what the probes' rates give for "
        "MB and MFLOP; hot data are in the caches, which may be faster than it",
        b->shape_name, s->L, s->Hq, s->Hkv, s->D, s->E, s->F, s->V);
    KVE_TRY(make_noise(b));
    KVE_TRY(make_filler(b));
    KVE_TRY(probe_copy(b));
    kve_kbench_release(b);
    KVE_TRY(probe_gemm(b, KVE_BF16));
    kve_kbench_release(b);
    if (b->dtype == KVE_F32) /* the floors are this one's */
        KVE_TRY(probe_gemm(b, KVE_F32));
    kve_kbench_release(b);
    return KVE_OK;
}

void kve_kbench_close(kve_kbench *b)
{
    kve_bench_table_close(&b->table);
    kve_kbench_release(b);
    b->be->vt->free(b->be, b->filler);
    b->be->vt->free(b->be, b->ones);
    free(b->noise);
    free(b->noise_bf16);
}
