/* nvcuda::wmma for kernels that run on the host: fragment, fill_fragment, load_matrix_sync, store_matrix_sync, mma_sync
 * for half, bf16 (m16n16k16, m32n8k16, m8n32k16) and tf32 (m16n16k8). What a warp does together is in wmma.cpp.
 *
 * Which element of the matrix a lane holds in x[i] is ARBITRARY here: a permutation drawn from SIMT_WMMA_SEED (default
 * 1; 0 is plain order) for each type of fragment. It is no GPU's mapping, and a kernel that depends on one fails under
 * another seed. Half multiplicands hold more slots than elements, as the real ones do: some elements twice or more.
 *
 * mma_sync adds products to C in order of k, in float. A GPU adds in groups, in no documented order: compare with
 * tolerances. load, store and mma wait for the whole warp but order no memory: what one lane stores, another sees after
 * __syncwarp only. A new fragment is NaN. */
#ifndef KVE_TESTS_SIMT_WMMA_H
#define KVE_TESTS_SIMT_WMMA_H

#include "tests/simt/device.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* The kernel's accesses are inlined into it, so that the checker reports them at the kernel's line. */
#define SIMT_INLINED __attribute__((always_inline)) inline

namespace nvcuda
{
namespace wmma
{
struct row_major;
struct col_major;
struct matrix_a;
struct matrix_b;
struct accumulator;
namespace precision
{
struct tf32;
}
enum layout_t { mem_row_major, mem_col_major };

/* Ten bits of mantissa, nearest, ties away. */
inline float __float_to_tf32(float v)
{
    unsigned bits = simt::from_bits<unsigned>(simt::to_bits(v));
    if ((bits & 0x7f800000u) != 0x7f800000u)
        bits = (bits + 0x1000u) & ~0x1fffu;
    return simt::from_bits<float>(simt::to_bits(bits));
}
} // namespace wmma
} // namespace nvcuda

namespace simt
{
namespace fragments
{
enum class role : uint8_t { a, b, accumulator };
enum class element : uint8_t { half, bf16, tf32, f32 };
enum class major : uint8_t { none, row, column };

/* A fragment's type at run time. */
struct kind {
    role use;
    element type;
    major order;
    uint8_t m, n, k;
    uint16_t rows, columns, slots; /* of the matrix; slots of a lane */
};

template <class T> struct traits;
template <> struct traits<__half> {
    static constexpr element type = element::half;
    using storage = __half;
    static float up(storage v)
    {
        return __half2float(v);
    }
    static storage down(float v)
    {
        return __float2half_rn(v);
    }
};
template <> struct traits<__nv_bfloat16> {
    static constexpr element type = element::bf16;
    using storage = __nv_bfloat16;
    static float up(storage v)
    {
        return __bfloat162float(v);
    }
};
template <> struct traits<nvcuda::wmma::precision::tf32> {
    static constexpr element type = element::tf32;
    using storage = float;
    static float up(storage v)
    {
        return v; /* mma_sync looks at the bits itself */
    }
};
template <> struct traits<float> {
    static constexpr element type = element::f32;
    using storage = float;
    static float up(storage v)
    {
        return v;
    }
    static storage down(float v)
    {
        return v;
    }
};

template <class Layout> struct order_of {
    static constexpr major value = major::none;
};
template <> struct order_of<nvcuda::wmma::row_major> {
    static constexpr major value = major::row;
};
template <> struct order_of<nvcuda::wmma::col_major> {
    static constexpr major value = major::column;
};

/* Exactly the fragments that mma.h defines for these types. */
constexpr bool exists(role use, int m, int n, int k, element t, major order)
{
    bool shape16 = k == 16 && ((m == 16 && n == 16) || (m == 32 && n == 8) || (m == 8 && n == 32));
    bool shape8 = k == 8 && m == 16 && n == 16;
    if (use == role::accumulator)
        return order == major::none &&
               ((shape16 && (t == element::f32 || t == element::half)) || (shape8 && t == element::f32));
    return order != major::none &&
           ((shape16 && (t == element::bf16 || t == element::half)) || (shape8 && t == element::tf32));
}

template <role use, int m, int n, int k, class T, class Layout> struct base {
    static constexpr element type = traits<T>::type;
    static constexpr major order = order_of<Layout>::value;
    static_assert(exists(use, m, n, k, type, order), "there is no such wmma fragment");
    static constexpr int rows = use == role::b ? k : m, columns = use == role::a ? k : n;
    enum {
        num_elements = use != role::accumulator && type == element::half ? 16 : rows * columns / 32,
        num_storage_elements = num_elements
    };
    static constexpr kind shape = {use, type, order, m, n, k, rows, columns, num_elements};
    using element_type = T;
    using storage_element_type = typename traits<T>::storage;
    storage_element_type x[num_storage_elements];

    SIMT_INLINED base()
    {
        memset(static_cast<void *>(x), 0xff, sizeof x);
    }
};

/* --- wmma.cpp */

/* What a lane brings to a collective; all 32 must bring the same. */
struct request {
    const char *op;
    kind shape;
    const void *p;
    unsigned ldm;
    int layout; /* -1: the fragment's own */
};
void meet(const request &r, place at);
/* Pointer and leading dimension against what the hardware asks for. */
void check_memory(const request &r, unsigned element_bytes, bool store, place at);
/* The element (row-major index) of each slot of this lane; slot i of lane l is entry l * slots + i of the permutation.
 * Values of rows * columns and more are further copies of the same elements. */
const uint16_t *slots_of(const kind &shape);
/* d = a b + c over the warp; each holds this lane's slots. A half accumulator is rounded by the caller. */
void multiply(const kind &a_shape, const float *a, const kind &b_shape, const float *b, const kind &c_shape,
              const float *c, const kind &d_shape, float *d, place at);

/* Element e of the matrix in memory. */
SIMT_INLINED size_t offset_of(int e, int columns, unsigned ldm, bool row_order)
{
    size_t row = static_cast<size_t>(e / columns), column = static_cast<size_t>(e % columns);
    return row_order ? row * ldm + column : column * ldm + row;
}

template <class F, class S> SIMT_INLINED void load(F &f, const S *p, unsigned ldm, bool row_order, int layout, place at)
{
    const request r = {"load_matrix_sync", F::shape, p, ldm, layout};
    check_memory(r, sizeof(S), false, at);
    meet(r, at);
    const uint16_t *slots = slots_of(F::shape);
    for (int i = 0; i < F::num_elements; i++)
        f.x[i] = p[offset_of(slots[i] % (F::rows * F::columns), F::columns, ldm, row_order)];
}

template <class F, class S> SIMT_INLINED void store(S *p, const F &f, unsigned ldm, int layout, place at)
{
    const request r = {"store_matrix_sync", F::shape, p, ldm, layout};
    check_memory(r, sizeof(S), true, at);
    meet(r, at);
    const uint16_t *slots = slots_of(F::shape);
    for (int i = 0; i < F::num_elements; i++)
        p[offset_of(slots[i], F::columns, ldm, layout == nvcuda::wmma::mem_row_major)] = f.x[i];
}

template <class F> SIMT_INLINED void widen(const F &f, float *out)
{
    for (int i = 0; i < F::num_elements; i++)
        out[i] = traits<typename F::element_type>::up(f.x[i]);
}
} // namespace fragments
} // namespace simt

