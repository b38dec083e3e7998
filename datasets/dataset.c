/* What every dataset shares: sample ownership, and calls through the interface. */
#include "datasets/dataset.h"
#include "datasets/source.h"

#include <assert.h>
#include <string.h>

const char *kve_metric_name(kve_metric m)
{
    static const char *const NAMES[] = {[KVE_METRIC_RULER_ALL] = "ruler_all",
                                        [KVE_METRIC_RULER_ANY] = "ruler_any",
                                        [KVE_METRIC_NLL] = "nll",
                                        [KVE_METRIC_ACC] = "acc",
                                        [KVE_METRIC_ACC_NORM] = "acc_norm",
                                        [KVE_METRIC_ROUGE_L] = "rouge_l",
                                        [KVE_METRIC_EXACT] = "exact_match"};
    return NAMES[m];
}

void kve_sample_free(kve_sample *s)
{
    kve_arena_free(&s->arena);
    *s = (kve_sample){0};
}

kve_status kve_dataset_sample(kve_dataset *d, size_t i, kve_sample *out)
{
    assert(i < d->n_samples);
    *out = (kve_sample){.context = "", .question = "", .answer_prefix = "", .n_shots = -1};
    kve_status st = d->sample(d, i, out);
    if (st != KVE_OK)
        kve_sample_free(out);
    return st;
}

void kve_dataset_close(kve_dataset *d)
{
    if (d)
        d->close(d);
}

kve_status kve_list_room(kve_arena *arena, size_t n, size_t *cap, size_t size, void *array_ptr)
{
    void *old = NULL, *grown = NULL;
    if (n < *cap)
        return KVE_OK;
    size_t wanted = *cap ? *cap * 2 : 16;
    KVE_TRY(kve_arena_alloc(arena, wanted, size, &grown));
    memcpy(&old, array_ptr, sizeof old);
    if (n)
        memcpy(grown, old, n * size);
    memcpy(array_ptr, &grown, sizeof grown);
    *cap = wanted;
    return KVE_OK;
}

kve_status kve_dataset_list_add(kve_dataset_list *l, kve_dataset *d)
{
    kve_status st = kve_list_room(&l->arena, l->n, &l->cap, sizeof(kve_dataset *), &l->items);
    if (st == KVE_OK)
        l->items[l->n++] = d;
    else
        kve_dataset_close(d);
    return st;
}

kve_status kve_dataset_list_skip(kve_dataset_list *l, const char *name, const char *reason)
{
    char *n = NULL, *r = NULL;
    KVE_TRY(kve_list_room(&l->arena, l->n_skipped, &l->cap_skipped, sizeof *l->skipped, &l->skipped));
    KVE_TRY(kve_arena_strndup(&l->arena, name, strlen(name), &n));
    KVE_TRY(kve_arena_strndup(&l->arena, reason, strlen(reason), &r));
    l->skipped[l->n_skipped++] = (kve_dataset_skip){.name = n, .reason = r};
    return KVE_OK;
}

void kve_dataset_list_close(kve_dataset_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        kve_dataset_close(l->items[i]);
    kve_arena_free(&l->arena);
    *l = (kve_dataset_list){0};
}
