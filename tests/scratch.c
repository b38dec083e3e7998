/* See scratch.h. */
#include "tests/scratch.h"

#include "host/base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

char g_dir[256];

void remove_tree(const char *dir)
{
    kve_arena arena = {0};
    char **names = NULL, path[768];
    size_t n = 0;
    if (kve_dir_list(dir, "", &arena, &names, &n) != KVE_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (unlink(path) != 0)
            remove_tree(path);
    }
    kve_arena_free(&arena);
    rmdir(dir);
}

int make_dir(void **state)
{
    (void)state;
    /* What writes durably waits for the disk at every write. */
    const char *temp = getenv("TMPDIR"), *memory = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(g_dir, sizeof g_dir, "%s/kveval-test-XXXXXX", temp && *temp ? temp : memory);
    return mkdtemp(g_dir) ? 0 : -1;
}

int remove_dir(void **state)
{
    (void)state;
    remove_tree(g_dir);
    return kve_path_exists(g_dir) ? -1 : 0;
}
