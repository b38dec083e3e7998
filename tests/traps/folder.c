/* See folder.h. */
#include "tests/traps/folder.h"

#include "host/base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN KVE_SOURCE_DIR "/tests/golden/models"

char trap_dir[256];

int trap_dir_make(void **state)
{
    (void)state;
    const char *temp = getenv("TMPDIR");
    snprintf(trap_dir, sizeof trap_dir, "%s/kveval-traps-XXXXXX", temp && *temp ? temp : "/tmp");
    return mkdtemp(trap_dir) ? 0 : -1;
}

int trap_dir_remove(void **state)
{
    (void)state;
    kve_arena arena = {0};
    char **names = NULL;
    size_t n = 0;
    if (kve_dir_list(trap_dir, "", &arena, &names, &n) != KVE_OK)
        return -1;
    for (size_t i = 0; i < n; i++)
        unlink(trap_path(names[i]));
    kve_arena_free(&arena);
    return rmdir(trap_dir);
}

const char *trap_path(const char *file)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", trap_dir, file);
    return path;
}

void trap_put(const char *file, const void *data, size_t len)
{
    assert_int_equal(kve_file_write(trap_path(file), data, len), KVE_OK);
}

void trap_copy_model(const char *model)
{
    kve_arena arena = {0};
    char **names = NULL, from[512], *text = NULL;
    size_t n = 0, len = 0;
    snprintf(from, sizeof from, GOLDEN "/%s", model);
    assert_int_equal(kve_dir_list(from, "", &arena, &names, &n), KVE_OK);
    for (size_t i = 0; i < n; i++) {
        snprintf(from, sizeof from, GOLDEN "/%s/%s", model, names[i]);
        assert_int_equal(kve_file_read(from, &text, &len), KVE_OK);
        trap_put(names[i], text, len);
        free(text);
    }
    kve_arena_free(&arena);
}

void trap_edit(const char *file, const char *old, const char *new_text)
{
    char *text = NULL;
    size_t len = 0;
    kve_str out = {0};
    assert_int_equal(kve_file_read(trap_path(file), &text, &len), KVE_OK);
    const char *at = memmem(text, len, old, strlen(old));
    if (!at)
        fail_msg("%s holds no %s", file, old);
    const char *rest = at + strlen(old);
    assert_int_equal(kve_str_append(&out, text, (size_t)(at - text)), KVE_OK);
    assert_int_equal(kve_str_puts(&out, new_text), KVE_OK);
    assert_int_equal(kve_str_append(&out, rest, len - (size_t)(rest - text)), KVE_OK);
    trap_put(file, out.p, out.len);
    kve_str_free(&out);
    free(text);
}

const char *trap_tokenizer(const char *merges)
{
    kve_str text = {0};
    assert_int_equal(
        kve_str_printf(&text,
                       "{\"added_tokens\":[],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
                       "false,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,"
                       "\"aa\":2,\"aaaa\":3,\"aaaaaaaa\":4,\"\xc4\xa0\":5}%s%s}}",
                       merges ? ",\"merges\":" : "", merges ? merges : ""),
        KVE_OK);
    trap_put("tokenizer.json", text.p, text.len);
    kve_str_free(&text);
    return trap_path("tokenizer.json");
}
