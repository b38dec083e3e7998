/* y = x W^T (+ bias) or y += ...: tiles of up to 6 rows by one panel of 64 columns, accumulators in registers, k in
 * ascending order. Contract: kernels/ops.h.
 *
 * A row's sum runs over k in the same order whatever the tile, the batch or the thread count, so it
 * is the same alone and in any batch. bytes: the weight once per 6 rows of a block (from L2 when T is large);
 * flops: 2 T N K. With a bf16 weight the rows of x are rounded to bf16 first: as pairs for AVX512-BF16, which
 * multiplies pairs (vdpbf16ps); as fp32 for the other sets, which widen the weight. */
#include "host/base/mem.h"
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { TILE = CPU_TILE, ROW_BLOCK = 96, P = CPU_PANEL };

/* A word of a bf16 panel holds the even k in its low half and the odd one in its high half. */
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

static void tile_f32_portable(const void *x, size_t stride, const void *panel, int32_t K, int32_t rows,
                              float acc[TILE][P])
{
    const float *xf = x, *w = panel;
    for (int32_t r = 0; r < rows; r++) {
        float sum[P] = {0};
        for (int32_t k = 0; k < K; k++) {
            float a = xf[(size_t)r * stride + (size_t)k];
            for (int32_t c = 0; c < P; c++)
                sum[c] += a * w[(size_t)k * P + (size_t)c];
        }
        memcpy(acc[r], sum, sizeof sum);
    }
}

static void tile_bf16_portable(const void *x, size_t stride, const void *panel, int32_t K, int32_t rows,
                               float acc[TILE][P])
{
    const float *xf = x;
    const uint32_t *w = panel;
    for (int32_t r = 0; r < rows; r++) {
        float sum[P] = {0};
        for (int32_t k = 0; k < (K + 1) / 2; k++) {
            const float *a = xf + (size_t)r * stride + 2 * (size_t)k;
            for (int32_t c = 0; c < P; c++) {
                uint32_t b = w[(size_t)k * P + (size_t)c];
                sum[c] += a[0] * low_half(b);
                sum[c] += a[1] * high_half(b);
            }
        }
        memcpy(acc[r], sum, sizeof sum);
    }
}

#if defined(__x86_64__)
/* The compiler keeps all accumulators in registers because `rows` (and COLS) is a constant in every instance. */
#define CALL_BY_ROWS(F)                                                                                                \
    switch (rows) {                                                                                                    \
    case 1:                                                                                                            \
        F(1);                                                                                                          \
        break;                                                                                                         \
    case 2:                                                                                                            \
        F(2);                                                                                                          \
        break;                                                                                                         \
    case 3:                                                                                                            \
        F(3);                                                                                                          \
        break;                                                                                                         \
    case 4:                                                                                                            \
        F(4);                                                                                                          \
        break;                                                                                                         \
    case 5:                                                                                                            \
        F(5);                                                                                                          \
        break;                                                                                                         \
    default:                                                                                                           \
        F(6);                                                                                                          \
        break;                                                                                                         \
    }

/* Sixteen registers of eight: few rows take many columns at once, six rows take 16, so that 8 to 12 sums are under way
 * and one multiplication never waits for the one before. */
#define AVX2_COLS(rows) ((rows) == 1 ? 8 : (rows) <= 3 ? 4 : 2)
#define AVX2 __attribute__((target("avx2,fma")))
#define AVX2_INLINE __attribute__((target("avx2,fma"), always_inline)) static inline

AVX2_INLINE void f32_avx2_rows(const float *x, size_t stride, const float *panel, int32_t K, const int32_t rows,
                               float acc[TILE][P])
{
    const int n = AVX2_COLS(rows);
    for (int32_t col = 0; col < P; col += 8 * n) {
        const float *w = panel + col;
        __m256 s[TILE][8], b[8];
        for (int32_t r = 0; r < rows; r++)
            for (int c = 0; c < n; c++)
                s[r][c] = _mm256_setzero_ps();
        for (int32_t k = 0; k < K; k++, w += P) {
            for (int c = 0; c < n; c++)
                b[c] = _mm256_load_ps(w + 8 * c);
            for (int32_t r = 0; r < rows; r++) {
                __m256 a = _mm256_broadcast_ss(x + (size_t)r * stride + (size_t)k);
                for (int c = 0; c < n; c++)
                    s[r][c] = _mm256_fmadd_ps(a, b[c], s[r][c]);
            }
        }
        for (int32_t r = 0; r < rows; r++)
            for (int c = 0; c < n; c++)
                _mm256_storeu_ps(&acc[r][col + 8 * c], s[r][c]);
    }
}

AVX2_INLINE void bf16_avx2_rows(const float *x, size_t stride, const uint32_t *panel, int32_t K, const int32_t rows,
                                float acc[TILE][P])
{
    const int n = AVX2_COLS(rows);
    const __m256i high = _mm256_set1_epi32((int)0xffff0000);
    for (int32_t col = 0; col < P; col += 8 * n) {
        const uint32_t *w = panel + col;
        __m256 s[TILE][8];
        for (int32_t r = 0; r < rows; r++)
            for (int c = 0; c < n; c++)
                s[r][c] = _mm256_setzero_ps();
        for (int32_t k = 0; k < (K + 1) / 2; k++, w += P)
            for (int c = 0; c < n; c++) {
                __m256i b = _mm256_load_si256((const __m256i *)(const void *)(w + 8 * c));
                __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(b, 16));
                __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(b, high));
                for (int32_t r = 0; r < rows; r++) {
                    const float *a = x + (size_t)r * stride + 2 * (size_t)k;
                    s[r][c] = _mm256_fmadd_ps(_mm256_broadcast_ss(a), even, s[r][c]);
                    s[r][c] = _mm256_fmadd_ps(_mm256_broadcast_ss(a + 1), odd, s[r][c]);
                }
            }
        for (int32_t r = 0; r < rows; r++)
            for (int c = 0; c < n; c++)
                _mm256_storeu_ps(&acc[r][col + 8 * c], s[r][c]);
    }
}

