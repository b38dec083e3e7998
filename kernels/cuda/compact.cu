/* Moving cache rows: out of place in ranked order (gather) and in place (compact). Contracts: kernels/ops.h; twin:
 * kernels/cpu/compact.c. Rows move as 16-byte words where a row is a multiple of 16 bytes, else as 2-byte words.
 * gather: one block per 8 rows and head, all layers of the call in one launch (a head beyond Hkv is one of the next
 * layer, in the cache and in the order). compact: one block per head walks its rows in tiles: a tile is read into
 * shared memory as a whole before any of it is written, and since keep[] ascends strictly (keep[r] >= r) no later tile
 * reads what an earlier one wrote. bytes: every kept row is read and written once. */
#include "kernels/cuda/prim.cuh"

enum { THREADS = 256, ROWS = 8, TILE_BYTES = 32 * 1024 };

/* Both kernels exist for 16-byte and for 2-byte words; `words` are those of one row. */
template <class W> static __global__ void __launch_bounds__(THREADS) gather_kernel(kve_gather_params p, int32_t words)
{
    int32_t h = blockIdx.y;
    const int32_t *order = p.order + static_cast<size_t>(h) * p.order_stride;
    int32_t r0 = blockIdx.x * ROWS, count = p.counts ? p.counts[h] : p.count,
            n = min(static_cast<int32_t>(ROWS), count - r0);
    for (int32_t i = threadIdx.x; i < n * words; i += blockDim.x) {
        int32_t r = r0 + i / words, word = i % words;
        size_t from = kv_row(p.from.cap, p.Hkv, 1, p.i_layer, h, order[r]) * words + word;
        size_t to = kv_ragged_row(p.to, p.Hkv, 1, p.i_layer, h, r) * words + word;
        static_cast<W *>(p.to.k)[to] = static_cast<const W *>(p.from.k)[from];
        static_cast<W *>(p.to.v)[to] = static_cast<const W *>(p.from.v)[from];
    }
}

kve_status cuda_gather(kve_backend *be, const kve_gather_params *p)
{
    int32_t row_bytes = p->D * static_cast<int32_t>(kve_dtype_bytes(p->kv_dtype));
    if (p->count == 0 || p->n_layers == 0)
        return KVE_OK;
    dim3 grid((p->count + ROWS - 1) / ROWS, p->n_layers * p->Hkv);
    if (row_bytes % 16 == 0)
        KVE_LAUNCH(gather_kernel<uint4>, grid, THREADS, 0, cuda_of(be)->stream, *p, row_bytes / 16);
    else
        KVE_LAUNCH(gather_kernel<uint16_t>, grid, THREADS, 0, cuda_of(be)->stream, *p, row_bytes / 2);
    CUDA_LAUNCHED("gather");
    return KVE_OK;
}

template <class W> __device__ static W all_bits();
template <> __device__ uint4 all_bits<uint4>()
{
    return make_uint4(0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu);
}
template <> __device__ uint16_t all_bits<uint16_t>()
{
    return 0xffff;
}

template <class W> static __global__ void __launch_bounds__(THREADS) compact_kernel(kve_compact_params p, int32_t words)
{
    KVE_DYN_SHARED(W, tile);
    int32_t h = blockIdx.x, kept = p.keep_len[h], rows_in_tile = static_cast<int32_t>(TILE_BYTES / (words * sizeof(W)));
    const int32_t *keep = p.keep + static_cast<size_t>(h) * p.keep_stride;
    W *base = static_cast<W *>(blockIdx.y ? p.kv.v : p.kv.k) + kv_row(p.kv.cap, p.Hkv, 1, p.i_layer, h, 0) * words;
    for (int32_t r0 = 0; r0 < kept; r0 += rows_in_tile) {
        int32_t n = min(rows_in_tile, kept - r0) * words;
        for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
            tile[i] = base[static_cast<size_t>(keep[r0 + i / words]) * words + i % words];
        __syncthreads(); /* the tile is complete before a row of it may be overwritten */
        for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
            base[static_cast<size_t>(r0) * words + i] = tile[i];
        __syncthreads(); /* and written before the next one is read into the same memory */
    }
    size_t end = static_cast<size_t>(p.n) * words;
    for (size_t i = static_cast<size_t>(kept) * words + threadIdx.x; i < end; i += blockDim.x)
        base[i] = all_bits<W>(); /* a NaN in fp32 and in bf16 */
}

kve_status cuda_compact(kve_backend *be, const kve_compact_params *p)
{
    int32_t row_bytes = p->D * static_cast<int32_t>(kve_dtype_bytes(p->kv_dtype));
    dim3 grid(p->Hkv, 2);
    if (p->Hkv == 0)
        return KVE_OK;
    if (row_bytes % 16 == 0)
        KVE_LAUNCH(compact_kernel<uint4>, grid, THREADS, TILE_BYTES, cuda_of(be)->stream, *p, row_bytes / 16);
    else
        KVE_LAUNCH(compact_kernel<uint16_t>, grid, THREADS, TILE_BYTES, cuda_of(be)->stream, *p, row_bytes / 2);
    CUDA_LAUNCHED("compact");
    return KVE_OK;
}
