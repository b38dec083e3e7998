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
    if ((c >= 0xc0 && c <= 0xde && c != 0xd7) || (c >= 0x391 && c <= 0x3a9 && c != 0x3a2) || (c >= 0x410 && c <= 0x42f))
        return c + 32;
    if (c >= 0x400 && c <= 0x40f)
        return c + 80;
    bool even_is_upper = (c >= 0x100 && c <= 0x12f) || (c >= 0x132 && c <= 0x137) || (c >= 0x14a && c <= 0x177) ||
                         (c >= 0x460 && c <= 0x481);
    bool odd_is_upper = (c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17e);
    if ((even_is_upper && c % 2 == 0) || (odd_is_upper && c % 2 == 1))
        return c + 1;
    return c == 0x178 ? 0xff : c;
}

static void lower(char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char a = (unsigned char)s[i];
        if (a >= 'A' && a <= 'Z') {
            s[i] = (char)(a + 32);
        } else if ((a & 0xe0) == 0xc0 && i + 1 < len) {
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
