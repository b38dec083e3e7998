/* nvcuda::wmma: every shape and type against plain loops, and a tiled product that uses it the way a kernel does. The
 * same file compiles with nvcc. */
#include "tests/simt/test.h"

#include <mma.h>

#include <math.h>

using namespace nvcuda;
using bf16 = __nv_bfloat16;

/* --- One warp, one product of each kind: D = 2 A B + C */

template <int m, int n, int k, class T, class S, class LayoutA, class LayoutB, class C, class D>
static __global__ void product_kernel(const S *a, const S *b, const C *c, D *d, unsigned lda, unsigned ldb,
                                      wmma::layout_t layout_c, wmma::layout_t layout_d)
{
    wmma::fragment<wmma::matrix_a, m, n, k, T, LayoutA> fa;
    wmma::fragment<wmma::matrix_b, m, n, k, T, LayoutB> fb;
    wmma::fragment<wmma::accumulator, m, n, k, C> fc;
    wmma::fragment<wmma::accumulator, m, n, k, D> fd;
    wmma::load_matrix_sync(fa, a, lda);
    wmma::load_matrix_sync(fb, b, ldb);
    wmma::load_matrix_sync(fc, c, 48, layout_c);
    if constexpr (std::is_same<S, float>::value) {
        for (int i = 0; i < fa.num_elements; i++)
            fa.x[i] = wmma::__float_to_tf32(fa.x[i]);
        for (int i = 0; i < fb.num_elements; i++)
            fb.x[i] = wmma::__float_to_tf32(fb.x[i]);
    }
    for (int i = 0; i < fa.num_elements; i++)
        fa.x[i] = fa.x[i] + fa.x[i];
    wmma::mma_sync(fd, fa, fb, fc);
    wmma::store_matrix_sync(d, fd, 48, layout_d);
}

/* Small multiples of 1/4: exact in every type and sum. */
template <class S> static std::vector<S> quarters(size_t n)
{
    std::vector<S> v(n);
    for (S &x : v)
        x = static_cast<S>(static_cast<float>(test_random(17) - 8) / 4.0f);
    return v;
}

template <class L> constexpr bool is_row = std::is_same<L, wmma::row_major>::value;

template <int m, int n, int k, class T, class S, class LayoutA, class LayoutB, class C, class D>
static void test_product(wmma::layout_t layout_c, wmma::layout_t layout_d)
{
    constexpr int ld = 48;
    std::vector<S> a = quarters<S>(ld * 48), b = quarters<S>(ld * 48);
    std::vector<C> c = quarters<C>(ld * 48);
    device_array<S> da(a), db(b);
    device_array<C> dc(c);
    device_array<D> dd(std::vector<D>(size_t{ld * 48}, static_cast<D>(-99.0f)));
    KVE_LAUNCH((product_kernel<m, n, k, T, S, LayoutA, LayoutB, C, D>), 1, 32, 0, nullptr, da.p, db.p, dc.p, dd.p,
               static_cast<unsigned>(ld), static_cast<unsigned>(ld), layout_c, layout_d);
    std::vector<D> got = dd.values();
    auto at = [](int row, int column, bool row_order) {
        return static_cast<size_t>(row_order ? row * ld + column : column * ld + row);
    };
    int wrong = 0, untouched = 0;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = static_cast<double>(static_cast<float>(c[at(i, j, layout_c == wmma::mem_row_major)]));
            for (int p = 0; p < k; p++)
                sum += 2 * static_cast<double>(static_cast<float>(a[at(i, p, is_row<LayoutA>)])) *
                       static_cast<double>(static_cast<float>(b[at(p, j, is_row<LayoutB>)]));
            wrong += static_cast<double>(static_cast<float>(got[at(i, j, layout_d == wmma::mem_row_major)])) != sum;
        }
    for (const D &v : got)
        untouched += static_cast<float>(v) == -99.0f;
    CHECK(wrong == 0);
    CHECK(untouched == ld * 48 - m * n);
}

/* The layouts of multiplicands and accumulators, on one shape; the other shapes have one combination each. */
template <class T> static void test_layouts()
{
    using row = wmma::row_major;
    using column = wmma::col_major;
    test_product<16, 16, 16, T, T, row, column, float, float>(wmma::mem_row_major, wmma::mem_row_major);
    test_product<16, 16, 16, T, T, column, row, float, float>(wmma::mem_col_major, wmma::mem_row_major);
    test_product<16, 16, 16, T, T, row, row, float, float>(wmma::mem_row_major, wmma::mem_col_major);
}

