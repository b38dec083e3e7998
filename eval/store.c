/* Segments, their scan and their merge. Contract: store.h. */
#include "eval/store.h"

#include "host/base/file.h"
#include "host/base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { CRC_TEXT = 9 }; /* eight hex digits and a space in front of the JSON */

/* One valid line of a segment: its key, and where its JSON lies in the map. */
typedef struct entry {
    kve_record key; /* texts in the arena */
    const char *json;
    size_t len;
} entry;

typedef struct scan {
    kve_arena arena;
    kve_map *maps;
    size_t n_maps;
    entry *entries;
    size_t n, cap, n_damaged;
} scan;

struct kve_store {
    char *dir;
    kve_str path; /* of the own segment, "" until the first append */
    int fd;
    off_t size;
    scan before;
};

static void scan_free(scan *s)
{
    for (size_t i = 0; i < s->n_maps; i++)
        kve_map_close(&s->maps[i]);
    free(s->maps);
    free(s->entries);
    kve_arena_free(&s->arena);
    *s = (scan){0};
}

static kve_status add_entry(scan *s, const kve_record *key, const char *json, size_t len)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 256;
        entry *grown = NULL;
        KVE_TRY(kve_alloc(cap, sizeof *grown, &grown));
        if (s->n)
            memcpy(grown, s->entries, s->n * sizeof *grown);
        free(s->entries);
        s->entries = grown;
        s->cap = cap;
    }
    s->entries[s->n++] = (entry){*key, json, len};
    return KVE_OK;
}

/* Keeps the key's texts only: the record itself stays in the map. */
static kve_status key_of(const char *json, size_t len, const char *name, kve_arena *arena, kve_record *key)
{
    kve_arena temporary = {0};
    kve_record r;
    char *task = NULL, *sample = NULL, *policy = NULL, *prompt = NULL;
    kve_status st = kve_record_parse(json, len, name, &temporary, &r);
    if (st == KVE_OK)
        st = kve_arena_strndup(arena, r.task, strlen(r.task), &task);
    if (st == KVE_OK)
        st = kve_arena_strndup(arena, r.sample_id, strlen(r.sample_id), &sample);
    if (st == KVE_OK)
        st = kve_arena_strndup(arena, r.policy, strlen(r.policy), &policy);
    if (st == KVE_OK && r.prompt_sha256)
        st = kve_arena_strndup(arena, r.prompt_sha256, strlen(r.prompt_sha256), &prompt);
    if (st == KVE_OK) {
        kve_record_clear(key);
        key->task = task;
        key->sample_id = sample;
        key->policy = policy;
        key->prompt_sha256 = prompt;
        key->budget = r.budget;
        key->attempt = r.attempt;
        key->unix_time = r.unix_time;
        key->status = strcmp(r.status, "ok") == 0 ? "ok" : "failed";
    }
    kve_arena_free(&temporary);
    return st;
}

static bool crc_matches(const char *line, size_t len)
{
    char text[CRC_TEXT + 1];
    if (len < CRC_TEXT + 2)
        return false;
    snprintf(text, sizeof text, "%08x ", (unsigned)kve_crc32(line + CRC_TEXT, len - CRC_TEXT));
    return memcmp(text, line, CRC_TEXT) == 0;
}

static kve_status scan_lines(scan *s, const kve_map *map, const char *name)
{
    const char *p = (const char *)map->data, *end = p + map->size;
    while (p < end) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        size_t len = newline ? (size_t)(newline - p) : 0;
        kve_record key;
        if (!newline || !crc_matches(p, len)) {
            s->n_damaged++;
        } else {
            KVE_TRY(key_of(p + CRC_TEXT, len - CRC_TEXT, name, &s->arena, &key));
            KVE_TRY(add_entry(s, &key, p + CRC_TEXT, len - CRC_TEXT));
        }
        if (!newline)
            break;
        p = newline + 1;
    }
    return KVE_OK;
}

/* Cells together; among the copies of a cell the winner first. */
static int by_key_then_rank(const void *a, const void *b)
{
    const kve_record *x = &((const entry *)a)->key, *y = &((const entry *)b)->key;
    int c = kve_record_compare(x, y);
    if (!c)
        c = (x->status[0] == 'f') - (y->status[0] == 'f');
    if (!c)
        c = (x->attempt > y->attempt) - (x->attempt < y->attempt);
    if (!c)
        c = (x->unix_time > y->unix_time) - (x->unix_time < y->unix_time);
    if (c)
        return c;
    const entry *ea = a, *eb = b; /* two processes in one second: any fixed order will do */
    return ea->len != eb->len ? (ea->len < eb->len ? -1 : 1) : memcmp(ea->json, eb->json, ea->len);
}

