/* Ready-made rows in JSON Lines. The file stays mapped; opening checks every row, a sample parses its line again. The
 * datasets of one file share it. Contract: dataset.h. */
#include "datasets/row.h"
#include "host/base/file.h"

#include <stdlib.h>
#include <string.h>

typedef struct rows_file {
    size_t n_users; /* datasets that share it */
    kve_map map;
    char *path;
    const kve_ruler_task *task; /* of rows that name none; NULL = they must */
    kve_row *rows;
    size_t n_rows;
    kve_arena arena;
} rows_file;

typedef struct rows {
    kve_dataset base; /* first: the dataset is this object */
    rows_file *file;
    size_t *which; /* [n_samples] into file->rows */
} rows;

static void file_release(rows_file *f)
{
    if (--f->n_users > 0)
        return;
    kve_map_close(&f->map);
    kve_arena_free(&f->arena);
    free(f);
}

/* The task that the file's folder is named after, NULL if it is not. */
static const kve_ruler_task *folder_task(const char *path)
{
    const char *base = kve_path_base(path);
    for (size_t i = 0; i < kve_ruler_n_tasks(); i++) {
        const char *name = kve_ruler_at(i)->name;
        size_t len = strlen(name), dir = (size_t)(base - path);
        if (dir > len && strncmp(base - 1 - len, name, len) == 0 &&
            (dir == len + 1 || base[-2 - (ptrdiff_t)len] == '/'))
            return kve_ruler_at(i);
    }
    return NULL;
}

static int by_index(const void *a, const void *b)
{
    const kve_row *x = *(const kve_row *const *)a, *y = *(const kve_row *const *)b;
    if (x->task != y->task)
        return strcmp(x->task->name, y->task->name);
    return x->index != y->index ? (x->index < y->index ? -1 : 1) : (x->line > y->line) - (x->line < y->line);
}

static kve_status check_repeats(const rows_file *f)
{
    const kve_row **sorted = NULL;
    kve_status st = KVE_OK;
    KVE_TRY(kve_alloc(f->n_rows, sizeof *sorted, &sorted));
    for (size_t i = 0; i < f->n_rows; i++)
        sorted[i] = &f->rows[i];
    qsort(sorted, f->n_rows, sizeof *sorted, by_index);
    for (size_t i = 1; i < f->n_rows && st == KVE_OK; i++) {
        const kve_row *a = sorted[i - 1], *b = sorted[i];
        if (a->task == b->task && a->index == b->index && a->index >= 0)
            st = kve_fail(KVE_ERR_FILE, "%s:%zu: field 'index' is %lld for task '%s', as in line %zu; keep one row",
                          f->path, b->line, (long long)b->index, b->task->name, a->line);
    }
    free(sorted);
    return st;
}

static kve_status scan(rows_file *f)
{
    const char *text = (const char *)f->map.data;
    size_t n_lines = 1, line = 1;
    for (size_t i = 0; i < f->map.size; i++)
        n_lines += text[i] == '\n';
    KVE_TRY(kve_arena_alloc(&f->arena, n_lines, sizeof *f->rows, &f->rows));
    for (size_t at = 0; at < f->map.size; line++) {
        const char *end = memchr(text + at, '\n', f->map.size - at);
        size_t len = end ? (size_t)(end - text) - at : f->map.size - at;
        kve_sample s = {0};
        kve_row *r = &f->rows[f->n_rows++];
        *r = (kve_row){.offset = at, .len = len, .line = line, .index = -1};
        kve_status st = len ? kve_row_read(text, f->path, f->task, r, &s)
                            : kve_fail(KVE_ERR_FILE, "%s:%zu: the line is empty", f->path, line);
        kve_sample_free(&s);
        KVE_TRY(st);
        at += len + (end != NULL);
    }
    if (f->n_rows == 0)
        return kve_fail(KVE_ERR_FILE, "%s: has no rows", f->path);
    return check_repeats(f);
}

static kve_status file_open(const char *path, const kve_ruler_task *asked, rows_file **out)
{
    rows_file *f = NULL;
    const kve_ruler_task *folder = folder_task(path);
    KVE_TRY(kve_alloc(1, sizeof *f, &f));
    f->n_users = 1;
    f->task = folder ? folder : asked; /* a folder's name is a fact about the rows, a wish is not */
    kve_status st = kve_arena_strndup(&f->arena, path, strlen(path), &f->path);
    if (st == KVE_OK)
        st = kve_map_open(path, &f->map);
    if (st == KVE_OK)
        st = scan(f);
    if (st == KVE_OK)
        *out = f;
    else
        file_release(f);
    return st;
}

/* --- Datasets on it */

static kve_status rows_sample(kve_dataset *self, size_t i, kve_sample *out)
{
    const rows *d = (const rows *)self;
    const rows_file *f = d->file;
    kve_row r = f->rows[d->which[i]];
    return kve_row_read((const char *)f->map.data, f->path, f->task, &r, out);
}

