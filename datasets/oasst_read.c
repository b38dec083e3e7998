/* OASST2's two layouts into one list of messages, and from there each tree's best path. Contract: oasst.h. */
#include "datasets/oasst.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = -1 };

typedef struct node {
    const char *id, *parent; /* parent NULL: a root */
    const char *text;        /* NULL unless it is usable */
    bool assistant, usable;
    int64_t rank; /* INT64_MAX: none */
    size_t line;
    int64_t i_parent, first_child, last_child, next; /* NONE, or into the list */
} node;

typedef struct forest {
    kve_arena *arena;
    const char *path;
    node *p;
    size_t n, cap;
    size_t *by_id; /* [n] */
} forest;

bool kve_oasst_knows_tree(const cJSON *row)
{
    return kve_json_get(row, "message_tree_id") && cJSON_IsObject(kve_json_get(row, "prompt"));
}

bool kve_oasst_knows_flat(const cJSON *row)
{
    return kve_json_get(row, "message_id") && kve_json_get(row, "role") && kve_json_get(row, "text") &&
           !kve_json_get(row, "replies");
}

/* --- Messages */

static kve_status keep_trimmed(forest *f, const char *text, const char **out)
{
    static const char SPACE[] = " \t\r\n\f\v";
    char *copy = NULL;
    text += strspn(text, SPACE);
    size_t len = strlen(text);
    while (len && strchr(SPACE, text[len - 1]))
        len--;
    KVE_TRY(kve_arena_strndup(f->arena, text, len, &copy));
    *out = copy;
    return KVE_OK;
}

static kve_status read_role(const cJSON *m, const kve_place *at, bool *assistant)
{
    const char *role = NULL;
    KVE_TRY(kve_json_str(m, "role", at->name, &role));
    *assistant = strcmp(role, "assistant") == 0;
    if (!*assistant && strcmp(role, "prompter") != 0)
        return kve_fail(KVE_ERR_FILE, "%s: field 'role' is '%s', neither 'prompter' nor 'assistant'", at->name, role);
    return KVE_OK;
}

static kve_status read_usable(const cJSON *m, const kve_place *at, bool *usable)
{
    const char *lang = NULL, *state = NULL;
    bool deleted = false, reviewed = true;
    KVE_TRY(kve_json_str(m, "lang", at->name, &lang));
    KVE_TRY(kve_json_bool_or(m, "deleted", at->name, false, &deleted));
    KVE_TRY(kve_json_bool_or(m, "review_result", at->name, true, &reviewed));
    KVE_TRY(kve_json_str_or(m, "tree_state", at->name, "ready_for_export", &state));
    *usable = strcmp(lang, "en") == 0 && !deleted && reviewed && strcmp(state, "ready_for_export") == 0;
    return KVE_OK;
}

static kve_status read_fields(forest *f, const cJSON *m, const kve_place *at, node *n)
{
    const char *text = NULL;
    KVE_TRY(read_role(m, at, &n->assistant));
    KVE_TRY(read_usable(m, at, &n->usable));
    KVE_TRY(kve_json_int_or(m, "rank", at->name, INT64_MAX, &n->rank));
    KVE_TRY(kve_json_str(m, "text", at->name, &text));
    if (n->usable && kve_is_blank(text))
        return kve_fail(KVE_ERR_FILE, "%s: field 'text' is empty", at->name);
    return n->usable ? keep_trimmed(f, text, &n->text) : KVE_OK;
}

/* `parent`: its id, NULL = a root. */
static kve_status add_message(forest *f, const cJSON *m, const char *parent, const kve_place *at, const char **id)
{
    node n = {
        .parent = parent, .line = at->line, .i_parent = NONE, .first_child = NONE, .last_child = NONE, .next = NONE};
    kve_str name = {0};
    KVE_TRY(kve_field_text(m, "message_id", at, f->arena, &n.id));
    KVE_TRY(kve_str_printf(&name, "%s: message %s", at->name, n.id));
    kve_place here = {.name = name.p, .path = at->path, .line = at->line};
    kve_status st = read_fields(f, m, &here, &n);
    kve_str_free(&name);
    if (st == KVE_OK)
        st = kve_list_room(f->arena, f->n, &f->cap, sizeof *f->p, &f->p);
    if (st == KVE_OK)
        f->p[f->n++] = n;
    *id = n.id;
    return st;
}

