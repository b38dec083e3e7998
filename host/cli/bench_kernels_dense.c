/* The ops of kveval bench kernels that know no cache but the row they append to: embedding to logits, T rows at a time.
 */
#include "host/cli/bench_kernels.h"

#include <stdlib.h>

enum {
    FORKS = 48,      /* up to so many rows are forks with a slot each; more are a chunk of one context */
    LOGIT_ROWS = 64, /* the engine never has more rows of logits in flight */
    GEMM_ROWS = 128, /* from so many rows on a product is bound by arithmetic on every device */
    POSITIONS = 4096
};

KVE_KBENCH_CALL(embed)
KVE_KBENCH_CALL(rmsnorm)
KVE_KBENCH_CALL(matmul)
KVE_KBENCH_CALL(rope_append)
KVE_KBENCH_CALL(glu)
KVE_KBENCH_CALL(nll)
KVE_KBENCH_CALL(argmax)
KVE_KBENCH_CALL(advance)

static int64_t area(int32_t rows, int32_t width)
{
    return (int64_t)rows * width;
}

/* n whole numbers below `below`, on the device. */
static kve_status random_ints(kve_kbench *b, int32_t n, int32_t below, void *out_ptr)
{
    int32_t *host = NULL;
    KVE_TRY(kve_alloc((size_t)n, sizeof *host, &host));
    for (int32_t i = 0; i < n; i++)
        host[i] = (int32_t)kve_rng_below(&b->rng, (uint64_t)below);
    kve_status st = kve_kbench_upload(b, host, (size_t)n, sizeof *host, out_ptr);
    free(host);
    return st;
}

static kve_status bench_embed(kve_kbench *b)
{
    const kve_shape *s = &b->shape;
    kve_weight *table = NULL;
    KVE_TRY(kve_kbench_weight(b, b->dtype, s->V, s->E, &table));
    for (size_t i = 0; i < b->tokens.n; i++) {
        kve_embed_params p = {.table = table, .T = b->tokens.v[i], .E = s->E};
        kve_kbench_call call = {.op = "embed", .run = call_embed, .params = &p, .cost = kve_cost_embed(&p, b->dtype)};
        KVE_TRY(random_ints(b, p.T, s->V, &p.ids));
        KVE_TRY(kve_kbench_floats(b, area(p.T, p.E), &p.out));
        KVE_TRY(kve_kbench_measure(b, &call, "T=%d V=%d E=%d", p.T, s->V, p.E));
    }
    return KVE_OK;
}

static kve_status bench_rmsnorm(kve_kbench *b)
{
    for (size_t i = 0; i < b->tokens.n; i++) {
        kve_rmsnorm_params p = {.eps = 1e-5f, .T = b->tokens.v[i], .E = b->shape.E};
        kve_kbench_call call = {.op = "rmsnorm", .run = call_rmsnorm, .params = &p, .cost = kve_cost_rmsnorm(&p)};
        KVE_TRY(kve_kbench_floats(b, area(p.T, p.E), &p.x));
        KVE_TRY(kve_kbench_floats(b, p.E, &p.gain));
        KVE_TRY(kve_kbench_floats(b, area(p.T, p.E), &p.out));
        KVE_TRY(kve_kbench_measure(b, &call, "T=%d E=%d", p.T, p.E));
    }
    return KVE_OK;
}

/* A product of the forward pass at every T, `most` rows at the most; `accumulate` into the residual stream. */
static kve_status bench_product(kve_kbench *b, const char *name, int32_t N, int32_t K, int32_t most, bool accumulate)
{
    kve_weight *w = NULL;
    int32_t before = 0;
    KVE_TRY(kve_kbench_weight(b, b->dtype, N, K, &w));
    for (size_t i = 0; i < b->tokens.n; i++) {
        kve_matmul_params p = {.w = w, .accumulate = accumulate};
        p.T = b->tokens.v[i] < most ? b->tokens.v[i] : most;
        kve_kbench_call call = {.op = "matmul",
                                .run = call_matmul,
                                .params = &p,
                                .cost = kve_cost_matmul(&p, N, K, b->dtype),
                                .hot_only = p.T >= GEMM_ROWS};
        if (p.T == before) /* two sizes beyond the most are one */
            continue;
        before = p.T;
        KVE_TRY(kve_kbench_floats(b, area(p.T, K), &p.x));
        KVE_TRY(kve_kbench_floats(b, area(p.T, N), &p.y));
        KVE_TRY(kve_kbench_measure(b, &call, "%s T=%d K=%d N=%d", name, p.T, K, N));
    }
    kve_kbench_release(b);
    return KVE_OK;
}

