/* y = x W^T (+ bias) or y += ...: tiles of up to 6 rows by one panel of 64 columns, accumulators in registers, k in
 * ascending order. Contract: kernels/ops.h.
 *
 * A row's sum runs over k in the same order whatever the tile, the batch or the thread count, so it
 * is the same alone and in any batch. bytes: the weight once per 6 rows of a block (from L2 when T is large);
 * flops: 2 T N K. AVX512-BF16 multiplies pairs (vdpbf16ps); the other sets widen bf16 to fp32 first. */
#include "host/base/mem.h"
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { TILE = CPU_TILE, ROW_BLOCK = 96, P = CPU_PANEL };

#define TILE_BODY_F32                                                                                                  \
    const float *xf = x, *w = panel;                                                                                   \
    for (int32_t r = 0; r < rows; r++) {                                                                               \
        float sum[P] = {0};                                                                                            \
        for (int32_t k = 0; k < K; k++) {                                                                              \
            float a = xf[(size_t)r * stride + (size_t)k];                                                              \
            for (int32_t c = 0; c < P; c++)                                                                            \
                sum[c] += a * w[(size_t)k * P + (size_t)c];                                                            \
        }                                                                                                              \
        memcpy(acc[r], sum, sizeof sum);                                                                               \
    }

/* Low half of a word: the even k; high half: the odd one. */
static inline float low_half(uint32_t pair)
{
    uint32_t bits = pair << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline float high_half(uint32_t pair)
{
    uint32_t bits = pair & 0xffff0000u;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

#define TILE_BODY_BF16                                                                                                 \
    const uint32_t *xp = x, *w = panel;                                                                                \
    for (int32_t r = 0; r < rows; r++) {                                                                               \
        float sum[P] = {0};                                                                                            \
        for (int32_t k = 0; k < (K + 1) / 2; k++) {                                                                    \
            uint32_t a = xp[(size_t)r * stride + (size_t)k];                                                           \
            float even = low_half(a), odd = high_half(a);                                                              \
            for (int32_t c = 0; c < P; c++) {                                                                          \
                uint32_t b = w[(size_t)k * P + (size_t)c];                                                             \
                sum[c] += even * low_half(b);                                                                          \
                sum[c] += odd * high_half(b);                                                                          \
            }                                                                                                          \
        }                                                                                                              \
        memcpy(acc[r], sum, sizeof sum);                                                                               \
    }

static void tile_f32_portable(const void *x, size_t stride, const void *panel, int32_t K, int32_t rows,
                              float acc[TILE][P])
{
    TILE_BODY_F32
}

static void tile_bf16_portable(const void *x, size_t stride, const void *panel, int32_t K, int32_t rows,
                               float acc[TILE][P])
{
    TILE_BODY_BF16
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void tile_f32_avx2(const void *x, size_t stride, const void *panel,
                                                              int32_t K, int32_t rows, float acc[TILE][P])
{
    TILE_BODY_F32
}

__attribute__((target("avx2,fma"))) static void tile_bf16_avx2(const void *x, size_t stride, const void *panel,
                                                               int32_t K, int32_t rows,
                                                               float acc[TILE][P]){TILE_BODY_BF16}

/* The compiler keeps all accumulators in registers because `rows` is a constant in every instance. */
#define DEFINE_TILE(NAME, TARGET, WORDS, STEP)                                                                         \
    __attribute__((target(TARGET), always_inline)) static inline void NAME##_rows(                                     \
        const uint32_t *x, size_t stride, const uint32_t *w, int32_t words, const int32_t rows, float acc[TILE][P])    \
    {                                                                                                                  \
        __m512 s[TILE][4];                                                                                             \
        for (int32_t r = 0; r < rows; r++)                                                                             \
            for (int c = 0; c < 4; c++)                                                                                \
                s[r][c] = _mm512_setzero_ps();                                                                         \
        for (int32_t k = 0; k < words; k++, w += P) {                                                                  \
            for (int32_t r = 0; r < rows; r++) {                                                                       \
                __m512i a = _mm512_set1_epi32((int)x[(size_t)r * stride + (size_t)k]);                                 \
                for (int c = 0; c < 4; c++) {                                                                          \
                    __m512i b = _mm512_load_si512(w + 16 * c);                                                         \
                    STEP;                                                                                              \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        for (int32_t r = 0; r < rows; r++)                                                                             \
            for (int c = 0; c < 4; c++)                                                                                \
                _mm512_storeu_ps(&acc[r][16 * c], s[r][c]);                                                            \
    }                                                                                                                  \
    __attribute__((target(TARGET))) static void NAME(const void *x, size_t stride, const void *panel, int32_t K,       \
                                                     int32_t rows, float acc[TILE][P])                                 \
    {                                                                                                                  \
        int32_t words = WORDS;                                                                                         \
        switch (rows) {                                                                                                \
        case 1:                                                                                                        \
            NAME##_rows(x, stride, panel, words, 1, acc);                                                              \
            break;                                                                                                     \
        case 2:                                                                                                        \
            NAME##_rows(x, stride, panel, words, 2, acc);                                                              \
            break;                                                                                                     \
        case 3:                                                                                                        \
            NAME##_rows(x, stride, panel, words, 3, acc);                                                              \
            break;                                                                                                     \
        case 4:                                                                                                        \
            NAME##_rows(x, stride, panel, words, 4, acc);                                                              \
            break;                                                                                                     \
        case 5:                                                                                                        \
            NAME##_rows(x, stride, panel, words, 5, acc);                                                              \
            break;                                                                                                     \
        default:                                                                                                       \
            NAME##_rows(x, stride, panel, words, 6, acc);                                                              \
            break;                                                                                                     \
        }                                                                                                              \
    }

DEFINE_TILE(tile_f32_avx512, "avx512f", K,
            s[r][c] = _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), s[r][c]))
    DEFINE_TILE(tile_bf16_avx512bf16, "avx512f,avx512bf16", (K + 1) / 2,
                s[r][c] = _mm512_dpbf16_ps(s[r][c], (__m512bh)a, (__m512bh)b))
        DEFINE_TILE(tile_bf16_avx512, "avx512f", (K + 1) / 2, __m512i high = _mm512_set1_epi32((int)0xffff0000);
                    s[r][c] = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                                              _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), s[r][c]);
                    s[r][c] = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(a, high)),
                                              _mm512_castsi512_ps(_mm512_and_si512(b, high)), s[r][c]))
