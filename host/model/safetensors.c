/* The reader: eight bytes of header length, a JSON header, the data. No number of the file is trusted. */
#include "host/model/safetensors.h"

#include "host/base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, MAX_HEADER = 100 << 20 };

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [KVE_ST_F32] = {"F32", 4}, [KVE_ST_F16] = {"F16", 2}, [KVE_ST_BF16] = {"BF16", 2},
    [KVE_ST_I32] = {"I32", 4}, [KVE_ST_I64] = {"I64", 8},
};

const char *kve_st_dtype_name(kve_st_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t kve_st_dtype_bytes(kve_st_dtype dtype)
{
    return dtypes[dtype].bytes;
}

static kve_status read_dtype(const cJSON *obj, const kve_safetensors *st, kve_st_tensor *t)
{
    const char *text = "";
    KVE_TRY(kve_json_str(obj, "dtype", st->name, &text));
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, text) == 0) {
            t->dtype = (kve_st_dtype)i;
            return KVE_OK;
        }
    }
    return kve_fail(KVE_ERR_FILE, "%s: tensor '%s' has dtype '%s'; F32, F16, BF16, I32 and I64 can be read", st->name,
                    t->name, text);
}

/* Whole numbers >= 0 that a double holds exactly. */
static bool whole(const cJSON *v, int64_t *out)
{
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0) || v->valuedouble > 0x1p53 ||
        floor(v->valuedouble) != v->valuedouble)
        return false;
    *out = (int64_t)v->valuedouble;
    return true;
}

static kve_status read_shape(const cJSON *obj, const kve_safetensors *st, kve_st_tensor *t)
{
    const cJSON *shape = kve_json_get(obj, "shape"), *e;
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) > KVE_ST_MAX_DIMS)
        return kve_fail(KVE_ERR_FILE, "%s: tensor '%s': 'shape' is not a list of at most %d sizes", st->name, t->name,
                        (int)KVE_ST_MAX_DIMS);
    int64_t bytes = 0;
    t->count = 1;
    cJSON_ArrayForEach(e, shape)
    {
        int64_t *dim = &t->dims[t->n_dims++];
        if (!whole(e, dim) || __builtin_mul_overflow(t->count, *dim, &t->count))
            return kve_fail(KVE_ERR_FILE, "%s: tensor '%s': size %d of its shape is no whole number or too large",
                            st->name, t->name, t->n_dims - 1);
    }
    if (__builtin_mul_overflow(t->count, (int64_t)dtypes[t->dtype].bytes, &bytes))
        return kve_fail(KVE_ERR_FILE, "%s: tensor '%s' is too large", st->name, t->name);
    t->bytes = (size_t)bytes;
    return KVE_OK;
}

static kve_status read_place(const cJSON *obj, const kve_safetensors *st, kve_st_tensor *t, const unsigned char *data,
                             size_t size)
{
    const cJSON *offsets = kve_json_get(obj, "data_offsets");
    int64_t from = 0, to = 0;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 || !whole(offsets->child, &from) ||
        !whole(offsets->child->next, &to))
        return kve_fail(KVE_ERR_FILE, "%s: tensor '%s': 'data_offsets' is not a pair of whole numbers", st->name,
                        t->name);
    if (from > to || (uint64_t)to > size)
        return kve_fail(KVE_ERR_FILE,
                        "%s: tensor '%s' lies at [%" PRId64 ", %" PRId64
                        ") of %zu bytes of data; the file is damaged or incomplete, download it again",
                        st->name, t->name, from, to, size);
    if ((size_t)(to - from) != t->bytes)
        return kve_fail(KVE_ERR_FILE, "%s: tensor '%s' takes %" PRId64 " bytes, but its dtype and shape need %zu",
                        st->name, t->name, to - from, t->bytes);
    t->data = data + from;
    return KVE_OK;
}

static kve_status read_meta(const cJSON *obj, kve_safetensors *st)
{
    const cJSON *e;
    if (!cJSON_IsObject(obj))
        return kve_fail(KVE_ERR_FILE, "%s: '__metadata__' is not an object", st->name);
    KVE_TRY(kve_arena_alloc(&st->arena, (size_t)cJSON_GetArraySize(obj), sizeof *st->meta, &st->meta));
    cJSON_ArrayForEach(e, obj)
    {
        char *key = NULL, *value = NULL;
        if (!cJSON_IsString(e))
            return kve_fail(KVE_ERR_FILE, "%s: '__metadata__': the value of '%s' is not a text", st->name, e->string);
        KVE_TRY(kve_arena_strndup(&st->arena, e->string, strlen(e->string), &key));
        KVE_TRY(kve_arena_strndup(&st->arena, e->valuestring, strlen(e->valuestring), &value));
        st->meta[st->n_meta++] = (kve_st_meta){key, value};
    }
    return KVE_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const kve_st_tensor *)a)->name, ((const kve_st_tensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const kve_st_tensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors first */
}

/* Tensors must follow each other without gap or overlap from the first byte to the last. */
static kve_status check_cover(kve_safetensors *st, const unsigned char *data, size_t size)
{
    const unsigned char *at = data;
    if (st->n_tensors)
        qsort(st->tensors, st->n_tensors, sizeof *st->tensors, by_place);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const kve_st_tensor *t = &st->tensors[i];
        if (t->data != at)
            return kve_fail(
                KVE_ERR_FILE,
                "%s: tensor '%s' begins at byte %td of the data, where %td is due (%s); the file is damaged", st->name,
                t->name, t->data - data, at - data, t->data < at ? "overlap" : "gap");
        at += t->bytes;
    }
    if ((size_t)(at - data) != size)
        return kve_fail(KVE_ERR_FILE, "%s: %zu bytes follow the last tensor; the file is damaged", st->name,
                        size - (size_t)(at - data));
    if (st->n_tensors)
        qsort(st->tensors, st->n_tensors, sizeof *st->tensors, by_name);
    return KVE_OK;
}