static kve_status bench_matmul(kve_kbench *b)
{
    const kve_shape *s = &b->shape;
    int32_t q = s->Hq * s->D, kv = s->Hkv * s->D, any = INT32_MAX;
    KVE_TRY(bench_product(b, "qkv", q + 2 * kv, s->E, any, false));
    KVE_TRY(bench_product(b, "o", s->E, q, any, true));
    KVE_TRY(bench_product(b, "gate_up", 2 * s->F, s->E, any, false));
    KVE_TRY(bench_product(b, "down", s->E, s->F, any, true));
    return bench_product(b, "lm_head", s->V, s->E, LOGIT_ROWS, false);
}

/* T rows of forks go to a slot each, at any position; more are a chunk that goes to consecutive rows of one. */
static kve_status place_rows(kve_kbench *b, kve_rope_append_params *p)
{
    int32_t n_slots = p->T <= FORKS ? p->T : 1, rows = p->T <= FORKS ? 1 : p->T;
    kve_fork_slot slots[FORKS] = {0};
    kve_kv tails[FORKS];
    int32_t *host = NULL;
    KVE_TRY(kve_kbench_caches(b, n_slots, rows, tails, NULL));
    for (int32_t x = 0; x < n_slots; x++)
        slots[x].tail = tails[x];
    KVE_TRY(kve_kbench_upload(b, slots, (size_t)n_slots, sizeof *slots, &p->slots));
    KVE_TRY(kve_alloc(2 * (size_t)p->T, sizeof *host, &host));
    for (int32_t t = 0; t < p->T; t++) {
        host[t] = n_slots > 1 ? t : 0;
        host[p->T + t] = n_slots > 1 ? 0 : t;
    }
    kve_status st = kve_kbench_upload(b, host, (size_t)p->T, sizeof *host, &p->slot_of);
    if (st == KVE_OK)
        st = kve_kbench_upload(b, host + p->T, (size_t)p->T, sizeof *host, &p->index_of);
    free(host);
    return st;
}

static kve_status bench_rope_append(kve_kbench *b)
{
    const kve_shape *s = &b->shape;
    for (size_t i = 0; i < b->tokens.n; i++) {
        kve_rope_append_params p = {.norm_eps = 1e-5f,
                                    .T = b->tokens.v[i],
                                    .Hq = s->Hq,
                                    .Hkv = s->Hkv,
                                    .D = s->D,
                                    .R = s->R,
                                    .kv_dtype = b->dtype};
        kve_kbench_call call = {
            .op = "rope_append", .run = call_rope_append, .params = &p, .cost = kve_cost_rope_append(&p)};
        KVE_TRY(place_rows(b, &p));
        KVE_TRY(random_ints(b, p.T, POSITIONS, &p.pos_of));
        KVE_TRY(kve_kbench_floats(b, area(POSITIONS, p.R / 2), &p.cos));
        KVE_TRY(kve_kbench_floats(b, area(POSITIONS, p.R / 2), &p.sin));
        KVE_TRY(kve_kbench_floats(b, area(p.T, (p.Hq + 2 * p.Hkv) * p.D), &p.qkv));
        KVE_TRY(kve_kbench_floats(b, area(p.T, p.Hq * p.D), &p.q));
        KVE_TRY(kve_kbench_measure(b, &call, "T=%d Hq=%d Hkv=%d D=%d", p.T, p.Hq, p.Hkv, p.D));
    }
    return KVE_OK;
}

static kve_status bench_glu(kve_kbench *b)
{
    for (size_t i = 0; i < b->tokens.n; i++) {
        kve_glu_params p = {.act = KVE_SILU, .T = b->tokens.v[i], .F = b->shape.F};
        kve_kbench_call call = {.op = "glu", .run = call_glu, .params = &p, .cost = kve_cost_glu(&p)};
        KVE_TRY(kve_kbench_floats(b, 2 * area(p.T, p.F), &p.gate_up));
        KVE_TRY(kve_kbench_floats(b, area(p.T, p.F), &p.out));
        KVE_TRY(kve_kbench_measure(b, &call, "silu T=%d F=%d", p.T, p.F));
    }
    return KVE_OK;
}

