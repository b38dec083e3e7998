/* Fuzzes records: every line as a record, which must survive being written, and the whole input as a segment of a run,
 * once as it is and once with the lines that are records under their checksums. */
#include "eval/store.h"
#include "host/base/file.h"
#include "host/base/hash.h"

#include "tests/fuzz/fuzz.h"

#include <sys/stat.h>

/* Appends the line with its checksum if it is a record. */
static bool seal(const char *line, size_t len, kve_str *segment)
{
    kve_arena arena = {0}, again_arena = {0};
    kve_record r, again;
    kve_str text = {0}, second = {0};
    bool good = accepted(kve_record_parse(line, len, "records.jsonl:1", &arena, &r));
    if (good) {
        must(kve_record_write(&r, &text) == KVE_OK);
        must(kve_record_parse(text.p, text.len, "again", &again_arena, &again) == KVE_OK);
        must(kve_record_write(&again, &second) == KVE_OK);
        must(text.len == second.len && memcmp(text.p, second.p, text.len) == 0);
        must(kve_record_compare(&r, &again) == 0);
        must(kve_str_printf(segment, "%08x ", (unsigned)kve_crc32(line, len)) == KVE_OK);
        must(kve_str_append(segment, line, len) == KVE_OK && kve_str_puts(segment, "\n") == KVE_OK);
    }
    kve_arena_free(&arena);
    kve_arena_free(&again_arena);
    kve_str_free(&text);
    kve_str_free(&second);
    return good;
}

/* records.jsonl: one line for each cell, in order, and each cell is found in the store. */
static void check_merged(const char *path, const kve_store *store, size_t n_records)
{
    char *text = NULL;
    size_t len = 0, n = 0;
    kve_arena arena = {0};
    kve_record before = {0}, r;
    must(kve_file_read(path, &text, &len) == KVE_OK);
    for (size_t at = 0; at < len; n++) {
        const char *end = memchr(text + at, '\n', len - at);
        must(end);
        must(kve_record_parse(text + at, (size_t)(end - text) - at, path, &arena, &r) == KVE_OK);
        must(n == 0 || kve_record_compare(&before, &r) < 0);
        must(kve_store_find(store, r.task, r.sample_id, r.policy, r.budget).any);
        before = r;
        at = (size_t)(end - text) + 1;
    }
    must(n == n_records);
    free(text);
    kve_arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH];
    kve_str sealed = {0};
    kve_store *store = NULL;
    kve_merge merge;
    size_t n = 0;
    for (size_t at = 0; at < size;) {
        const uint8_t *end = memchr(data + at, '\n', size - at);
        size_t len = end ? (size_t)(end - data) - at : size - at;
        n += seal((const char *)data + at, len, &sealed);
        at += len + 1;
    }
    mkdir(fuzz_path("seg", path), 0700);
    fuzz_file("seg/host.1.jsonl.open", data, size, path);
    fuzz_file("seg/host.2.jsonl", sealed.p, sealed.len, path);
    kve_str_free(&sealed);
    if (accepted(kve_store_open(fuzz_folder(), &store))) {
        must(kve_store_merge(fuzz_folder(), &merge) == KVE_OK);
        must(merge.n_records + merge.n_duplicates >= n && merge.n_failed <= merge.n_records);
        check_merged(fuzz_path("records.jsonl", path), store, merge.n_records);
    }
    kve_store_close(store);
    return 0;
}
