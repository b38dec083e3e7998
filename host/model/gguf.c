/* GGUF: a reader that trusts no number of the file. Knows bytes and tables only. */
#include "host/model/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 256, MAX_DIMS = 4, MIN_KV_BYTES = 13, MIN_TENSOR_BYTES = 24, DEFAULT_ALIGNMENT = 32 };

typedef struct reader {
    const unsigned char *data;
    size_t size, at;
    const char *name;
} reader;

#define TEXT_ARG(t) ((t).len > 80 ? 80 : (int)(t).len), (t).p

static kve_status take(reader *r, size_t n, const char *what, const unsigned char **out)
{
    if (n > r->size - r->at)
        return kve_fail(KVE_ERR_FILE,
                        "%s: the file ends inside %s (%zu bytes needed at offset %zu, the file has %zu); it is "
                        "damaged or incomplete, download it again",
                        r->name, what, n, r->at, r->size);
    *out = r->data + r->at;
    r->at += n;
    return KVE_OK;
}

static kve_status take_u32(reader *r, const char *what, uint32_t *out)
{
    const unsigned char *p = NULL;
    KVE_TRY(take(r, sizeof *out, what, &p));
    memcpy(out, p, sizeof *out);
    return KVE_OK;
}

static kve_status take_u64(reader *r, const char *what, uint64_t *out)
{
    const unsigned char *p = NULL;
    KVE_TRY(take(r, sizeof *out, what, &p));
    memcpy(out, p, sizeof *out);
    return KVE_OK;
}

static kve_status take_text(reader *r, const char *what, kve_text *out)
{
    uint64_t len = 0;
    const unsigned char *p = NULL;
    KVE_TRY(take_u64(r, what, &len));
    KVE_TRY(take(r, len, what, &p));
    *out = (kve_text){(const char *)p, len};
    return KVE_OK;
}

/* Names become C strings and stand in messages: short, no NUL. */
static kve_status take_name(reader *r, const char *what, kve_text *out)
{
    size_t at = r->at;
    KVE_TRY(take_text(r, what, out));
    if (out->len == 0 || out->len > MAX_NAME || memchr(out->p, 0, out->len))
        return kve_fail(KVE_ERR_FILE, "%s: %s at offset %zu has %zu bytes or contains NUL; 1 to %d plain bytes are due",
                        r->name, what, at, out->len, (int)MAX_NAME);
    return KVE_OK;
}

