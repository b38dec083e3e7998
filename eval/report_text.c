/* Escaping and sticky-error writing. Contract: report_text.h. */
#include "eval/report_text.h"

#include "host/base/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

void kve_tw_puts(kve_tw *w, const char *text)
{
    if (w->status == KVE_OK)
        w->status = kve_str_puts(w->out, text);
}

static void put(kve_tw *w, const char *bytes, size_t len)
{
    if (w->status == KVE_OK)
        w->status = kve_str_append(w->out, bytes, len);
}

static kve_status append_format(kve_str *out, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int need = vsnprintf(NULL, 0, fmt, ap);
    char *text = NULL;
    kve_status st = need < 0 ? kve_fail(KVE_ERR_INTERNAL, "bad format '%s'", fmt) : KVE_OK;
    if (st == KVE_OK)
        st = kve_alloc((size_t)need + 1, 1, &text);
    if (st == KVE_OK) {
        vsnprintf(text, (size_t)need + 1, fmt, again);
        st = kve_str_append(out, text, (size_t)need);
    }
    va_end(again);
    free(text);
    return st;
}

void kve_tw_printf(kve_tw *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (w->status == KVE_OK)
        w->status = append_format(w->out, fmt, ap);
    va_end(ap);
}

/* The length of a control character at p (C0, DEL, or C1 as UTF-8), 0 if there is none. C1 holds a terminal's CSI. */
static size_t control(const char *p)
{
    unsigned char c = (unsigned char)p[0], d = c ? (unsigned char)p[1] : 0;
    if (c < 0x20 || c == 0x7f)
        return 1;
    return c == 0xc2 && d >= 0x80 && d <= 0x9f ? 2 : 0;
}

static void put_visible(kve_tw *w, const char *text, const char *special, const char *const *replaced)
{
    while (*text) {
        size_t skip = control(text);
        const char *hit = strchr(special, *text);
        if (skip)
            kve_tw_puts(w, REPLACEMENT);
        else if (hit)
            kve_tw_puts(w, replaced[hit - special]);
        else
            put(w, text, 1);
        text += skip ? skip : 1;
    }
}

void kve_tw_html(kve_tw *w, const char *text)
{
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    put_visible(w, text, "&<>\"'", entities);
}

void kve_tw_plain(kve_tw *w, const char *text)
{
    put_visible(w, text, "", NULL);
}

void kve_tw_md(kve_tw *w, const char *text)
{
    static const char *const pipe[] = {"\\|"};
    put_visible(w, text, "|", pipe);
}

void kve_tw_csv(kve_tw *w, const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        kve_tw_puts(w, text);
        return;
    }
    put(w, "\"", 1);
    for (; *text; text++)
        if (*text == '"')
            put(w, "\"\"", 2);
        else
            put(w, text, 1);
    put(w, "\"", 1);
}

void kve_tw_num(kve_tw *w, double v)
{
    kve_jw jw = {.out = w->out};
    if (isnan(v) || w->status != KVE_OK)
        return;
    kve_jw_num(&jw, v);
    w->status = jw.status;
}

kve_status kve_report_text(kve_arena *arena, const char **out, const char *fmt, ...)
{
    kve_str s = {0};
    char *copy = NULL;
    va_list ap;
    va_start(ap, fmt);
    kve_status st = append_format(&s, fmt, ap);
    va_end(ap);
    if (st == KVE_OK)
        st = kve_arena_strndup(arena, s.p, s.len, &copy);
    kve_str_free(&s);
    if (st == KVE_OK)
        *out = copy;
    return st;
}

size_t kve_report_width(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}
