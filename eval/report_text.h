/* A text writer for the report: one sticky error, and one place for every kind of escaping (HTML, Markdown, CSV).
 * Names and reasons come from files and may hold anything; only these functions put them into a page. Knows
 * host/base alone. */
#ifndef KVE_EVAL_REPORT_TEXT_H
#define KVE_EVAL_REPORT_TEXT_H

#include "host/base/mem.h"
#include "host/base/status.h"

#include <stdint.h>

/* Appends to *out, which the caller owns. After a failure every call does nothing; check `status` once at the end. */
typedef struct kve_tw {
    kve_str *out;
    kve_status status;
} kve_tw;

void kve_tw_puts(kve_tw *w, const char *text); /* as it is: the report's own words only */
void kve_tw_printf(kve_tw *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void kve_tw_html(kve_tw *w, const char *text);  /* & < > " ' escaped, control characters shown as U+FFFD */
void kve_tw_plain(kve_tw *w, const char *text); /* for a terminal: control characters shown as U+FFFD */
void kve_tw_md(kve_tw *w, const char *text);    /* plain, and '|' escaped: one cell of a Markdown table */
void kve_tw_csv(kve_tw *w, const char *text);   /* one field by RFC 4180: quoted when it has to be */
void kve_tw_num(kve_tw *w, double v);           /* the shortest text that reads back; nothing for NaN */

/* printf into the arena. */
kve_status kve_report_text(kve_arena *arena, const char **out, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Characters shown on a terminal: UTF-8 code points. */
size_t kve_report_width(const char *text);

#endif