static kve_status scan_segments(const char *seg, char *const *names, size_t n, scan *out)
{
    kve_str path = {0};
    kve_status st = kve_alloc(n, sizeof *out->maps, &out->maps);
    for (size_t i = 0; i < n && st == KVE_OK; i++) {
        if (!strstr(names[i], ".jsonl"))
            continue;
        st = kve_path_join(&path, seg, names[i]);
        if (st == KVE_OK)
            st = kve_map_open(path.p, &out->maps[out->n_maps]);
        if (st == KVE_OK)
            st = scan_lines(out, &out->maps[out->n_maps++], path.p);
    }
    kve_str_free(&path);
    return st;
}

static bool same_names(char *const *a, size_t n_a, char *const *b, size_t n_b)
{
    for (size_t i = 0; n_a == n_b && i < n_a; i++)
        if (strcmp(a[i], b[i]) != 0)
            return false;
    return n_a == n_b;
}

/* Another process may seal its segment meanwhile: then its old name is gone, or a listing has neither name. What counts
 * is a scan during which the names stayed the same; *settled says so. */
static kve_status try_scan(const char *seg, scan *out, bool *settled)
{
    kve_arena arena = {0};
    char **before = NULL, **after = NULL;
    size_t n_before = 0, n_after = 0;
    *out = (scan){0};
    *settled = true;
    kve_status st = kve_dir_list(seg, "", &arena, &before, &n_before);
    kve_status scanned = st == KVE_OK ? scan_segments(seg, before, n_before, out) : st;
    if (st == KVE_OK && scanned != KVE_ERR_MEMORY) {
        st = kve_dir_list(seg, "", &arena, &after, &n_after);
        *settled = st != KVE_OK || same_names(before, n_before, after, n_after);
    }
    kve_arena_free(&arena);
    return scanned != KVE_OK ? scanned : st;
}

static kve_status scan_dir(const char *dir, scan *out)
{
    kve_str seg = {0};
    bool settled = false;
    *out = (scan){0};
    kve_status st = kve_path_join(&seg, dir, "seg");
    if (st == KVE_OK)
        do {
            scan_free(out);
            st = try_scan(seg.p, out, &settled);
        } while (!settled);
    kve_str_free(&seg);
    if (st == KVE_OK && out->n)
        qsort(out->entries, out->n, sizeof *out->entries, by_key_then_rank);
    if (st != KVE_OK)
        scan_free(out);
    return st;
}

static kve_status make_dirs(const char *dir)
{
    kve_str seg = {0};
    kve_status st = kve_path_join(&seg, dir, "seg");
    if (st == KVE_OK)
        st = kve_mkdirs(seg.p);
    kve_str_free(&seg);
    return st;
}

kve_status kve_store_open(const char *dir, kve_store **out)
{
    kve_store *s = NULL;
    KVE_TRY(make_dirs(dir));
    KVE_TRY(kve_alloc(1, sizeof *s, &s));
    s->fd = -1;
    kve_status st = kve_strndup(dir, strlen(dir), &s->dir);
    if (st == KVE_OK)
        st = scan_dir(dir, &s->before);
    if (st != KVE_OK)
        kve_store_close(s);
    else
        *out = s;
    return st;
}

void kve_store_close(kve_store *s)
{
    if (!s)
        return;
    if (s->fd >= 0) {
        kve_str sealed = {0};
        size_t suffix = strlen(".open");
        close(s->fd);
        /* Never over a segment of the same name (a container's process of the same number in the same second). An
         * unsealed segment is read all the same. */
        if (kve_str_append(&sealed, s->path.p, s->path.len - suffix) == KVE_OK)
            (void)renameat2(AT_FDCWD, s->path.p, AT_FDCWD, sealed.p, RENAME_NOREPLACE);
        kve_str_free(&sealed);
    }
    scan_free(&s->before);
    kve_str_free(&s->path);
    free(s->dir);
    free(s);
}

