/* The checker: is each access of a kernel inside device memory, of defined bytes, and ordered with the accesses before
 * it? See checker.h. */
#include "tests/simt/checker.h"
#include "tests/simt/block.h"
#include "tests/simt/hooks.h"
#include "tests/simt/memory.h"
#include "tests/simt/shadow.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

extern "C" char __executable_start, _end; /* the program's image, from the linker */

namespace simt
{
namespace checker
{
struct launch_record {
    std::string name;
    size_t stream;
    uint64_t position;
};

static std::vector<launch_record> launches(1); /* launch 0 is none */
static stream_clock over_before;               /* the current launch */
static bool in_kernel, in_hook;
static access me; /* what an access of the current thread would be, but for its place */
static uintptr_t stack_from, arguments_from;
static size_t stack_bytes, argument_bytes;
static std::vector<uint32_t> last_fence; /* [block] value of n_fences after its last fence in this launch; 0: none */
static uint32_t n_fences;
static uint32_t warp_syncs[MAX_THREADS]; /* each thread's __syncwarps in this block */
static uint32_t lane_seen[MAX_WARPS][WARP_LANES]
                         [WARP_LANES]; /* [warp][lane][other]: the other's count, as lane knows it */
static int n_reports;
enum { MAX_REPORTS = 20 };

/* --- Reports */

static void print_code_place(uint32_t pc)
{
    char program[1024], command[1200];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (pc == 0 || n < 0) {
        fprintf(stderr, "    in a copy or library call\n");
        return;
    }
    program[n] = 0;
    snprintf(command, sizeof command, "addr2line -p -f -i -C -s -e '%s' %#x", program, pc);
    FILE *lines = popen(command, "r");
    char line[1000];
    for (int i = 0; lines && i < 6 && fgets(line, sizeof line, lines); i++)
        fprintf(stderr, "    %s", line);
    if (lines)
        pclose(lines);
}

static void print_access(const char *relation, bool write, const access &a)
{
    fprintf(stderr, "  %s%s%s by thread %u of block %u of %s\n", relation, a.atomic ? "atomic " : "",
            write ? "write" : "read", a.thread, a.block, a.launch ? launches[a.launch].name.c_str() : "the host");
    print_code_place(a.pc);
}

/* One report per kind and pair of places in the code. */
static void report(const char *kind, uintptr_t address, size_t n, bool write, const access &now, const access *before,
                   bool before_write)
{
    static std::set<std::tuple<std::string, uint32_t, uint32_t>> seen;
    if (!seen.insert({kind, now.pc, before ? before->pc : 0}).second)
        return;
    n_reports++;
    if (n_reports > MAX_REPORTS)
        return;
    fprintf(stderr, "simt: %s: %zu bytes; ", kind, n);
    region *r = shadow_find(address);
    if (r && r->kind == memory_kind::shared)
        fprintf(stderr, "shared memory, byte %zu\n", address - r->from);
    else
        describe_address(stderr, reinterpret_cast<void *>(address));
    print_access("", write, now);
    if (before)
        print_access("against an earlier ", before_write, *before);
}

void require_no_reports()
{
    if (n_reports == 0)
        return;
    fprintf(stderr, "simt: the checker found %d mistake%s\n", n_reports, n_reports == 1 ? "" : "s");
    fflush(stdout);
    abort();
}

/* --- What orders accesses */

static bool ordered(const access &a, memory_kind kind)
{
    if (a.launch != me.launch) {
        const launch_record &l = launches[a.launch];
        return l.stream < over_before.size() && over_before[l.stream] >= l.position;
    }
    if (a.block != me.block) /* another block's shared memory is other memory */
        return kind == memory_kind::shared || (last_fence[a.block] > a.fences && last_fence[me.block] > 0);
    if (a.thread == me.thread || a.barriers < me.barriers)
        return true;
    return a.thread / WARP_LANES == me.thread / WARP_LANES &&
           a.warp_syncs < lane_seen[me.thread / WARP_LANES][me.thread % WARP_LANES][a.thread % WARP_LANES];
}

static bool races(const access &a, const access &now, memory_kind kind)
{
    if (a.thread == now.thread && a.block == now.block && a.launch == now.launch)
        return false;
    return a.launch != 0 && !(a.atomic && now.atomic) && !ordered(a, kind);
}

static void remember_read(granule &g, const access &now)
{
    access &last = g.last_read;
    if (last.launch != now.launch || last.block != now.block) {
        g.block_read = last;
        g.warp_read = g.lane_read = {};
    } else if (last.thread / WARP_LANES != now.thread / WARP_LANES) {
        g.warp_read = last;
        g.lane_read = {};
    } else if (last.thread != now.thread) {
        g.lane_read = last;
    }
    last = now;
}

enum class purpose { use, copy }; /* a copy may read undefined bytes */

static void touch_granule(region &r, size_t i, uintptr_t address, size_t n, bool write, const access &now, purpose why)
{
    granule &g = r.granules[i];
    if (r.kind == memory_kind::shared && (g.write.launch != now.launch || g.write.block != now.block))
        r.defined[i] = false; /* every block finds shared memory undefined */
    if (races(g.write, now, r.kind))
        report("race", address, n, write, now, &g.write, true);
    if (!write) {
        if (!r.defined[i] && why == purpose::use)
            report("uninitialised read", address, n, write, now, nullptr, false);
        remember_read(g, now);
        return;
    }
    for (const access *read : {&g.last_read, &g.lane_read, &g.warp_read, &g.block_read})
        if (races(*read, now, r.kind))
            report("race", address, n, write, now, read, false);
    g.write = now;
    g.last_read = g.lane_read = g.warp_read = g.block_read = {};
    r.defined[i] = true;
}

static void touch(region &r, uintptr_t address, size_t n, bool write, const access &now, purpose why)
{
    if (((address - r.from) | n) % (size_t{1} << r.shift) != 0)
        r.refine(address, n);
    size_t first = (address - r.from) >> r.shift, last = (address - r.from + n - 1) >> r.shift;
    for (size_t i = first; i <= last; i++)
        touch_granule(r, i, address, n, write, now, why);
}

/* --- Accesses of compiled code */

static void kernel_access(uintptr_t address, size_t n, bool write, bool atomic, uint32_t pc)
{
    if (address - stack_from < stack_bytes)
        return;
    access now = me;
    now.pc = pc;
    now.atomic = atomic;
    region *r = shadow_find(address);
    if (!r) {
        bool argument = address - arguments_from < argument_bytes;
        const void *p = reinterpret_cast<void *>(address);
        if (!(argument && !write) && !is_pinned(p))
            report(in_device_range(p) ? "out of bounds" : "not device memory", address, n, write, now, nullptr, false);
        return;
    }
    if (address + n > r->from + r->bytes) {
        report("out of bounds", address, n, write, now, nullptr, false);
        n = r->from + r->bytes - address;
    }
    touch(*r, address, n, write, now, purpose::use);
}

/* Constants, and the indices of this run time, are in the program's image. */
static bool in_image(uintptr_t address)
{
    return address >= reinterpret_cast<uintptr_t>(&__executable_start) && address < reinterpret_cast<uintptr_t>(&_end);
}

void on_access(const void *p, size_t n, bool write, bool atomic, const void *return_address)
{
    uintptr_t address = reinterpret_cast<uintptr_t>(p);
    uint32_t pc = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(return_address) -
                                        reinterpret_cast<uintptr_t>(&__executable_start)) -
                  1;
    /* templates of the standard library that this file uses may have been compiled with hooks elsewhere */
    if (in_hook || n == 0 || (!write && in_image(address)))
        return;
    in_hook = true;
    if (in_kernel) {
        kernel_access(address, n, write, atomic, pc);
    } else if (is_device(p) && !is_device_thread()) {
        access host = {};
        host.pc = pc;
        report("host code touches device memory", address, n, write, host, nullptr, false);
    }
    in_hook = false;
}

void on_misaligned(const void *p, size_t alignment, const char *file, unsigned line)
{
    static std::set<std::pair<std::string, unsigned>> seen;
    size_t widest = 16; /* no access of these kernels is wider, whatever a type asks for */
    bool aligned = reinterpret_cast<uintptr_t>(p) % std::min(alignment, widest) == 0;
    if (aligned || !in_kernel || !seen.insert({file, line}).second)
        return;
    n_reports++;
    fprintf(stderr, "simt: misaligned access at %s:%u: %p is no multiple of %zu\n", file, line, p, alignment);
    print_position(stderr);
}

/* --- Accesses of copies and library calls */

void read_values(const void *p, size_t bytes)
{
    region *r = bytes ? shadow_find(reinterpret_cast<uintptr_t>(p)) : nullptr;
    if (r)
        touch(*r, reinterpret_cast<uintptr_t>(p), bytes, false, me, purpose::use);
}

void write_values(void *p, size_t bytes)
{
    region *r = bytes ? shadow_find(reinterpret_cast<uintptr_t>(p)) : nullptr;
    if (r)
        touch(*r, reinterpret_cast<uintptr_t>(p), bytes, true, me, purpose::use);
}

void copy_values(void *to, const void *from, size_t bytes)
{
    uintptr_t to_address = reinterpret_cast<uintptr_t>(to), from_address = reinterpret_cast<uintptr_t>(from);
    region *source = bytes ? shadow_find(from_address) : nullptr;
    if (source)
        touch(*source, from_address, bytes, false, me, purpose::copy);
    write_values(to, bytes);
    region *target = bytes ? shadow_find(to_address) : nullptr;
    if (!source || !target)
        return;
    for (size_t i = 0; i < bytes; i++)
        if (!source->defined[(from_address + i - source->from) >> source->shift])
            target->defined[(to_address + i - target->from) >> target->shift] = false;
}

/* --- What the run time tells */

void add_device_memory(void *p, size_t bytes)
{
    shadow_add(p, bytes, memory_kind::device);
}

void forget_device_memory(void *p)
{
    shadow_forget(p);
}

void begin_operation(const char *name, size_t stream, uint64_t position, const stream_clock &before)
{
    me = {};
    me.launch = static_cast<uint32_t>(launches.size());
    launches.push_back({name, stream, position});
    over_before = before;
    last_fence.assign(1, 0);
}

void begin_kernel(const kernel_call &call, char *dynamic_shared)
{
    static bool static_known;
    range shared = static_shared();
    if (!static_known && shared.bytes > 0)
        shadow_add(shared.from, shared.bytes, memory_kind::shared);
    static_known = true;
    if (call.shared_bytes > 0)
        shadow_add(dynamic_shared, call.shared_bytes, memory_kind::shared);
    arguments_from = reinterpret_cast<uintptr_t>(call.arguments.get());
    argument_bytes = call.argument_bytes;
    last_fence.assign(size_t{call.grid.x} * call.grid.y * call.grid.z, 0);
}

void end_kernel(char *dynamic_shared)
{
    shadow_forget(dynamic_shared);
}

void begin_block(size_t linear)
{
    me.block = static_cast<uint32_t>(linear);
    me.barriers = 0;
    memset(warp_syncs, 0, sizeof warp_syncs);
    memset(lane_seen, 0, sizeof lane_seen);
}

void enter_thread(int id, char *stack, size_t bytes)
{
    in_kernel = true;
    me.thread = static_cast<uint16_t>(id);
    me.warp_syncs = warp_syncs[id];
    stack_from = reinterpret_cast<uintptr_t>(stack);
    stack_bytes = bytes;
}

void leave_kernel()
{
    in_kernel = false;
}

void block_barrier()
{
    me.barriers++;
}

void warp_sync(int warp, unsigned lanes)
{
    uint32_t known[WARP_LANES] = {};
    for (int i = 0; i < WARP_LANES; i++)
        if (lanes >> i & 1)
            for (int j = 0; j < WARP_LANES; j++)
                known[j] = std::max(known[j], lane_seen[warp][i][j]);
    for (int i = 0; i < WARP_LANES; i++)
        if (lanes >> i & 1)
            known[i] = ++warp_syncs[warp * WARP_LANES + i];
    for (int i = 0; i < WARP_LANES; i++)
        if (lanes >> i & 1)
            memcpy(lane_seen[warp][i], known, sizeof known);
    me.warp_syncs = warp_syncs[me.thread];
}

void fence()
{
    last_fence[me.block] = me.fences = ++n_fences;
}
} // namespace checker
} // namespace simt