/* The depth is bounded: deeper JSON is refused where it is parsed. */
static kve_status add_tree(forest *f, const cJSON *m, const char *parent, const kve_place *at)
{
    const cJSON *replies = kve_json_get(m, "replies");
    const char *id = NULL;
    if (!cJSON_IsObject(m))
        return kve_fail(KVE_ERR_FILE, "%s: field '%s' holds something that is not a message", at->name,
                        parent ? "replies" : "prompt");
    KVE_TRY(add_message(f, m, parent, at, &id));
    if (replies && !cJSON_IsArray(replies) && !cJSON_IsNull(replies))
        return kve_fail(KVE_ERR_FILE, "%s: message %s: field 'replies' is not a list", at->name, id);
    for (const cJSON *r = replies ? replies->child : NULL; r; r = r->next)
        KVE_TRY(add_tree(f, r, id, at));
    return KVE_OK;
}

static kve_status add_flat(forest *f, const cJSON *row, const kve_place *at)
{
    const char *parent = NULL, *id = NULL;
    char *copy = NULL;
    KVE_TRY(kve_json_str_or(row, "parent_id", at->name, NULL, &parent));
    if (parent)
        KVE_TRY(kve_arena_strndup(f->arena, parent, strlen(parent), &copy));
    return add_message(f, row, copy, at, &id);
}

static kve_status read_row(void *ctx, const cJSON *row, const kve_place *at)
{
    forest *f = ctx;
    const char *state = NULL;
    size_t before = f->n;
    if (!kve_json_get(row, "prompt") && !kve_json_get(row, "message_id"))
        return kve_fail(KVE_ERR_FILE, "%s: field 'prompt' (a tree) or 'message_id' (a message) is missing", at->name);
    if (!kve_json_get(row, "prompt"))
        return add_flat(f, row, at);
    KVE_TRY(kve_json_str_or(row, "tree_state", at->name, "ready_for_export", &state));
    kve_status st = add_tree(f, kve_json_get(row, "prompt"), NULL, at);
    if (st != KVE_OK)
        f->n = before; /* half a tree is none */
    else if (strcmp(state, "ready_for_export") != 0)
        f->p[before].usable = false;
    return st;
}

/* --- Links */

static int by_id(const void *a, const void *b, void *forest_ptr)
{
    const forest *f = forest_ptr;
    const node *x = &f->p[*(const size_t *)a], *y = &f->p[*(const size_t *)b];
    int c = strcmp(x->id, y->id);
    return c ? c : (x > y) - (x < y);
}

static int64_t find(const forest *f, const char *id)
{
    size_t low = 0, high = f->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int c = strcmp(f->p[f->by_id[mid]].id, id);
        if (c == 0)
            return (int64_t)f->by_id[mid];
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NONE;
}

static kve_status sort_ids(forest *f)
{
    KVE_TRY(kve_arena_alloc(f->arena, f->n, sizeof *f->by_id, &f->by_id));
    for (size_t i = 0; i < f->n; i++)
        f->by_id[i] = i;
    qsort_r(f->by_id, f->n, sizeof *f->by_id, by_id, f);
    for (size_t i = 1; i < f->n; i++) {
        const node *a = &f->p[f->by_id[i - 1]], *b = &f->p[f->by_id[i]];
        if (strcmp(a->id, b->id) == 0)
            return kve_fail(KVE_ERR_FILE, "%s:%zu: field 'message_id' is '%s', as in line %zu; keep one", f->path,
                            b->line, b->id, a->line);
    }
    return KVE_OK;
}

