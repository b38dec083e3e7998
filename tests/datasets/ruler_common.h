/* What the tests of RULER's generated tasks share: opening one, and going through its samples at three lengths. */
#ifndef KVE_TESTS_DATASETS_RULER_COMMON_H
#define KVE_TESTS_DATASETS_RULER_COMMON_H

#include "datasets/ruler/ruler.h"
#include "tests/datasets/common.h"

enum { OVERHEAD = 12 };

static const int64_t LENGTHS[] = {512, 1024, 4096};

/* "vt" of "ruler-4k/vt". */
static inline const char *bare_task(const char *name)
{
    const char *slash = strchr(name, '/');
    assert_non_null(slash);
    return slash + 1;
}

static inline kve_dataset *open_task(const char *task, int64_t length, uint64_t seed, size_t n, size_t *n_counts)
{
    kve_dataset *d = NULL;
    kve_ruler_options o = {.task = task,
                           .length_tok = length,
                           .overhead_tok = OVERHEAD,
                           .seed = seed,
                           .n_samples = n,
                           .tokens = {.ctx = n_counts, .count = count_words}};
    assert_ok(kve_ruler_open(&o, &d));
    assert_string_equal(bare_task(d->name), task);
    return d;
}

typedef void (*check_sample)(const kve_sample *s, int64_t length);

static inline void for_every_sample(const char *task, size_t n, check_sample check)
{
    for (size_t l = 0; l < sizeof LENGTHS / sizeof *LENGTHS; l++) {
        kve_dataset *d = open_task(task, LENGTHS[l], 5, n, NULL);
        for (size_t i = 0; i < n; i++) {
            kve_sample s;
            assert_ok(kve_dataset_sample(d, i, &s));
            check(&s, LENGTHS[l]);
            kve_sample_free(&s);
        }
        kve_dataset_close(d);
    }
}

#endif
