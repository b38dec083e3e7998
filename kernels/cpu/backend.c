/* The CPU backend's vtable, memory with byte accounting, and the choice of the instruction set. */
#include "host/base/mem.h"
#include "host/base/processor.h"
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { HEADER_BYTES = 64 }; /* in front of every allocation: its size, and the 64-byte alignment kept */

static void cpu_close(kve_backend *be)
{
    cpu_pool_free(cpu_of(be)->pool);
    free(cpu_of(be)->x_packed);
    free(cpu_of(be)->scratch);
    free(be);
}

static const char *cpu_describe(kve_backend *be)
{
    return cpu_of(be)->text;
}

static kve_status cpu_alloc(kve_backend *be, size_t bytes, void *out_ptr)
{
    char *p = NULL;
    if (bytes > SIZE_MAX - HEADER_BYTES)
        return kve_fail(KVE_ERR_MEMORY, "cpu: %zu bytes were asked for", bytes);
    KVE_TRY(kve_alloc(bytes + HEADER_BYTES, 1, &p));
    memcpy(p, &bytes, sizeof bytes);
    atomic_fetch_add(&cpu_of(be)->bytes, bytes);
    p += HEADER_BYTES;
    memcpy(out_ptr, &p, sizeof p);
    return KVE_OK;
}

static void cpu_free(kve_backend *be, void *p)
{
    size_t bytes;
    if (!p)
        return;
    char *base = (char *)p - HEADER_BYTES;
    memcpy(&bytes, base, sizeof bytes);
    atomic_fetch_sub(&cpu_of(be)->bytes, bytes);
    free(base);
}

static kve_status cpu_copy(kve_backend *be, void *dst, const void *src, size_t bytes)
{
    (void)be;
    if (bytes)
        memcpy(dst, src, bytes);
    return KVE_OK;
}

static kve_status cpu_sync(kve_backend *be)
{
    (void)be;
    return KVE_OK;
}

kve_status cpu_scratch_reserve(cpu_backend *be, size_t bytes)
{
    bytes = (bytes + 63) & ~(size_t)63;
    if (bytes <= be->scratch_bytes)
        return KVE_OK;
    free(be->scratch);
    be->scratch = NULL;
    be->scratch_bytes = 0;
    KVE_TRY(kve_alloc((size_t)be->threads, bytes, &be->scratch));
    be->scratch_bytes = bytes;
    return KVE_OK;
}

static size_t cpu_bytes_in_use(kve_backend *be)
{
    return atomic_load(&cpu_of(be)->bytes);
}

static kve_status cpu_free_bytes(kve_backend *be, size_t *out)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    (void)be;
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %llu kB", &kib) != 1)
        continue;
    if (f)
        fclose(f);
    if (kib == 0)
        return kve_fail(KVE_ERR_FILE, "/proc/meminfo: no line MemAvailable; how much memory is free is not known");
    *out = (size_t)kib << 10;
    return KVE_OK;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static kve_status cpu_timer_start(kve_backend *be)
{
    cpu_of(be)->timer_ns = now_ns();
    return KVE_OK;
}

static kve_status cpu_timer_stop(kve_backend *be, double *out_us)
{
    *out_us = (double)(now_ns() - cpu_of(be)->timer_ns) * 1e-3;
    return KVE_OK;
}

/* What this processor's kernel lists: sysconf may tell of a whole machine, of which a guest has a part. */
static size_t cpu_cache_bytes(kve_backend *be)
{
    size_t kib = 0;
    (void)be;
    for (int level = 3; level >= 2 && kib == 0; level--) {
        char path[64];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", level);
        FILE *f = fopen(path, "r");
        if (f && fscanf(f, "%zuK", &kib) != 1)
            kib = 0;
        if (f)
            fclose(f);
    }
    return kib ? kib << 10 : (size_t)32 << 20;
}

static const kve_backend_vt g_vt = {
    .name = "cpu",
    .close = cpu_close,
    .describe = cpu_describe,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .write = cpu_copy,
    .read = cpu_copy,
    .copy = cpu_copy,
    .sync = cpu_sync,
    .bytes_in_use = cpu_bytes_in_use,
    .free_bytes = cpu_free_bytes,
    .timer_start = cpu_timer_start,
    .timer_stop = cpu_timer_stop,
    .cache_bytes = cpu_cache_bytes,
    .weight_create = cpu_weight_create,
    .weight_fill = cpu_weight_fill,
    .weight_seal = cpu_weight_seal,
    .weight_free = cpu_weight_free,
    .embed = cpu_embed,
    .rmsnorm = cpu_rmsnorm,
    .matmul = cpu_matmul,
    .rope_append = cpu_rope_append,
    .attention_prefill = cpu_attention_prefill,
    .attention_fork = cpu_attention_fork,
    .glu = cpu_glu,
    .nll = cpu_nll,
    .argmax = cpu_argmax,
    .advance = cpu_advance,
    .attention_window = cpu_attention_window,
    .pool_group = cpu_pool_group,
    .future_importance = cpu_future_importance,
    .row_stat = cpu_row_stat,
    .kvp_score = cpu_kvp_score,
    .rank = cpu_rank,
    .gather = cpu_gather,
    .compact = cpu_compact,
};

static const char *const g_isa_names[] = {"portable", "avx2", "avx512", "avx512bf16"};

const char *cpu_isa_name(cpu_isa isa)
{
    return g_isa_names[isa];
}

static cpu_isa widest_isa(void)
{
    cpu_isa best = CPU_PORTABLE;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        best = CPU_AVX2;
    if (best == CPU_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        best = __builtin_cpu_supports("avx512bf16") ? CPU_AVX512_BF16 : CPU_AVX512;
#endif
    return best;
}

/* What KVEVAL_ISA asks for, if the processor has it. */
static kve_status choose_isa(cpu_isa *out)
{
    const char *wish = getenv("KVEVAL_ISA");
    *out = widest_isa();
    if (!wish || !*wish)
        return KVE_OK;
    for (int i = CPU_PORTABLE; i <= (int)*out; i++)
        if (strcmp(wish, g_isa_names[i]) == 0) {
            *out = (cpu_isa)i;
            return KVE_OK;
        }
    return kve_fail(KVE_ERR_USAGE,
                    "KVEVAL_ISA is '%s': unknown, or more than this processor has; it is one of portable, avx2, "
                    "avx512, avx512bf16, here %s at the most",
                    wish, g_isa_names[*out]);
}

kve_status kve_cpu_open(const kve_backend_options *opt, kve_backend **out)
{
    cpu_backend *be = NULL;
    int32_t threads = opt->threads > 0 ? opt->threads : kve_usable_cpus();
    cpu_isa isa;
    KVE_TRY(choose_isa(&isa));
    KVE_TRY(kve_alloc(1, sizeof *be, &be));
    be->base.vt = &g_vt;
    be->isa = isa;
    be->threads = threads;
    kve_status st = cpu_pool_create(threads, &be->pool);
    if (st != KVE_OK) {
        free(be);
        return st;
    }
    snprintf(be->text, sizeof be->text, "cpu, %s, %d threads", cpu_isa_name(be->isa), threads);
    *out = &be->base;
    return KVE_OK;
}
