/* What the lanes of a warp do together in nvcuda::wmma. See wmma.h. */
#include "tests/simt/wmma.h"
#include "tests/simt/block.h"

#include <stdarg.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace simt
{
namespace fragments
{
enum { MAX_SLOTS = 16 * WARP_LANES };

/* Each lane's last request; n counts its requests. */
struct posted {
    request r;
    place at;
    uint64_t n;
};
static posted requests[MAX_WARPS][WARP_LANES];

/* Operands of mma_sync in matrix order, by copy. Two sets: a fast lane may begin the next product while a slow one
 * reads this one's. */
struct operands {
    float a[MAX_SLOTS], b[MAX_SLOTS], c[MAX_SLOTS];
};
static operands staged[2][MAX_WARPS];

static void print_request(int lane, const posted &q)
{
    static const char *const uses[] = {"matrix_a", "matrix_b", "accumulator"}, *const types[] = {"half", "bf16", "tf32",
                                                                                                 "float"};
    static const char *const orders[] = {"", ", row_major", ", col_major"};
    const kind &s = q.r.shape;
    fprintf(stderr, "  lane %d: %s of <%s, %d, %d, %d, %s%s>, pointer %p, ldm %u, layout %d, at %s:%d\n", lane, q.r.op,
            uses[static_cast<int>(s.use)], s.m, s.n, s.k, types[static_cast<int>(s.type)],
            orders[static_cast<int>(s.order)], q.r.p, q.r.ldm, q.r.layout, q.at.file, q.at.line);
}

/* Lanes that ask for the same thing post the same number. */
static uint64_t digest(const request &r, place at)
{
    uint64_t h = 0;
    for (uint64_t v : {reinterpret_cast<uint64_t>(r.op), reinterpret_cast<uint64_t>(r.p), uint64_t{r.ldm},
                       static_cast<uint64_t>(r.layout + 1), static_cast<uint64_t>(at.line),
                       uint64_t{r.shape.m} << 24 | uint64_t{r.shape.n} << 16 | uint64_t{r.shape.k} << 8 |
                           static_cast<uint64_t>(r.shape.use) << 6 | static_cast<uint64_t>(r.shape.type) << 3 |
                           static_cast<uint64_t>(r.shape.order)}) {
        h = (h ^ v) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

void meet(const request &r, place at)
{
    cuda_thread &me = *the_block.current;
    posted *lanes = requests[me.warp];
    lanes[me.lane] = {r, at, lanes[me.lane].n + 1};
    unsigned alive = the_block.warps[me.warp].alive;
    unsigned same = static_cast<unsigned>(warp_meet(warp_op::match, ~0u, digest(r, at), 0, at));
    if (same == ~0u)
        return;
    if ((same | ~alive) == ~0u)
        fault("%s at %s:%d needs all 32 lanes of the warp; lanes %08x have returned or do not exist", r.op, at.file,
              at.line, ~alive);
    int other = __builtin_ctz(~same & alive);
    fprintf(stderr, "simt: the lanes of a warp disagree:\n");
    print_request(me.lane, lanes[me.lane]);
    print_request(other, lanes[other]);
    fault("%s at %s:%d: type, pointer, ldm, layout and place must be the same in all 32 lanes", r.op, at.file, at.line);
}

void check_memory(const request &r, unsigned element_bytes, bool store, place at)
{
    bool rows_side_by_side = r.layout < 0 ? r.shape.order == major::row : r.layout == nvcuda::wmma::mem_row_major;
    unsigned side = rows_side_by_side ? r.shape.columns : r.shape.rows;
    if (reinterpret_cast<uintptr_t>(r.p) % 32 != 0)
        fault("%s at %s:%d: the pointer %p is no multiple of 32 bytes", r.op, at.file, at.line, r.p);
    if (r.ldm * element_bytes % 16 != 0)
        fault("%s at %s:%d: ldm %u is no multiple of 16 bytes (%u elements)", r.op, at.file, at.line, r.ldm,
              16 / element_bytes);
    if (store && r.ldm < side)
        fault("%s at %s:%d: ldm %u, but %u elements are stored side by side", r.op, at.file, at.line, r.ldm, side);
}

/* --- The mapping of elements to lanes */

/* In the program's image, where kernels may read. */
struct mapping {
    uint16_t slots[MAX_SLOTS];
};
static mapping mappings[64];

static void permute(uint16_t *slots, const kind &shape, uint64_t seed)
{
    size_t n = size_t{shape.slots} * WARP_LANES;
    std::iota(slots, slots + n, uint16_t{0});
    uint64_t state = seed * 0x9e3779b97f4a7c15u + uint64_t{shape.m} * 1000003u + uint64_t{shape.k} * 10007u +
                     static_cast<uint64_t>(shape.use) * 101u + static_cast<uint64_t>(shape.type) * 11u +
                     static_cast<uint64_t>(shape.order);
    for (size_t i = n; seed != 0 && i > 1; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        std::swap(slots[i - 1], slots[(state >> 33) % i]);
    }
}

const uint16_t *slots_of(const kind &shape)
{
    using key = std::tuple<role, element, major, int, int>;
    static std::map<key, uint16_t *> known;
    static const char *text = getenv("SIMT_WMMA_SEED");
    uint16_t *&slots = known[{shape.use, shape.type, shape.order, shape.m, shape.k}];
    if (!slots) {
        if (known.size() > std::size(mappings))
            fault("more than %zu kinds of fragments", std::size(mappings));
        slots = mappings[known.size() - 1].slots;
        permute(slots, shape, text ? strtoull(text, nullptr, 10) : 1);
    }
    return slots + static_cast<size_t>(the_block.current->lane) * shape.slots;
}

/* --- mma_sync */

static void require_tf32(const kind &shape, const float *x, place at)
{
    for (int i = 0; shape.type == element::tf32 && the_settings().strict && i < shape.slots; i++)
        if (to_bits(x[i]) != to_bits(nvcuda::wmma::__float_to_tf32(x[i])))
            fault("mma_sync at %s:%d: %.9g has not been through __float_to_tf32", at.file, at.line,
                  static_cast<double>(x[i]));
}

static void stage(const kind &shape, const float *x, float *matrix)
{
    const uint16_t *slots = slots_of(shape);
    for (int i = 0; i < shape.slots; i++)
        matrix[slots[i]] = shape.type == element::tf32 ? nvcuda::wmma::__float_to_tf32(x[i]) : x[i];
}

/* Whoever works on x[i] by lane or index makes the copies of an element differ. */
static void require_equal_copies(const kind &shape, const float *matrix, place at)
{
    int n = shape.rows * shape.columns;
    for (int e = n + the_block.current->lane; e < shape.slots * WARP_LANES; e += WARP_LANES)
        if (to_bits(matrix[e]) != to_bits(matrix[e % n]))
            fault(
                "mma_sync at %s:%d: the copies of element (%d,%d) differ: %g and %g; x[i] was changed by lane or by i",
                at.file, at.line, e % n / shape.columns, e % n % shape.columns, static_cast<double>(matrix[e % n]),
                static_cast<double>(matrix[e]));
}

void multiply(const kind &a_shape, const float *a, const kind &b_shape, const float *b, const kind &c_shape,
              const float *c, const kind &d_shape, float *d, place at)
{
    const cuda_thread &me = *the_block.current;
    operands &o = staged[(requests[me.warp][me.lane].n + 1) % 2][me.warp];
    int K = a_shape.k, N = b_shape.columns;
    require_tf32(a_shape, a, at);
    require_tf32(b_shape, b, at);
    stage(a_shape, a, o.a);
    stage(b_shape, b, o.b);
    stage(c_shape, c, o.c);
    meet({"mma_sync", a_shape, nullptr, static_cast<unsigned>(b_shape.order), static_cast<int>(c_shape.type)}, at);
    require_equal_copies(a_shape, o.a, at);
    require_equal_copies(b_shape, o.b, at);
    const uint16_t *slots = slots_of(d_shape);
    for (int i = 0; i < d_shape.slots; i++) {
        int row = slots[i] / N, column = slots[i] % N;
        float sum = o.c[slots[i]];
        for (int k = 0; k < K; k++)
            sum += o.a[row * K + k] * o.b[k * N + column];
        d[i] = sum;
    }
}
} // namespace fragments
} // namespace simt
