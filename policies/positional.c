/* Policies that look at no tensor: full, random, streaming_llm (Xiao et al., "Efficient Streaming Language Models with
 * Attention Sinks"; kvpress StreamingLLMPress). Scores are made on the host and written to the device. */
#include "policies/policy.h"

#include "host/base/mem.h"
#include "host/base/rng.h"

#include <stdlib.h>

typedef float (*position_score)(kve_rng *r, int32_t j);

static kve_status score_positions(const kve_policy_view *v, position_score f, float *scores)
{
    size_t n = (size_t)v->n, rows = (size_t)v->shape->Hkv;
    float *host = NULL;
    KVE_TRY(kve_alloc(rows * n, sizeof *host, &host));
    for (size_t h = 0; h < rows; h++) {
        kve_rng r; /* a stream of its own for each (seed, sample, layer, head) */
        kve_rng_init(&r, v->seed, v->sample, (uint64_t)v->i_layer, h);
        for (size_t j = 0; j < n; j++)
            host[h * n + j] = f(&r, (int32_t)j);
    }
    kve_status st = v->be->vt->write(v->be, scores, host, rows * n * sizeof *host);
    free(host);
    return st;
}

static float uniform(kve_rng *r, int32_t j)
{
    (void)j;
    return kve_rng_float(r);
}

/* The attention sinks stand above all positions, the first on top. */
static float sinks_then_newest(kve_rng *r, int32_t j)
{
    enum { SINKS = 4 };
    (void)r;
    return j < SINKS ? 1e30f * (float)(SINKS - j) : (float)j; /* exact up to 2^24 tokens */
}

static float oldest_first(kve_rng *r, int32_t j)
{
    (void)r;
    return -(float)j;
}

static kve_status score_full(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    return score_positions(v, oldest_first, scores);
}

static kve_status score_random(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    return score_positions(v, uniform, scores);
}

static kve_status score_streaming(const kve_policy *p, const kve_policy_view *v, float *scores)
{
    (void)p;
    return score_positions(v, sinks_then_newest, scores);
}

const kve_policy kve_policy_full = {
    .name = "full", .summary = "keeps everything: the reference", .keeps_all = true, .score = score_full};
const kve_policy kve_policy_random = {
    .name = "random", .summary = "uniform random scores", .while_decoding = true, .score = score_random};
const kve_policy kve_policy_streaming_llm = {.name = "streaming_llm",
                                             .summary = "4 sinks, then the most recent tokens",
                                             .while_decoding = true,
                                             .score = score_streaming};