static kve_status read_header(const cJSON *root, kve_safetensors *st, const unsigned char *data, size_t size)
{
    const cJSON *e;
    if (!cJSON_IsObject(root))
        return kve_fail(KVE_ERR_FILE, "%s: the header is not a JSON object", st->name);
    KVE_TRY(kve_arena_alloc(&st->arena, (size_t)cJSON_GetArraySize(root), sizeof *st->tensors, &st->tensors));
    cJSON_ArrayForEach(e, root)
    {
        if (strcmp(e->string, "__metadata__") == 0) {
            KVE_TRY(read_meta(e, st));
            continue;
        }
        char *name = NULL;
        kve_st_tensor *t = &st->tensors[st->n_tensors++];
        KVE_TRY(kve_arena_strndup(&st->arena, e->string, strlen(e->string), &name));
        t->name = name;
        if (!cJSON_IsObject(e))
            return kve_fail(KVE_ERR_FILE, "%s: header entry '%s' is not an object", st->name, name);
        KVE_TRY(read_dtype(e, st, t));
        KVE_TRY(read_shape(e, st, t));
        KVE_TRY(read_place(e, st, t, data, size));
    }
    return check_cover(st, data, size);
}

static kve_status parse(const unsigned char *data, size_t size, kve_safetensors *out)
{
    uint64_t header = 0;
    if (size < LENGTH_BYTES)
        return kve_fail(KVE_ERR_FILE, "%s: %zu bytes are too few for a safetensors file; download it again", out->name,
                        size);
    memcpy(&header, data, sizeof header);
    if (header > size - LENGTH_BYTES || header > MAX_HEADER || header < 2 || data[LENGTH_BYTES] != '{')
        return kve_fail(KVE_ERR_FILE,
                        "%s: a header of %" PRIu64 " bytes that begins with '{' cannot be in a file of %zu bytes (at "
                        "most %d); it is no safetensors file, or incomplete",
                        out->name, header, size, (int)MAX_HEADER);
    const unsigned char *body = data + LENGTH_BYTES + header;
    cJSON *root = NULL;
    KVE_TRY(kve_json_parse((const char *)data + LENGTH_BYTES, header, out->name, &root));
    kve_status st = read_header(root, out, body, size - LENGTH_BYTES - header);
    cJSON_Delete(root);
    return st;
}

static kve_status begin(const char *name, kve_safetensors *out)
{
    char *copy = NULL;
    *out = (kve_safetensors){0};
    KVE_TRY(kve_arena_strndup(&out->arena, name, strlen(name), &copy));
    out->name = copy;
    return KVE_OK;
}

kve_status kve_safetensors_parse(const unsigned char *data, size_t size, const char *name, kve_safetensors *out)
{
    KVE_TRY(begin(name, out));
    return parse(data, size, out);
}

kve_status kve_safetensors_open(const char *path, kve_safetensors *out)
{
    KVE_TRY(begin(path, out));
    KVE_TRY(kve_map_open(path, &out->map));
    return parse(out->map.data, out->map.size, out);
}

void kve_safetensors_close(kve_safetensors *st)
{
    kve_map_close(&st->map);
    kve_arena_free(&st->arena);
    *st = (kve_safetensors){0};
}

static int name_order(const void *key, const void *tensor)
{
    return strcmp(key, ((const kve_st_tensor *)tensor)->name);
}

const kve_st_tensor *kve_st_find(const kve_safetensors *st, const char *name)
{
    return st->n_tensors ? bsearch(name, st->tensors, st->n_tensors, sizeof *st->tensors, name_order) : NULL;
}

const char *kve_st_meta_get(const kve_safetensors *st, const char *key)
{
    for (size_t i = 0; i < st->n_meta; i++)
        if (strcmp(st->meta[i].key, key) == 0)
            return st->meta[i].value;
    return NULL;
}

kve_status kve_st_copy(const kve_safetensors *st, const char *name, kve_st_dtype dtype, int64_t count, void *out)
{
    const kve_st_tensor *t = kve_st_find(st, name);
    if (!t)
        return kve_fail(KVE_ERR_FILE, "%s: there is no tensor '%s'", st->name, name);
    if (t->dtype != dtype || t->count != count)
        return kve_fail(KVE_ERR_FILE, "%s: tensor '%s' has %" PRId64 " values of %s; %" PRId64 " of %s are due",
                        st->name, name, t->count, dtypes[t->dtype].name, count, dtypes[dtype].name);
    if (t->bytes)
        memcpy(out, t->data, t->bytes);
    return KVE_OK;
}
