/* See fixture.h. */
#include "tests/kvp/fixture.h"

#include "host/base/file.h"
#include "host/model/safetensors.h"

#include <math.h>
#include <unistd.h>

const char *in_dir(const char *name, char path[512])
{
    snprintf(path, 512, "%s/%s", g_dir, name);
    return path;
}

void must(kve_status st)
{
    if (st != KVE_OK)
        fail_msg("%s", kve_diag());
}

void must_fail(kve_status st, kve_status want, const char *words)
{
    if (st != want || !strstr(kve_diag(), words))
        fail_msg("status %d instead of %d; '%s' is not in: %s", (int)st, (int)want, words, st ? kve_diag() : "(none)");
}

double uniform(kve_rng *rng, double most)
{
    return most * (2 * kve_rng_double(rng) - 1);
}

void random_weights(kve_kvp_shape s, kve_rng *rng, float *out)
{
    memset(out, 0, kve_kvp_count(s) * sizeof *out);
    for (int t = 0; t < KVE_KVP_TENSORS; t++) {
        bool matrix = kve_kvp_rows(s, (kve_kvp_tensor)t) > 1;
        bool gain = t == KVE_KVP_K_GAIN || t == KVE_KVP_V_GAIN || t == KVE_KVP_POS_GAIN || t == KVE_KVP_MIX_GAIN ||
                    t == KVE_KVP_DEEP_GAIN;
        double most = matrix ? sqrt(3.0 / kve_kvp_cols(s, (kve_kvp_tensor)t)) : 0.5;
        for (size_t i = kve_kvp_offset(s, (kve_kvp_tensor)t); i < kve_kvp_offset(s, (kve_kvp_tensor)(t + 1)); i++)
            out[i] = (float)(uniform(rng, most) + gain);
    }
}

/* keys and values [heads][n][D], importance [heads][n]. */
static void fill_trace(const trace_spec *spec, int32_t n, float *keys, float *values, float *importance)
{
    kve_rng rng;
    for (int32_t h = 0; h < TRACE_L * TRACE_HKV; h++) {
        double direction[TRACE_D];
        kve_rng_init(&rng, 1, 0, 0, (uint64_t)h); /* the same for every trace */
        for (int32_t d = 0; d < TRACE_D; d++)
            direction[d] = uniform(&rng, 1);
        kve_rng_init(&rng, 2, spec->seed, 0, (uint64_t)h);
        for (int32_t j = 0; j < n; j++, importance++) {
            double along = 0;
            for (int32_t d = 0; d < TRACE_D; d++, keys++) {
                *keys = (float)uniform(&rng, 1);
                *values++ = (float)uniform(&rng, 1);
                along += (double)*keys * direction[d];
            }
            *importance = (float)exp(3 * (spec->by_position ? cos(j * 0.7853981633974483) : along));
        }
    }
}

void write_trace(const char *path, const trace_spec *spec)
{
    const int32_t n = spec->n ? spec->n : 90, heads = TRACE_L * TRACE_HKV, at = 2 * n + 40;
    size_t rows = (size_t)heads * (size_t)n;
    float *keys = NULL, *values = NULL, *importance = NULL;
    kve_st_writer *w = NULL;
    must(kve_alloc(rows * TRACE_D, sizeof *keys, &keys));
    must(kve_alloc(rows * TRACE_D, sizeof *values, &values));
    must(kve_alloc(rows, sizeof *importance, &importance));
    fill_trace(spec, n, keys, values, importance);
    if (spec->spoil_key)
        keys[at * TRACE_D] = *spec->spoil_key;
    if (spec->spoil_importance)
        importance[at] = *spec->spoil_importance;
    const kve_st_tensor tensors[] = {
        {.name = "keys", .dtype = KVE_ST_F32, .n_dims = 4, .dims = {TRACE_L, TRACE_HKV, n, TRACE_D}},
        {.name = "values", .dtype = KVE_ST_F32, .n_dims = 4, .dims = {TRACE_L, TRACE_HKV, n, TRACE_D}},
        {.name = "importance", .dtype = KVE_ST_F32, .n_dims = 3, .dims = {TRACE_L, TRACE_HKV, n}}};
    const kve_st_meta meta[] = {{"model", "synthetic"},
                                {"model_sha256", spec->sha256 ? spec->sha256 : "aa"},
                                {"prompt_sha256", spec->prompt ? spec->prompt : path}};
    must(kve_make_parents(path));
    must(kve_st_create(path, tensors, COUNT(tensors), meta, COUNT(meta), &w));
    must(kve_st_write(w, keys, rows * TRACE_D * sizeof *keys));
    must(kve_st_write(w, values, rows * TRACE_D * sizeof *values));
    must(kve_st_write(w, importance, rows * sizeof *importance));
    must(kve_st_finish(w));
    free(keys);
    free(values);
    free(importance);
}

char *bytes_of(const char *path, size_t *len)
{
    char *text = NULL;
    must(kve_file_read(path, &text, len));
    return text;
}

void cut_file(const char *path, size_t len)
{
    size_t all;
    char *text = bytes_of(path, &all);
    assert_true(len < all);
    must(kve_file_write(path, text, len));
    free(text);
}