static kve_status link_one(forest *f, size_t i)
{
    node *n = &f->p[i];
    int64_t up = n->parent ? find(f, n->parent) : NONE;
    if (n->parent && up == NONE)
        return kve_fail(KVE_ERR_FILE, "%s:%zu: field 'parent_id' is '%s', which is no message of the file", f->path,
                        n->line, n->parent);
    if (up == NONE ? n->assistant : n->assistant == f->p[up].assistant)
        return kve_fail(KVE_ERR_FILE, "%s:%zu: message %s: field 'role': %s", f->path, n->line, n->id,
                        up == NONE ? "a tree begins with a prompter's message" : "a reply has the role of its parent");
    n->i_parent = up;
    if (up == NONE)
        return KVE_OK;
    node *p = &f->p[up];
    if (p->last_child == NONE)
        p->first_child = (int64_t)i;
    else
        f->p[p->last_child].next = (int64_t)i;
    p->last_child = (int64_t)i;
    return KVE_OK;
}

/* Every message hangs below a root. */
static kve_status check_rings(const forest *f)
{
    size_t *mark = NULL;
    kve_status st = KVE_OK;
    KVE_TRY(kve_alloc(f->n, sizeof *mark, &mark));
    for (size_t i = 0; i < f->n && st == KVE_OK; i++) {
        int64_t at = (int64_t)i;
        while (at != NONE && mark[at] == 0) {
            mark[at] = i + 1;
            at = f->p[at].i_parent;
        }
        if (at != NONE && mark[at] == i + 1)
            st = kve_fail(KVE_ERR_FILE, "%s:%zu: field 'parent_id': message %s is its own ancestor", f->path,
                          f->p[at].line, f->p[at].id);
    }
    free(mark);
    return st;
}

/* --- Paths */

static int64_t best_reply(const forest *f, int64_t at)
{
    int64_t best = NONE;
    for (int64_t i = f->p[at].first_child; i != NONE; i = f->p[i].next)
        if (f->p[i].usable && (best == NONE || f->p[i].rank < f->p[best].rank))
            best = i;
    return best;
}

/* The first follow-up that has an answer, and the best of those. */
static bool next_pair(const forest *f, int64_t assistant, int64_t *user, int64_t *answer)
{
    for (int64_t i = f->p[assistant].first_child; i != NONE; i = f->p[i].next)
        if (f->p[i].usable && (*answer = best_reply(f, i)) != NONE) {
            *user = i;
            return true;
        }
    return false;
}

/* With turns NULL the path is only counted. */
static size_t follow(const forest *f, int64_t root, kve_turn *turns)
{
    int64_t user = root, answer = f->p[root].usable ? best_reply(f, root) : NONE;
    size_t n = 0;
    for (bool more = answer != NONE; more; more = next_pair(f, answer, &user, &answer)) {
        if (turns) {
            turns[n] = (kve_turn){"user", f->p[user].text};
            turns[n + 1] = (kve_turn){"assistant", f->p[answer].text};
        }
        n += 2;
    }
    return n;
}

static kve_status make_paths(const forest *f, kve_oasst_paths *out)
{
    for (size_t i = 0; i < f->n; i++)
        out->n_trees += f->p[i].i_parent == NONE;
    KVE_TRY(kve_arena_alloc(f->arena, out->n_trees, sizeof *out->items, &out->items));
    for (size_t i = 0; i < f->n; i++) {
        size_t n = f->p[i].i_parent == NONE ? follow(f, (int64_t)i, NULL) : 0;
        if (n == 0)
            continue;
        kve_oasst_path *path = &out->items[out->n++];
        *path = (kve_oasst_path){.n_turns = n, .line = f->p[i].line};
        KVE_TRY(kve_arena_alloc(f->arena, n, sizeof *path->turns, &path->turns));
        follow(f, (int64_t)i, path->turns);
    }
    return KVE_OK;
}

kve_status kve_oasst_read(const kve_source *s, const kve_format *format, kve_bad_rows *bad, kve_arena *arena,
                          kve_oasst_paths *out)
{
    forest f = {.arena = arena, .path = s->path};
    *out = (kve_oasst_paths){0};
    KVE_TRY(kve_source_read(s, format, bad, read_row, &f));
    KVE_TRY(sort_ids(&f));
    for (size_t i = 0; i < f.n; i++)
        KVE_TRY(link_one(&f, i));
    KVE_TRY(check_rings(&f));
    return make_paths(&f, out);
}
