/* OASST2 as dialogues of a given length: best paths in an order drawn from the seed, shorter ones joined as further
 * turns. Each path is used once. Contract: dataset.h. */
#include "datasets/oasst.h"

#include "host/base/file.h"
#include "host/base/rng.h"

#include <stdlib.h>
#include <string.h>

enum {
    LOOK_AHEAD = 64, /* paths that are tried for the room that is left */
    MIN_SCORED = 16, /* tokens of the message that is scored */
};

typedef struct dialogue {
    size_t *paths; /* [n] */
    size_t n;
    int64_t n_tok;
} dialogue;

typedef struct oasst {
    kve_dataset base;           /* first: the dataset is this object */
    const kve_oasst_options *o; /* while it opens */
    const char *path;
    int64_t length_tok;
    uint64_t seed;
    kve_oasst_paths paths;
    int64_t *cost; /* [paths.n] tokens with the template's; 0 = not counted yet, -1 = used up, or too long */
    int64_t *last; /* [paths.n] tokens of the last message */
    dialogue *dialogues;
    size_t n, cap;
    kve_arena arena;
} oasst;

/* --- Building */

static kve_status count_path(oasst *d, size_t i)
{
    kve_oasst_path *p = &d->paths.items[i];
    int64_t room = d->length_tok - d->o->overhead_tok, cost = 0;
    size_t fits = 0;
    for (size_t t = 0; t < p->n_turns; t++) {
        size_t n = 0;
        KVE_TRY(d->o->tokens.count(d->o->tokens.ctx, p->turns[t].text, strlen(p->turns[t].text), &n));
        cost += (int64_t)n + d->o->turn_tok;
        if (cost > room)
            break;
        if (t % 2) { /* a path that is too long loses its end */
            fits = t + 1;
            d->cost[i] = cost;
            d->last[i] = (int64_t)n;
        }
    }
    p->n_turns = fits;
    d->cost[i] = fits ? d->cost[i] : -1;
    return KVE_OK;
}

/* Takes paths in order while they fit; passes over those that do not. */
static kve_status fill_dialogue(oasst *d, const int32_t *order, size_t *from, dialogue *out)
{
    size_t looked = 0;
    out->n_tok = d->o->overhead_tok;
    while (*from < d->paths.n && d->cost[order[*from]] < 0)
        ++*from;
    for (size_t k = *from; k < d->paths.n && looked < LOOK_AHEAD; k++) {
        size_t i = (size_t)order[k];
        if (d->cost[i] == 0)
            KVE_TRY(count_path(d, i));
        if (d->cost[i] < 0)
            continue;
        looked++;
        if (out->n_tok + d->cost[i] > d->length_tok)
            continue;
        out->n_tok += d->cost[i];
        out->paths[out->n++] = i;
        d->cost[i] = -1;
    }
    return KVE_OK;
}

/* The last path whose last message is long enough to be scored goes to the end. */
static bool choose_last(const oasst *d, dialogue *g)
{
    for (size_t k = g->n; k-- > 0;)
        if (d->last[g->paths[k]] >= MIN_SCORED) {
            size_t path = g->paths[k];
            memmove(g->paths + k, g->paths + k + 1, (g->n - 1 - k) * sizeof *g->paths);
            g->paths[g->n - 1] = path;
            return true;
        }
    return false;
}

static kve_status keep_dialogue(oasst *d, const dialogue *g)
{
    size_t *paths = NULL;
    KVE_TRY(kve_list_room(&d->arena, d->n, &d->cap, sizeof *d->dialogues, &d->dialogues));
    KVE_TRY(kve_arena_alloc(&d->arena, g->n, sizeof *paths, &paths));
    memcpy(paths, g->paths, g->n * sizeof *paths);
    d->dialogues[d->n++] = (dialogue){paths, g->n, g->n_tok};
    return KVE_OK;
}

