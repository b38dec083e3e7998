/* Eviction while decoding, against the whole procedure done again by hand: caches as lists of rows on the host, cut by
 * scores that are computed here, and one fork per token over exactly the rows that are left. Then: no cache is ever
 * larger than budget + N rows, other cells, chunks, threads and memory change no bit, and an N that is never reached
 * changes nothing. */
#include "tests/engine/tiny.h"

#include "eval/evaluator.h"
#include "eval/prompt.h"
#include "host/base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SINK = 1, RECENT = 2, SEED = 11, NEVER = 1 << 20, CHUNK = 128, MOST_CELLS = 64 };
static const double SAME_TOL = 1e-5, HAND_TOL = 1e-6;

typedef struct scene {
    fixture f;
    kve_tokenizer *tk;
    kve_chat chat;
    sequence q;
} scene;

static void open_scene(const char *model, int32_t threads, scene *c)
{
    *c = (scene){0};
    tiny_open(model, KVE_F32, threads, &c->f);
    MUST(kve_tokenizer_create(kve_checkpoint_vocab(c->f.ck), &c->tk));
    MUST(kve_chat_create(NULL, "plain", "", &c->chat));
    c->q = tiny_random(&c->f.m->cfg);
}

static void close_scene(scene *c)
{
    kve_chat_free(&c->chat);
    kve_tokenizer_free(c->tk);
    fixture_close(&c->f);
}

/* Five eighths of the sequence are prefilled, the rest is scored. */
static kve_sample window_of(const scene *c)
{
    size_t n = (size_t)c->q.n;
    return (kve_sample){.id = "w",
                        .task = "t",
                        .question = "",
                        .metric = KVE_METRIC_NLL,
                        .ids = c->q.ids,
                        .n_ids = n,
                        .n_prefill = n * 5 / 8};
}

static const char *const g_references[] = {"a"};

static kve_sample prompt_of(void)
{
    return (kve_sample){.id = "w",
                        .task = "t",
                        .context = "a bb c dd a b",
                        .question = " c?",
                        .answer_prefix = " it is so",
                        .references = g_references,
                        .n_references = 1,
                        .max_new_tokens = 24,
                        .metric = KVE_METRIC_RULER_ALL};
}

static kve_cell cell_of(const char *policy, int64_t budget)
{
    kve_cell cell = {.budget = budget};
    MUST(kve_policy_find(policy, &cell.policy));
    return cell;
}

static void evaluate(const scene *c, kve_eval_options o, const kve_sample *s, const kve_cell *cells, size_t n,
                     kve_arena *arena, kve_record *records)
{
    kve_evaluator *e = NULL;
    o.chunk = o.chunk ? o.chunk : CHUNK;
    o.fork_bytes = o.fork_bytes ? o.fork_bytes : 1 << 24;
    o.sink = SINK;
    o.recent = RECENT;
    o.seed = SEED;
    o.question_in = true;
    MUST(kve_evaluator_open(c->f.m, c->tk, &c->chat, &o, &e));
    MUST(kve_evaluate(e, s, cells, n, arena, records));
    kve_evaluator_close(e);
}

/* --- By hand */

/* The rows of every layer and head, in order of position. */
typedef struct by_hand {
    const scene *c;
    kve_session *s;
    const char *policy;
    int32_t budget, every;
    int32_t n, cap, n_evictions;
    float *k, *v;     /* [heads][cap][D] */
    int32_t position; /* of the next token */
} by_hand;

static size_t heads_of(const by_hand *w)
{
    return (size_t)w->c->f.m->cfg.shape.L * (size_t)w->c->f.m->cfg.shape.Hkv;
}

static size_t row_of(const by_hand *w, size_t head, int32_t j)
{
    return (head * (size_t)w->cap + (size_t)j) * (size_t)w->c->f.m->cfg.shape.D;
}

static double norm_of(const double *x, size_t D)
{
    double sum = 0;
    for (size_t d = 0; d < D; d++)
        sum += x[d] * x[d];
    return sqrt(sum);
}