static int32_t logit_rows(int32_t T)
{
    return T < LOGIT_ROWS ? T : LOGIT_ROWS;
}

static kve_status bench_nll(kve_kbench *b)
{
    for (size_t i = 0; i < b->tokens.n; i++) {
        kve_nll_params p = {.T = logit_rows(b->tokens.v[i]), .V = b->shape.V};
        kve_kbench_call call = {.op = "nll", .run = call_nll, .params = &p, .cost = kve_cost_nll(&p)};
        if (i && p.T == logit_rows(b->tokens.v[i - 1]))
            continue;
        KVE_TRY(kve_kbench_floats(b, area(p.T, p.V), &p.logits));
        KVE_TRY(random_ints(b, p.T, p.V, &p.target));
        KVE_TRY(kve_kbench_floats(b, p.T, &p.nll));
        KVE_TRY(kve_kbench_measure(b, &call, "T=%d V=%d", p.T, p.V));
    }
    return KVE_OK;
}

static kve_status bench_argmax(kve_kbench *b)
{
    for (size_t i = 0; i < b->tokens.n; i++) {
        kve_argmax_params p = {.T = logit_rows(b->tokens.v[i]), .V = b->shape.V};
        kve_kbench_call call = {.op = "argmax", .run = call_argmax, .params = &p, .cost = kve_cost_argmax(&p)};
        if (i && p.T == logit_rows(b->tokens.v[i - 1]))
            continue;
        KVE_TRY(kve_kbench_floats(b, area(p.T, p.V), &p.logits));
        KVE_TRY(kve_kbench_alloc(b, (size_t)p.T, sizeof *p.ids, &p.ids));
        KVE_TRY(kve_kbench_measure(b, &call, "T=%d V=%d", p.T, p.V));
    }
    return KVE_OK;
}

static kve_status bench_advance(kve_kbench *b)
{
    static const int32_t zero = 0;
    for (size_t i = 0; i < b->tokens.n; i++) {
        kve_advance_params p = {.T = b->tokens.v[i], .log_cap = 1};
        kve_kbench_call call = {.op = "advance", .run = call_advance, .params = &p, .cost = kve_cost_advance(&p)};
        int32_t T = p.T, *slot_of = NULL;
        void *logged;
        KVE_TRY(random_ints(b, T, b->shape.V, &p.next));
        KVE_TRY(random_ints(b, T, b->shape.V, &p.ids));
        KVE_TRY(random_ints(b, T, POSITIONS, &p.pos_of));
        KVE_TRY(random_ints(b, T, POSITIONS, &p.index_of));
        KVE_TRY(random_ints(b, T, POSITIONS, &p.tail_len));
        KVE_TRY(random_ints(b, T, b->shape.V, &p.log));
        KVE_TRY(kve_kbench_upload(b, &zero, 1, sizeof zero, &p.n_logged));
        KVE_TRY(kve_kbench_upload(b, &zero, 1, sizeof zero, &logged));
        call.restore = p.n_logged; /* the log has one place */
        call.pristine = logged;
        call.restore_bytes = sizeof zero;
        KVE_TRY(kve_alloc((size_t)T, sizeof *slot_of, &slot_of));
        for (int32_t t = 0; t < T; t++)
            slot_of[t] = t;
        kve_status st = kve_kbench_upload(b, slot_of, (size_t)T, sizeof *slot_of, &p.slot_of);
        free(slot_of);
        KVE_TRY(st);
        KVE_TRY(kve_kbench_measure(b, &call, "T=%d", T));
    }
    return KVE_OK;
}

const kve_kbench_op kve_kbench_dense[] = {{"embed", bench_embed},
                                          {"rmsnorm", bench_rmsnorm},
                                          {"matmul", bench_matmul},
                                          {"rope_append", bench_rope_append},
                                          {"glu", bench_glu},
                                          {"nll", bench_nll},
                                          {"argmax", bench_argmax},
                                          {"advance", bench_advance},
                                          {NULL, NULL}};