static kve_status build_all(oasst *d, int32_t *order, size_t *room)
{
    kve_rng rng;
    size_t from = 0;
    for (size_t i = 0; i < d->paths.n; i++)
        order[i] = (int32_t)i;
    kve_rng_init(&rng, d->seed, kve_hash_text("oasst2", 6), 0, 0);
    kve_rng_shuffle(&rng, order, d->paths.n);
    while (d->o->n_samples == 0 || d->n < d->o->n_samples) {
        dialogue g = {.paths = room};
        KVE_TRY(fill_dialogue(d, order, &from, &g));
        if (g.n_tok < d->length_tok - d->length_tok / 4)
            break; /* the trees are used up */
        if (choose_last(d, &g))
            KVE_TRY(keep_dialogue(d, &g));
    }
    return KVE_OK;
}

static kve_status build(oasst *d)
{
    int32_t *order = NULL;
    size_t *room = NULL;
    KVE_TRY(kve_arena_alloc(&d->arena, d->paths.n, sizeof *d->cost, &d->cost));
    KVE_TRY(kve_arena_alloc(&d->arena, d->paths.n, sizeof *d->last, &d->last));
    kve_status st = kve_alloc(d->paths.n, sizeof *order, &order);
    if (st == KVE_OK)
        st = kve_alloc(d->paths.n, sizeof *room, &room);
    if (st == KVE_OK)
        st = build_all(d, order, room);
    free(order);
    free(room);
    if (st == KVE_OK && d->n == 0)
        st = kve_fail(KVE_ERR_FILE,
                      "%s: %zu trees, %zu of them usable (English, not deleted, answered), do not fill one dialogue of "
                      "%lld tokens; give more trees or ask for a shorter length (oasst2-1k)",
                      d->path, d->paths.n_trees, d->paths.n, (long long)d->length_tok);
    return st;
}

/* --- Samples */

static kve_status copy_turns(const oasst *d, const dialogue *g, kve_sample *s)
{
    kve_turn *turns = NULL;
    size_t n = 0, k = 0;
    for (size_t i = 0; i < g->n; i++)
        n += d->paths.items[g->paths[i]].n_turns;
    KVE_TRY(kve_arena_alloc(&s->arena, n, sizeof *turns, &turns));
    for (size_t i = 0; i < g->n; i++) {
        const kve_oasst_path *p = &d->paths.items[g->paths[i]];
        for (size_t t = 0; t < p->n_turns; t++, k++) {
            char *copy = NULL;
            KVE_TRY(kve_arena_strndup(&s->arena, p->turns[t].text, strlen(p->turns[t].text), &copy));
            turns[k] = (kve_turn){p->turns[t].role, copy};
        }
    }
    s->turns = turns;
    s->n_turns = n;
    return KVE_OK;
}

static kve_status name_sample(const oasst *d, const dialogue *g, size_t i, kve_sample *s)
{
    kve_str id = {0}, source = {0};
    char *copy = NULL;
    kve_status st =
        kve_str_printf(&id, "dialogue-%lld-s%llu-%zu", (long long)d->length_tok, (unsigned long long)d->seed, i);
    if (st == KVE_OK)
        st = kve_arena_strndup(&s->arena, id.p, id.len, &copy);
    s->id = copy;
    if (st == KVE_OK)
        st = kve_str_printf(&source, "%s: the trees of lines", d->path);
    for (size_t k = 0; k < g->n && st == KVE_OK; k++)
        st = kve_str_printf(&source, "%s%zu", k ? ", " : " ", d->paths.items[g->paths[k]].line);
    if (st == KVE_OK)
        st = kve_arena_strndup(&s->arena, source.p, source.len, &copy);
    s->source = copy;
    kve_str_free(&id);
    kve_str_free(&source);
    return st;
}

