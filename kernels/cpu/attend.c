/* The attention core: softmax(q.k scale) V with an online softmax, for the query rows of one slice and one KV head.
 *
 * Per block of 64 keys the slice widens K (transposed) and V once into panels and runs matmul's register tile twice:
 * scores = q Kt, then partial = p V. Keys that a row may not see are masked to -inf before the softmax, and a block of
 * which it sees nothing leaves it untouched; cache rows that no row of the slice sees are never read. flops: 4 D per
 * (query head, visible key). */
#include "kernels/cpu/attend.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/simd.h"

enum { KEYS = BLOCK_KEYS };

/* One worker's memory; rows are (entry, query head of the group), entry slowest. */
typedef struct buffers {
    float *k_panel;   /* [D][KEYS] */
    float *v_panels;  /* [ceil(D/64)][KEYS][64] */
    float *staging;   /* [KEYS][Dp] */
    float *q;         /* [rows][D] */
    float *out;       /* [rows][Dp] */
    float *top, *sum; /* [rows] */
    int32_t G, rows;
    size_t Dp; /* D up to the next multiple of 64 */
} buffers;

kve_status attend_reserve(const attend *a)
{
    if (a->D > CPU_MAX_D)
        return kve_fail(KVE_ERR_USAGE, "cpu: head dimension %d is beyond %d", a->D, CPU_MAX_D);
    size_t rows = (size_t)(a->Hq / a->Hkv) * ATTEND_ENTRIES, Dp = block_padded(a->D);
    return cpu_scratch_reserve(a->be, sizeof(float) * (3 * Dp * KEYS + rows * (2 * Dp + 2)));
}

static buffers carve(const attend *a, int32_t n, char *scratch)
{
    buffers b = {.k_panel = (float *)(void *)scratch, .G = a->Hq / a->Hkv, .Dp = block_padded(a->D)};
    b.rows = n * b.G;
    b.v_panels = b.k_panel + b.Dp * KEYS;
    b.staging = b.v_panels + b.Dp * KEYS;
    b.q = b.staging + b.Dp * KEYS;
    b.out = b.q + (size_t)b.rows * b.Dp;
    b.top = b.out + (size_t)b.rows * b.Dp;
    b.sum = b.top + b.rows;
    return b;
}

CPU_INLINE void softmax_body(float s[CPU_TILE][CPU_PANEL], const int32_t *visible, int32_t rows, float scale,
                             float *top, float *sum, float *shrink)
{
    for (int32_t r = 0; r < rows; r++) {
        if (visible[r] == 0) {
            memset(s[r], 0, sizeof s[r]);
            shrink[r] = 1;
            continue;
        }
        for (int32_t j = visible[r]; j < KEYS; j++)
            s[r][j] = -INFINITY;
        shrink[r] = cpu_softmax_block(s[r], KEYS, scale, &top[r], &sum[r]);
    }
}

CPU_INLINE void merge_body(float *out, size_t Dp, size_t d0, float part[CPU_TILE][CPU_PANEL], const float *shrink,
                           int32_t rows)
{
    for (int32_t r = 0; r < rows; r++) {
        float *to = out + (size_t)r * Dp + d0;
        for (int c = 0; c < CPU_PANEL; c++)
            to[c] = to[c] * shrink[r] + part[r][c];
    }
}

CPU_INSTANCES(softmax_tile,
              (float s[CPU_TILE][CPU_PANEL], const int32_t *visible, int32_t rows, float scale, float *top, float *sum,
               float *shrink),
              softmax_body(s, visible, rows, scale, top, sum, shrink))
CPU_INSTANCES(merge_tile,
              (float *out, size_t Dp, size_t d0, float part[CPU_TILE][CPU_PANEL], const float *shrink, int32_t rows),
              merge_body(out, Dp, d0, part, shrink, rows))

typedef struct tools {
    cpu_tile_fn tile;
    softmax_tile_fn softmax;
    merge_tile_fn merge;
} tools;

/* Rows [row0, row0 + rows) against the loaded block, of which row r sees visible[r] keys. */
static void attend_tile(const attend *a, const tools *f, const buffers *b, int32_t row0, int32_t rows,
                        const int32_t *visible, bool finite)
{
    float s[CPU_TILE][CPU_PANEL] __attribute__((aligned(64))), part[CPU_TILE][CPU_PANEL] __attribute__((aligned(64)));
    float shrink[CPU_TILE];
    size_t at = (size_t)row0;
    f->tile(b->q + at * b->Dp, b->Dp, b->k_panel, a->D, rows, s);
    f->softmax(s, visible, rows, a->scale, b->top + at, b->sum + at, shrink);
    for (size_t d = 0; d < b->Dp; d += CPU_PANEL) {
        if (finite)
            f->tile(s[0], CPU_PANEL, b->v_panels + d * KEYS, KEYS, rows, part);
        else /* 0 times infinity would reach rows that may not see it */
            for (int32_t r = 0; r < rows; r++)
                f->tile(s[r], CPU_PANEL, b->v_panels + d * KEYS, visible[r], 1, &part[r]);
        f->merge(b->out + at * b->Dp, b->Dp, d, part, shrink, rows);
    }
}

