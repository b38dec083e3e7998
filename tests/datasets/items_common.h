/* Short forms for the tests of tasks that come as files. */
#ifndef KVE_TESTS_DATASETS_ITEMS_COMMON_H
#define KVE_TESTS_DATASETS_ITEMS_COMMON_H

#include "tests/datasets/common.h"

/* Empties and names the folder of a case. */
static inline const char *fresh_dir(void)
{
    static char dir[96];
    static int n;
    snprintf(dir, sizeof dir, "%s/case-%d", temp_dir(), n++);
    assert_ok(kve_mkdirs(dir));
    return dir;
}

/* Writes dir/name; the path is good until the next call. */
static inline const char *put_file(const char *dir, const char *name, const char *text)
{
    char below[256];
    snprintf(below, sizeof below, "%s/%s", dir + strlen(temp_dir()) + 1, name);
    return temp_file(below, text, strlen(text));
}

static inline void open_task(const char *task, const char *path, kve_dataset_list *l)
{
    kve_task_options o = {.tokens = WORDS, .seed = 1, .data_path = path};
    *l = (kve_dataset_list){0};
    assert_ok(kve_task_open(task, &o, l));
}

static inline kve_sample sample_at(const kve_dataset_list *l, size_t dataset, size_t i)
{
    kve_sample s;
    assert_true(dataset < l->n);
    assert_ok(kve_dataset_sample(l->items[dataset], i, &s));
    return s;
}

/* The text that a model would read up to the choices. */
static inline const char *prompt_of(const kve_sample *s)
{
    static char text[8192];
    snprintf(text, sizeof text, "%s%s%s", s->context, s->question, s->answer_prefix);
    return text;
}

#endif
