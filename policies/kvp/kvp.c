/* A trained file as a policy. Contract: kvp.h. */
#include "policies/kvp/kvp.h"

#include "host/base/file.h"
#include "host/base/hash.h"
#include "kernels/cost.h"
#include "policies/kvp/net.h"

#include <stdlib.h>
#include <string.h>

/* On the backend. */
typedef struct loaded {
    kve_backend *be; /* NULL: nothing is loaded */
    float *weights, *table;
    int32_t n_positions; /* of the table */
} loaded;

typedef struct kvp {
    kve_policy base; /* first: what a kve_policy pointer points to */
    const char *path;
    char sha256[KVE_SHA256_HEX];
    kve_kvp_net net;
    loaded *loaded;
} kvp;

static void close_kvp(const kve_policy *p)
{
    loaded *on = ((const kvp *)p)->loaded;
    if (!on->be)
        return;
    on->be->vt->free(on->be, on->weights);
    on->be->vt->free(on->be, on->table);
    *on = (loaded){0};
}

/* *out stays NULL after a failure: the next score tries again. */
static kve_status upload(kve_backend *be, const float *host, size_t count, float **out)
{
    float *device = NULL;
    KVE_TRY(be->vt->alloc(be, count * sizeof *host, &device));
    kve_status st = be->vt->write(be, device, host, count * sizeof *host);
    if (st == KVE_OK)
        *out = device;
    else
        be->vt->free(be, device);
    return st;
}

/* The analytic feature for at least n rows. */
static kve_status make_table(loaded *on, int32_t n, int32_t P)
{
    enum { LEAST = 4096 };
    int32_t rows = LEAST;
    float *host = NULL;
    while (rows < n)
        rows *= 2;
    on->be->vt->free(on->be, on->table);
    on->table = NULL;
    on->n_positions = 0;
    KVE_TRY(kve_alloc((size_t)rows * (size_t)P, sizeof *host, &host));
    kve_kvp_positions(rows, P, host);
    kve_status st = upload(on->be, host, (size_t)rows * (size_t)P, &on->table);
    free(host);
    if (st == KVE_OK)
        on->n_positions = rows;
    return st;
}

static kve_status load(const kvp *self, const kve_policy_view *v)
{
    const kve_kvp_net *net = &self->net;
    loaded *on = self->loaded;
    size_t heads = (size_t)net->L * (size_t)net->Hkv;
    if (on->be && on->be != v->be)
        return kve_fail(KVE_ERR_INTERNAL, "policy '%s' is loaded on another backend", self->base.name);
    on->be = v->be;
    if (!on->weights)
        KVE_TRY(upload(on->be, net->weights, heads * kve_kvp_count(net->shape), &on->weights));
    if (!(net->inputs & KVE_KVP_POS))
        return KVE_OK;
    if (!net->table)
        return on->n_positions < v->n ? make_table(on, v->n, net->shape.P) : KVE_OK;
    if (on->table)
        return KVE_OK;
    on->n_positions = net->n_positions;
    return upload(on->be, net->table, (size_t)net->n_tables * (size_t)net->n_positions * (size_t)net->shape.P,
                  &on->table);
}

static kve_status fits_kvp(const kve_policy *p, const kve_shape *shape, const char *model_sha256)
{
    const kvp *self = (const kvp *)p;
    return kve_kvp_net_fits(&self->net, self->path, shape, model_sha256);
}

static kve_status score_kvp(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    const kvp *self = (const kvp *)p;
    const kve_kvp_net *net = &self->net;
    KVE_TRY(fits_kvp(p, v->shape, NULL));
    KVE_TRY(load(self, v));
    const loaded *on = self->loaded;
    size_t P = (size_t)net->shape.P, head = (size_t)v->i_layer * (size_t)net->Hkv;
    bool own_tables = net->n_tables > 1;
    const kve_kvp_score_params params = {.kv = v->kv,
                                         .weights = on->weights + head * kve_kvp_count(net->shape),
                                         .table =
                                             own_tables ? on->table + head * (size_t)on->n_positions * P : on->table,
                                         .out = scores,
                                         .n = v->n,
                                         .Hkv = net->Hkv,
                                         .D = net->shape.D,
                                         .H = net->shape.H,
                                         .P = net->shape.P,
                                         .i_layer = v->i_layer,
                                         .n_layers = 1,
                                         .n_tables = own_tables ? net->Hkv : 1,
                                         .n_positions = on->n_positions,
                                         .inputs = net->inputs,
                                         .kv_dtype = v->kv_dtype};
    return v->be->vt->kvp_score(v->be, &params);
}

static double flops_kvp(const kve_policy *p, const kve_shape *s, int32_t n)
{
    const kve_kvp_net *net = &((const kvp *)p)->net;
    const kve_kvp_score_params params = {
        .n = n, .Hkv = s->Hkv, .D = s->D, .H = net->shape.H, .P = net->shape.P, .n_layers = 1, .inputs = net->inputs};
    return kve_cost_kvp_score(&params).flops;
}

const char *kve_kvp_policy_sha256(const kve_policy *p)
{
    return p->score == score_kvp ? ((const kvp *)p)->sha256 : NULL;
}

static kve_status make_name(const char *path, kve_arena *arena, const char **out)
{
    static const char SUFFIX[] = ".safetensors";
    const char *base = kve_path_base(path);
    size_t len = strlen(base), tail = sizeof SUFFIX - 1;
    char *name = NULL;
    if (len > tail && strcmp(base + len - tail, SUFFIX) == 0)
        len -= tail;
    KVE_TRY(kve_arena_alloc(arena, len + sizeof KVE_KVP_PREFIX, 1, &name));
    memcpy(name, KVE_KVP_PREFIX, sizeof KVE_KVP_PREFIX - 1);
    memcpy(name + sizeof KVE_KVP_PREFIX - 1, base, len);
    *out = name;
    return KVE_OK;
}

kve_status kve_kvp_policy(const char *path, const char *name, kve_arena *arena, const kve_policy **out)
{
    kvp *self = NULL;
    char *kept = NULL;
    KVE_TRY(kve_arena_alloc(arena, 1, sizeof *self, &self));
    KVE_TRY(kve_arena_alloc(arena, 1, sizeof *self->loaded, &self->loaded));
    KVE_TRY(kve_arena_strndup(arena, path, strlen(path), &kept));
    KVE_TRY(kve_kvp_net_read(path, arena, &self->net));
    KVE_TRY(kve_sha256_file(path, self->sha256));
    self->path = kept;
    self->base = (kve_policy){.summary = "a network that was trained for this model (kveval train)",
                              .needs = (self->net.inputs & KVE_KVP_K ? KVE_NEED_KEYS : 0u) |
                                       (self->net.inputs & KVE_KVP_V ? KVE_NEED_VALUES : 0u),
                              .score = score_kvp,
                              .flops = flops_kvp,
                              .fits = fits_kvp,
                              .close = close_kvp};
    self->base.name = name;
    if (!name)
        KVE_TRY(make_name(path, arena, &self->base.name));
    *out = &self->base;
    return KVE_OK;
}
