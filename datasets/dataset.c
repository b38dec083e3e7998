/* What every dataset shares: sample ownership, and calls through the interface. */
#include "datasets/dataset.h"

#include <assert.h>

const char *kve_metric_name(kve_metric m)
{
    static const char *const NAMES[] = {
        [KVE_METRIC_RULER_ALL] = "ruler_all", [KVE_METRIC_RULER_ANY] = "ruler_any", [KVE_METRIC_NLL] = "nll"};
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
    *out = (kve_sample){.context = "", .question = "", .answer_prefix = ""};
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