kve_found kve_store_find(const kve_store *s, const char *task, const char *sample_id, const char *policy,
                         int64_t budget)
{
    kve_record key;
    size_t low = 0, high = s->before.n;
    kve_record_clear(&key);
    key.task = task;
    key.sample_id = sample_id;
    key.policy = policy;
    key.budget = budget;
    while (low < high) { /* the first of its copies is the winner */
        size_t mid = low + (high - low) / 2;
        if (kve_record_compare(&s->before.entries[mid].key, &key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == s->before.n || kve_record_compare(&s->before.entries[low].key, &key) != 0)
        return (kve_found){0};
    const kve_record *winner = &s->before.entries[low].key;
    kve_found found = {true, winner->status[0] == 'o', winner->attempt, winner->prompt_sha256};
    for (size_t i = low + 1; i < s->before.n && kve_record_compare(&s->before.entries[i].key, &key) == 0; i++)
        if (s->before.entries[i].key.attempt > found.attempt)
            found.attempt = s->before.entries[i].key.attempt;
    return found;
}

static kve_status open_segment(kve_store *s)
{
    char host[64] = "host";
    gethostname(host, sizeof host - 1);
    for (int i = 0; s->fd < 0; i++) {
        kve_str_clear(&s->path);
        KVE_TRY(kve_str_printf(&s->path, "%s/seg/%s.%ld.%lld.%d.jsonl.open", s->dir, host, (long)getpid(),
                               (long long)time(NULL), i));
        s->fd = open(s->path.p, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (s->fd < 0 && errno != EEXIST)
            return kve_fail(KVE_ERR_FILE, "%s: %s; is --out writable?", s->path.p, strerror(errno));
    }
    return KVE_OK;
}

static kve_status write_all(kve_store *s, const char *p, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = write(s->fd, p + at, len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int why = errno;
            if (ftruncate(s->fd, s->size) == 0) /* drop the torn line; a reader would drop it too */
                (void)lseek(s->fd, s->size, SEEK_SET);
            return kve_fail(KVE_ERR_FILE,
                            "%s: %s after %lld bytes; what was written before is intact: make room and "
                            "run the same command again",
                            s->path.p, strerror(why), (long long)s->size);
        }
        at += (size_t)n;
    }
    if (fdatasync(s->fd) != 0)
        return kve_fail(KVE_ERR_FILE, "%s: fdatasync: %s", s->path.p, strerror(errno));
    s->size += (off_t)len;
    return KVE_OK;
}

static kve_status append_line(const kve_record *r, kve_str *json, kve_str *lines)
{
    kve_str_clear(json);
    KVE_TRY(kve_record_write(r, json));
    KVE_TRY(kve_str_printf(lines, "%08x ", (unsigned)kve_crc32(json->p, json->len)));
    KVE_TRY(kve_str_append(lines, json->p, json->len));
    return kve_str_append(lines, "\n", 1);
}

kve_status kve_store_append(kve_store *s, const kve_record *records, size_t n)
{
    kve_str lines = {0}, json = {0};
    kve_status st = s->fd < 0 ? open_segment(s) : KVE_OK;
    for (size_t i = 0; i < n && st == KVE_OK; i++)
        st = append_line(&records[i], &json, &lines);
    if (st == KVE_OK && lines.len)
        st = write_all(s, lines.p, lines.len);
    kve_str_free(&json);
    kve_str_free(&lines);
    return st;
}

static kve_status merged_text(const scan *s, kve_str *text, kve_merge *out)
{
    *out = (kve_merge){.n_damaged = s->n_damaged};
    for (size_t i = 0; i < s->n; i++) {
        const entry *e = &s->entries[i];
        if (i > 0 && kve_record_compare(&s->entries[i - 1].key, &e->key) == 0) {
            out->n_duplicates++;
            continue;
        }
        out->n_records++;
        out->n_failed += e->key.status[0] == 'f';
        KVE_TRY(kve_str_append(text, e->json, e->len));
        KVE_TRY(kve_str_append(text, "\n", 1));
    }
    return KVE_OK;
}

/* One merge at a time: what another process wrote later must not be replaced by what was read earlier. Where the file
 * system has no locks it goes without, and a merge of the next run repairs it. The caller closes what is >= 0. */
static int lock_merges(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd >= 0 && flock(fd, LOCK_EX) != 0 && errno == EINTR)
        continue;
    return fd;
}

kve_status kve_store_merge(const char *dir, kve_merge *out)
{
    scan s = {0};
    kve_str text = {0}, path = {0};
    int lock = lock_merges(dir);
    kve_status st = scan_dir(dir, &s);
    if (st == KVE_OK)
        st = merged_text(&s, &text, out);
    if (st == KVE_OK)
        st = kve_path_join(&path, dir, "records.jsonl");
    if (st == KVE_OK)
        st = kve_file_write(path.p, text.p ? text.p : "", text.len);
    kve_str_free(&text);
    kve_str_free(&path);
    scan_free(&s);
    if (lock >= 0)
        close(lock);
    return st;
}
