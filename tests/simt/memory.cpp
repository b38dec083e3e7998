/* Device memory and the handler that explains a bad address. See memory.h. */
#include "tests/simt/memory.h"
#include "tests/simt/block.h"
#include "tests/simt/checker.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include <map>

#ifdef SIMT_ASAN
extern "C" void __asan_poison_memory_region(void const volatile *p, size_t bytes);
extern "C" void __asan_unpoison_memory_region(void const volatile *p, size_t bytes);
#else
static void __asan_poison_memory_region(void const volatile *, size_t)
{
}
static void __asan_unpoison_memory_region(void const volatile *, size_t)
{
}
#endif

namespace simt
{
/* Addresses are cheap: a range this large is reserved once and handed out from the bottom. */
constexpr size_t PAGE = 4096, ARENA_BYTES = size_t{1} << 40;
constexpr unsigned char BESIDE = 0xa5; /* fills the parts of an allocation's pages that aren't its own */

static std::map<uintptr_t, allocation> &allocations()
{
    static auto *all = new std::map<uintptr_t, allocation>; /* never destroyed: the device thread may still look */
    return *all;
}
static char *arena, *arena_next;
static size_t bytes_in_use;
static unsigned last_number;
static int protection_key = -1; /* none: the processor or the system has no such keys */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static void reserve_arena()
{
    void *p = mmap(nullptr, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        fault("no addresses for device memory: %zu GiB were asked for", ARENA_BYTES >> 30);
    arena = arena_next = static_cast<char *>(p);
    protection_key = pkey_alloc(0, PKEY_DISABLE_ACCESS); /* for this thread and, by the system's default, every other */
    on_device([] { device_thread_may_touch_memory(); });
}

void device_thread_may_touch_memory()
{
    if (protection_key >= 0)
        pkey_set(protection_key, 0);
}

struct pages {
    char *from, *data; /* data ends where the pages end, but for the alignment */
    size_t bytes;
};

static pages pages_of(const allocation &a)
{
    uintptr_t from = a.from / PAGE * PAGE, end = round_up(a.from + a.bytes, PAGE);
    return {reinterpret_cast<char *>(from), reinterpret_cast<char *>(a.from), end - from};
}

void *device_alloc(size_t bytes)
{
    if (!arena)
        reserve_arena();
    if (bytes > DEVICE_BYTES - bytes_in_use)
        return nullptr;
    size_t on_pages = round_up(round_up(bytes, DEVICE_ALIGNMENT), PAGE);
    if (arena_next + on_pages + PAGE > arena + ARENA_BYTES)
        fault("%zu GiB of device memory were allocated in one process; no address is used twice", ARENA_BYTES >> 30);
    char *from = arena_next, *data = from + on_pages - round_up(bytes, DEVICE_ALIGNMENT);
    arena_next += on_pages + PAGE; /* an inaccessible page stands between any two */
    if (mprotect(from, on_pages, PROT_READ | PROT_WRITE) != 0)
        return nullptr;
    memset(from, BESIDE, on_pages);
    memset(data, 0xff, bytes);
    if (protection_key >= 0 && pkey_mprotect(from, on_pages, PROT_READ | PROT_WRITE, protection_key) != 0)
        fault("device memory cannot be protected from the host");
    __asan_poison_memory_region(from, static_cast<size_t>(data - from));
    __asan_poison_memory_region(data + bytes, static_cast<size_t>(from + on_pages - data) - bytes);
    uintptr_t key = reinterpret_cast<uintptr_t>(data);
    allocations()[key] = {key, bytes, ++last_number, true, false};
    checker::add_device_memory(data, bytes);
    bytes_in_use += bytes;
    return data;
}

static void require_untouched(const allocation &a, const char *from, const char *to)
{
    for (const char *p = from; p < to; p++)
        if (static_cast<unsigned char>(*p) != BESIDE) {
            fprintf(stderr, "simt: written without leave: ");
            describe_address(stderr, p);
            fault("something wrote outside of allocation %u (%zu bytes); found when it was freed", a.number, a.bytes);
        }
}

bool device_free(void *p)
{
    auto found = allocations().find(reinterpret_cast<uintptr_t>(p));
    if (found == allocations().end() || !found->second.live || found->second.pinned)
        return false;
    allocation &a = found->second;
    pages pg = pages_of(a);
    on_device([&] {
        require_untouched(a, pg.from, pg.data);
        require_untouched(a, pg.data + a.bytes, pg.from + pg.bytes);
    });
    checker::forget_device_memory(p);
    __asan_unpoison_memory_region(pg.from, pg.bytes);
    mprotect(pg.from, pg.bytes, PROT_NONE);
    madvise(pg.from, pg.bytes, MADV_DONTNEED);
    a.live = false;
    bytes_in_use -= a.bytes;
    return true;
}

void *pinned_alloc(size_t bytes)
{
    void *p = nullptr;
    if (posix_memalign(&p, DEVICE_ALIGNMENT, bytes ? bytes : 1) != 0)
        return nullptr;
    memset(p, 0xff, bytes);
    uintptr_t key = reinterpret_cast<uintptr_t>(p);
    allocations()[key] = {key, bytes, ++last_number, true, true};
    return p;
}

bool pinned_free(void *p)
{
    auto found = allocations().find(reinterpret_cast<uintptr_t>(p));
    if (found == allocations().end() || !found->second.pinned)
        return false;
    allocations().erase(found); /* the address may serve again */
    free(p);
    return true;
}

size_t device_bytes_in_use()
{
    return bytes_in_use;
}

/* --- Looking up addresses */

const allocation *find_allocation(const void *p)
{
    auto above = allocations().upper_bound(reinterpret_cast<uintptr_t>(p));
    return above == allocations().begin() ? nullptr : &std::prev(above)->second;
}

static bool holds(const allocation *a, const void *p)
{
    return a && a->live && reinterpret_cast<uintptr_t>(p) - a->from < a->bytes;
}

bool is_device(const void *p)
{
    const allocation *a = find_allocation(p);
    return holds(a, p) && !a->pinned;
}

bool is_pinned(const void *p)
{
    const allocation *a = find_allocation(p);
    return holds(a, p) && a->pinned;
}

bool in_device_range(const void *p)
{
    return arena && p >= arena && p < arena + ARENA_BYTES;
}

void describe_address(FILE *out, const void *p)
{
    const allocation *a = find_allocation(p);
    if (!a || (in_device_range(p) ? a->from < reinterpret_cast<uintptr_t>(arena) : !holds(a, p))) {
        fprintf(out, "%p is not device memory\n", p);
        return;
    }
    size_t offset = reinterpret_cast<uintptr_t>(p) - a->from;
    const char *freed = a->live ? "" : ", which was freed";
    auto next = allocations().upper_bound(a->from);
    bool before_next = next != allocations().end() && next->second.from - reinterpret_cast<uintptr_t>(p) < PAGE / 2;
    if (offset < a->bytes)
        fprintf(out, "%p is byte %zu of allocation %u (%zu bytes)%s\n", p, offset, a->number, a->bytes, freed);
    else if (before_next)
        fprintf(out, "%p is %zu bytes before allocation %u (%zu bytes)\n", p,
                next->second.from - reinterpret_cast<uintptr_t>(p), next->second.number, next->second.bytes);
    else
        fprintf(out, "%p is %zu bytes past the end of allocation %u (%zu bytes)%s\n", p, offset - a->bytes, a->number,
                a->bytes, freed);
}

void require_device(const void *p, size_t bytes, const char *what)
{
    const allocation *a = find_allocation(p);
    if (bytes == 0 || (holds(a, p) && !a->pinned && reinterpret_cast<uintptr_t>(p) - a->from + bytes <= a->bytes))
        return;
    fprintf(stderr, "simt: ");
    describe_address(stderr, holds(a, p) && !a->pinned ? static_cast<const char *>(p) + bytes - 1 : p);
    fault("%s: %zu bytes at %p are not inside one live allocation of device memory", what, bytes, p);
}

/* --- Dynamic shared memory */

char *dynamic_shared_alloc(size_t bytes)
{
    static char *end; /* an inaccessible page begins here */
    constexpr size_t most = (MAX_DYNAMIC_SHARED / PAGE + 1) * PAGE;
    if (!end) {
        void *p = mmap(nullptr, most + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(static_cast<char *>(p) + most, PAGE, PROT_NONE) != 0)
            fault("no memory for dynamic shared memory");
        end = static_cast<char *>(p) + most;
    }
    char *p = end - round_up(bytes, DYNAMIC_SHARED_ALIGNMENT);
    if (reinterpret_cast<uintptr_t>(p) % (2 * DYNAMIC_SHARED_ALIGNMENT) == 0)
        p -= DYNAMIC_SHARED_ALIGNMENT;
    __asan_poison_memory_region(end - most, most);
    __asan_unpoison_memory_region(p, bytes);
    return p;
}

/* --- Bad addresses */

static void explain_and_die(int signal_number, siginfo_t *info, void *)
{
    const char *stack = the_block.current ? the_block.current->f.stack : nullptr,
               *at = static_cast<char *>(info->si_addr);
    fprintf(stderr, "simt: ");
    if (is_device_thread() && stack && at < stack && at >= stack - PAGE)
        fprintf(stderr, "a thread has used up its stack of %zu KiB\n", STACK_BYTES >> 10);
    else if (info->si_code == SI_KERNEL)
        fprintf(stderr, "a misaligned vector access, or an address that no pointer can hold\n");
    else
        describe_address(stderr, at);
    fault("%s touched an address that it may not (signal %d)", is_device_thread() ? "the device" : "host code",
          signal_number);
}

void install_fault_handler()
{
    constexpr size_t bytes = 64 << 10;
    stack_t stack = {};
    stack.ss_sp = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack.ss_size = bytes; /* the thread's for good */
    sigaltstack(&stack, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = explain_and_die;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
}
} // namespace simt
