/* A trainer's state as a file. Contract: state.h. Numbers that must come back bit for bit and are not f32 travel as
 * hexadecimal text or as the bits of an integer. */
#include "policies/kvp/state.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const g_names[KVP_ARRAYS] = {"weights", "mean", "square", "ema", "best"};

static kve_status write_all(kve_st_writer *w, const kvp_state *s)
{
    for (int a = 0; a < KVP_ARRAYS; a++)
        KVE_TRY(kve_st_write(w, s->array[a], (size_t)s->heads * s->count * sizeof(float)));
    return kve_st_write(w, s->best_ratio, (size_t)s->heads * sizeof *s->best_ratio);
}

kve_status kvp_checkpoint_write(const char *path, const kvp_state *s, const char *recipe)
{
    kve_st_tensor tensors[KVP_ARRAYS + 1];
    char step[16], n_sum[16], seconds[40], ratio[40], norm[40];
    kve_st_writer *w = NULL;
    for (int a = 0; a < KVP_ARRAYS; a++)
        tensors[a] = (kve_st_tensor){
            .name = g_names[a], .dtype = KVE_ST_F32, .n_dims = 2, .dims = {s->heads, (int64_t)s->count}};
    tensors[KVP_ARRAYS] =
        (kve_st_tensor){.name = "best_ratio_bits", .dtype = KVE_ST_I64, .n_dims = 1, .dims = {s->heads}};
    snprintf(step, sizeof step, "%d", s->step);
    snprintf(n_sum, sizeof n_sum, "%d", s->n_sum);
    snprintf(seconds, sizeof seconds, "%a", s->seconds);
    snprintf(ratio, sizeof ratio, "%a", s->sum_ratio);
    snprintf(norm, sizeof norm, "%a", s->sum_norm);
    const kve_st_meta meta[] = {{"recipe", recipe},
                                {"step", step},
                                {"seconds", seconds},
                                {"sum_ratio", ratio},
                                {"sum_norm", norm},
                                {"n_sum", n_sum},
                                {"log", s->log.p ? s->log.p : ""}};
    KVE_TRY(kve_st_create(path, tensors, KVP_ARRAYS + 1, meta, sizeof meta / sizeof *meta, &w));
    kve_status st = write_all(w, s);
    if (st == KVE_OK)
        return kve_st_finish(w);
    kve_st_abort(w);
    return st;
}

static kve_status read_number(const kve_safetensors *f, const char *key, double *out)
{
    const char *text = kve_st_meta_get(f, key);
    char *end = NULL;
    if (text)
        *out = strtod(text, &end);
    if (!text || end == text || *end || !isfinite(*out))
        return kve_fail(KVE_ERR_FILE, "%s: metadata %s is %s%s%s; delete the file to begin anew", f->name, key,
                        text ? "'" : "", text ? text : "missing", text ? "'" : "");
    return KVE_OK;
}

static kve_status read_meta(const kve_safetensors *f, const char *recipe, kvp_state *s)
{
    const char *old = kve_st_meta_get(f, "recipe"), *log = kve_st_meta_get(f, "log");
    double step = 0, n_sum = 0;
    if (!old || !log)
        return kve_fail(KVE_ERR_FILE,
                        "%s: no metadata 'recipe' and 'log': not a checkpoint of kveval train; move it away", f->name);
    KVE_TRY(kvp_recipe_check(f->name, old, recipe));
    KVE_TRY(read_number(f, "step", &step));
    KVE_TRY(read_number(f, "n_sum", &n_sum));
    KVE_TRY(read_number(f, "seconds", &s->seconds));
    KVE_TRY(read_number(f, "sum_ratio", &s->sum_ratio));
    KVE_TRY(read_number(f, "sum_norm", &s->sum_norm));
    if (step < 0 || step > INT32_MAX || n_sum < 0 || n_sum > step)
        return kve_fail(KVE_ERR_FILE, "%s: metadata step is %g and n_sum %g; delete the file to begin anew", f->name,
                        step, n_sum);
    s->step = (int32_t)step;
    s->n_sum = (int32_t)n_sum;
    kve_str_clear(&s->log);
    return kve_str_puts(&s->log, log);
}

kve_status kvp_checkpoint_read(const char *path, const char *recipe, kvp_state *s)
{
    kve_safetensors f = {0};
    kve_status st = kve_safetensors_open(path, &f);
    if (st == KVE_OK)
        st = read_meta(&f, recipe, s);
    for (int a = 0; a < KVP_ARRAYS && st == KVE_OK; a++)
        st = kve_st_copy(&f, g_names[a], KVE_ST_F32, (int64_t)s->heads * (int64_t)s->count, s->array[a]);
    if (st == KVE_OK)
        st = kve_st_copy(&f, "best_ratio_bits", KVE_ST_I64, s->heads, s->best_ratio);
    kve_safetensors_close(&f);
    return st;
}
