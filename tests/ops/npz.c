/* Reading .npz. Contract: npz.h. */
#include "tests/ops/npz.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static uint64_t little(const unsigned char *p, int bytes)
{
    uint64_t x = 0;
    for (int i = bytes - 1; i >= 0; i--)
        x = x << 8 | p[i];
    return x;
}

/* Walks the local headers; numpy puts a member's size into the zip64 extra field, first thing. */
float *npz_floats(op_env *e, const kve_map *npz, const char *name, size_t n)
{
    for (size_t at = 0; at + 30 <= npz->size && little(npz->data + at, 4) == 0x04034b50;) {
        const unsigned char *h = npz->data + at;
        size_t name_len = (size_t)little(h + 26, 2), extra_len = (size_t)little(h + 28, 2);
        size_t data = at + 30 + name_len + extra_len, size = (size_t)little(h + 18, 4);
        assert_true(data <= npz->size);
        assert_int_equal(little(h + 8, 2), 0); /* stored, not deflated */
        if (size == 0xffffffff) {
            assert_true(extra_len >= 20 && little(h + 30 + name_len, 2) == 1);
            size = (size_t)little(h + 30 + name_len + 12, 8);
        }
        assert_true(size <= npz->size - data);
        if (name_len == strlen(name) && memcmp(h + 30, name, name_len) == 0) {
            float *out = op_host(e, n, sizeof *out);
            size_t header = 10 + (size_t)little(npz->data + data + 8, 2);
            assert_int_equal(size, header + n * sizeof *out);
            assert_non_null(memmem(npz->data + data, header, "'<f4'", 5));
            assert_non_null(memmem(npz->data + data, header, "'fortran_order': False", 22));
            memcpy(out, npz->data + data + header, n * sizeof *out);
            return out;
        }
        at = data + size;
    }
    fail_msg("the fixture has no member %s", name);
    return NULL;
}
