/* The writer: header first, then the data as they come, into a temporary file that is renamed when it is complete. */
#include "host/model/safetensors.h"

#include "host/base/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_ALIGN = 64 }; /* the data of the first tensor begin on a multiple of it */

struct kve_st_writer {
    FILE *file;
    kve_str path, temp;
    int64_t due, written; /* bytes of data */
};

static kve_status fail_errno(const kve_st_writer *w, const char *what)
{
    return kve_fail(KVE_ERR_FILE, "%s: %s: %s", w->temp.p, what, strerror(errno));
}

static kve_status tensor_bytes(const kve_st_writer *w, const kve_st_tensor *t, int64_t *out)
{
    int64_t n = (int64_t)kve_st_dtype_bytes(t->dtype);
    bool ok = t->n_dims >= 0 && t->n_dims <= KVE_ST_MAX_DIMS;
    for (int32_t i = 0; ok && i < t->n_dims; i++)
        ok = t->dims[i] >= 0 && !__builtin_mul_overflow(n, t->dims[i], &n);
    if (!ok)
        return kve_fail(KVE_ERR_INTERNAL, "%s: tensor '%s' has an impossible shape", w->path.p, t->name);
    *out = n;
    return KVE_OK;
}

static kve_status put_tensor(kve_st_writer *w, kve_jw *j, const kve_st_tensor *t)
{
    int64_t bytes = 0, from = w->due;
    KVE_TRY(tensor_bytes(w, t, &bytes));
    if (__builtin_add_overflow(from, bytes, &w->due) || w->due > (int64_t)1 << 53)
        return kve_fail(KVE_ERR_INTERNAL, "%s: the tensors are too large for one file", w->path.p);
    kve_jw_key(j, t->name);
    kve_jw_begin(j, '{');
    kve_jw_key(j, "dtype");
    kve_jw_str(j, kve_st_dtype_name(t->dtype));
    kve_jw_key(j, "shape");
    kve_jw_begin(j, '[');
    for (int32_t i = 0; i < t->n_dims; i++)
        kve_jw_int(j, t->dims[i]);
    kve_jw_end(j, ']');
    kve_jw_key(j, "data_offsets");
    kve_jw_begin(j, '[');
    kve_jw_int(j, from);
    kve_jw_int(j, w->due);
    kve_jw_end(j, ']');
    kve_jw_end(j, '}');
    return KVE_OK;
}

static kve_status make_header(kve_st_writer *w, const kve_st_tensor *tensors, size_t n_tensors, const kve_st_meta *meta,
                              size_t n_meta, kve_str *header)
{
    kve_jw j = {.out = header};
    kve_jw_begin(&j, '{');
    if (n_meta) {
        kve_jw_key(&j, "__metadata__");
        kve_jw_begin(&j, '{');
        for (size_t i = 0; i < n_meta; i++) {
            kve_jw_key(&j, meta[i].key);
            kve_jw_str(&j, meta[i].value);
        }
        kve_jw_end(&j, '}');
    }
    for (size_t i = 0; i < n_tensors; i++)
        KVE_TRY(put_tensor(w, &j, &tensors[i]));
    kve_jw_end(&j, '}');
    KVE_TRY(j.status);
    while ((header->len + sizeof(uint64_t)) % HEADER_ALIGN != 0)
        KVE_TRY(kve_str_append(header, " ", 1));
    return KVE_OK;
}

static kve_status put(kve_st_writer *w, const void *data, size_t bytes)
{
    if (bytes && fwrite(data, 1, bytes, w->file) != bytes)
        return fail_errno(w, "cannot write (is the disk full?)");
    return KVE_OK;
}

static kve_status start(kve_st_writer *w, const char *path, const kve_str *header)
{
    KVE_TRY(kve_str_printf(&w->temp, "%s.tmp.%ld", path, (long)getpid()));
    w->file = fopen(w->temp.p, "wbe");
    if (!w->file)
        return fail_errno(w, "cannot create");
    uint64_t len = header->len;
    KVE_TRY(put(w, &len, sizeof len));
    return put(w, header->p, header->len);
}

kve_status kve_st_create(const char *path, const kve_st_tensor *tensors, size_t n_tensors, const kve_st_meta *meta,
                         size_t n_meta, kve_st_writer **out)
{
    kve_st_writer *w = NULL;
    kve_str header = {0};
    KVE_TRY(kve_alloc(1, sizeof *w, &w));
    kve_status st = kve_str_puts(&w->path, path);
    if (st == KVE_OK)
        st = make_header(w, tensors, n_tensors, meta, n_meta, &header);
    if (st == KVE_OK)
        st = start(w, path, &header);
    kve_str_free(&header);
    if (st != KVE_OK)
        kve_st_abort(w);
    else
        *out = w;
    return st;
}

kve_status kve_st_write(kve_st_writer *w, const void *data, size_t bytes)
{
    if (bytes > (size_t)(w->due - w->written))
        return kve_fail(KVE_ERR_INTERNAL, "%s: more data than the %" PRId64 " declared bytes", w->path.p, w->due);
    w->written += (int64_t)bytes;
    return put(w, data, bytes);
}

static kve_status complete(kve_st_writer *w)
{
    if (w->written != w->due)
        return kve_fail(KVE_ERR_INTERNAL, "%s: %" PRId64 " of the %" PRId64 " declared bytes were written", w->path.p,
                        w->written, w->due);
    if (fflush(w->file) != 0 || fsync(fileno(w->file)) != 0)
        return fail_errno(w, "cannot flush to disk");
    FILE *file = w->file;
    w->file = NULL;
    if (fclose(file) != 0)
        return fail_errno(w, "cannot close");
    if (rename(w->temp.p, w->path.p) != 0)
        return fail_errno(w, "cannot rename the finished file into place");
    kve_str_free(&w->temp); /* nothing left to remove */
    return KVE_OK;
}

kve_status kve_st_finish(kve_st_writer *w)
{
    kve_status st = complete(w);
    kve_st_abort(w);
    return st;
}

void kve_st_abort(kve_st_writer *w)
{
    if (!w)
        return;
    if (w->file)
        fclose(w->file);
    if (w->temp.p)
        unlink(w->temp.p);
    kve_str_free(&w->temp);
    kve_str_free(&w->path);
    free(w);
}