/* keydiff: rows unlike the mean direction. (Not knorm: equal tokens have keys of equal norms, and rounding decides.) */
static void score_keydiff(const by_hand *w, size_t head, float *scores)
{
    enum { MOST_D = 64 };
    size_t D = (size_t)w->c->f.m->cfg.shape.D;
    double mean[MOST_D] = {0}, x[MOST_D];
    assert_true(D <= MOST_D);
    for (int pass = 0; pass < 2; pass++)
        for (int32_t j = 0; j < w->n; j++) {
            double dot = 0;
            for (size_t d = 0; d < D; d++)
                x[d] = (double)w->k[row_of(w, head, j) + d];
            double size = norm_of(x, D);
            for (size_t d = 0; d < D; d++) {
                mean[d] += pass ? 0 : x[d] / size / w->n;
                dot += x[d] * mean[d];
            }
            scores[j] = (float)(-dot / size / norm_of(mean, D));
        }
}

/* The k-th eviction; that of the prefill is number 0. */
static void score_head(const by_hand *w, size_t head, int32_t k, float *scores)
{
    size_t Hkv = (size_t)w->c->f.m->cfg.shape.Hkv;
    kve_rng rng;
    kve_rng_init(&rng, SEED + (uint64_t)k * 0x9e3779b97f4a7c15u, kve_hash_text("t/w", 3), head / Hkv, head % Hkv);
    if (strcmp(w->policy, "keydiff") == 0) {
        score_keydiff(w, head, scores);
        return;
    }
    for (int32_t j = 0; j < w->n; j++)
        if (strcmp(w->policy, "random") == 0)
            scores[j] = kve_rng_float(&rng);
        else /* streaming_llm */
            scores[j] = j < 4 ? (float)(4000 - j) : (float)j;
}

/* kept[j]: the first rows, the last ones, then by score, until there are `budget`. */
static void choose(const by_hand *w, const float *scores, bool *kept)
{
    int32_t n_kept = 0;
    memset(kept, 0, MOST_IDS * sizeof *kept);
    for (int32_t j = 0; j < SINK && n_kept < w->budget; j++, n_kept++)
        kept[j] = true;
    for (int32_t j = w->n - 1; j >= w->n - RECENT && n_kept < w->budget; j--, n_kept++)
        kept[j] = true;
    for (; n_kept < w->budget; n_kept++) {
        int32_t best = -1;
        for (int32_t j = 0; j < w->n; j++)
            if (!kept[j] && (best < 0 || scores[j] > scores[best]))
                best = j;
        kept[best] = true;
    }
}

static void cut(by_hand *w, int32_t k)
{
    float scores[MOST_IDS];
    bool kept[MOST_IDS];
    size_t row = (size_t)w->c->f.m->cfg.shape.D;
    for (size_t h = 0; h < heads_of(w); h++) {
        int32_t to = 0;
        score_head(w, h, k, scores);
        choose(w, scores, kept);
        for (int32_t j = 0; j < w->n; j++) {
            if (!kept[j])
                continue;
            memmove(w->k + row_of(w, h, to), w->k + row_of(w, h, j), row * sizeof(float));
            memmove(w->v + row_of(w, h, to++), w->v + row_of(w, h, j), row * sizeof(float));
        }
        assert_int_equal(to, w->budget);
    }
    w->n = w->budget;
}

/* Appends rows [0, count) of a device cache with `cap` rows a head. */
static void take_rows(by_hand *w, kve_kv from, int32_t count)
{
    size_t row = (size_t)w->c->f.m->cfg.shape.D, per_head = (size_t)from.cap * row, all = heads_of(w) * per_head;
    float *k = must_alloc(all, sizeof *k), *v = must_alloc(all, sizeof *v);
    kve_backend *be = w->c->f.be;
    MUST(be->vt->read(be, k, from.k, all * sizeof *k));
    MUST(be->vt->read(be, v, from.v, all * sizeof *v));
    assert_true(w->n + count <= w->cap);
    for (size_t h = 0; h < heads_of(w); h++) {
        memcpy(w->k + row_of(w, h, w->n), k + h * per_head, (size_t)count * row * sizeof *k);
        memcpy(w->v + row_of(w, h, w->n), v + h * per_head, (size_t)count * row * sizeof *v);
    }
    w->n += count;
    free(k);
    free(v);
}

