/* Maps, reads, atomic writes and folders, with errno's words in every message. */
#include "host/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static kve_status fail_errno(const char *path, const char *what)
{
    return kve_fail(KVE_ERR_FILE, "%s: %s: %s", path, what, strerror(errno));
}

kve_status kve_map_open(const char *path, kve_map *out)
{
    struct stat sb;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(path, "cannot open");
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        close(fd);
        return kve_fail(KVE_ERR_FILE, "%s: is not a regular file; give the path of a file", path);
    }
    kve_map map = {(const unsigned char *)"", (size_t)sb.st_size};
    if (map.size > 0) {
        void *p = mmap(NULL, map.size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            kve_status st = fail_errno(path, "cannot map");
            close(fd);
            return st;
        }
        map.data = p;
    }
    close(fd);
    *out = map;
    return KVE_OK;
}

void kve_map_close(kve_map *map)
{
    if (map->size > 0)
        munmap((void *)(uintptr_t)map->data, map->size);
    *map = (kve_map){0};
}

kve_status kve_file_read(const char *path, char **text, size_t *len)
{
    kve_map map = {0};
    KVE_TRY(kve_map_open(path, &map));
    kve_status st = kve_strndup((const char *)map.data, map.size, text);
    if (st == KVE_OK)
        *len = map.size;
    kve_map_close(&map);
    return st;
}

static kve_status write_and_sync(int fd, const char *path, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t w = write(fd, data, len);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return fail_errno(path, "cannot write (is the disk full?)");
        data += w;
        len -= (size_t)w;
    }
    return fsync(fd) == 0 ? KVE_OK : fail_errno(path, "cannot flush to disk");
}

kve_status kve_file_write(const char *path, const void *data, size_t len)
{
    kve_str temp = {0};
    KVE_TRY(kve_str_printf(&temp, "%s.tmp.%ld", path, (long)getpid()));
    kve_status st = KVE_OK;
    int fd = open(temp.p, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        st = fail_errno(temp.p, "cannot create");
    } else {
        st = write_and_sync(fd, temp.p, data, len);
        if (close(fd) != 0 && st == KVE_OK)
            st = fail_errno(temp.p, "cannot close");
        if (st == KVE_OK && rename(temp.p, path) != 0)
            st = fail_errno(path, "cannot rename the finished file into place");
        if (st != KVE_OK)
            unlink(temp.p);
    }
    kve_str_free(&temp);
    return st;
}

bool kve_path_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool kve_path_is_dir(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

kve_status kve_mkdirs(const char *path)
{
    char *copy = NULL;
    kve_status st = KVE_OK;
    KVE_TRY(kve_strndup(path, strlen(path), &copy));
    for (char *p = copy + 1; st == KVE_OK && *copy; p++) {
        char c = *p;
        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        if (mkdir(copy, 0755) != 0 && !(errno == EEXIST && kve_path_is_dir(copy)))
            st = fail_errno(copy, "cannot make the folder");
        if (c == '\0')
            break;
        *p = c;
    }
    free(copy);
    return st;
}

kve_status kve_path_join(kve_str *out, const char *a, const char *b)
{
    kve_str_clear(out);
    size_t len = strlen(a);
    return kve_str_printf(out, "%s%s%s", a, len && a[len - 1] != '/' ? "/" : "", b);
}

kve_status kve_path_below(const char *dir, const char *name, const char *suffix, kve_str *out)
{
    KVE_TRY(kve_path_join(out, dir, ""));
    for (const char *part = name; *part;) {
        size_t len = strcspn(part, "/");
        bool dots = len > 0 && strspn(part, ".") == len;
        KVE_TRY(kve_str_append(out, dots ? "_" : part, dots ? 1 : len));
        part += len;
        if (*part == '/') {
            KVE_TRY(kve_str_puts(out, "/"));
            part++;
        }
    }
    return kve_str_puts(out, suffix);
}

kve_status kve_make_parents(const char *path)
{
    char *dir = NULL;
    KVE_TRY(kve_strndup(path, (size_t)(kve_path_base(path) - path), &dir));
    kve_status st = *dir ? kve_mkdirs(dir) : KVE_OK;
    free(dir);
    return st;
}

const char *kve_path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool listed(const char *name, const char *suffix)
{
    size_t len = strlen(name), tail = strlen(suffix);
    return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && len >= tail && strcmp(name + len - tail, suffix) == 0;
}

static kve_status push_name(kve_arena *arena, const char *name, char ***names, size_t *n, size_t *cap)
{
    if (*n == *cap) { /* the old array stays in the arena: doubling wastes at most as much again */
        char **grown = NULL;
        *cap = *cap ? *cap * 2 : 16;
        KVE_TRY(kve_arena_alloc(arena, *cap, sizeof *grown, &grown));
        if (*n)
            memcpy(grown, *names, *n * sizeof *grown);
        *names = grown;
    }
    KVE_TRY(kve_arena_strndup(arena, name, strlen(name), &(*names)[*n]));
    ++*n;
    return KVE_OK;
}

kve_status kve_dir_list(const char *dir, const char *suffix, kve_arena *arena, char ***names, size_t *n_names)
{
    DIR *d = opendir(dir);
    size_t cap = 0;
    if (!d)
        return fail_errno(dir, "cannot list the folder");
    kve_status st = KVE_OK;
    *names = NULL;
    *n_names = 0;
    for (const struct dirent *e; st == KVE_OK && (e = readdir(d));)
        if (listed(e->d_name, suffix))
            st = push_name(arena, e->d_name, names, n_names, &cap);
    closedir(d);
    if (st == KVE_OK && *n_names)
        qsort(*names, *n_names, sizeof **names, by_name);
    return st;
}
