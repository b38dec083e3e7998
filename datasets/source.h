/* A task's files: found under --data by what their first row says, not by their names, and read row by row. Shared by
 * the tasks that come as files; not for use outside datasets/. Knows JSON Lines and CSV, no task. */
#ifndef KVE_DATASETS_SOURCE_H
#define KVE_DATASETS_SOURCE_H

#include "host/base/json.h"

/* As the file's name says, or else its folder's: "ARC-Challenge-Dev.jsonl", "test/anatomy_test.csv". */
typedef enum kve_split {
    KVE_SPLIT_OTHER,
    KVE_SPLIT_TRAIN,
    KVE_SPLIT_DEV,
    KVE_SPLIT_VALIDATION,
    KVE_SPLIT_TEST,
    KVE_N_SPLITS,
} kve_split;

/* How a task's files are recognised. */
typedef struct kve_format {
    const char *task, *wanted;       /* for messages: "boolq", "rows with question, passage and answer" */
    bool (*knows)(const cJSON *row); /* by fields that only this task has */
    const char *const *columns;      /* of its headerless CSV, NULL = it has none; a row gets them as fields */
    size_t n_columns;
    bool (*knows_csv)(const cJSON *row);
} kve_format;

typedef struct kve_source {
    const char *path;
    kve_split split;
    bool csv;
    size_t bytes;
} kve_source;

typedef struct kve_sources {
    kve_source *items; /* by path */
    size_t n, cap;
} kve_sources;

/* path: a file, which is then taken for the task's whatever it holds, or a folder that is searched with its folders.
 * No file is KVE_ERR_FILE that says what was looked for. Everything lives in the arena. */
kve_status kve_sources_find(const kve_format *f, const char *path, kve_arena *arena, kve_sources *out);

/* Where a row stands. */
typedef struct kve_place {
    const char *name; /* "FILE:LINE", for messages */
    const char *path;
    size_t line; /* from 1; of a CSV record its first */
} kve_place;

/* Rows that are wrong: the first one ends the reading, or they are counted and left out. */
typedef struct kve_bad_rows {
    bool skip;
    size_t n;
    kve_str first; /* the first one's message; kve_str_free */
} kve_bad_rows;

/* Calls row() for every row; a KVE_ERR_FILE of the row's parsing or of row() is a bad row. A byte order mark in front
 * and CRLF are taken as if they were not there. A file without rows is an error. */
typedef kve_status (*kve_row_fn)(void *ctx, const cJSON *row, const kve_place *at);
kve_status kve_source_read(const kve_source *s, const kve_format *f, kve_bad_rows *bad, kve_row_fn row, void *ctx);

/* --- Fields, with messages that name them. Texts are copied into the arena. */

/* A text that is more than white space. */
kve_status kve_field_text(const cJSON *row, const char *key, const kve_place *at, kve_arena *arena, const char **out);
/* A list of such texts, as many as low .. high. */
kve_status kve_field_texts(const cJSON *row, const char *key, const kve_place *at, size_t low, size_t high,
                           kve_arena *arena, const char *const **out, size_t *n);
bool kve_is_blank(const char *text);

/* Room for an (n + 1)-th item in an array of the arena; *array_ptr and *cap grow. The old array stays in the arena. */
kve_status kve_list_room(kve_arena *arena, size_t n, size_t *cap, size_t size, void *array_ptr);

#endif
