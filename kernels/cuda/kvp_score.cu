/* The learned policy's scores, fused: K and V go in, scores come out. Contract: kernels/ops.h kvp_score; tensors:
 * kernels/kvp.h; body: kvp_group.cuh; arithmetic: kvp_product.cuh; twin: kernels/cpu/kvp_score.c.
 *
 * One launch scores all layers and heads of a call: blockIdx.y is the head, blockIdx.x a share of its rows. A GROUP of
 * WC warps takes 16 RT rows through the whole network; each of its warps owns 16 CT columns of a layer, so a group
 * holds whole rows and LayerNorm needs nobody else. A row never meets another row, and the order of its sums follows
 * from the shape alone: the same bits in any call and grid.
 *
 * One kernel, two kinds of arithmetic, by the element E of matrices and activations in shared memory:
 *
 *   bf16   tensor cores: bf16 caches, from compute capability 8 on
 *   float  fused multiply-adds: f32 caches, and bf16 caches where the first cannot run (an older device, too little
 *          shared memory); it then rounds its operands to bf16, so the contract is the same
 *
 * For a bf16 cache a small launch before rounds the call's matrices once, so that every block copies without rounding.
 *
 * Matrices: a narrow network (H <= 64, bf16) keeps all four in shared memory (RESIDENT), and its warps walk over the
 * rows without a barrier. Otherwise they stream: chunks of DEPTH columns in two buffers, the next chunk on its way in
 * registers while this one is multiplied. One barrier a chunk is enough: who overwrites a buffer has passed the barrier
 * behind its last read, and the same barrier shows the new chunk to all. Columns from H on are zeros.
 *
 * Blocks have at most 256 threads, one to a processor: 254 registers where H is wide, no spills. Shared memory with
 * D = 128, P = 32; a device with less gets fewer groups:
 *
 *   H 64   bf16   matrices 66 KiB, 14 KiB for a warp's 32 rows; 8 warps 178 KiB
 *   H 256  bf16   two chunks 40 KiB, 39 KiB for a group's 32 rows; 4 groups of 2 warps 194 KiB, at least 3
 *          float  two chunks 24 KiB, 35 KiB for a group's 16 rows: one group runs in 64 KiB
 *
 * Activations are one array x of 2H + P (or H + D) elements a row: the raw key or value stands at H, its feature at 0
 * or H, the position at 2H; hidden layers overwrite the front. Before a product all of x is written, after it all of x
 * is read: by the stream's first and last barrier, or by __syncwarp where the group is one warp.
 *
 * bytes: K and V once, the matrices once per block (L2); flops: 2 H (2 D + 3 H + P) a row. Qwen2.5-7B (28 layers, 4
 * heads, D 128), 4,096 tokens, H200 (4.3 TB/s, 790 TFLOP/s): H 64 moves 235 MB (0.055 ms) and multiplies 28 GFLOP
 * (0.036 ms); H 256 multiplies 248 GFLOP (0.31 ms) and moves its matrices 32 times out of L2 (2 GB). Goals: 0.08 and
 * 0.6 ms; not measured yet. */
#include "kernels/cuda/kvp_group.cuh"

enum { MAX_THREADS = 256, ALIGN = 32 };

template <class E, int RT, int CT, int WC, bool RESIDENT>
static __global__ void __launch_bounds__(MAX_THREADS, 1) kvp_kernel(const __grid_constant__ kvp_call c)
{
    if constexpr (!IS_BF16<E> || TENSOR_CORES) {
        KVE_DYN_SHARED(unsigned char, raw);
        unsigned char *memory = raw + (ALIGN - reinterpret_cast<uintptr_t>(raw) % ALIGN) % ALIGN;
        kvp_group<E, RT, CT, WC, RESIDENT> g(c, memory);
        const int groups = blockDim.x / g.LANES, mine = threadIdx.x / g.LANES, n_tiles = (c.p.n + g.ROWS - 1) / g.ROWS;
        const int first = blockIdx.x * c.tiles, last = min(first + c.tiles, n_tiles);
        if constexpr (RESIDENT) {
            g.load_matrices();
            __syncthreads();
        }
        /* with barriers inside, groups without rows go along */
        for (int tile = first; tile < last && (!RESIDENT || tile + mine < last); tile += groups) {
            g.row0 = (tile + mine) * g.ROWS;
            g.forward();
        }
    }
}

/* All blobs of the call as E, rounded to bf16. */
template <class E>
static __global__ void __launch_bounds__(MAX_THREADS) round_kernel(const float *in, E *out, size_t count)
{
    const size_t step = 4 * static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = 4 * (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x); i < count; i += step) {
        const float4 x = *reinterpret_cast<const float4 *>(in + i);
        const float v[4] = {x.x, x.y, x.z, x.w};
        reinterpret_cast<quad<E> *>(out)[i / 4] = pack<E>(v, true);
    }
}

template <class E> static kve_status round_matrices(cuda_backend *c, kvp_call *call, int32_t heads)
{
    const size_t count = call->count * static_cast<size_t>(heads);
    KVE_TRY(cuda_scratch(c, count * sizeof(E)));
    KVE_LAUNCH(round_kernel<E>, 4 * c->n_processors, MAX_THREADS, 0, c->stream, call->p.weights,
               static_cast<E *>(c->scratch), count);
    CUDA_LAUNCHED("kvp_score: rounding");
    call->matrices = c->scratch;
    return KVE_OK;
}

