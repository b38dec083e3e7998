/* Policies that share or weigh by the scores of others: criticalkv (kvpress CriticalKVPress: half of the budget by the
 * base score, the rest weighed by the values' norms behind the output projection), adakv (AdaKVPress: a layer's budget
 * shared between its heads), pyramidkv (PyramidKVPress: SnapKV, with fewer tokens in later layers) and kvzip
 * (KVzipPress: one budget for all heads of all layers, by the attention of a replay).
 *
 * Where pyramidkv departs from kvpress: largest remainders round, so that all layers add up to the budget (kvpress
 * rounds each layer by itself), and layers may get less than SnapKV's window (kvpress gives all layers the same then,
 * which for budgets below 20 windows is SnapKV itself; here the most recent of the window stays). adakv and kvzip give
 * protected tokens their places ahead of all scores, the same number in every head. */
#include "policies/wrappers.h"

#include "policies/attention.h"
#include "policies/host_rows.h"
#include "policies/output_norms.h"
#include "policies/shares.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

enum { PYRAMID_BETA = 20, ADAKV_SAFE = 5 /* a fifth */, KVZIP_SINKS = 4 };

typedef struct wrapper {
    kve_policy self; /* first: what a kve_policy pointer points to */
    const kve_policy *base;
} wrapper;

static const kve_policy *base_of(const kve_policy *p)
{
    if (p == &kve_policy_criticalkv || p == &kve_policy_adakv || p == &kve_policy_pyramidkv)
        return &kve_policy_snapkv;
    return ((const wrapper *)p)->base;
}

static kve_status score_as_base(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    return kve_policy_score(base_of(p), v, scores);
}

/* --- criticalkv */

/* The first `count` tokens of every head by the base scores, host [Hkv][count]. */
static kve_status best_tokens(const kve_policy_view *v, const float *scores, int32_t count, int32_t *out)
{
    kve_backend *be = v->be;
    size_t bytes = (size_t)v->shape->Hkv * (size_t)count * sizeof *out;
    int32_t *order = NULL;
    KVE_TRY(be->vt->alloc(be, bytes, &order));
    kve_status st = be->vt->rank(
        be, &(kve_rank_params){.scores = scores, .order = order, .rows = v->shape->Hkv, .n = v->n, .n_out = count});
    if (st == KVE_OK)
        st = be->vt->read(be, out, order, bytes);
    be->vt->free(be, order);
    return st;
}

/* One head's scores [n] in place; those of the forced tokens are above all others. */
static void weigh(float *scores, const float *norms, int32_t n, const int32_t *forced, int32_t n_forced)
{
    const float epsilon = 1e-4f, protected = 1e30f; /* base scores from here on are rank, not attention */
    for (int32_t j = 0; j < n; j++)
        scores[j] = ((scores[j] > protected ? protected : scores[j]) + epsilon) * norms[j];
    for (int32_t i = 0; i < n_forced; i++)
        scores[forced[i]] = FLT_MAX;
}

static kve_status score_critical(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    size_t Hkv = (size_t)v->shape->Hkv, n = (size_t)v->n;
    int32_t n_forced = v->budget / 2 > 1 ? v->budget / 2 : 1, *forced = NULL;
    float *host = NULL, *norms = NULL;
    n_forced = n_forced < v->n ? n_forced : v->n;
    KVE_TRY(kve_policy_score(base_of(p), v, scores));
    kve_status st;
    KVE_TRY_GOTO(st, kve_alloc(Hkv * (size_t)n_forced, sizeof *forced, &forced), done);
    KVE_TRY_GOTO(st, kve_alloc(2 * Hkv * n, sizeof *host, &host), done);
    norms = host + Hkv * n;
    KVE_TRY_GOTO(st, best_tokens(v, scores, n_forced, forced), done);
    KVE_TRY_GOTO(st, v->be->vt->read(v->be, host, scores, Hkv * n * sizeof *host), done);
    KVE_TRY_GOTO(st, kve_output_norms(v, norms), done);
    for (size_t h = 0; h < Hkv; h++)
        weigh(host + h * n, norms + h * n, v->n, forced + h * (size_t)n_forced, n_forced);
    st = kve_host_scores_out(v, host, scores);
done:
    free(forced);
    free(host);
    return st;
}

