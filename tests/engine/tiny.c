/* Golden sequences. Contract: tiny.h; the files' layout: tests/golden/make_model.py. */
#include "tests/engine/tiny.h"

#include "host/base/file.h"
#include "host/base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN KVE_SOURCE_DIR "/tests/golden/models/"

const char *const g_tiny[N_TINY] = {"llama", "llama_tied", "qwen2", "qwen3", "phi3"};

void tiny_open(const char *model, kve_dtype dtype, int32_t threads, fixture *f)
{
    char path[512];
    snprintf(path, sizeof path, GOLDEN "%s", model);
    fixture_open(path, dtype, threads, f);
}

void tiny_golden(const char *model, size_t V, golden *g)
{
    char path[512], *text = NULL, *save = NULL;
    size_t len = 0, rows = 0;
    *g = (golden){0};
    snprintf(path, sizeof path, GOLDEN "%s/ids.txt", model);
    MUST(kve_file_read(path, &text, &len));
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        assert_true(g->n < MOST_SEQUENCES);
        sequence *s = &g->seq[g->n++];
        for (char *at = line, *end; *at; at = end) {
            assert_true(s->n < MOST_IDS);
            s->ids[s->n++] = (int32_t)strtol(at, &end, 10);
            assert_true(end > at);
        }
    }
    free(text);
    snprintf(path, sizeof path, GOLDEN "%s/logits.bin", model);
    MUST(kve_file_read(path, &g->file, &len));
    for (int i = 0; i < g->n; i++) {
        g->seq[i].logits = (const float *)(const void *)g->file + rows * V;
        rows += (size_t)g->seq[i].n;
    }
    assert_true(g->n > 0);
    assert_int_equal(len, rows * V * sizeof(float));
}

sequence tiny_random(const kve_config *c)
{
    sequence q = {.n = c->max_context < MOST_IDS ? c->max_context : MOST_IDS};
    kve_rng rng;
    kve_rng_init(&rng, 3, 0, 0, 0);
    for (int32_t i = 0; i < q.n; i++)
        q.ids[i] = (int32_t)kve_rng_below(&rng, (uint64_t)c->shape.V);
    return q;
}
