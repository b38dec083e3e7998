/* Variable tracking: one chain of 4 hops (5 names) of assignments spread over noise; all names that end up with the
 * value are asked for. One solved example stands in front. */
#include "datasets/ruler/ruler.h"

enum { NAMES = 5, NAME_LEN = 5, OFFICIAL_NOISE = 20, LITTLE_NOISE = 6, MIDDLE_LENGTH = 1024 };
enum { FIRST_VALUE = 10000, VALUES = 90000 };
enum { NAME_STREAM = 1, VALUE_STREAM, SHOT_STREAM, PLACE_STREAM };

typedef struct chain {
    char names[NAMES][NAME_LEN + 1];
    unsigned value;
    double place[NAMES]; /* in [0,1), rising: the order of the chain is kept */
} chain;

typedef struct vt {
    chain shot, asked;
    size_t shot_noise; /* sentences of noise in the example: five rounds as in RULER, fewer in a short length */
} vt;

static const char INSTRUCTION[] = "Keep track of the variables that are assigned in the text below.\n\n";

static void draw_chain(const kve_ruler_job *job, uint64_t number, uint64_t place_stream, chain *c)
{
    const uint64_t n_names = 26 * 26 * 26 * 26 * 26;
    kve_rng rng;
    for (size_t k = 0; k < NAMES; k++) {
        uint64_t x = kve_ruler_unique(job, NAME_STREAM, number * NAMES + k, n_names);
        for (size_t j = 0; j < NAME_LEN; j++, x /= 26)
            c->names[k][j] = (char)('A' + x % 26);
        c->names[k][NAME_LEN] = '\0';
    }
    c->value = FIRST_VALUE + (unsigned)kve_ruler_unique(job, VALUE_STREAM, number, VALUES);
    kve_ruler_rng(job, place_stream, &rng);
    for (size_t k = 0; k < NAMES; k++) {
        double place = kve_rng_double(&rng);
        size_t at = k;
        for (; at > 0 && c->place[at - 1] > place; at--)
            c->place[at] = c->place[at - 1];
        c->place[at] = place;
    }
}

static kve_status put_body(const chain *c, size_t n_noise, kve_str *out)
{
    size_t next = 0;
    for (size_t i = 0; i <= n_noise; i++) {
        for (; next < NAMES && (i == n_noise || (size_t)(c->place[next] * (double)(n_noise + 1)) <= i); next++) {
            KVE_TRY(kve_str_puts(out, i || next ? " " : ""));
            KVE_TRY(next ? kve_str_printf(out, "VAR %s = VAR %s.", c->names[next], c->names[next - 1])
                         : kve_str_printf(out, "VAR %s = %u.", c->names[next], c->value));
        }
        if (i < n_noise) {
            KVE_TRY(kve_str_puts(out, i || next ? " " : ""));
            KVE_TRY(kve_str_puts(out, kve_noise_sentence(i)));
        }
    }
    return KVE_OK;
}

#define QUESTION                                                                                                       \
    "\n\nQuestion: Which %d variables have the value %u, directly or by way of other variables? List their names.\n"
#define PREFIX "Answer: In the text above, the %d variables with the value %u are:"

static kve_status build(void *ctx, size_t n, kve_str *out)
{
    const vt *t = ctx;
    KVE_TRY(kve_str_puts(out, INSTRUCTION));
    KVE_TRY(put_body(&t->shot, t->shot_noise, out));
    KVE_TRY(kve_str_printf(out, QUESTION PREFIX, NAMES, t->shot.value, NAMES, t->shot.value));
    for (size_t k = 0; k < NAMES; k++)
        KVE_TRY(kve_str_printf(out, " %s", t->shot.names[k]));
    KVE_TRY(kve_str_puts(out, "\n\n"));
    KVE_TRY(kve_str_puts(out, INSTRUCTION));
    return put_body(&t->asked, n, out);
}

/* *fits = false where the example with this much noise leaves too little room. */
static kve_status attempt(kve_ruler_job *job, vt *t, size_t shot_noise, bool *fits)
{
    t->shot_noise = shot_noise;
    return kve_ruler_fit(job, build, t, 1, 131072, NULL, fits);
}

kve_status kve_ruler_vt(kve_ruler_job *job)
{
    vt t = {0};
    const char *names[NAMES];
    bool fits = false;
    draw_chain(job, 0, SHOT_STREAM, &t.shot);
    draw_chain(job, 1, PLACE_STREAM, &t.asked);
    for (size_t k = 0; k < NAMES; k++)
        names[k] = t.asked.names[k];
    KVE_TRY(kve_ruler_references(job, names, NAMES));
    KVE_TRY(kve_ruler_text(job, &job->s->question, QUESTION, NAMES, t.asked.value));
    KVE_TRY(kve_ruler_text(job, &job->s->answer_prefix, PREFIX, NAMES, t.asked.value));
    if (job->r->opt.length_tok >= MIDDLE_LENGTH)
        KVE_TRY(attempt(job, &t, OFFICIAL_NOISE, &fits));
    if (fits)
        return KVE_OK;
    KVE_TRY(attempt(job, &t, LITTLE_NOISE, &fits));
    return fits ? kve_ruler_text(job, &job->s->note, "the example has %d sentences of noise (official: %d)",
                                 LITTLE_NOISE, OFFICIAL_NOISE)
                : kve_ruler_too_short(job);
}