AVX2 static void tile_f32_avx2(const void *x, size_t stride, const void *panel, int32_t K, int32_t rows,
                               float acc[TILE][P]){
#define ROWS(n) f32_avx2_rows(x, stride, panel, K, n, acc)
    CALL_BY_ROWS(ROWS)
#undef ROWS
}

AVX2 static void tile_bf16_avx2(const void *x, size_t stride, const void *panel, int32_t K, int32_t rows,
                                float acc[TILE][P]){
#define ROWS(n) bf16_avx2_rows(x, stride, panel, K, n, acc)
    CALL_BY_ROWS(ROWS)
#undef ROWS
}

/* STEP adds what row r and word k give to s[r][c]: xw are the row's words from k on, b 16 words of the panel. */
#define DEFINE_TILE(NAME, TARGET, WORDS, X_WORDS, STEP)                                                                \
    __attribute__((target(TARGET), always_inline)) static inline void NAME##_rows(                                     \
        const uint32_t *x, size_t stride, const uint32_t *w, int32_t words, const int32_t rows, float acc[TILE][P])    \
    {                                                                                                                  \
        __m512 s[TILE][4];                                                                                             \
        for (int32_t r = 0; r < rows; r++)                                                                             \
            for (int c = 0; c < 4; c++)                                                                                \
                s[r][c] = _mm512_setzero_ps();                                                                         \
        for (int32_t k = 0; k < words; k++, w += P)                                                                    \
            for (int32_t r = 0; r < rows; r++) {                                                                       \
                const uint32_t *xw = x + (size_t)r * stride + (X_WORDS) * (size_t)k;                                   \
                for (int c = 0; c < 4; c++) {                                                                          \
                    __m512i b = _mm512_load_si512(w + 16 * c);                                                         \
                    STEP;                                                                                              \
                }                                                                                                      \
            }                                                                                                          \
        for (int32_t r = 0; r < rows; r++)                                                                             \
            for (int c = 0; c < 4; c++)                                                                                \
                _mm512_storeu_ps(&acc[r][16 * c], s[r][c]);                                                            \
    }                                                                                                                  \
    __attribute__((target(TARGET))) static void NAME(const void *x, size_t stride, const void *panel, int32_t K,       \
                                                     int32_t rows, float acc[TILE][P])                                 \
    {                                                                                                                  \
        int32_t words = WORDS;                                                                                         \
        CALL_BY_ROWS(NAME##_CALL)                                                                                      \
    }

#define tile_f32_avx512_CALL(n) tile_f32_avx512_rows(x, stride, panel, words, n, acc)
#define tile_bf16_avx512bf16_CALL(n) tile_bf16_avx512bf16_rows(x, stride, panel, words, n, acc)
#define tile_bf16_avx512_CALL(n) tile_bf16_avx512_rows(x, stride, panel, words, n, acc)

DEFINE_TILE(tile_f32_avx512, "avx512f", K, 1,
            s[r][c] = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32((int)xw[0])), _mm512_castsi512_ps(b),
                                      s[r][c]))
    DEFINE_TILE(tile_bf16_avx512bf16, "avx512f,avx512bf16", (K + 1) / 2, 1,
                s[r][c] = _mm512_dpbf16_ps(s[r][c], (__m512bh)_mm512_set1_epi32((int)xw[0]), (__m512bh)b))
        DEFINE_TILE(tile_bf16_avx512, "avx512f", (K + 1) / 2, 2, __m512i high = _mm512_set1_epi32((int)0xffff0000);
                    s[r][c] = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32((int)xw[0])),
                                              _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), s[r][c]);
                    s[r][c] = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32((int)xw[1])),
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
    const void *x; /* f32 rows as given, rounded f32 rows, or bf16 pairs */
    bool pairs;
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

/* One row, rounded to bf16; an odd K is padded with a zero. */
static void pack_row(void *ctx, int64_t row, int32_t worker)
{
    const matmul *m = ctx;
    int32_t K = m->p->w->K;
    const float *x = m->p->x + (size_t)row * (size_t)K;
    uint32_t *words = (uint32_t *)(uintptr_t)m->x + (size_t)row * m->stride;
    (void)worker;
    if (m->pairs) {
        uint16_t *out = (uint16_t *)words;
        for (int32_t k = 0; k < K; k++)
            out[k] = cpu_to_bf16(x[k]);
        if (K % 2)
            out[K] = 0;
        return;
    }
    for (int32_t k = 0; k < K; k++)
        words[k] = (uint32_t)cpu_to_bf16(x[k]) << 16;
    if (K % 2)
        words[K] = 0;
}

kve_status cpu_matmul(kve_backend *base, const kve_matmul_params *p)
{
    cpu_backend *be = cpu_of(base);
    const kve_weight *w = p->w;
    matmul m = {.p = p,
                .x = p->x,
                .pairs = be->isa == CPU_AVX512_BF16,
                .stride = (size_t)w->K,
                .tile = cpu_tile(be->isa, w->dtype)};
    if (p->T <= 0)
        return KVE_OK;
    if (w->dtype == KVE_BF16) {
        m.stride = m.pairs ? ((size_t)w->K + 1) / 2 : ((size_t)w->K + 1) & ~(size_t)1;
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