/* The rows as a prefix on the device. */
static kve_kv upload(const by_hand *w)
{
    size_t row = (size_t)w->c->f.m->cfg.shape.D, per_head = (size_t)w->n * row, all = heads_of(w) * per_head;
    float *packed = must_alloc(all, sizeof *packed);
    kve_backend *be = w->c->f.be;
    kve_kv kv;
    MUST(kve_kv_alloc(w->c->f.m, w->n, &kv));
    for (int values = 0; values < 2; values++) {
        for (size_t h = 0; h < heads_of(w); h++)
            memcpy(packed + h * per_head, (values ? w->v : w->k) + row_of(w, h, 0), per_head * sizeof *packed);
        MUST(be->vt->write(be, values ? kv.v : kv.k, packed, all * sizeof *packed));
    }
    free(packed);
    return kv;
}

/* logits [V] of what follows the token. */
static void feed(by_hand *w, int32_t id, float *logits)
{
    const kve_model *m = w->c->f.m;
    if (w->n == w->budget + w->every)
        cut(w, ++w->n_evictions);
    kve_kv prefix = upload(w);
    forks one = {.m = m};
    forks_add(&one, prefix, w->n, w->position, 1);
    forks_begin(&one);
    extend_fork(w->s, &one, 0, &id, 1, CHUNK, logits);
    take_rows(w, one.slots[0].tail, 1);
    w->position++;
    forks_end(&one);
    kve_kv_free(m, &prefix);
}

/* Prefills, and cuts for the first time. first_nll: of `next`, by the last token of the context. */
static by_hand begin_by_hand(const scene *c, const char *policy, int32_t budget, int32_t every, const kve_prompt *p,
                             int32_t rows, float *first_nll)
{
    by_hand w = {.c = c, .policy = policy, .budget = budget, .every = every, .position = (int32_t)p->context.len};
    kve_context ctx;
    w.cap = w.position + rows;
    w.s = open_session(c->f.m, CHUNK, 1, w.cap);
    w.k = must_alloc(heads_of(&w) * (size_t)w.cap * (size_t)c->f.m->cfg.shape.D, sizeof *w.k);
    w.v = must_alloc(heads_of(&w) * (size_t)w.cap * (size_t)c->f.m->cfg.shape.D, sizeof *w.v);
    MUST(kve_context_alloc(c->f.m, w.position, &ctx));
    MUST(kve_prefill(w.s, p->context.p, w.position, &ctx));
    int32_t last = ctx.W - 1;
    MUST(kve_row_nll(w.s, &last, p->tail.p, 1, first_nll));
    take_rows(&w, ctx.kv, w.position);
    kve_context_free(c->f.m, &ctx);
    if (budget < w.n)
        cut(&w, 0);
    return w;
}

static void end_by_hand(by_hand *w)
{
    kve_session_close(w->s);
    free(w->k);
    free(w->v);
}

static double nll_of(const float *logits, size_t V, int32_t target)
{
    double top = -INFINITY, sum = 0;
    for (size_t i = 0; i < V; i++)
        top = fmax(top, (double)logits[i]);
    for (size_t i = 0; i < V; i++)
        sum += exp((double)logits[i] - top);
    return top + log(sum) - (double)logits[target];
}

static int32_t best_of(const float *logits, size_t V)
{
    size_t best = 0;
    for (size_t i = 1; i < V; i++)
        best = logits[i] > logits[best] ? i : best;
    return (int32_t)best;
}