template <int m, int n, int k, class T, class S> static void test_shape()
{
    test_product<m, n, k, T, S, wmma::row_major, wmma::col_major, float, float>(wmma::mem_row_major,
                                                                                wmma::mem_row_major);
}

static void test_half_accumulators()
{
    using row = wmma::row_major;
    using column = wmma::col_major;
    test_product<16, 16, 16, __half, __half, column, column, __half, float>(wmma::mem_row_major, wmma::mem_row_major);
    test_product<16, 16, 16, __half, __half, row, column, float, __half>(wmma::mem_row_major, wmma::mem_row_major);
}

/* --- A tiled product: C [64][64] = A [64][K] B^T [64][K], two warps of 32 rows each, tiles of 16 columns of K in
 * shared memory, rows apart by more than a tile */

enum { SIDE = 64, K = 48, TILE = 16, APART = 24 };

static __global__ void tiled_kernel(const bf16 *a, const bf16 *b, float *c)
{
    __shared__ __align__(32) bf16 tile_a[SIDE * APART], tile_b[SIDE * APART];
    int first_row = static_cast<int>(threadIdx.x) / 32 * 32;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[2][4];
    for (auto &row : sums)
        for (auto &f : row)
            wmma::fill_fragment(f, 0.0f);
    for (int k0 = 0; k0 < K; k0 += TILE) {
        for (int i = static_cast<int>(threadIdx.x); i < SIDE * TILE; i += static_cast<int>(blockDim.x)) {
            tile_a[i / TILE * APART + i % TILE] = a[i / TILE * K + k0 + i % TILE];
            tile_b[i / TILE * APART + i % TILE] = b[i / TILE * K + k0 + i % TILE];
        }
        __syncthreads();
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 4; j++) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> fa;
                wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::col_major> fb;
                wmma::load_matrix_sync(fa, tile_a + (first_row + 16 * i) * APART, APART);
                wmma::load_matrix_sync(fb, tile_b + 16 * j * APART, APART);
                wmma::mma_sync(sums[i][j], fa, fb, sums[i][j]);
            }
        __syncthreads();
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            wmma::store_matrix_sync(c + (first_row + 16 * i) * SIDE + 16 * j, sums[i][j], SIDE, wmma::mem_row_major);
}

static void test_tiled()
{
    std::vector<bf16> a = quarters<bf16>(SIDE * K), b = quarters<bf16>(SIDE * K);
    device_array<bf16> da(a), db(b);
    device_array<float> dc(SIDE * SIDE);
    KVE_LAUNCH(tiled_kernel, 1, 64, 0, nullptr, da.p, db.p, dc.p);
    std::vector<float> got = dc.values();
    int wrong = 0;
    for (size_t i = 0; i < SIDE; i++)
        for (size_t j = 0; j < SIDE; j++) {
            double sum = 0;
            for (size_t p = 0; p < K; p++)
                sum += static_cast<double>(__bfloat162float(a[i * K + p])) *
                       static_cast<double>(__bfloat162float(b[j * K + p]));
            wrong += static_cast<double>(got[i * SIDE + j]) != sum;
        }
    CHECK(wrong == 0);
}

static __global__ void fresh_kernel(float *out)
{
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> f;
    wmma::store_matrix_sync(out, f, 16, wmma::mem_row_major);
}

/* A forgotten fill_fragment shows. */
static void test_fresh()
{
    device_array<float> out(256);
    KVE_LAUNCH(fresh_kernel, 1, 32, 0, nullptr, out.p);
    bool all_nan = true;
    for (float v : out.values())
        all_nan = all_nan && isnan(v);
    CHECK(all_nan);
}

void run_tests()
{
    test_layouts<bf16>();
    test_layouts<__half>();
    test_half_accumulators();
    test_shape<32, 8, 16, bf16, bf16>();
    test_shape<8, 32, 16, bf16, bf16>();
    test_shape<32, 8, 16, __half, __half>();
    test_shape<8, 32, 16, __half, __half>();
    test_shape<16, 16, 8, wmma::precision::tf32, float>();
    test_tiled();
    test_fresh();
}
