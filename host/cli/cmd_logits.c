/* kveval logits: the logits of a text's positions as a NumPy file, to compare the forward pass with another
 * implementation's. Evicts nothing; knows no policy. */
#include "host/base/file.h"
#include "host/cli/cli.h"
#include "host/engine/ranked.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CHUNK = 65536, ROWS_AT_ONCE = 64 }; /* 4,096 rows of 49,152 logits would be 800 MB */

typedef struct job {
    const kve_model *m;
    kve_ids ids;
    int32_t chunk, rows; /* the last `rows` positions are written */
    const char *path;
    FILE *file;
    float *logits; /* [ROWS_AT_ONCE][V] */
} job;

static kve_status fail_write(const job *j)
{
    return kve_fail(KVE_ERR_FILE, "%s: cannot write (%s); is there room on the disk?", j->path, strerror(errno));
}

/* Magic, version 1.0, the length of what follows, a Python literal padded so that the data start at a multiple of 64.
 */
static kve_status write_header(const job *j)
{
    char text[118], head[10] = "\x93NUMPY\x01";
    int len = snprintf(text, sizeof text, "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", j->rows,
                       j->m->cfg.shape.V);
    memset(text + len, ' ', sizeof text - (size_t)len);
    text[sizeof text - 1] = '\n';
    head[8] = (char)sizeof text;
    bool ok = fwrite(head, sizeof head, 1, j->file) == 1 && fwrite(text, sizeof text, 1, j->file) == 1;
    return ok ? KVE_OK : fail_write(j);
}

/* The logits of the T rows of the last kve_extend. */
static kve_status write_rows(const job *j, kve_session *s, int32_t T)
{
    int32_t rows[ROWS_AT_ONCE];
    size_t V = (size_t)j->m->cfg.shape.V;
    for (int32_t at = 0, count; at < T; at += count) {
        count = T - at < ROWS_AT_ONCE ? T - at : ROWS_AT_ONCE;
        for (int32_t i = 0; i < count; i++)
            rows[i] = at + i;
        KVE_TRY(kve_row_logits(s, rows, count, j->logits));
        if (fwrite(j->logits, V * sizeof(float), (size_t)count, j->file) != (size_t)count)
            return fail_write(j);
    }
    return KVE_OK;
}

static kve_status extend_rows(const job *j, kve_session *s, kve_batch *batch, int32_t from)
{
    int32_t n = (int32_t)j->ids.len;
    for (int32_t at = from, T; at < n; at += T) {
        T = n - at < j->chunk ? n - at : j->chunk;
        KVE_TRY(kve_extend(s, batch, j->ids.p + at, &T, NULL));
        KVE_TRY(write_rows(j, s, T));
    }
    return KVE_OK;
}

/* What comes before the rows is prefilled (nothing, if all are wanted); the rows themselves extend a fork of it,
 * because a prefill keeps the hidden rows of its last chunk only. */
static kve_status forward(const job *j, kve_session *s)
{
    const kve_model *m = j->m;
    int32_t n = (int32_t)j->ids.len, before = n - j->rows;
    kve_context ctx = {0};
    kve_fork_slot slot = {0};
    kve_batch batch = {0};
    int32_t *lengths = NULL;
    kve_status st = kve_context_alloc(m, before, &ctx);
    if (st == KVE_OK && before > 0)
        st = kve_prefill(s, j->ids.p, before, &ctx);
    if (st == KVE_OK)
        st = kve_uniform_lengths(m, before, before, &lengths);
    if (st == KVE_OK)
        st = kve_kv_alloc(m, j->rows, &slot.tail);
    slot.prefix = ctx.kv;
    slot.prefix_len = lengths;
    if (st == KVE_OK)
        st = kve_batch_alloc(m, &slot, &before, 1, &batch);
    if (st == KVE_OK)
        st = extend_rows(j, s, &batch, before);
    kve_batch_free(m, &batch);
    kve_kv_free(m, &slot.tail);
    m->be->vt->free(m->be, lengths);
    kve_context_free(m, &ctx);
    return st;
}

