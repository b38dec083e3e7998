/* Notes, warnings and the progress line on stderr. */
#include "host/base/log.h"

#include "host/base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TTY_EVERY_US = 100000, PLAIN_EVERY_US = 10000000 };

static bool g_quiet;

void kve_log_quiet(bool quiet)
{
    g_quiet = quiet;
}

void kve_note(const char *fmt, ...)
{
    va_list ap;
    if (g_quiet)
        return;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

void kve_warn(const char *fmt, ...)
{
    bool color = isatty(STDERR_FILENO) && !getenv("NO_COLOR");
    va_list ap;
    va_start(ap, fmt);
    fputs(color ? "\033[33mwarning:\033[0m " : "warning: ", stderr);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

void kve_progress_begin(kve_progress *p, const char *label, int64_t total)
{
    *p = (kve_progress){.label = label, .total = total, .start_us = kve_now_us(), .tty = isatty(STDERR_FILENO)};
}

void kve_progress_update(kve_progress *p, int64_t done, const char *detail)
{
    int64_t now = kve_now_us(), wait = p->tty ? TTY_EVERY_US : PLAIN_EVERY_US;
    p->done = done;
    if (g_quiet || (p->shown && now - p->last_us < wait && done < p->total))
        return;
    double spent = (double)(now - p->start_us) * 1e-6;
    fprintf(stderr, "%s%s %lld/%lld", p->tty ? "\r\033[K" : "", p->label, (long long)done, (long long)p->total);
    if (done > p->skipped && done < p->total)
        fprintf(stderr, ", %.0f s left", spent * (double)(p->total - done) / (double)(done - p->skipped));
    fprintf(stderr, "%s%s%s", *detail ? " " : "", detail, p->tty ? "" : "\n");
    p->last_us = now;
    p->shown = true;
}

void kve_progress_end(kve_progress *p)
{
    if (p->shown && p->tty)
        fputc('\n', stderr);
    p->shown = false;
}