static bool is_end(const kve_config *c, int32_t id)
{
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

typedef struct plan {
    const char *policy;
    int32_t budget, every; /* budgets above 100: that much above the context */
} plan;

static const plan g_plans[] = {{"streaming_llm", 8, 5}, {"streaming_llm", 6, 1}, {"streaming_llm", 103, 4},
                               {"streaming_llm", 2, 3}, {"keydiff", 9, 4},       {"keydiff", 5, 7},
                               {"random", 7, 3},        {"random", 101, 2}};
enum { N_PLANS = sizeof g_plans / sizeof *g_plans };

static int32_t budget_of(const plan *p, const kve_prompt *prompt)
{
    return p->budget > 100 ? (int32_t)prompt->context.len + p->budget - 100 : p->budget;
}

/* Returns how far off it is; *change: what the evictions while decoding do to it. */
static double check_window(const scene *c, const plan *p, double *change)
{
    kve_sample s = window_of(c);
    kve_arena arena = {0};
    kve_prompt prompt;
    kve_record r, once;
    float *logits = must_alloc((size_t)c->f.m->cfg.shape.V, sizeof *logits), first;
    MUST(kve_prompt_make(c->tk, &c->chat, &s, true, &prompt));
    int32_t n_tail = (int32_t)prompt.tail.len, budget = budget_of(p, &prompt);
    by_hand w = begin_by_hand(c, p->policy, budget, p->every, &prompt, n_tail, &first);
    double want = (double)first;
    for (int32_t i = 0; i < n_tail; i++) {
        feed(&w, prompt.tail.p[i], logits);
        want += i + 1 < n_tail ? nll_of(logits, (size_t)c->f.m->cfg.shape.V, prompt.tail.p[i + 1]) : 0;
    }
    kve_cell cell = cell_of(p->policy, budget);
    evaluate(c, (kve_eval_options){.evict_every = p->every}, &s, &cell, 1, &arena, &r);
    evaluate(c, (kve_eval_options){0}, &s, &cell, 1, &arena, &once);
    double off = fabs(r.nll_sum - want) / want;
    *change = fabs(r.nll_sum - once.nll_sum) / want;
    if (!(off <= HAND_TOL))
        fail_msg("%s at %d, every %d: %.9g nats instead of %.9g (once: %.9g)", p->policy, budget, p->every, r.nll_sum,
                 want, once.nll_sum);
    assert_int_equal(r.n_evictions, w.n_evictions);
    assert_true(w.n_evictions > 0);
    assert_int_equal(r.evict_every, p->every);
    assert_true(once.evict_every == KVE_NO_INT && once.n_evictions == KVE_NO_INT);
    assert_true(r.kept_min == r.kept_max && r.kept_min == (budget < r.n_context ? budget : r.n_context));
    end_by_hand(&w);
    kve_prompt_free(&prompt);
    kve_arena_free(&arena);
    free(logits);
    return off;
}

static void windows_by_hand(void **state)
{
    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        scene c;
        double worst = 0, least = INFINITY, change;
        open_scene(g_tiny[i], 1, &c);
        for (int k = 0; k < N_PLANS; k++) {
            worst = fmax(worst, check_window(&c, &g_plans[k], &change));
            least = fmin(least, change);
        }
        printf("%s: worst relative error %.1e; evictions while decoding change %.1e at least\n", g_tiny[i], worst,
               least);
        assert_true(least > 10 * HAND_TOL);
        close_scene(&c);
    }
}

static int check_answer(const scene *c, const plan *p)
{
    kve_sample s = prompt_of();
    kve_arena arena = {0};
    kve_prompt prompt;
    kve_record r;
    kve_str text = {0};
    size_t V = (size_t)c->f.m->cfg.shape.V;
    float *logits = must_alloc(V, sizeof *logits), unused;
    int32_t out[MOST_IDS], n_out = 0, next;
    MUST(kve_prompt_make(c->tk, &c->chat, &s, true, &prompt));
    int32_t budget = budget_of(p, &prompt);
    by_hand w = begin_by_hand(c, p->policy, budget, p->every, &prompt,
                              (int32_t)prompt.tail.len + (int32_t)s.max_new_tokens, &unused);
    for (size_t i = 0; i < prompt.tail.len; i++)
        feed(&w, prompt.tail.p[i], logits);
    while ((next = best_of(logits, V)), !is_end(&c->f.m->cfg, next)) {
        out[n_out++] = next;
        if (n_out == s.max_new_tokens)
            break;
        feed(&w, next, logits);
    }
    kve_cell cell = cell_of(p->policy, budget);
    evaluate(c, (kve_eval_options){.evict_every = p->every}, &s, &cell, 1, &arena, &r);
    MUST(kve_detokenize(c->tk, out, (size_t)n_out, false, &text));
    assert_int_equal(r.n_generated, n_out);
    assert_string_equal(r.prediction, text.p ? text.p : "");
    assert_int_equal(r.n_evictions, w.n_evictions);
    end_by_hand(&w);
    kve_str_free(&text);
    kve_prompt_free(&prompt);
    kve_arena_free(&arena);
    free(logits);
    return w.n_evictions;
}

