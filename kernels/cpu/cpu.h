/* Inside the CPU backend: the backend object, the instruction sets, the thread pool, and one function per op. Included
 * by kernels/cpu only. */
#ifndef KVE_KERNELS_CPU_CPU_H
#define KVE_KERNELS_CPU_CPU_H

#include "kernels/backend.h"

#include <stdatomic.h>
#include <string.h>

typedef enum cpu_isa { CPU_PORTABLE, CPU_AVX2, CPU_AVX512, CPU_AVX512_BF16 } cpu_isa;

typedef struct cpu_pool cpu_pool;

typedef struct cpu_backend {
    kve_backend base; /* first: a kve_backend* is a cpu_backend* */
    cpu_isa isa;
    int32_t threads;
    cpu_pool *pool;
    atomic_size_t bytes;
    void *x_packed; /* matmul: the rows of a call in bf16; grown by the calling thread only */
    size_t x_packed_bytes;
    char *scratch; /* [threads][scratch_bytes]: private memory of the workers during one op */
    size_t scratch_bytes;
    int64_t timer_ns; /* when the stretch that is being timed began */
    char text[96];
} cpu_backend;

static inline cpu_backend *cpu_of(kve_backend *be)
{
    return (cpu_backend *)be;
}

/* Runs fn(ctx, item, worker) for item = 0 .. n_items - 1 on the pool and waits. Which worker takes an item is open, so
 * an item's result may depend on the item alone. worker < threads selects private scratch. */
typedef void (*cpu_item_fn)(void *ctx, int64_t item, int32_t worker);
kve_status cpu_pool_create(int32_t threads, cpu_pool **out);
void cpu_pool_free(cpu_pool *pool);
void cpu_parallel_for(cpu_backend *be, int64_t n_items, cpu_item_fn fn, void *ctx);

/* Makes be->scratch at least `bytes` for each worker (a multiple of 64 is kept); called before cpu_parallel_for. */
kve_status cpu_scratch_reserve(cpu_backend *be, size_t bytes);
static inline void *cpu_scratch(const cpu_backend *be, int32_t worker)
{
    return be->scratch + (size_t)worker * be->scratch_bytes;
}

const char *cpu_isa_name(cpu_isa isa);

static inline float cpu_from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Nearest even; NaN stays NaN. */
static inline uint16_t cpu_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Element offset of row j of (i_layer, h) in a kve_kv. */
static inline size_t cpu_kv_row(const kve_kv *kv, int32_t Hkv, int32_t D, int32_t i_layer, int32_t h, int32_t j)
{
    size_t head = (size_t)i_layer * (size_t)Hkv + (size_t)h;
    size_t first = kv->first ? (size_t)kv->first[head] : head * (size_t)kv->cap;
    return (first + (size_t)j) * (size_t)D;
}

/* Reads one cached row as fp32. */
static inline void cpu_load_row(const void *base, size_t at, int32_t D, kve_dtype t, float *out)
{
    if (t == KVE_F32) {
        memcpy(out, (const float *)base + at, (size_t)D * sizeof *out);
        return;
    }
    const uint16_t *p = (const uint16_t *)base + at;
    for (int32_t d = 0; d < D; d++)
        out[d] = cpu_from_bf16(p[d]);
}

static inline void cpu_store_row(void *base, size_t at, int32_t D, kve_dtype t, const float *in)
{
    if (t == KVE_F32) {
        memcpy((float *)base + at, in, (size_t)D * sizeof *in);
        return;
    }
    uint16_t *p = (uint16_t *)base + at;
    for (int32_t d = 0; d < D; d++)
        p[d] = cpu_to_bf16(in[d]);
}

enum { CPU_MAX_D = 256 };

/* A weight in panels of CPU_PANEL output columns: f32 [N/P][K][P]; bf16 in pairs of k, [N/P][ceil(K/2)][P][2], which is
 * what vdpbf16ps eats. Padding is zero. */
enum { CPU_PANEL = 64 };
struct kve_weight {
    kve_dtype dtype;
    int32_t N, K;
    void *data;
    size_t bytes;
};

/* One register tile, matmul's heart and prefill attention's: acc[r][c] = sum over k ascending of x[r][k] panel[k][c]
 * for rows <= CPU_TILE. x rows are `stride` 32-bit words apart; panel is 64-byte aligned: f32 [K][P], or bf16 pairs. */
enum { CPU_TILE = 6 };
typedef void (*cpu_tile_fn)(const void *x, size_t stride, const void *panel, int32_t K, int32_t rows,
                            float acc[CPU_TILE][CPU_PANEL]);
cpu_tile_fn cpu_tile(cpu_isa isa, kve_dtype dtype);

kve_status cpu_weight_create(kve_backend *be, kve_dtype dtype, int32_t N, int32_t K, kve_weight **out);
kve_status cpu_weight_fill(kve_backend *be, kve_weight *w, int32_t row0, int32_t n_rows, const float *host_rows);
kve_status cpu_weight_seal(kve_backend *be, kve_weight *w);
void cpu_weight_free(kve_backend *be, kve_weight *w);
void cpu_weight_row(const kve_weight *w, int32_t row, float *out); /* [K] */

kve_status cpu_embed(kve_backend *be, const kve_embed_params *p);
kve_status cpu_rmsnorm(kve_backend *be, const kve_rmsnorm_params *p);
kve_status cpu_matmul(kve_backend *be, const kve_matmul_params *p);
kve_status cpu_rope_append(kve_backend *be, const kve_rope_append_params *p);
kve_status cpu_attention_prefill(kve_backend *be, const kve_attention_prefill_params *p);
kve_status cpu_attention_fork(kve_backend *be, const kve_attention_fork_params *p);
kve_status cpu_glu(kve_backend *be, const kve_glu_params *p);
kve_status cpu_nll(kve_backend *be, const kve_nll_params *p);
kve_status cpu_argmax(kve_backend *be, const kve_argmax_params *p);
kve_status cpu_advance(kve_backend *be, const kve_advance_params *p);
kve_status cpu_attention_window(kve_backend *be, const kve_attention_window_params *p);
kve_status cpu_pool_group(kve_backend *be, const kve_pool_group_params *p);
kve_status cpu_future_importance(kve_backend *be, const kve_future_importance_params *p);
kve_status cpu_row_stat(kve_backend *be, const kve_row_stat_params *p);
kve_status cpu_kvp_score(kve_backend *be, const kve_kvp_score_params *p);
kve_status cpu_rank(kve_backend *be, const kve_rank_params *p);
kve_status cpu_gather(kve_backend *be, const kve_gather_params *p);
kve_status cpu_compact(kve_backend *be, const kve_compact_params *p);

#endif
