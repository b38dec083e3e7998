/* The ops of kveval bench kernels that read or move a KV cache: attention, scoring, ranking, compaction. One layer; the
 * whole model costs L times as much. rank takes all layers in one call, kvp_score one or all. */
#include "host/cli/bench_kernels.h"
#include "kernels/kvp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK = 512, /* tokens of a prefill's call */
    CACHES = 8,  /* ranked caches, one per policy, ... */
    FORKS = 48,  /* ... which six budgets each share */
    TAIL = 32,   /* rows that a fork has decoded */
    WINDOW = 64, /* snapkv's */
    POOL = 5,    /* snapkv's */
    FUTURE = 64, /* tokens behind a reward */
    TOP = 4096,  /* the largest budget that a ranking must know */
    CACHE_SINK = 4,
    CACHE_RECENT = 16,
    LAG = 128,
    KVP_SMALL = 64,
    KVP_RELEASED = 256,
    KVP_POSITION = 32,
    KVP_PATIENCE_US = 250000 /* a whole model whose floor is above this has no row */
};

KVE_KBENCH_CALL(attention_prefill)
KVE_KBENCH_CALL(attention_fork)
KVE_KBENCH_CALL(attention_window)
KVE_KBENCH_CALL(pool_group)
KVE_KBENCH_CALL(future_importance)
KVE_KBENCH_CALL(row_stat)
KVE_KBENCH_CALL(kvp_score)
KVE_KBENCH_CALL(rank)
KVE_KBENCH_CALL(gather)
KVE_KBENCH_CALL(compact)

static float scale_of(const kve_shape *s)
{
    return 1.0f / sqrtf((float)s->D);
}

static kve_status queries(kve_kbench *b, int32_t T, void *out_ptr)
{
    return kve_kbench_floats(b, (int64_t)T * b->shape.Hq * b->shape.D, out_ptr);
}

/* The last chunk of a prefill of n tokens. */
static kve_status bench_attention_prefill(kve_kbench *b)
{
    const kve_shape *s = &b->shape;
    for (size_t i = 0; i < b->lengths.n; i++) {
        int32_t n = b->lengths.v[i], T = n < CHUNK ? n : CHUNK;
        kve_attention_prefill_params p = {
            .scale = scale_of(s), .T = T, .start = n - T, .Hq = s->Hq, .Hkv = s->Hkv, .D = s->D, .kv_dtype = b->dtype};
        kve_kbench_call call = {.op = "attention_prefill",
                                .run = call_attention_prefill,
                                .params = &p,
                                .cost = kve_cost_attention_prefill(&p),
                                .hot_only = true};
        KVE_TRY(kve_kbench_caches(b, 1, n, &p.kv, NULL));
        KVE_TRY(queries(b, T, &p.q));
        KVE_TRY(queries(b, T, &p.out));
        KVE_TRY(kve_kbench_measure(b, &call, "n=%d T=%d Hq=%d D=%d", n, T, s->Hq, s->D));
    }
    return KVE_OK;
}

/* The slots, lengths and rows of FORKS forks that decode one token each over the first `kept` rows of their caches. */
static kve_status make_forks(kve_kbench *b, int32_t kept, kve_attention_fork_params *p)
{
    kve_kv caches[CACHES], tails[FORKS];
    kve_fork_slot slots[FORKS];
    int32_t rows[FORKS], ones[FORKS], lengths[FORKS], *prefix = NULL, *kept_len = NULL;
    KVE_TRY(kve_kbench_caches(b, CACHES, kept, caches, NULL));
    KVE_TRY(kve_kbench_caches(b, FORKS, TAIL + 1, tails, NULL));
    KVE_TRY(kve_alloc((size_t)b->shape.Hkv, sizeof *prefix, &prefix));
    for (int32_t h = 0; h < b->shape.Hkv; h++)
        prefix[h] = kept;
    kve_status st = kve_kbench_upload(b, prefix, (size_t)b->shape.Hkv, sizeof *prefix, &kept_len);
    free(prefix);
    KVE_TRY(st);
    for (int32_t x = 0; x < FORKS; x++) {
        slots[x] = (kve_fork_slot){.prefix = caches[x % CACHES], .prefix_len = kept_len, .tail = tails[x]};
        rows[x] = x;
        ones[x] = 1;
        lengths[x] = TAIL;
    }
    KVE_TRY(kve_kbench_upload(b, slots, FORKS, sizeof *slots, &p->slots));
    KVE_TRY(kve_kbench_upload(b, rows, FORKS, sizeof *rows, &p->row_of));
    KVE_TRY(kve_kbench_upload(b, ones, FORKS, sizeof *ones, &p->q_len));
    return kve_kbench_upload(b, lengths, FORKS, sizeof *lengths, &p->tail_len);
}