static void answers_by_hand(void **state)
{
    (void)state;
    int n_evictions = 0;
    for (int i = 0; i < N_TINY; i++) {
        scene c;
        open_scene(g_tiny[i], 1, &c);
        for (int k = 0; k < N_PLANS; k++)
            n_evictions += check_answer(&c, &g_plans[k]);
        close_scene(&c);
    }
    assert_true(n_evictions > N_TINY * N_PLANS);
}

/* --- Memory */

/* The backend with two ops watched. */
static struct {
    const kve_backend_vt *real;
    int32_t budget, every; /* of the only cell */
    int32_t most_rows, n_compacted;
} g_watch;

static kve_status watch_attention(kve_backend *be, const kve_attention_fork_params *p)
{
    for (int32_t x = 0; x < p->X; x++) {
        int32_t rows = p->tail_len[x] + p->q_len[x];
        assert_int_equal(p->slots[x].prefix_len[0], 0);
        assert_true(rows <= p->slots[x].tail.cap && p->slots[x].tail.cap <= g_watch.budget + g_watch.every);
        g_watch.most_rows = rows > g_watch.most_rows ? rows : g_watch.most_rows;
    }
    return g_watch.real->attention_fork(be, p);
}

static kve_status watch_compact(kve_backend *be, const kve_compact_params *p)
{
    assert_int_equal(p->n, g_watch.budget + g_watch.every);
    for (int32_t h = 0; h < p->Hkv; h++) {
        assert_int_equal(p->keep_len[h], g_watch.budget);
        for (int32_t r = 1; r < g_watch.budget; r++)
            assert_true(p->keep[h * p->keep_stride + r - 1] < p->keep[h * p->keep_stride + r]);
    }
    g_watch.n_compacted++;
    return g_watch.real->compact(be, p);
}

static void no_cache_is_larger(void **state)
{
    (void)state;
    scene c;
    open_scene("llama", 1, &c);
    const kve_backend_vt *real = c.f.be->vt;
    kve_backend_vt watching = *real;
    watching.attention_fork = watch_attention;
    watching.compact = watch_compact;
    c.f.be->vt = &watching;
    for (int k = 0; k < N_PLANS; k++) {
        kve_sample samples[] = {window_of(&c), prompt_of()};
        for (size_t i = 0; i < 2; i++) {
            if (g_plans[k].budget > 100)
                continue;
            kve_arena arena = {0};
            kve_record r;
            kve_cell cell = cell_of(g_plans[k].policy, g_plans[k].budget);
            g_watch.real = real;
            g_watch.budget = g_plans[k].budget;
            g_watch.every = g_plans[k].every;
            g_watch.most_rows = g_watch.n_compacted = 0;
            evaluate(&c, (kve_eval_options){.evict_every = g_plans[k].every}, &samples[i], &cell, 1, &arena, &r);
            assert_int_equal(g_watch.most_rows, g_plans[k].budget + g_plans[k].every);
            assert_int_equal(g_watch.n_compacted, r.n_evictions * c.f.m->cfg.shape.L);
            assert_true(r.n_evictions > 0);
            kve_arena_free(&arena);
        }
    }
    c.f.be->vt = real;
    close_scene(&c);
}

/* --- The same numbers */

static const char *const g_policies[] = {"random", "streaming_llm", "knorm", "keydiff", "lagkv", "cur"};
enum { N_POLICIES = sizeof g_policies / sizeof *g_policies };