/* Entries [e0, e1) over rows 0 .. of kv; the k-th sees sees[k] of them (k from 0 for entry 0 of the slice). */
static void attend_rows(const attend *a, const tools *f, const buffers *b, const kve_kv *kv, int32_t h, int32_t e0,
                        int32_t e1, const int32_t *sees)
{
    block_rows keys, values;
    int32_t n_keys = 0;
    for (int32_t e = e0; e < e1; e++)
        n_keys = sees[e] > n_keys ? sees[e] : n_keys;
    if (n_keys == 0)
        return;
    keys = block_rows_of(kv, false, a->Hkv, a->D, a->i_layer, h, a->kv_dtype);
    values = block_rows_of(kv, true, a->Hkv, a->D, a->i_layer, h, a->kv_dtype);
    for (int32_t key0 = 0; key0 < n_keys; key0 += KEYS) {
        int32_t count = n_keys - key0 < KEYS ? n_keys - key0 : KEYS;
        block_load_keys(a->be->isa, &keys, key0, count, b->staging, b->k_panel);
        bool finite = block_load_values(a->be->isa, &values, key0, count, b->v_panels);
        for (int32_t r = e0 * b->G; r < e1 * b->G; r += CPU_TILE) {
            int32_t rows = e1 * b->G - r < CPU_TILE ? e1 * b->G - r : CPU_TILE, visible[CPU_TILE], any = 0;
            for (int32_t i = 0; i < rows; i++) {
                int32_t left = sees[(r + i) / b->G] - key0;
                visible[i] = left < 0 ? 0 : left < KEYS ? left : KEYS;
                any |= visible[i];
            }
            if (any)
                attend_tile(a, f, b, r, rows, visible, finite);
        }
    }
}

static void begin(const attend *a, int32_t h, const attend_entry *entries, int32_t n, const buffers *b)
{
    size_t D = (size_t)a->D;
    for (int32_t e = 0; e < n; e++)
        for (int32_t g = 0; g < b->G; g++) {
            const float *q = a->q + ((size_t)entries[e].row * (size_t)a->Hq + (size_t)(h * b->G + g)) * D;
            memcpy(b->q + ((size_t)e * (size_t)b->G + (size_t)g) * b->Dp, q, D * sizeof *q);
        }
    memset(b->out, 0, (size_t)b->rows * b->Dp * sizeof *b->out);
    for (int32_t r = 0; r < b->rows; r++) {
        b->top[r] = -INFINITY;
        b->sum[r] = 0;
    }
}

void attend_slice(const attend *a, const kve_kv *prefix, int32_t h, const attend_entry *entries, int32_t n,
                  int32_t worker)
{
    tools f = {cpu_tile(a->be->isa, KVE_F32), softmax_tile_pick(a->be->isa), merge_tile_pick(a->be->isa)};
    buffers b = carve(a, n, cpu_scratch(a->be, worker));
    int32_t sees[ATTEND_ENTRIES] = {0};
    begin(a, h, entries, n, &b);
    for (int32_t e = 0; e < n; e++)
        sees[e] = entries[e].sees_prefix;
    attend_rows(a, &f, &b, prefix, h, 0, n, sees);
    for (int32_t e = 0; e < n; e++)
        sees[e] = entries[e].sees_tail;
    for (int32_t e0 = 0, e1; e0 < n; e0 = e1) {
        for (e1 = e0 + 1; e1 < n && entries[e1].tail == entries[e0].tail; e1++)
            ;
        attend_rows(a, &f, &b, entries[e0].tail, h, e0, e1, sees);
    }
    for (int32_t r = 0; r < b.rows; r++) {
        float *to =
            a->out + ((size_t)entries[r / b.G].row * (size_t)a->Hq + (size_t)(h * b.G + r % b.G)) * (size_t)a->D;
        for (int32_t d = 0; d < a->D; d++)
            to[d] = b.out[(size_t)r * b.Dp + (size_t)d] / b.sum[r];
    }
}
