/* Rankings from files. Contract: rankings.h. */
#include "policies/rankings.h"

#include "host/base/file.h"
#include "host/model/safetensors.h"

#include <stdlib.h>
#include <string.h>

typedef struct rankings {
    kve_policy base; /* first: what a kve_policy pointer points to */
    const char *dir;
} rankings;

static kve_status check_shape(const kve_st_tensor *t, const char *path, const kve_policy_view *v)
{
    const kve_shape *s = v->shape;
    if (!t)
        return kve_fail(KVE_ERR_FILE, "%s: no tensor 'ranking'; it must be I32 [layers][KV heads][tokens]", path);
    if (t->dtype != KVE_ST_I32 || t->n_dims != 3)
        return kve_fail(KVE_ERR_FILE, "%s: 'ranking' is %s with %d dimensions; I32 [layers][KV heads][tokens] is due",
                        path, kve_st_dtype_name(t->dtype), t->n_dims);
    if (t->dims[0] != s->L || t->dims[1] != s->Hkv || t->dims[2] != v->n)
        return kve_fail(KVE_ERR_FILE,
                        "%s: 'ranking' is [%lld][%lld][%lld], this sample needs [%d][%d][%d]; was it made for another "
                        "model, prompt or --question?",
                        path, (long long)t->dims[0], (long long)t->dims[1], (long long)t->dims[2], s->L, s->Hkv, v->n);
    return KVE_OK;
}

/* One head: the token on rank r gets the score n - r, exact in f32 up to 2^24 tokens. */
static kve_status read_head(const unsigned char *data, int32_t n, const char *path, int32_t layer, int32_t head,
                            float *scores)
{
    for (int32_t j = 0; j < n; j++)
        scores[j] = 0;
    for (int32_t r = 0; r < n; r++) {
        int32_t token;
        memcpy(&token, data + (size_t)r * sizeof token, sizeof token);
        if (token < 0 || token >= n || scores[token] != 0)
            return kve_fail(KVE_ERR_FILE,
                            "%s: 'ranking', layer %d, KV head %d, rank %d: token %d is %s; each of 0 .. %d must stand "
                            "there once",
                            path, layer, head, r, token, token < 0 || token >= n ? "out of range" : "there twice",
                            n - 1);
        scores[token] = (float)(n - r);
    }
    return KVE_OK;
}

static kve_status read_layer(const kve_safetensors *st, const char *path, const kve_policy_view *v, float *host)
{
    const kve_st_tensor *t = kve_st_find(st, "ranking");
    int32_t Hkv = v->shape->Hkv;
    KVE_TRY(check_shape(t, path, v));
    for (int32_t h = 0; h < Hkv; h++) {
        size_t row = ((size_t)v->i_layer * (size_t)Hkv + (size_t)h) * (size_t)v->n;
        KVE_TRY(read_head(t->data + row * sizeof(int32_t), v->n, path, v->i_layer, h, host + (size_t)h * (size_t)v->n));
    }
    return KVE_OK;
}

static kve_status score_rankings(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    const rankings *self = (const rankings *)p;
    size_t count = (size_t)v->shape->Hkv * (size_t)v->n;
    kve_safetensors st = {0};
    kve_str path = {0};
    float *host = NULL;
    kve_status r = kve_path_below(self->dir, v->sample_name, ".safetensors", &path);
    if (r == KVE_OK)
        r = kve_safetensors_open(path.p, &st);
    if (r == KVE_OK)
        r = kve_alloc(count, sizeof *host, &host);
    if (r == KVE_OK)
        r = read_layer(&st, path.p, v, host);
    if (r == KVE_OK)
        r = v->be->vt->write(v->be, scores, host, count * sizeof *host);
    free(host);
    kve_safetensors_close(&st);
    kve_str_free(&path);
    return r;
}

kve_status kve_rankings_policy(const char *dir, kve_arena *arena, const kve_policy **out)
{
    rankings *self = NULL;
    kve_str name = {0};
    char *kept = NULL;
    if (!kve_path_is_dir(dir))
        return kve_fail(KVE_ERR_FILE, "--policy " KVE_RANKINGS_PREFIX "%s: '%s' is no folder; kveval rank fills one",
                        dir, dir);
    KVE_TRY(kve_arena_alloc(arena, 1, sizeof *self, &self));
    kve_status st = kve_str_printf(&name, KVE_RANKINGS_PREFIX "%s", dir);
    if (st == KVE_OK)
        st = kve_arena_strndup(arena, name.p, name.len, &kept);
    kve_str_free(&name);
    KVE_TRY(st);
    self->base = (kve_policy){
        .name = kept, .summary = "rankings made elsewhere", .needs = KVE_NEED_UNKNOWN, .score = score_rankings};
    self->dir = kept + strlen(KVE_RANKINGS_PREFIX);
    *out = &self->base;
    return KVE_OK;
}