/* The full cache, and all that can evict while decoding at five budgets; the last two are above the contexts. */
static size_t make_cells(kve_cell *cells)
{
    static const int64_t budgets[] = {3, 7, 20, 85, 1000};
    size_t n = 0;
    cells[n++] = cell_of("full", KVE_NO_INT);
    for (int p = 0; p < N_POLICIES; p++)
        for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++)
            cells[n++] = cell_of(g_policies[p], budgets[b]);
    assert_true(n <= MOST_CELLS);
    return n;
}

/* A sample with four choices of different lengths. */
static kve_sample choices_of(void)
{
    static const char *const choices[] = {" a bb", " cc dd ee ff gg", " d", " ee ff a b c d e f g"};
    return (kve_sample){.id = "w",
                        .task = "t",
                        .context = "a bb c dd a b c d e",
                        .question = " which?",
                        .answer_prefix = " so:",
                        .plain = true,
                        .metric = KVE_METRIC_ACC,
                        .choices = choices,
                        .n_choices = 4};
}

static void same_bits_of(double a, double b, const char *what, size_t cell)
{
    if (memcmp(&a, &b, sizeof a) != 0)
        fail_msg("%s, cell %zu: %.17g and %.17g", what, cell, a, b);
}

static void same_cells(const kve_record *a, const kve_record *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        same_bits_of(a[i].nll_sum, b[i].nll_sum, what, i);
        assert_int_equal(a[i].n_evictions, b[i].n_evictions);
        assert_int_equal(a[i].n_generated, b[i].n_generated);
        for (size_t k = 0; k < a[i].n_choices; k++)
            same_bits_of(a[i].loglik[k], b[i].loglik[k], what, i);
        if (a[i].prediction)
            assert_string_equal(a[i].prediction, b[i].prediction);
    }
}

static void check_ways(const scene *c, const scene *threads, const kve_sample *s)
{
    const kve_eval_options every = {.evict_every = 5}, small = {.evict_every = 5, .chunk = 16},
                           poor = {.evict_every = 5, .fork_bytes = 1}, rewarded = {.evict_every = 5, .reward = true};
    kve_cell cells[MOST_CELLS];
    kve_record all[MOST_CELLS], other[MOST_CELLS];
    kve_arena arena = {0};
    size_t n = make_cells(cells);
    evaluate(c, every, s, cells, n, &arena, all);
    evaluate(c, small, s, cells, n, &arena, other);
    same_cells(all, other, n, "chunk 16");
    evaluate(c, poor, s, cells, n, &arena, other);
    same_cells(all, other, n, "no memory for two forks");
    assert_true(other[1].decode_forks < all[1].decode_forks);
    evaluate(c, rewarded, s, cells, n, &arena, other);
    same_cells(all, other, n, "with rewards");
    evaluate(threads, every, s, cells, n, &arena, other);
    same_cells(all, other, n, "three threads");
    for (size_t i = 0; i < n; i++) {
        evaluate(c, every, s, &cells[i], 1, &arena, other);
        same_cells(&all[i], other, 1, "alone");
    }
    assert_true(all[0].n_evictions == KVE_NO_INT && all[0].evict_every == KVE_NO_INT);
    assert_true(all[1].n_evictions > 1);
    assert_true(all[5].n_evictions == 0); /* the full cell: context and answer never exceed 1000 */
    same_bits_of(all[5].nll_sum, all[0].nll_sum, "above everything", 5);
    kve_arena_free(&arena);
}

static void however_computed(void **state)
{
    (void)state;
    scene c, threads;
    open_scene("llama", 1, &c);
    open_scene("llama", 3, &threads);
    const kve_sample samples[] = {window_of(&c), prompt_of(), choices_of()};
    for (size_t i = 0; i < 3; i++)
        check_ways(&c, &threads, &samples[i]);
    close_scene(&threads);
    close_scene(&c);
}

