/* Pair merging over a linked list with a heap: the best pair first, ties to the left; n log n in the length. */
#include "host/text/internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct symbol {
    size_t start, len; /* len 0 = merged into its left neighbour */
    int32_t id;        /* -1: no token has this text (yet) */
    int64_t prev, next;
} symbol;

typedef struct candidate {
    double rank; /* smaller is better: the merge's place, or the negative score */
    size_t left, left_len, right_len;
    int32_t merged;
} candidate;

typedef struct work {
    const kve_tokenizer *tk;
    const char *text;
    symbol *sym;
    size_t n;
    candidate *heap;
    size_t n_heap, cap_heap;
} work;

static bool better(const candidate *a, const candidate *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->left < b->left);
}

static kve_status heap_push(work *w, candidate c)
{
    KVE_TRY(kve_grow(&w->heap, &w->cap_heap, w->n_heap + 1, sizeof *w->heap));
    size_t i = w->n_heap++;
    for (; i > 0 && better(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
    return KVE_OK;
}

static candidate heap_pop(work *w)
{
    candidate top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;
    for (size_t k = 1; k < w->n_heap; i = k, k = 2 * k + 1) {
        if (k + 1 < w->n_heap && better(&w->heap[k + 1], &w->heap[k]))
            k++;
        if (!better(&w->heap[k], &last))
            break;
        w->heap[i] = w->heap[k];
    }
    w->heap[i] = last;
    return top;
}

/* Puts the pair (left, right) into the heap if it can merge: by rule where there are merges, else by score. */
static kve_status consider(work *w, int64_t left, int64_t right)
{
    if (left < 0 || right < 0)
        return KVE_OK;
    const symbol *a = &w->sym[left], *b = &w->sym[right];
    candidate c = {.left = (size_t)left, .left_len = a->len, .right_len = b->len};
    if (w->tk->vocab->n_merges > 0) {
        const kve_pair_slot *s = kve_find_pair(w->tk, a->id, b->id);
        if (!s)
            return KVE_OK;
        c.rank = s->rank;
        c.merged = s->merged;
        return heap_push(w, c);
    }
    c.merged = kve_find_text(w->tk, w->text + a->start, a->len + b->len);
    if (c.merged < 0 || w->tk->vocab->kind != KVE_VOCAB_SPM_BPE)
        return KVE_OK;
    c.rank = -(double)w->tk->vocab->tokens[c.merged].score;
    return heap_push(w, c);
}

static kve_status merge_all(work *w)
{
    for (size_t i = 0; i + 1 < w->n; i++)
        KVE_TRY(consider(w, (int64_t)i, (int64_t)i + 1));
    while (w->n_heap > 0) {
        candidate c = heap_pop(w);
        symbol *a = &w->sym[c.left];
        /* A stale candidate: one of its sides has been merged since, so its length differs. */
        if (a->len != c.left_len || a->next < 0 || w->sym[a->next].len != c.right_len)
            continue;
        symbol *b = &w->sym[a->next];
        a->len += b->len;
        a->id = c.merged;
        a->next = b->next;
        b->len = 0;
        if (a->next >= 0)
            w->sym[a->next].prev = (int64_t)c.left;
        KVE_TRY(consider(w, a->prev, (int64_t)c.left));
        KVE_TRY(consider(w, (int64_t)c.left, a->next));
    }
    return KVE_OK;
}

/* The first symbols: bytes in byte-BPE, characters in SPM. */
static void split_symbols(work *w, size_t len)
{
    bool bytes = w->tk->vocab->kind == KVE_VOCAB_BYTE_BPE;
    for (size_t at = 0; at < len;) {
        uint32_t c;
        size_t n = bytes ? 1 : kve_utf8_get(w->text + at, len - at, &c);
        symbol *s = &w->sym[w->n];
        s->start = at;
        s->len = n ? n : 1;
        s->prev = (int64_t)w->n - 1;
        s->next = (int64_t)w->n + 1;
        s->id = bytes ? w->tk->byte_ids[(unsigned char)w->text[at]] : kve_find_text(w->tk, w->text + at, s->len);
        at += s->len;
        w->n++;
    }
    w->sym[w->n - 1].next = -1;
}

/* A byte that byte-BPE does not know (only bytes that UTF-8 never uses, in practice) is left out, as the reference
 * library does; SPM falls back to byte tokens, then to the unknown token. */
static kve_status emit(const work *w, kve_ids *out)
{
    const kve_vocab *v = w->tk->vocab;
    for (int64_t i = 0; i >= 0; i = w->sym[i].next) {
        const symbol *s = &w->sym[i];
        if (s->id >= 0) {
            KVE_TRY(kve_ids_push(out, s->id));
            continue;
        }
        if (v->kind == KVE_VOCAB_BYTE_BPE)
            continue;
        bool all = v->byte_fallback;
        for (size_t k = 0; k < s->len; k++)
            all = all && w->tk->byte_ids[(unsigned char)w->text[s->start + k]] >= 0;
        for (size_t k = 0; all && k < s->len; k++)
            KVE_TRY(kve_ids_push(out, w->tk->byte_ids[(unsigned char)w->text[s->start + k]]));
        if (!all && v->unk >= 0)
            KVE_TRY(kve_ids_push(out, v->unk));
    }
    return KVE_OK;
}

/* The whole pre-token as a vocabulary entry: its bytes written as byte-BPE characters. */
static kve_status whole_entry(const kve_tokenizer *tk, const char *text, size_t len, int32_t *id)
{
    enum { LONGEST = 512 };
    char spelled[2 * LONGEST + 4];
    size_t n = 0;
    *id = -1;
    if (len > LONGEST) /* no vocabulary has an entry as long as this */
        return KVE_OK;
    for (size_t i = 0; i < len; i++)
        n += kve_utf8_put(kve_byte_char((unsigned char)text[i]), spelled + n);
    *id = kve_find_text(tk, spelled, n);
    return KVE_OK;
}

kve_status kve_bpe_piece(const kve_tokenizer *tk, const char *text, size_t len, kve_ids *out)
{
    if (len == 0)
        return KVE_OK;
    if (tk->ignore_merges && tk->vocab->kind == KVE_VOCAB_BYTE_BPE) {
        int32_t id;
        KVE_TRY(whole_entry(tk, text, len, &id));
        if (id >= 0)
            return kve_ids_push(out, id);
    }
    symbol on_stack[64]; /* nearly every pre-token fits: no allocation for it */
    work w = {.tk = tk, .text = text, .sym = on_stack};
    kve_status st = KVE_OK;
    if (len > sizeof on_stack / sizeof *on_stack)
        KVE_TRY(kve_alloc(len, sizeof *w.sym, &w.sym));
    split_symbols(&w, len);
    KVE_TRY_GOTO(st, merge_all(&w), done);
    st = emit(&w, out);
done:
    if (w.sym != on_stack)
        free(w.sym);
    free(w.heap);
    return st;
}