namespace nvcuda
{
namespace wmma
{
template <class Use, int m, int n, int k, class T, class Layout = void> class fragment;
template <int m, int n, int k, class T, class Layout>
class fragment<matrix_a, m, n, k, T, Layout>
    : public simt::fragments::base<simt::fragments::role::a, m, n, k, T, Layout>
{
};
template <int m, int n, int k, class T, class Layout>
class fragment<matrix_b, m, n, k, T, Layout>
    : public simt::fragments::base<simt::fragments::role::b, m, n, k, T, Layout>
{
};
template <int m, int n, int k, class T>
class fragment<accumulator, m, n, k, T>
    : public simt::fragments::base<simt::fragments::role::accumulator, m, n, k, T, void>
{
};

template <simt::fragments::role use, int m, int n, int k, class T, class Layout>
SIMT_INLINED void fill_fragment(simt::fragments::base<use, m, n, k, T, Layout> &f,
                                const typename simt::fragments::traits<T>::storage &v)
{
    const auto value = v; /* v may be an element of f */
    for (auto &e : f.x)
        e = value;
}

template <class Use, int m, int n, int k, class T, class Layout>
SIMT_INLINED void load_matrix_sync(fragment<Use, m, n, k, T, Layout> &f,
                                   const typename simt::fragments::traits<T>::storage *p, unsigned ldm, SIMT_HERE)
{
    using simt::fragments::major;
    constexpr major order = fragment<Use, m, n, k, T, Layout>::order;
    static_assert(order != major::none, "an accumulator is loaded with a layout");
    simt::fragments::load(f, p, ldm, order == major::row, -1, at_);
}

template <int m, int n, int k, class T>
SIMT_INLINED void load_matrix_sync(fragment<accumulator, m, n, k, T> &f, const T *p, unsigned ldm, layout_t layout,
                                   SIMT_HERE)
{
    simt::fragments::load(f, p, ldm, layout == mem_row_major, layout, at_);
}

template <int m, int n, int k, class T>
SIMT_INLINED void store_matrix_sync(T *p, const fragment<accumulator, m, n, k, T> &f, unsigned ldm, layout_t layout,
                                    SIMT_HERE)
{
    simt::fragments::store(p, f, ldm, layout, at_);
}

template <int m, int n, int k, class T, class LayoutA, class LayoutB, class C, class D>
SIMT_INLINED void mma_sync(fragment<accumulator, m, n, k, D> &d, const fragment<matrix_a, m, n, k, T, LayoutA> &a,
                           const fragment<matrix_b, m, n, k, T, LayoutB> &b, const fragment<accumulator, m, n, k, C> &c,
                           SIMT_HERE)
{
    static_assert(std::is_same<T, __half>::value || (std::is_same<C, float>::value && std::is_same<D, float>::value),
                  "bf16 and tf32 have float accumulators only");
    float wide_a[16], wide_b[16], wide_c[16], result[16];
    simt::fragments::widen(a, wide_a);
    simt::fragments::widen(b, wide_b);
    simt::fragments::widen(c, wide_c);
    simt::fragments::multiply(a.shape, wide_a, b.shape, wide_b, c.shape, wide_c, d.shape, result, at_);
    for (int i = 0; i < d.num_elements; i++)
        d.x[i] = simt::fragments::traits<D>::down(result[i]);
}
} // namespace wmma
} // namespace nvcuda

#undef SIMT_INLINED
#endif