#endif

            cpu_tile_fn cpu_tile(cpu_isa isa, kve_dtype dtype)
{
    bool f32 = dtype == KVE_F32;
#if defined(__x86_64__)
    if (isa == CPU_AVX512_BF16)
        return f32 ? tile_f32_avx512 : tile_bf16_avx512bf16;
    if (isa == CPU_AVX512)
        return f32 ? tile_f32_avx512 : tile_bf16_avx512;
    if (isa == CPU_AVX2)
        return f32 ? tile_f32_avx2 : tile_bf16_avx2;
#endif
    (void)isa;
    return f32 ? tile_f32_portable : tile_bf16_portable;
}

typedef struct matmul {
    const kve_matmul_params *p;
    const void *x; /* f32 rows as given, or bf16 pairs */
    size_t stride; /* words from row to row */
    cpu_tile_fn tile;
    int64_t n_panels;
} matmul;

static void store_tile(const kve_matmul_params *p, int32_t row0, int32_t rows, int32_t col0, float acc[TILE][P])
{
    int32_t N = p->w->N, cols = N - col0 < P ? N - col0 : P;
    for (int32_t r = 0; r < rows; r++) {
        float *y = p->y + (size_t)(row0 + r) * (size_t)N + (size_t)col0;
        for (int32_t c = 0; c < cols; c++) {
            float v = p->bias ? acc[r][c] + p->bias[col0 + c] : acc[r][c];
            y[c] = p->accumulate ? y[c] + v : v;
        }
    }
}

/* An item is one panel times one block of rows. */
static void matmul_item(void *ctx, int64_t item, int32_t worker)
{
    const matmul *m = ctx;
    const kve_weight *w = m->p->w;
    int64_t panel = item % m->n_panels, block = item / m->n_panels;
    size_t panel_bytes = w->bytes / (size_t)m->n_panels;
    const char *data = (const char *)w->data + (size_t)panel * panel_bytes;
    int32_t row = (int32_t)block * ROW_BLOCK, end = row + ROW_BLOCK < m->p->T ? row + ROW_BLOCK : m->p->T;
    float acc[TILE][P];
    (void)worker;
    for (; row < end; row += TILE) {
        int32_t rows = end - row < TILE ? end - row : TILE;
        m->tile((const uint32_t *)m->x + (size_t)row * m->stride, m->stride, data, w->K, rows, acc);
        store_tile(m->p, row, rows, (int32_t)panel * P, acc);
    }
}

static void pack_row(void *ctx, int64_t row, int32_t worker)
{
    const matmul *m = ctx;
    int32_t K = m->p->w->K;
    const float *x = m->p->x + (size_t)row * (size_t)K;
    uint16_t *out = (uint16_t *)(uintptr_t)m->x + (size_t)row * m->stride * 2;
    (void)worker;
    for (int32_t k = 0; k < K; k++)
        out[k] = cpu_to_bf16(x[k]);
    if (K % 2)
        out[K] = 0;
}

kve_status cpu_matmul(kve_backend *base, const kve_matmul_params *p)
{
    cpu_backend *be = cpu_of(base);
    const kve_weight *w = p->w;
    matmul m = {.p = p, .x = p->x, .stride = (size_t)w->K, .tile = cpu_tile(be->isa, w->dtype)};
    if (p->T <= 0)
        return KVE_OK;
    if (w->dtype == KVE_BF16) {
        m.stride = ((size_t)w->K + 1) / 2;
        size_t bytes = (size_t)p->T * m.stride * sizeof(uint32_t);
        if (bytes > be->x_packed_bytes) { /* grows to the largest call of the session, then stays */
            free(be->x_packed);
            be->x_packed = NULL;
            be->x_packed_bytes = 0;
            KVE_TRY(kve_alloc(bytes, 1, &be->x_packed));
            be->x_packed_bytes = bytes;
        }
        m.x = be->x_packed;
        cpu_parallel_for(be, p->T, pack_row, &m);
    }
    m.n_panels = (w->N + P - 1) / P;
    cpu_parallel_for(be, m.n_panels * ((p->T + ROW_BLOCK - 1) / ROW_BLOCK), matmul_item, &m);
    return KVE_OK;
}