/* Launches this kind where its shared memory fits in `limit` bytes; tells whether it does. */
template <class E, int RT, int CT, int WC, bool RESIDENT>
static kve_status launch(cuda_backend *c, kvp_call call, int32_t limit, bool *fits)
{
    using group_type = kvp_group<E, RT, CT, WC, RESIDENT>;
    const kve_kvp_score_params &p = call.p;
    const int32_t heads = p.n_layers * p.Hkv, mixed = 2 * p.H + p.P, pad = VEC<E>, cols = group_type::COLS;
    const int32_t elements = RESIDENT ? 2 * (p.D + pad) + mixed + pad + p.H + pad : 2 * group_type::CHUNK_LD;
    const int32_t fewest =
        RESIDENT ? 1 : (group_type::CHUNK_VECS + HELD<E> * group_type::LANES - 1) / (HELD<E> * group_type::LANES);
    call.ldx = (mixed > p.H + p.D ? mixed : p.H + p.D) + pad;
    call.matrix_bytes = cols * elements * static_cast<int32_t>(sizeof(E));
    call.group_bytes = group_type::bytes(call.ldx);
    int32_t groups = (limit - ALIGN - call.matrix_bytes) / call.group_bytes;
    groups = groups < MAX_THREADS / group_type::LANES ? groups : MAX_THREADS / group_type::LANES;
    *fits = groups >= fewest;
    if (!*fits)
        return KVE_OK;
    if (p.kv_dtype == KVE_BF16)
        KVE_TRY(round_matrices<E>(c, &call, heads));

    /* Eight blocks a processor even out the end; a resident one should pay for its matrices with whole passes. */
    const int32_t n_tiles = (p.n + group_type::ROWS - 1) / group_type::ROWS;
    const int32_t shares = RESIDENT ? (8 * c->n_processors + heads - 1) / heads : n_tiles;
    const int32_t passes = (n_tiles + shares * groups - 1) / (shares * groups);
    call.tiles = passes * groups;
    const int32_t shared = ALIGN + call.matrix_bytes + groups * call.group_bytes;
    CUDA_TRY(
        cudaFuncSetAttribute(kvp_kernel<E, RT, CT, WC, RESIDENT>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    KVE_LAUNCH((kvp_kernel<E, RT, CT, WC, RESIDENT>), dim3((n_tiles + call.tiles - 1) / call.tiles, heads),
               groups * group_type::LANES, shared, c->stream, call);
    CUDA_LAUNCHED("kvp_score");
    return KVE_OK;
}

static kve_status check(const kve_kvp_score_params *p, int32_t heads)
{
    if (!kve_kvp_is_legal({p->D, p->H, p->P}))
        return kve_fail(KVE_ERR_USAGE,
                        "cuda: kvp_score with D = %d, H = %d, P = %d; all are multiples of 16, D up to %d, H up to %d, "
                        "P up to %d",
                        p->D, p->H, p->P, static_cast<int>(KVE_KVP_MAX_D), static_cast<int>(KVE_KVP_MAX_H),
                        static_cast<int>(KVE_KVP_MAX_P));
    if ((p->inputs & KVE_KVP_POS) && ((p->n_tables != 1 && p->n_tables != heads) || p->n_positions < 1))
        return kve_fail(KVE_ERR_USAGE,
                        "cuda: kvp_score with %d position tables of %d rows for %d heads; give 1 table or one per "
                        "head, of at least one row",
                        p->n_tables, p->n_positions, heads);
    return KVE_OK;
}

kve_status cuda_kvp_score(kve_backend *be, const kve_kvp_score_params *p)
{
    cuda_backend *c = cuda_of(be);
    const kve_kvp_shape s = {p->D, p->H, p->P};
    kvp_call call = {};
    bool fits = false;
    int device = 0, limit = 0;
    KVE_TRY(check(p, p->n_layers * p->Hkv));
    if (p->n == 0 || p->n_layers == 0 || p->Hkv == 0)
        return KVE_OK;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    call.p = *p;
    call.matrices = p->weights;
    call.count = kve_kvp_count(s);
    for (int t = 0; t < KVE_KVP_TENSORS; t++)
        call.at[t] = static_cast<int32_t>(kve_kvp_offset(s, static_cast<kve_kvp_tensor>(t)));
    /* What the kernel was compiled for decides, not the device: PTX for older ones has no tensor cores. Where nvcc did
     * not compile it (tests/simt) the version is 0. */
    cudaFuncAttributes attributes;
    CUDA_TRY(cudaFuncGetAttributes(&attributes, kvp_kernel<bf16, 2, 4, 1, true>));
    const bool narrow = p->H <= 64, tensor_cores = attributes.ptxVersion == 0 || attributes.ptxVersion >= 80;
    kve_status st = KVE_OK;
    if (p->kv_dtype == KVE_BF16 && tensor_cores)
        st = narrow ? launch<bf16, 2, 4, 1, true>(c, call, limit, &fits)
                    : launch<bf16, 2, 8, 2, false>(c, call, limit, &fits);
    if (st != KVE_OK || fits)
        return st;
    call.round = p->kv_dtype == KVE_BF16;
    st = narrow ? launch<float, 1, 2, 2, false>(c, call, limit, &fits)
                : launch<float, 1, 8, 2, false>(c, call, limit, &fits);
    if (st == KVE_OK && !fits)
        return kve_fail(KVE_ERR_USAGE,
                        "cuda: kvp_score with D = %d, H = %d, P = %d does not fit into the %d bytes of shared memory "
                        "that a block of this device may have; score on the cpu",
                        p->D, p->H, p->P, limit);
    return st;
}
