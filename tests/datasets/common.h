/* What the tests of datasets share: a tokenizer that counts words, temporary files, and short forms of the calls. */
#ifndef KVE_TESTS_DATASETS_COMMON_H
#define KVE_TESTS_DATASETS_COMMON_H

#include "datasets/dataset.h"
#include "host/base/file.h"
#include "host/base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A word is a run of anything but white space; its id is a hash, so the same word has the same id. */
static inline size_t words_of(const char *text, size_t len, int32_t *ids)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        while (i < len && strchr(" \n\t\r", text[i]))
            i++;
        size_t begin = i;
        while (i < len && !strchr(" \n\t\r", text[i]))
            i++;
        if (i > begin && ids)
            ids[n] = (int32_t)(kve_hash_text(text + begin, i - begin) & 0x7fffffff);
        n += i > begin;
    }
    return n;
}

static inline kve_status count_words(void *ctx, const char *text, size_t len, size_t *n_tok)
{
    if (ctx)
        ++*(size_t *)ctx;
    *n_tok = words_of(text, len, NULL);
    return KVE_OK;
}

static inline kve_status encode_words(void *ctx, const char *text, size_t len, kve_arena *arena, int32_t **ids,
                                      size_t *n_ids)
{
    (void)ctx;
    *n_ids = words_of(text, len, NULL);
    KVE_TRY(kve_arena_alloc(arena, *n_ids, sizeof **ids, ids));
    words_of(text, len, *ids);
    return KVE_OK;
}

static const kve_token_fns WORDS = {.count = count_words, .encode = encode_words};

/* Fails the test with the diagnostic in the output. */
#define assert_ok(expr)                                                                                                \
    do {                                                                                                               \
        if ((expr) != KVE_OK)                                                                                          \
            fail_msg("%s: %s", #expr, kve_diag());                                                                     \
    } while (0)

#define assert_diag(status, expr, part)                                                                                \
    do {                                                                                                               \
        assert_int_equal(expr, status);                                                                                \
        if (!strstr(kve_diag(), part))                                                                                 \
            fail_msg("'%s' is not in: %s", part, kve_diag());                                                          \
    } while (0)

/* A folder of its own for a test program's files. */
static inline const char *temp_dir(void)
{
    static char dir[64];
    if (!*dir) {
        snprintf(dir, sizeof dir, "/tmp/kveval-datasets-XXXXXX");
        assert_non_null(mkdtemp(dir));
    }
    return dir;
}

/* Writes dir/name (folders are made) and returns its path, good until the next call. */
static inline const char *temp_file(const char *name, const char *text, size_t len)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", temp_dir(), name);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    assert_ok(kve_mkdirs(path));
    *slash = '/';
    assert_ok(kve_file_write(path, text, len));
    return path;
}

/* Group teardown. */
static inline int remove_temp_dir(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", temp_dir());
    return system(command);
}

/* Real data beside the project; skips the test where there is none. */
static inline const char *real_data(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/../shared/datasets/%s", KVE_SOURCE_DIR, name);
    if (!kve_path_exists(path)) {
        printf("skipped: %s is not there\n", path);
        skip();
    }
    return path;
}

/* How often `part` stands in `text`. */
static inline size_t occurrences_of(const char *text, const char *part)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, part)); at++)
        n++;
    return n;
}

static inline uint64_t hash_sample(const kve_sample *s)
{
    kve_str all = {0};
    const char *task = strrchr(s->task, '/') ? strrchr(s->task, '/') + 1 : s->task;
    assert_ok(kve_str_printf(&all, "%s|%s|%s|%s|%s|%lld", s->id, task, s->context, s->question, s->answer_prefix,
                             (long long)s->max_new_tokens));
    for (size_t i = 0; i < s->n_references; i++)
        assert_ok(kve_str_printf(&all, "|%s", s->references[i]));
    uint64_t h = kve_hash_text(all.p, all.len);
    kve_str_free(&all);
    return h;
}

#endif
