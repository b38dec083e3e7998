/* Typed access to GGUF metadata: any integer width, checked ranges, arrays. Knows no architecture. */
#include "host/model/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int key_order(const void *key, const void *entry)
{
    const char *k = key;
    const kve_text *t = &((const kve_gguf_kv *)entry)->key;
    size_t len = strlen(k), least = len < t->len ? len : t->len;
    int c = memcmp(k, t->p, least);
    return c ? c : (len > t->len) - (len < t->len);
}

const kve_gguf_kv *kve_gguf_find(const kve_gguf *g, const char *key)
{
    return g->n_kv ? bsearch(key, g->kv, g->n_kv, sizeof *g->kv, key_order) : NULL;
}

/* *kv NULL when the key is absent and need not be there. */
static kve_status find_single(const kve_gguf *g, const char *key, bool required, const kve_gguf_kv **kv)
{
    *kv = kve_gguf_find(g, key);
    if (!*kv && required)
        return kve_fail(KVE_ERR_FILE, "%s: the metadata key '%s' is missing; convert the model again", g->name, key);
    if (*kv && (*kv)->is_array)
        return kve_fail(KVE_ERR_FILE, "%s: '%s' is an array where a single value is due; this model is not supported",
                        g->name, key);
    return KVE_OK;
}

static kve_status wrong_type(const kve_gguf *g, const char *key, const char *want)
{
    return kve_fail(KVE_ERR_FILE, "%s: '%s' is not %s; convert the model again", g->name, key, want);
}

/* An integer of any width; false for another type. Beyond int64 it saturates, which no caller's range admits. */
static bool integer_of(const kve_gguf_kv *kv, int64_t *out)
{
    const unsigned char *p = kv->data;
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } v = {0};
    switch (kv->type) {
    case KVE_GGUF_U8:
        memcpy(&v, p, 1);
        *out = v.u8;
        return true;
    case KVE_GGUF_I8:
        memcpy(&v, p, 1);
        *out = v.i8;
        return true;
    case KVE_GGUF_U16:
        memcpy(&v, p, 2);
        *out = v.u16;
        return true;
    case KVE_GGUF_I16:
        memcpy(&v, p, 2);
        *out = v.i16;
        return true;
    case KVE_GGUF_U32:
        memcpy(&v, p, 4);
        *out = v.u32;
        return true;
    case KVE_GGUF_I32:
        memcpy(&v, p, 4);
        *out = v.i32;
        return true;
    case KVE_GGUF_U64:
        memcpy(&v, p, 8);
        *out = v.u64 > INT64_MAX ? INT64_MAX : (int64_t)v.u64;
        return true;
    case KVE_GGUF_I64:
        memcpy(&v, p, 8);
        *out = v.i64;
        return true;
    default:
        return false;
    }
}

kve_status kve_gguf_int(const kve_gguf *g, const char *key, bool required, int64_t min, int64_t max, int64_t *out)
{
    const kve_gguf_kv *kv;
    int64_t v;
    KVE_TRY(find_single(g, key, required, &kv));
    if (!kv)
        return KVE_OK;
    if (!integer_of(kv, &v))
        return wrong_type(g, key, "an integer");
    if (v < min || v > max)
        return kve_fail(KVE_ERR_FILE, "%s: '%s' is %" PRId64 ", outside [%" PRId64 ", %" PRId64 "]", g->name, key, v,
                        min, max);
    *out = v;
    return KVE_OK;
}

kve_status kve_gguf_num(const kve_gguf *g, const char *key, bool required, double *out)
{
    const kve_gguf_kv *kv;
    int64_t integer;
    double v = 0;
    KVE_TRY(find_single(g, key, required, &kv));
    if (!kv)
        return KVE_OK;
    if (kv->type == KVE_GGUF_F32) {
        float f;
        memcpy(&f, kv->data, sizeof f);
        v = (double)f;
    } else if (kv->type == KVE_GGUF_F64) {
        memcpy(&v, kv->data, sizeof v);
    } else if (integer_of(kv, &integer)) {
        v = (double)integer;
    } else {
        return wrong_type(g, key, "a number");
    }
    if (!isfinite(v))
        return kve_fail(KVE_ERR_FILE, "%s: '%s' is %g; a finite number is due", g->name, key, v);
    *out = v;
    return KVE_OK;
}

kve_status kve_gguf_bool(const kve_gguf *g, const char *key, bool *out)
{
    const kve_gguf_kv *kv;
    KVE_TRY(find_single(g, key, false, &kv));
    if (!kv)
        return KVE_OK;
    if (kv->type != KVE_GGUF_BOOL || kv->data[0] > 1)
        return wrong_type(g, key, "true or false");
    *out = kv->data[0] == 1;
    return KVE_OK;
}

kve_status kve_gguf_text(const kve_gguf *g, const char *key, bool required, kve_text *out)
{
    const kve_gguf_kv *kv;
    KVE_TRY(find_single(g, key, required, &kv));
    if (!kv)
        return KVE_OK;
    if (kv->type != KVE_GGUF_STRING)
        return wrong_type(g, key, "a text");
    const unsigned char *at = kv->data;
    *out = kve_gguf_next_text(&at);
    return KVE_OK;
}

kve_status kve_gguf_array(const kve_gguf *g, const char *key, kve_gguf_type type, bool required,
                          const kve_gguf_kv **out)
{
    *out = kve_gguf_find(g, key);
    if (!*out && required)
        return kve_fail(KVE_ERR_FILE, "%s: the metadata key '%s' is missing; convert the model again", g->name, key);
    if (*out && (!(*out)->is_array || (*out)->type != type))
        return wrong_type(g, key, "an array of the due type");
    return KVE_OK;
}

kve_text kve_gguf_next_text(const unsigned char **at)
{
    uint64_t len;
    memcpy(&len, *at, sizeof len);
    kve_text t = {(const char *)*at + sizeof len, len};
    *at += sizeof len + len;
    return t;
}