static kve_status bench_attention_fork(kve_kbench *b)
{
    const kve_shape *s = &b->shape;
    for (size_t i = 0; i < b->budgets.n; i++) {
        double kept = b->budgets.v[i];
        kve_attention_fork_params p = {.scale = scale_of(s),
                                       .T = FORKS,
                                       .X = FORKS,
                                       .Hq = s->Hq,
                                       .Hkv = s->Hkv,
                                       .D = s->D,
                                       .kv_dtype = b->dtype,
                                       .max_prefix = b->budgets.v[i]};
        kve_kbench_call call = {.op = "attention_fork", .run = call_attention_fork, .params = &p};
        call.cost = kve_cost_attention_fork(&p, CACHES * kept + FORKS * (TAIL + 1), FORKS * (kept + TAIL + 1));
        KVE_TRY(make_forks(b, b->budgets.v[i], &p));
        KVE_TRY(queries(b, FORKS, &p.q));
        KVE_TRY(queries(b, FORKS, &p.out));
        KVE_TRY(kve_kbench_measure(b, &call, "X=%d b=%d caches=%d", FORKS, b->budgets.v[i], CACHES));
    }
    return KVE_OK;
}

static kve_status window_of(kve_kbench *b, int32_t n, int32_t W)
{
    const kve_shape *s = &b->shape;
    kve_attention_window_params p = {
        .scale = scale_of(s), .n = n, .W = W, .Hq = s->Hq, .Hkv = s->Hkv, .D = s->D, .kv_dtype = b->dtype};
    kve_kbench_call call = {.op = "attention_window",
                            .run = call_attention_window,
                            .params = &p,
                            .cost = kve_cost_attention_window(&p),
                            .hot_only = W > 1};
    KVE_TRY(kve_kbench_caches(b, 1, n, &p.kv, NULL));
    KVE_TRY(queries(b, W, &p.q));
    KVE_TRY(kve_kbench_floats(b, (int64_t)s->Hq * n, &p.out));
    return kve_kbench_measure(b, &call, "n=%d W=%d Hq=%d D=%d", n, W, s->Hq, s->D);
}

/* As tova looks, and as snapkv does. */
static kve_status bench_attention_window(kve_kbench *b)
{
    for (size_t i = 0; i < b->lengths.n; i++) {
        int32_t n = b->lengths.v[i];
        KVE_TRY(window_of(b, n, 1));
        if (n > 1)
            KVE_TRY(window_of(b, n, n < WINDOW ? n : WINDOW));
    }
    return KVE_OK;
}

static kve_status bench_pool_group(kve_kbench *b)
{
    const kve_shape *s = &b->shape;
    for (size_t i = 0; i < b->lengths.n; i++) {
        int32_t n = b->lengths.v[i];
        kve_pool_group_params p = {
            .n = n, .n_valid = n > WINDOW ? n - WINDOW : n, .Hq = s->Hq, .Hkv = s->Hkv, .width = POOL};
        kve_kbench_call call = {
            .op = "pool_group", .run = call_pool_group, .params = &p, .cost = kve_cost_pool_group(&p)};
        KVE_TRY(kve_kbench_floats(b, (int64_t)s->Hq * n, &p.in));
        KVE_TRY(kve_kbench_floats(b, (int64_t)s->Hkv * n, &p.out));
        KVE_TRY(kve_kbench_measure(b, &call, "n=%d width=%d Hq=%d Hkv=%d", n, POOL, s->Hq, s->Hkv));
    }
    return KVE_OK;
}

static kve_status bench_future_importance(kve_kbench *b)
{
    const kve_shape *s = &b->shape;
    for (size_t i = 0; i < b->lengths.n; i++) {
        kve_future_importance_params p = {.scale = scale_of(s),
                                          .n = b->lengths.v[i],
                                          .f = FUTURE,
                                          .Hq = s->Hq,
                                          .Hkv = s->Hkv,
                                          .D = s->D,
                                          .kv_dtype = b->dtype};
        kve_kbench_call call = {.op = "future_importance",
                                .run = call_future_importance,
                                .params = &p,
                                .cost = kve_cost_future_importance(&p),
                                .hot_only = true};
        KVE_TRY(kve_kbench_caches(b, 1, p.n, &p.ctx, NULL));
        KVE_TRY(kve_kbench_caches(b, 1, p.f, &p.tail, NULL));
        KVE_TRY(queries(b, p.f, &p.q));
        KVE_TRY(kve_kbench_floats(b, (int64_t)s->Hkv * p.n, &p.out));
        KVE_TRY(kve_kbench_measure(b, &call, "n=%d f=%d Hq=%d D=%d", p.n, p.f, s->Hq, s->D));
    }
    return KVE_OK;
}

