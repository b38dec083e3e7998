/* Files: read-only maps, whole reads, atomic writes, folders. Every failure names the path and errno's words. */
#ifndef KVE_BASE_FILE_H
#define KVE_BASE_FILE_H

#include "host/base/mem.h"
#include "host/base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* A whole file mapped read-only. An empty file gives size 0 and data that is not NULL, so that readers may step over it
 * like any other. Owned by the caller: kve_map_close, which also takes a zero-initialised one. */
typedef struct kve_map {
    const unsigned char *data;
    size_t size;
} kve_map;

kve_status kve_map_open(const char *path, kve_map *out);
void kve_map_close(kve_map *map);

/* The whole file as a NUL-terminated string (bytes may contain NUL; `len` counts them). The caller frees *text. */
kve_status kve_file_read(const char *path, char **text, size_t *len);

/* Replaces `path` in one step: temporary file beside it, write, fsync, rename. A full disk leaves the old file. */
kve_status kve_file_write(const char *path, const void *data, size_t len);

bool kve_path_exists(const char *path);
bool kve_path_is_dir(const char *path);
kve_status kve_mkdirs(const char *path);                              /* like mkdir -p */
kve_status kve_path_join(kve_str *out, const char *a, const char *b); /* replaces the content of *out */
/* dir/name + suffix, where `name` (its slashes make folders) cannot leave dir: parts of dots alone become "_". Replaces
 * the content of *out. */
kve_status kve_path_below(const char *dir, const char *name, const char *suffix, kve_str *out);
kve_status kve_make_parents(const char *path); /* the folders that path lies in */
const char *kve_path_base(const char *path);   /* points into path, after the last '/' */

/* Names (not paths) in a folder whose name ends with `suffix` ("" = all; "." and ".." never), sorted bytewise.
 * Memory belongs to the arena. */
kve_status kve_dir_list(const char *dir, const char *suffix, kve_arena *arena, char ***names, size_t *n_names);

#endif