/* --- Shares */

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t most(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static kve_status allocate_in_layers(const kve_policy *p, const kve_allocation *a, int32_t *lengths)
{
    (void)p;
    int32_t Hkv = a->shape->Hkv;
    size_t per_layer = (size_t)Hkv * (size_t)a->n;
    for (int32_t l = 0; l < a->shape->L; l++)
        kve_share_by_score(&(kve_share){.scores = a->scores + (size_t)l * per_layer,
                                        .order = a->order + (size_t)l * per_layer,
                                        .heads = Hkv,
                                        .n = a->n,
                                        .base = most(most(1, a->budget / ADAKV_SAFE), least(a->protected, a->budget)),
                                        .total = (int64_t)Hkv * a->budget},
                           lengths + (size_t)l * (size_t)Hkv);
    return KVE_OK;
}

static kve_status allocate_pyramid(const kve_policy *p, const kve_allocation *a, int32_t *lengths)
{
    (void)p;
    size_t L = (size_t)a->shape->L, Hkv = (size_t)a->shape->Hkv;
    int32_t *layers = NULL;
    KVE_TRY(kve_alloc(L, sizeof *layers, &layers));
    kve_share_pyramid(a->shape->L, a->n, a->budget, KVE_SNAPKV_WINDOW, PYRAMID_BETA, layers);
    for (size_t l = 0; l < L; l++)
        for (size_t h = 0; h < Hkv; h++)
            lengths[l * Hkv + h] = layers[l];
    free(layers);
    return KVE_OK;
}

static kve_status allocate_everywhere(const kve_policy *p, const kve_allocation *a, int32_t *lengths)
{
    (void)p;
    int32_t heads = a->shape->L * a->shape->Hkv;
    kve_share_by_score(&(kve_share){.scores = a->scores,
                                    .order = a->order,
                                    .heads = heads,
                                    .n = a->n,
                                    .base = most(1, least(a->protected, a->budget)), /* none is left without a token */
                                    .total = (int64_t)heads * a->budget},
                       lengths);
    return KVE_OK;
}

/* --- kvzip */

static kve_status score_kvzip(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    size_t Hkv = (size_t)v->shape->Hkv, n = (size_t)v->n;
    float *host = NULL;
    KVE_TRY(kve_alloc(Hkv * n, sizeof *host, &host));
    kve_status st = v->be->vt->read(v->be, host, v->replay, Hkv * n * sizeof *host);
    for (size_t h = 0; h < Hkv; h++)
        for (size_t j = 0; j < KVZIP_SINKS && j < n; j++) /* the first of all heads before the second of any */
            host[h * n + j] = 1e30f * (float)(KVZIP_SINKS - j);
    if (st == KVE_OK)
        st = kve_host_scores_out(v, host, scores);
    free(host);
    return st;
}

const kve_policy kve_policy_criticalkv = {.name = "criticalkv",
                                          .summary = "snapkv, the second half weighed by what values can write",
                                          .needs = KVE_NEED_KEYS | KVE_NEED_WINDOW | KVE_NEED_VALUES | KVE_NEED_OUTPUT,
                                          .by_budget = true,
                                          .own_recent = KVE_SNAPKV_WINDOW,
                                          .score = score_critical};
const kve_policy kve_policy_adakv = {.name = "adakv",
                                     .summary = "snapkv, a layer's budget shared between its heads",
                                     .needs = KVE_NEED_KEYS | KVE_NEED_WINDOW,
                                     .own_recent = KVE_SNAPKV_WINDOW,
                                     .score = score_as_base,
                                     .allocate = allocate_in_layers,
                                     .allocation = "heads"};
const kve_policy kve_policy_pyramidkv = {.name = "pyramidkv",
                                         .summary = "snapkv, with fewer tokens in later layers",
                                         .needs = KVE_NEED_KEYS | KVE_NEED_WINDOW,
                                         .own_recent = KVE_SNAPKV_WINDOW,
                                         .score = score_as_base,
                                         .allocate = allocate_pyramid,
                                         .allocation = "layers"};
const kve_policy kve_policy_kvzip = {.name = "kvzip",
                                     .summary = "the most attention of a replay, over all heads together",
                                     .needs = KVE_NEED_REPLAY,
                                     .score = score_kvzip,
                                     .allocate = allocate_everywhere,
                                     .allocation = "all heads"};

/* --- By name */

static kve_status fits_as_base(const kve_policy *p, const kve_shape *shape, const char *model_sha256)
{
    const kve_policy *base = base_of(p);
    return base->fits ? base->fits(base, shape, model_sha256) : KVE_OK;
}

static void close_as_base(const kve_policy *p)
{
    const kve_policy *base = base_of(p);
    if (base->close)
        base->close(base);
}

static bool can_be_base(const kve_policy *p)
{
    return !p->keeps_all && !p->allocate && p->score != score_critical;
}

static kve_status refuse_base(const char *item, const kve_policy *base)
{
    kve_str all = {0};
    for (size_t i = 0; i < kve_policy_count(); i++)
        if (can_be_base(kve_policy_at(i)))
            (void)kve_str_printf(&all, "%s%s", all.len ? ", " : "", kve_policy_at(i)->name);
    kve_status st =
        kve_fail(KVE_ERR_USAGE, "--policy %s: '%s' %s; behind the colon may stand: %s", item, base->name,
                 base->keeps_all ? "keeps everything" : "is itself made from another policy's scores or shares",
                 all.p ? all.p : "");
    kve_str_free(&all);
    return st;
}

kve_status kve_wrapped_policy(const char *item, kve_arena *arena, bool *is_wrapped, const kve_policy **out)
{
    const kve_policy *const kinds[] = {&kve_policy_adakv, &kve_policy_criticalkv}, *kind = NULL, *base;
    const char *colon = strchr(item, ':');
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && colon; i++)
        if (strlen(kinds[i]->name) == (size_t)(colon - item) &&
            memcmp(item, kinds[i]->name, (size_t)(colon - item)) == 0)
            kind = kinds[i];
    *is_wrapped = kind != NULL;
    if (!kind)
        return KVE_OK;
    KVE_TRY(kve_policy_find(colon + 1, &base));
    if (!can_be_base(base))
        return refuse_base(item, base);
    wrapper *w = NULL;
    kve_str name = {0};
    char *kept = NULL;
    KVE_TRY(kve_arena_alloc(arena, 1, sizeof *w, &w));
    kve_status st = kve_str_printf(&name, "%s:%s", kind->name, base->name);
    if (st == KVE_OK)
        st = kve_arena_strndup(arena, name.p, name.len, &kept);
    kve_str_free(&name);
    KVE_TRY(st);
    w->self = *kind;
    w->self.name = kept;
    w->self.summary = kind->allocate ? "the base, a layer's budget shared between its heads"
                                     : "the base, the second half weighed by what values can write";
    w->self.needs = base->needs | (kind->needs & (KVE_NEED_VALUES | KVE_NEED_OUTPUT));
    w->self.own_recent = base->own_recent;
    w->self.by_budget = kind->by_budget || base->by_budget;
    w->self.fits = fits_as_base;
    w->self.close = close_as_base;
    w->base = base;
    *out = &w->self;
    return KVE_OK;
}