static kve_status oasst_sample(kve_dataset *self, size_t i, kve_sample *out)
{
    const oasst *d = (const oasst *)self;
    const dialogue *g = &d->dialogues[i];
    out->task = self->name;
    out->task_version = KVE_OASST_VERSION;
    out->metric = KVE_METRIC_NLL;
    out->note = "message trees are joined as further turns up to the length";
    out->n_tok = g->n_tok;
    KVE_TRY(name_sample(d, g, i, out));
    return copy_turns(d, g, out);
}

static void oasst_close(kve_dataset *self)
{
    oasst *d = (oasst *)self;
    kve_arena_free(&d->arena);
    free(d);
}

/* --- Opening */

/* Trees say more than flat rows; among files of a kind the largest is read. */
static kve_status find_file(oasst *d, kve_dataset_list *out, kve_format *f, const kve_source **best)
{
    kve_sources sources;
    kve_str why = {0};
    *f = (kve_format){.task = d->o->name,
                      .wanted = "OASST2 message trees, or flat rows with message_id, parent_id, role and text",
                      .knows = kve_oasst_knows_tree};
    kve_status st = kve_sources_find(f, d->o->path, &d->arena, &sources);
    if (st == KVE_ERR_FILE && kve_path_is_dir(d->o->path)) {
        f->knows = kve_oasst_knows_flat;
        st = kve_sources_find(f, d->o->path, &d->arena, &sources);
    }
    KVE_TRY(st);
    *best = &sources.items[0];
    for (size_t i = 1; i < sources.n; i++)
        *best = sources.items[i].bytes > (*best)->bytes ? &sources.items[i] : *best;
    for (size_t i = 0; i < sources.n && st == KVE_OK; i++) {
        if (&sources.items[i] == *best)
            continue;
        kve_str_clear(&why);
        st = kve_str_printf(&why, "it holds the same task (%s) as %s, which is read", d->o->name, (*best)->path);
        if (st == KVE_OK)
            st = kve_dataset_list_skip(out, sources.items[i].path, why.p);
    }
    kve_str_free(&why);
    return st;
}

static kve_status say_bad_rows(const oasst *d, const kve_bad_rows *bad, kve_dataset_list *out)
{
    kve_str name = {0};
    if (bad->n == 0)
        return KVE_OK;
    out->n_bad_rows += bad->n;
    kve_status st = kve_str_printf(&name, "%s: %zu bad rows", d->o->name, bad->n);
    if (st == KVE_OK)
        st = kve_dataset_list_skip(out, name.p, bad->first.p);
    kve_str_free(&name);
    return st;
}

static kve_status fill(oasst *d, kve_dataset_list *out)
{
    const kve_source *s = NULL;
    kve_bad_rows bad = {.skip = d->o->skip_bad};
    kve_format f;
    char *name = NULL;
    KVE_TRY(find_file(d, out, &f, &s));
    KVE_TRY(kve_arena_strndup(&d->arena, d->o->name, strlen(d->o->name), &name));
    d->base.name = name;
    d->path = s->path;
    kve_status st = kve_oasst_read(s, &f, &bad, &d->arena, &d->paths);
    if (st == KVE_OK)
        st = build(d);
    if (st == KVE_OK)
        st = say_bad_rows(d, &bad, out);
    kve_str_free(&bad.first);
    d->base.n_samples = d->n;
    return st;
}

kve_status kve_oasst_open(const kve_oasst_options *options, kve_dataset_list *out)
{
    oasst *d = NULL;
    if (!options->path)
        return kve_fail(KVE_ERR_USAGE, "task '%s' needs --data: a file or a folder with OASST2 trees or flat rows",
                        options->name);
    KVE_TRY(kve_alloc(1, sizeof *d, &d));
    d->base.sample = oasst_sample;
    d->base.close = oasst_close;
    d->o = options;
    d->length_tok = options->length_tok;
    d->seed = options->seed;
    kve_status st = fill(d, out);
    d->o = NULL;
    if (st == KVE_OK)
        return kve_dataset_list_add(out, &d->base);
    oasst_close(&d->base);
    return st;
}