static kve_status run(job *j)
{
    int32_t n = (int32_t)j->ids.len;
    kve_session_options opt = {.chunk = j->chunk, .max_forks = 1, .max_positions = n};
    kve_session *s = NULL;
    KVE_TRY(kve_session_open(j->m, &opt, &s));
    kve_status st = kve_alloc((size_t)ROWS_AT_ONCE * (size_t)j->m->cfg.shape.V, sizeof(float), &j->logits);
    if (st == KVE_OK && !(j->file = fopen(j->path, "wb")))
        st = kve_fail(KVE_ERR_FILE, "%s: cannot create (%s); give --out a path that can be written", j->path,
                      strerror(errno));
    if (j->file) {
        st = write_header(j);
        if (st == KVE_OK)
            st = forward(j, s);
        if (fclose(j->file) != 0 && st == KVE_OK)
            st = fail_write(j);
        if (st != KVE_OK)
            unlink(j->path); /* a cut file would look like a whole one to a reader that maps it */
    }
    free(j->logits);
    kve_session_close(s);
    return st;
}

static kve_status tokenize_file(const kve_opened *o, const char *path, int32_t last, job *j)
{
    char *text = NULL;
    size_t len;
    KVE_TRY(kve_file_read(path, &text, &len));
    kve_status st = kve_tokenize(o->tk, text, len, false, true, &j->ids);
    free(text);
    if (st != KVE_OK)
        return kve_fail_context(st, "%s", path);
    if (j->ids.len == 0 || j->ids.len > (size_t)o->model->cfg.max_context)
        return kve_fail(KVE_ERR_USAGE, "%s: the text has %zu tokens; from 1 to %d (the model's context) are due", path,
                        j->ids.len, o->model->cfg.max_context);
    j->rows = last > 0 && (size_t)last < j->ids.len ? last : (int32_t)j->ids.len;
    return KVE_OK;
}

kve_status kve_cmd_logits(int argc, char **argv)
{
    enum { MODEL, FILE_IN, OUT, BACKEND, DTYPE, THREADS, CHUNK, LAST, N_FLAGS };
    kve_flag f[N_FLAGS] = {{"--model", "PATH", "model file or folder", "smollm2"},
                           {"--prompt-file", "F", "plain text in UTF-8", NULL},
                           {"--out", "F", "the .npy file: float32 [positions][vocabulary]", NULL},
                           {"--backend", "B", KVE_BACKEND_HELP, "auto"},
                           {"--dtype", "T", "bf16 or f32", "f32"},
                           {"--threads", "N", "0 = one per core", "0"},
                           {"--chunk", "N", "tokens of one forward pass", "512"},
                           {"--last", "N", "only the last N positions; 0 = all", "0"}};
    kve_opened o = {0};
    job j = {0};
    int32_t threads, last;
    bool help;
    KVE_TRY(kve_flags_parse(argc, argv, f, N_FLAGS, &help));
    if (help || !f[FILE_IN].value || !f[OUT].value) {
        kve_flags_print("kveval logits --prompt-file F --out F.npy [flags]", f, N_FLAGS);
        return help ? KVE_OK : kve_fail(KVE_ERR_USAGE, "%s is missing", f[FILE_IN].value ? "--out" : "--prompt-file");
    }
    KVE_TRY(kve_flag_int(&f[THREADS], 0, 1024, &threads));
    KVE_TRY(kve_flag_int(&f[CHUNK], 1, MAX_CHUNK, &j.chunk));
    KVE_TRY(kve_flag_int(&f[LAST], 0, 1 << 24, &last));
    KVE_TRY(
        kve_open_model(&(kve_open_options){f[MODEL].value, f[DTYPE].value, f[BACKEND].value, "plain", threads}, &o));
    j.m = o.model;
    j.path = f[OUT].value;
    kve_status st = tokenize_file(&o, f[FILE_IN].value, last, &j);
    if (st == KVE_OK)
        st = run(&j);
    if (st == KVE_OK)
        fprintf(stderr, "%d of %zu positions x %d logits in %s\n", j.rows, j.ids.len, j.m->cfg.shape.V, j.path);
    kve_ids_free(&j.ids);
    kve_close_model(&o);
    return st;
}