static kve_status bench_row_stat(kve_kbench *b)
{
    static const struct {
        const char *policy;
        kve_row_stat stat;
    } stats[] = {{"knorm", KVE_STAT_NEG_NORM}, {"keydiff", KVE_STAT_NEG_COSINE}, {"lagkv", KVE_STAT_LAG}};
    const kve_shape *s = &b->shape;
    for (size_t k = 0; k < sizeof stats / sizeof *stats; k++)
        for (size_t i = 0; i < b->lengths.n; i++) {
            kve_row_stat_params p = {.stat = stats[k].stat,
                                     .n = b->lengths.v[i],
                                     .Hkv = s->Hkv,
                                     .D = s->D,
                                     .n_sink = CACHE_SINK,
                                     .lag = LAG,
                                     .kv_dtype = b->dtype};
            kve_kbench_call call = {
                .op = "row_stat", .run = call_row_stat, .params = &p, .cost = kve_cost_row_stat(&p)};
            KVE_TRY(kve_kbench_caches(b, 1, p.n, &p.kv, NULL));
            KVE_TRY(kve_kbench_floats(b, (int64_t)s->Hkv * p.n, &p.out));
            KVE_TRY(kve_kbench_measure(b, &call, "%s n=%d Hkv=%d D=%d", stats[k].policy, p.n, s->Hkv, s->D));
        }
    return KVE_OK;
}

/* The learned policy's network of width H over n rows: one layer, and the whole model in one call as a run has it. */
static kve_status kvp_of_width(kve_kbench *b, int32_t n, int32_t H)
{
    const kve_shape *s = &b->shape;
    size_t blob = kve_kvp_count((kve_kvp_shape){s->D, H, KVP_POSITION});
    for (int whole = 0; whole < 2; whole++) {
        int32_t layers = whole ? s->L : 1;
        kve_kvp_score_params p = {.n = n,
                                  .Hkv = s->Hkv,
                                  .D = s->D,
                                  .H = H,
                                  .P = KVP_POSITION,
                                  .n_layers = layers,
                                  .n_tables = 1,
                                  .n_positions = n,
                                  .inputs = KVE_KVP_K | KVE_KVP_V | KVE_KVP_POS,
                                  .kv_dtype = b->dtype};
        kve_kbench_call call = {.op = "kvp_score",
                                .run = call_kvp_score,
                                .params = &p,
                                .cost = kve_cost_kvp_score(&p),
                                .hot_only = H > KVP_SMALL};
        int64_t heads = (int64_t)layers * s->Hkv;
        if (whole && call.cost.flops > b->flops_per_us * KVP_PATIENCE_US)
            break;
        KVE_TRY(kve_kbench_layers(b, layers, n, &p.kv));
        KVE_TRY(kve_kbench_floats(b, heads * (int64_t)blob, &p.weights));
        KVE_TRY(kve_kbench_floats(b, (int64_t)n * KVP_POSITION, &p.table));
        KVE_TRY(kve_kbench_floats(b, heads * n, &p.out));
        KVE_TRY(kve_kbench_measure(b, &call, "kvp-%d n=%d layers=%d", H, n, layers));
        kve_kbench_release(b);
    }
    return KVE_OK;
}

static kve_status bench_kvp_score(kve_kbench *b)
{
    for (size_t i = 0; i < b->lengths.n; i++) {
        KVE_TRY(kvp_of_width(b, b->lengths.v[i], KVP_SMALL));
        KVE_TRY(kvp_of_width(b, b->lengths.v[i], KVP_RELEASED));
    }
    return KVE_OK;
}

/* All of a ranking, and the first TOP of it: more no budget asks for. */
static kve_status bench_rank(kve_kbench *b)
{
    static const kve_kbench_list own = {{4096, 32768, 131072}, 3};
    const kve_kbench_list *lengths = b->own_lengths ? &b->lengths : &own;
    for (size_t i = 0; i < lengths->n; i++) {
        int32_t n = lengths->v[i], rows = b->shape.L * b->shape.Hkv;
        kve_rank_params p = {.rows = rows, .n = n, .sink = CACHE_SINK, .recent = CACHE_RECENT};
        KVE_TRY(kve_kbench_floats(b, (int64_t)rows * n, &p.scores));
        KVE_TRY(kve_kbench_alloc(b, (size_t)rows * (size_t)n, sizeof *p.order, &p.order));
        for (int whole = 1; whole >= (n > TOP ? 0 : 1); whole--) {
            p.n_out = whole ? n : TOP;
            kve_kbench_call call = {.op = "rank", .run = call_rank, .params = &p, .cost = kve_cost_rank(&p)};
            KVE_TRY(kve_kbench_measure(b, &call, "rows=%d n=%d out=%d", rows, n, p.n_out));
        }
        kve_kbench_release(b);
    }
    return KVE_OK;
}

