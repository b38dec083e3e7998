/* RULER's string match: mean or maximum over the references of a case-insensitive substring test. Texts only. */
#include "eval/metric_ruler.h"

#include <stdint.h>
#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

kve_status kve_metric_ruler_clean(const char *answer, size_t len, kve_str *out)
{
    while (len && (is_space(answer[len - 1]) || (unsigned char)answer[len - 1] < 0x20))
        len--;
    while (len && (is_space(*answer) || (unsigned char)*answer < 0x20)) {
        answer++;
        len--;
    }
    kve_str_clear(out);
    KVE_TRY(kve_str_append(out, answer, len));
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)out->p[i] < 0x20)
            out->p[i] = '\n';
    return KVE_OK;
}

/* The lower-case letter of a code point that takes two bytes in UTF-8. Only pairs whose two forms both take two bytes,
 * so that lowering never changes a length. */
static uint32_t lower_two_byte(uint32_t c)
{
    static const struct {
        uint32_t from, to, step; /* where capitals and small letters alternate the step is 2 */
        int32_t add;
    } capitals[] = {
        {0xc0, 0xd6, 1, 32},   {0xd8, 0xde, 1, 32},   {0x100, 0x12e, 2, 1},    {0x132, 0x136, 2, 1},
        {0x139, 0x147, 2, 1},  {0x14a, 0x176, 2, 1},  {0x178, 0x178, 1, -121}, {0x179, 0x17d, 2, 1},
        {0x386, 0x386, 1, 38}, {0x388, 0x38a, 1, 37}, {0x38c, 0x38c, 1, 64},   {0x38e, 0x38f, 1, 63},
        {0x391, 0x3a1, 1, 32}, {0x3a3, 0x3ab, 1, 32}, {0x400, 0x40f, 1, 80},   {0x410, 0x42f, 1, 32},
        {0x460, 0x480, 2, 1},  {0x48a, 0x4be, 2, 1},  {0x4c0, 0x4c0, 1, 15},   {0x4c1, 0x4cd, 2, 1},
        {0x4d0, 0x52e, 2, 1},
    };
    for (size_t i = 0; i < sizeof capitals / sizeof *capitals; i++)
        if (c >= capitals[i].from && c <= capitals[i].to && (c - capitals[i].from) % capitals[i].step == 0)
            return (uint32_t)((int32_t)c + capitals[i].add);
    return c;
}

static void lower(char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char a = (unsigned char)s[i];
        if (a >= 'A' && a <= 'Z') {
            s[i] = (char)(a + 32);
        } else if ((a & 0xe0) == 0xc0 && i + 1 < len && ((unsigned char)s[i + 1] & 0xc0) == 0x80) {
            uint32_t c = lower_two_byte((uint32_t)(a & 0x1f) << 6 | ((unsigned char)s[i + 1] & 0x3f));
            s[i++] = (char)(0xc0 | c >> 6);
            s[i] = (char)(0x80 | (c & 0x3f));
        }
    }
}

static kve_status count_found(const kve_str *answer, const char *const *references, size_t n, kve_str *ref,
                              size_t *found)
{
    *found = 0;
    for (size_t i = 0; i < n; i++) {
        if (!references[i] || !references[i][0])
            return kve_fail(KVE_ERR_FILE,
                            "reference %zu of %zu is empty and would match every answer; correct the data set", i + 1,
                            n);
        kve_str_clear(ref);
        KVE_TRY(kve_str_puts(ref, references[i]));
        lower(ref->p, ref->len);
        *found += memmem(answer->p, answer->len, ref->p, ref->len) != NULL;
    }
    return KVE_OK;
}

kve_status kve_metric_ruler(const char *answer, size_t len, const char *const *references, size_t n_references,
                            bool any, double *score)
{
    kve_str clean = {0}, ref = {0};
    size_t found = 0;
    kve_status st;
    if (n_references == 0)
        return kve_fail(KVE_ERR_FILE, "a sample without references cannot be scored; correct the data set");
    KVE_TRY_GOTO(st, kve_metric_ruler_clean(answer, len, &clean), done);
    lower(clean.p, clean.len);
    KVE_TRY_GOTO(st, count_found(&clean, references, n_references, &ref, &found), done);
    *score = any ? (double)(found > 0) : (double)found / (double)n_references;
done:
    kve_str_free(&clean);
    kve_str_free(&ref);
    return st;
}
