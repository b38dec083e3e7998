/* What the fuzz targets share: promises that must hold, texts cut off the input, and files in memory. One target is one
 * program, so everything here is static. */
#ifndef KVE_TESTS_FUZZ_FUZZ_H
#define KVE_TESTS_FUZZ_FUZZ_H

#include "host/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_PATH = 512 };

/* A broken promise ends the run; libFuzzer then prints the stack and keeps the input. */
static inline void must(bool ok)
{
    if (!ok)
        abort();
}

/* A refusal is fine, but never without words. */
static inline bool accepted(kve_status st)
{
    must(st == KVE_OK || *kve_diag());
    return st == KVE_OK;
}

/* The next text of the input, up to a NUL or the end. The caller frees it. */
static inline char *fuzz_text(const uint8_t **data, size_t *size)
{
    size_t len = *size ? strnlen((const char *)*data, *size) : 0;
    char *text = malloc(len + 1);
    must(text);
    if (len)
        memcpy(text, *data, len);
    text[len] = '\0';
    size_t used = len < *size ? len + 1 : len;
    if (used) {
        *data += used;
        *size -= used;
    }
    return text;
}

/* This process's own folder, in $TMPDIR or in memory. It stays behind: whoever sets TMPDIR removes it. */
static inline const char *fuzz_folder(void)
{
    static char folder[FUZZ_PATH / 2];
    if (!folder[0]) {
        const char *tmp = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/kveval-fuzz-XXXXXX", tmp && *tmp ? tmp : "/dev/shm");
        must(mkdtemp(folder));
    }
    return folder;
}

/* The path of `name` in this process's folder. */
static inline const char *fuzz_path(const char *name, char path[FUZZ_PATH])
{
    int n = snprintf(path, FUZZ_PATH, "%s/%s", fuzz_folder(), name);
    must(n > 0 && n < FUZZ_PATH);
    return path;
}

/* Writes a file there, for readers that take a path. */
static inline const char *fuzz_file(const char *name, const void *data, size_t size, char path[FUZZ_PATH])
{
    FILE *f = fopen(fuzz_path(name, path), "wb");
    must(f && (size == 0 || fwrite(data, 1, size, f) == size));
    must(fclose(f) == 0);
    return path;
}

#endif