static int ascending(const void *a, const void *b)
{
    return (*(const int32_t *)a > *(const int32_t *)b) - (*(const int32_t *)a < *(const int32_t *)b);
}

/* For each KV head `count` of n rows by chance, [Hkv][count]: in any order, or ascending. */
static kve_status choose_rows(kve_kbench *b, int32_t n, int32_t count, bool sorted, void *out_ptr)
{
    size_t Hkv = (size_t)b->shape.Hkv, k = (size_t)count;
    int32_t *all = NULL, *chosen = NULL;
    KVE_TRY(kve_alloc((size_t)n, sizeof *all, &all));
    kve_status st = kve_alloc(Hkv * k, sizeof *chosen, &chosen);
    for (size_t h = 0; h < Hkv && st == KVE_OK; h++) {
        for (int32_t j = 0; j < n; j++)
            all[j] = j;
        kve_rng_shuffle(&b->rng, all, (size_t)n);
        if (sorted)
            qsort(all, k, sizeof *all, ascending);
        memcpy(chosen + h * k, all, k * sizeof *all);
    }
    if (st == KVE_OK)
        st = kve_kbench_upload(b, chosen, Hkv * k, sizeof *chosen, out_ptr);
    free(all);
    free(chosen);
    return st;
}

/* b rows out of twice as many, of one layer. */
static kve_status bench_gather(kve_kbench *b)
{
    const kve_shape *s = &b->shape;
    for (size_t i = 0; i < b->budgets.n; i++) {
        int32_t kept = b->budgets.v[i];
        kve_gather_params p = {
            .count = kept, .order_stride = kept, .Hkv = s->Hkv, .D = s->D, .n_layers = 1, .kv_dtype = b->dtype};
        kve_kbench_call call = {.op = "gather", .run = call_gather, .params = &p, .cost = kve_cost_gather(&p)};
        KVE_TRY(kve_kbench_caches(b, 1, 2 * kept, &p.from, NULL));
        KVE_TRY(kve_kbench_caches(b, 1, kept, &p.to, NULL));
        KVE_TRY(choose_rows(b, 2 * kept, kept, false, &p.order));
        KVE_TRY(kve_kbench_measure(b, &call, "b=%d of n=%d Hkv=%d D=%d", kept, 2 * kept, s->Hkv, s->D));
    }
    return KVE_OK;
}

static kve_status bench_compact(kve_kbench *b)
{
    const kve_shape *s = &b->shape;
    for (size_t i = 0; i < b->budgets.n; i++) {
        int32_t kept = b->budgets.v[i], *lengths = NULL;
        kve_compact_params p = {.keep_stride = kept, .n = 2 * kept, .Hkv = s->Hkv, .D = s->D, .kv_dtype = b->dtype};
        kve_kbench_call call = {.op = "compact", .run = call_compact, .params = &p};
        kve_kv pristine;
        call.cost = kve_cost_compact(&p, (double)kept * s->Hkv);
        KVE_TRY(kve_kbench_caches(b, 1, p.n, &p.kv, &call.restore_bytes));
        KVE_TRY(kve_kbench_caches(b, 1, p.n, &pristine, NULL));
        call.restore = p.kv.k; /* the block's beginning */
        call.pristine = pristine.k;
        KVE_TRY(choose_rows(b, p.n, kept, true, &p.keep));
        KVE_TRY(kve_alloc((size_t)s->Hkv, sizeof *lengths, &lengths));
        for (int32_t h = 0; h < s->Hkv; h++)
            lengths[h] = kept;
        kve_status st = kve_kbench_upload(b, lengths, (size_t)s->Hkv, sizeof *lengths, &p.keep_len);
        free(lengths);
        KVE_TRY(st);
        KVE_TRY(kve_kbench_measure(b, &call, "b=%d of n=%d Hkv=%d D=%d", kept, p.n, s->Hkv, s->D));
    }
    return KVE_OK;
}

const kve_kbench_op kve_kbench_cache[] = {{"attention_prefill", bench_attention_prefill},
                                          {"attention_fork", bench_attention_fork},
                                          {"attention_window", bench_attention_window},
                                          {"pool_group", bench_pool_group},
                                          {"future_importance", bench_future_importance},
                                          {"row_stat", bench_row_stat},
                                          {"kvp_score", bench_kvp_score},
                                          {"rank", bench_rank},
                                          {"gather", bench_gather},
                                          {"compact", bench_compact},
                                          {NULL, NULL}};