/* Only the order of the rows differs: by position here, by rank there. */
static void close_numbers(double a, double b, const char *model, size_t cell)
{
    if (isnan(a) && isnan(b))
        return;
    if (!(fabs(a - b) <= SAME_TOL * fabs(b)))
        fail_msg("%s, cell %zu: %.9g instead of %.9g", model, cell, a, b);
}

static void check_never(const char *model, const scene *c, const kve_sample *s)
{
    kve_cell cells[MOST_CELLS];
    kve_record never[MOST_CELLS], once[MOST_CELLS];
    kve_arena arena = {0};
    size_t n = make_cells(cells);
    evaluate(c, (kve_eval_options){.evict_every = NEVER, .reward = true}, s, cells, n, &arena, never);
    evaluate(c, (kve_eval_options){.reward = true}, s, cells, n, &arena, once);
    for (size_t i = 0; i < n; i++) {
        close_numbers(never[i].nll_sum, once[i].nll_sum, model, i);
        for (size_t k = 0; k < once[i].n_choices; k++)
            close_numbers(never[i].loglik[k], once[i].loglik[k], model, i);
        assert_int_equal(never[i].n_generated, once[i].n_generated);
        if (once[i].prediction)
            assert_string_equal(never[i].prediction, once[i].prediction);
        if (i)
            assert_int_equal(never[i].n_evictions, 0);
        assert_true(never[i].kept_min == once[i].kept_min && never[i].kept_max == once[i].kept_max);
        assert_int_equal(never[i].kv_bytes, once[i].kv_bytes);
        same_bits_of(never[i].reward_lost, once[i].reward_lost, "reward_lost", i);
        same_bits_of(never[i].reward_norm, once[i].reward_norm, "reward_norm", i);
    }
    kve_arena_free(&arena);
}

static void never_reached(void **state)
{
    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        scene c;
        open_scene(g_tiny[i], 1, &c);
        const kve_sample samples[] = {window_of(&c), prompt_of(), choices_of()};
        for (size_t k = 0; k < 3; k++)
            check_never(g_tiny[i], &c, &samples[k]);
        close_scene(&c);
    }
}

/* The first cut, and so what it loses, does not depend on the later ones. */
static void rewards_are_of_the_first_cut(void **state)
{
    (void)state;
    scene c;
    kve_cell cells[MOST_CELLS];
    kve_record with[MOST_CELLS], once[MOST_CELLS];
    kve_arena arena = {0};
    size_t n = make_cells(cells);
    open_scene("llama", 1, &c);
    const kve_sample s = window_of(&c);
    evaluate(&c, (kve_eval_options){.evict_every = 3, .reward = true}, &s, cells, n, &arena, with);
    evaluate(&c, (kve_eval_options){.reward = true}, &s, cells, n, &arena, once);
    for (size_t i = 0; i < n; i++) {
        same_bits_of(with[i].reward_lost, once[i].reward_lost, "reward_lost", i);
        same_bits_of(with[i].reward_norm, once[i].reward_norm, "reward_norm", i);
        assert_int_equal(with[i].n_future, once[i].n_future);
    }
    kve_arena_free(&arena);
    close_scene(&c);
}

/* The bit says what the other fields allow. */
static void policies_that_can(void **state)
{
    (void)state;
    int n = 0;
    for (size_t i = 0; i < kve_policy_count(); i++) {
        const kve_policy *p = kve_policy_at(i);
        if (!p->while_decoding)
            continue;
        n++;
        assert_false(p->needs & ~(unsigned)(KVE_NEED_KEYS | KVE_NEED_VALUES));
        assert_true(!p->by_budget && !p->keeps_all && !p->allocate && p->own_recent == 0);
    }
    for (int i = 0; i < N_POLICIES; i++)
        assert_true(cell_of(g_policies[i], 1).policy->while_decoding);
    assert_int_equal(n, N_POLICIES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_by_hand),    cmocka_unit_test(answers_by_hand),
        cmocka_unit_test(no_cache_is_larger), cmocka_unit_test(however_computed),
        cmocka_unit_test(never_reached),      cmocka_unit_test(rewards_are_of_the_first_cut),
        cmocka_unit_test(policies_that_can),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