static void rows_close(kve_dataset *self)
{
    rows *d = (rows *)self;
    file_release(d->file);
    free(d->which);
    free(d);
}

static size_t count_rows(const rows_file *f, const kve_ruler_task *task)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_rows; i++)
        n += f->rows[i].task == task;
    return n;
}

/* The rows of one task that has n > 0 of them, the first `most` of them if that is not 0. */
static kve_status dataset_of(rows_file *f, const kve_ruler_task *task, size_t n, size_t most, kve_dataset **out)
{
    rows *d = NULL;
    if (most && most < n)
        n = most;
    KVE_TRY(kve_alloc(1, sizeof *d, &d));
    kve_status st = kve_alloc(n, sizeof *d->which, &d->which);
    if (st != KVE_OK) {
        free(d);
        return st;
    }
    for (size_t i = 0, k = 0; k < n; i++)
        if (f->rows[i].task == task)
            d->which[k++] = i;
    d->base = (kve_dataset){.name = task->name, .n_samples = n, .sample = rows_sample, .close = rows_close};
    d->file = f;
    f->n_users++;
    *out = &d->base;
    return KVE_OK;
}

static kve_status fail_tasks(const rows_file *f, const kve_ruler_task *asked)
{
    kve_str names = {0};
    kve_status st = KVE_OK;
    for (size_t i = 0; i < kve_ruler_n_tasks() && st == KVE_OK; i++)
        if (count_rows(f, kve_ruler_at(i)))
            st = kve_str_printf(&names, "%s%s", names.len ? ", " : "", kve_ruler_task_name(i));
    if (st == KVE_OK)
        st = kve_fail(KVE_ERR_USAGE, "%s: has no rows of task '%s'; it has rows of: %s", f->path, asked->name, names.p);
    kve_str_free(&names);
    return st;
}

/* What is wanted of a file or folder. */
typedef struct wish {
    const kve_ruler_task *task; /* NULL = all */
    size_t n_samples;
} wish;

static kve_status make_wish(const kve_rows_options *o, wish *w)
{
    *w = (wish){.n_samples = o->n_samples};
    return o->task ? kve_ruler_resolve(o->task, &w->task) : KVE_OK;
}

static kve_status open_file(const wish *w, const char *path, kve_dataset_list *out)
{
    rows_file *f = NULL;
    size_t before = out->n;
    kve_status st = KVE_OK;
    KVE_TRY(file_open(path, w->task, &f));
    for (size_t i = 0; i < kve_ruler_n_tasks() && st == KVE_OK; i++) {
        const kve_ruler_task *task = kve_ruler_at(i);
        kve_dataset *d = NULL;
        size_t n = count_rows(f, task);
        if (n == 0 || (w->task && w->task != task))
            continue;
        st = dataset_of(f, task, n, w->n_samples, &d);
        if (st == KVE_OK)
            st = kve_dataset_list_add(out, d);
    }
    if (st == KVE_OK && out->n == before)
        st = fail_tasks(f, w->task);
    file_release(f);
    return st;
}

kve_status kve_rows_open(const kve_rows_options *options, kve_dataset **out)
{
    kve_dataset_list list = {0};
    wish w;
    KVE_TRY(make_wish(options, &w));
    kve_status st = open_file(&w, options->path, &list);
    if (st == KVE_OK && list.n > 1)
        st = kve_fail(KVE_ERR_USAGE, "%s: has rows of %zu tasks, '%s' among them; ask for one by name", options->path,
                      list.n, list.items[0]->name);
    if (st == KVE_OK) {
        *out = list.items[0];
        list.n = 0;
    }
    kve_dataset_list_close(&list);
    return st;
}

static kve_status open_folder(const wish *w, const char *dir, kve_str *path, kve_dataset_list *out)
{
    size_t before = out->n;
    KVE_TRY(kve_path_join(path, dir, "validation.jsonl"));
    if (kve_path_exists(path->p))
        return open_file(w, path->p, out);
    for (size_t i = 0; i < kve_ruler_n_tasks(); i++) {
        if (w->task && w->task != kve_ruler_at(i))
            continue;
        KVE_TRY(kve_path_join(path, dir, kve_ruler_task_name(i)));
        KVE_TRY(kve_str_puts(path, "/validation.jsonl"));
        if (kve_path_exists(path->p))
            KVE_TRY(open_file(w, path->p, out));
    }
    if (out->n > before)
        return KVE_OK;
    return kve_fail(KVE_ERR_FILE, "%s: has neither validation.jsonl nor %s/validation.jsonl", dir,
                    w->task ? w->task->name : "TASK");
}

kve_status kve_rows_open_all(const kve_rows_options *options, kve_dataset_list *out)
{
    kve_str path = {0};
    wish w;
    KVE_TRY(make_wish(options, &w));
    if (!kve_path_is_dir(options->path))
        return open_file(&w, options->path, out);
    kve_status st = open_folder(&w, options->path, &path, out);
    kve_str_free(&path);
    return st;
}