static size_t scalar_bytes(uint32_t type)
{
    static const unsigned char bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

static kve_status take_value(reader *r, kve_gguf_kv *kv)
{
    char what[128];
    snprintf(what, sizeof what, "the value of '%.*s'", TEXT_ARG(kv->key));
    uint32_t type = 0;
    KVE_TRY(take_u32(r, what, &type));
    kv->count = 1;
    if (type == KVE_GGUF_ARRAY) {
        kv->is_array = true;
        KVE_TRY(take_u32(r, what, &type));
        KVE_TRY(take_u64(r, what, &kv->count));
    }
    if (type != KVE_GGUF_STRING && !scalar_bytes(type))
        return kve_fail(KVE_ERR_FILE,
                        "%s: '%.*s' has value type %" PRIu32 "%s, which cannot be read; convert the model again",
                        r->name, TEXT_ARG(kv->key), type, kv->is_array ? " in an array" : "");
    kv->type = (kve_gguf_type)type;
    kv->data = r->data + r->at;
    if (type == KVE_GGUF_STRING) {
        kve_text ignored;
        for (uint64_t i = 0; i < kv->count; i++)
            KVE_TRY(take_text(r, what, &ignored));
        return KVE_OK;
    }
    const unsigned char *ignored = NULL;
    if (kv->count > (r->size - r->at) / scalar_bytes(type))
        return kve_fail(KVE_ERR_FILE, "%s: %s has %" PRIu64 " elements, more than the rest of the file; it is damaged",
                        r->name, what, kv->count);
    return take(r, kv->count * scalar_bytes(type), what, &ignored);
}

static int compare_text(kve_text a, kve_text b)
{
    size_t least = a.len < b.len ? a.len : b.len;
    int c = memcmp(a.p, b.p, least);
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

static int by_key(const void *a, const void *b)
{
    return compare_text(((const kve_gguf_kv *)a)->key, ((const kve_gguf_kv *)b)->key);
}

static kve_status take_metadata(reader *r, uint64_t count, kve_gguf *g)
{
    if (count > (r->size - r->at) / MIN_KV_BYTES)
        return kve_fail(KVE_ERR_FILE, "%s: %" PRIu64 " metadata entries cannot fit into %zu bytes; the file is damaged",
                        r->name, count, r->size);
    KVE_TRY(kve_arena_alloc(&g->arena, count, sizeof *g->kv, &g->kv));
    g->n_kv = count;
    for (size_t i = 0; i < g->n_kv; i++) {
        KVE_TRY(take_name(r, "a metadata key", &g->kv[i].key));
        KVE_TRY(take_value(r, &g->kv[i]));
    }
    if (g->n_kv)
        qsort(g->kv, g->n_kv, sizeof *g->kv, by_key);
    for (size_t i = 1; i < g->n_kv; i++)
        if (by_key(&g->kv[i - 1], &g->kv[i]) == 0)
            return kve_fail(KVE_ERR_FILE, "%s: the metadata key '%.*s' stands twice; convert the model again", r->name,
                            TEXT_ARG(g->kv[i].key));
    return KVE_OK;
}

/* Dimensions to rows x cols and bytes; `offset` is still relative to the data section. */
static kve_status take_extent(reader *r, kve_gguf_tensor *t, uint64_t *offset)
{
    uint32_t n_dims = 0, type = 0;
    uint64_t dims[MAX_DIMS] = {1, 1, 1, 1};
    int64_t values = 1, bytes = 0, n = 0;
    KVE_TRY(take_u32(r, t->name, &n_dims));
    if (n_dims == 0 || n_dims > MAX_DIMS)
        return kve_fail(KVE_ERR_FILE, "%s: tensor '%s' has %" PRIu32 " dimensions; 1 to %d are possible", r->name,
                        t->name, n_dims, (int)MAX_DIMS);
    for (uint32_t i = 0; i < n_dims; i++)
        KVE_TRY(take_u64(r, t->name, &dims[i]));
    KVE_TRY(take_u32(r, t->name, &type));
    KVE_TRY(take_u64(r, t->name, offset));
    if (!kve_type_block(type, &values, &bytes))
        return kve_fail(KVE_ERR_FILE,
                        "%s: tensor '%s' has type %" PRIu32
                        " (%s), which cannot be read; use a file with " KVE_TYPES_SUPPORTED,
                        r->name, t->name, type, kve_type_name(type));
    if (dims[2] != 1 || dims[3] != 1 || dims[0] == 0 || dims[1] == 0 || dims[0] > INT32_MAX || dims[1] > INT32_MAX)
        return kve_fail(KVE_ERR_FILE,
                        "%s: tensor '%s' has dimensions %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                        "; a vector or a matrix with sizes up to 2^31 - 1 is due",
                        r->name, t->name, dims[0], dims[1], dims[2], dims[3]);
    t->type = (kve_tensor_type)type;
    t->cols = (int64_t)dims[0];
    t->rows = (int64_t)dims[1];
    if (t->cols % values != 0)
        return kve_fail(KVE_ERR_FILE, "%s: tensor '%s': %" PRId64 " columns are no multiple of %s's block of %" PRId64,
                        r->name, t->name, t->cols, kve_type_name(type), values);
    if (__builtin_mul_overflow(t->cols / values * bytes, t->rows, &n))
        return kve_fail(KVE_ERR_FILE, "%s: tensor '%s': %" PRId64 " x %" PRId64 " is too large", r->name, t->name,
                        t->rows, t->cols);
    t->bytes = (size_t)n;
    return KVE_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(kve_gguf_tensor *const *)a)->name, (*(kve_gguf_tensor *const *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const unsigned char *x = (*(kve_gguf_tensor *const *)a)->data, *y = (*(kve_gguf_tensor *const *)b)->data;
    return (x > y) - (x < y);
}

static kve_status check_unique(kve_gguf *g)
{
    kve_gguf_tensor **sorted;
    KVE_TRY(kve_arena_alloc(&g->arena, g->n_tensors, sizeof *sorted, &sorted));
    for (size_t i = 0; i < g->n_tensors; i++)
        sorted[i] = &g->tensors[i];
    qsort(sorted, g->n_tensors, sizeof *sorted, by_name);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (by_name(&sorted[i - 1], &sorted[i]) == 0)
            return kve_fail(KVE_ERR_FILE, "%s: tensor '%s' stands twice; convert the model again", g->name,
                            sorted[i]->name);
    qsort(sorted, g->n_tensors, sizeof *sorted, by_place);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (sorted[i - 1]->data + sorted[i - 1]->bytes > sorted[i]->data)
            return kve_fail(KVE_ERR_FILE, "%s: tensors '%s' and '%s' overlap; the file is damaged", g->name,
                            sorted[i - 1]->name, sorted[i]->name);
    return KVE_OK;
}

static kve_status take_tensors(reader *r, uint64_t count, uint64_t alignment, kve_gguf *g)
{
    uint64_t *offsets;
    if (count > (r->size - r->at) / MIN_TENSOR_BYTES)
        return kve_fail(KVE_ERR_FILE, "%s: %" PRIu64 " tensors cannot fit into %zu bytes; the file is damaged", r->name,
                        count, r->size);
    KVE_TRY(kve_arena_alloc(&g->arena, count, sizeof *g->tensors, &g->tensors));
    KVE_TRY(kve_arena_alloc(&g->arena, count, sizeof *offsets, &offsets));
    g->n_tensors = count;
    for (size_t i = 0; i < g->n_tensors; i++) {
        kve_text name;
        char *copy;
        KVE_TRY(take_name(r, "a tensor's name", &name));
        KVE_TRY(kve_arena_strndup(&g->arena, name.p, name.len, &copy));
        g->tensors[i].name = copy;
        KVE_TRY(take_extent(r, &g->tensors[i], &offsets[i]));
    }
    size_t pad = (size_t)((alignment - r->at % alignment) % alignment);
    size_t start = r->at, room = r->size - r->at;
    start += pad < room ? pad : room;
    room = r->size - start;
    for (size_t i = 0; i < g->n_tensors; i++) {
        kve_gguf_tensor *t = &g->tensors[i];
        if (offsets[i] % alignment != 0 || offsets[i] > room || t->bytes > room - offsets[i])
            return kve_fail(KVE_ERR_FILE,
                            "%s: tensor '%s' (%zu bytes at offset %" PRIu64 " of %zu bytes of data, alignment %" PRIu64
                            ") lies outside the file or unaligned; it is damaged or incomplete, download it again",
                            r->name, t->name, t->bytes, offsets[i], room, alignment);
        t->data = r->data + start + offsets[i];
    }
    return g->n_tensors ? check_unique(g) : KVE_OK;
}

kve_status kve_gguf_parse(const unsigned char *data, size_t size, const char *name, kve_gguf *out)
{
    *out = (kve_gguf){.name = name};
    reader r = {data, size, 0, name};
    const unsigned char *magic = NULL;
    uint64_t n_tensors = 0, n_kv = 0;
    int64_t alignment = DEFAULT_ALIGNMENT;
    KVE_TRY(take(&r, 4, "the magic word", &magic));
    if (memcmp(magic, "GGUF", 4) != 0)
        return kve_fail(KVE_ERR_FILE, "%s: does not begin with 'GGUF'; this is no GGUF file", name);
    KVE_TRY(take_u32(&r, "the version", &out->version));
    if (out->version != 2 && out->version != 3)
        return kve_fail(KVE_ERR_FILE,
                        "%s: GGUF version %" PRIu32 " cannot be read (2 and 3 can%s); convert the model again", name,
                        out->version, (out->version & 0xffffu) == 0 ? ", little-endian only" : "");
    KVE_TRY(take_u64(&r, "the number of tensors", &n_tensors));
    KVE_TRY(take_u64(&r, "the number of metadata entries", &n_kv));
    KVE_TRY(take_metadata(&r, n_kv, out));
    KVE_TRY(kve_gguf_int(out, "general.alignment", false, 1, 1 << 20, &alignment));
    if ((alignment & (alignment - 1)) != 0)
        return kve_fail(KVE_ERR_FILE, "%s: general.alignment is %" PRId64 "; a power of two is due", name, alignment);
    return take_tensors(&r, n_tensors, (uint64_t)alignment, out);
}

void kve_gguf_free(kve_gguf *g)
{
    kve_arena_free(&g->arena);
    *g = (kve_gguf){0};
}
