/* Regions of shadowed memory. See shadow.h. */
#include "tests/simt/shadow.h"

#include <stdlib.h>

#include <algorithm>
#include <iterator>
#include <map>

namespace simt
{
static std::map<uintptr_t, region> &regions()
{
    static auto *all = new std::map<uintptr_t, region>;
    return *all;
}

/* The regions that were found last, by page: an allocation has pages of its own. */
static region *found_last[256];

static region *&found_at(uintptr_t address)
{
    return found_last[(address >> 12) % std::size(found_last)];
}

static void forget_found()
{
    std::fill(std::begin(found_last), std::end(found_last), nullptr);
}

/* Zero pages until touched: shadow of what no kernel looks at costs nothing. */
template <class T> static T *zeroed(size_t n)
{
    T *p = static_cast<T *>(calloc(n ? n : 1, sizeof(T)));
    if (!p)
        abort();
    return p;
}

void region::refine(uintptr_t address, size_t n)
{
    while (shift > 0 && ((address - from) | n) % (size_t{1} << shift) != 0) {
        size_t n_old = count();
        shift--;
        granule *finer = zeroed<granule>(2 * n_old);
        bool *finer_defined = zeroed<bool>(2 * n_old);
        for (size_t i = 0; i < 2 * n_old; i++) {
            finer[i] = granules[i / 2];
            finer_defined[i] = defined[i / 2];
        }
        free(granules);
        free(defined);
        granules = finer;
        defined = finer_defined;
    }
}

void shadow_add(const void *p, size_t bytes, memory_kind kind)
{
    uintptr_t from = reinterpret_cast<uintptr_t>(p);
    region r = {from, bytes, kind, 2, nullptr, nullptr};
    r.granules = zeroed<granule>(r.count());
    r.defined = zeroed<bool>(r.count());
    regions()[from] = r;
    forget_found();
}

void shadow_forget(const void *p)
{
    auto found = regions().find(reinterpret_cast<uintptr_t>(p));
    if (found == regions().end())
        return;
    free(found->second.granules);
    free(found->second.defined);
    regions().erase(found);
    forget_found();
}

region *shadow_find(uintptr_t address)
{
    region *&guess = found_at(address);
    if (guess && address - guess->from < guess->bytes)
        return guess;
    auto above = regions().upper_bound(address);
    if (above == regions().begin())
        return nullptr;
    region &r = std::prev(above)->second;
    if (address - r.from >= r.bytes)
        return nullptr;
    return guess = &r;
}
} // namespace simt
