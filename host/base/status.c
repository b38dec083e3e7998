/* The per-thread diagnostic behind kve_status. */
#include "host/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { DIAG_BYTES = 2048 };

static _Thread_local char t_diag[DIAG_BYTES];

kve_status kve_fail(kve_status code, const char *fmt, ...)
{
    char text[DIAG_BYTES]; /* the arguments may point into t_diag */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(t_diag, text, sizeof t_diag);
    return code;
}

kve_status kve_fail_context(kve_status code, const char *fmt, ...)
{
    char text[DIAG_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int used = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (used >= 0 && (size_t)used < sizeof text)
        snprintf(text + used, sizeof text - (size_t)used, ": %s", t_diag);
    memcpy(t_diag, text, sizeof t_diag);
    return code;
}

const char *kve_diag(void)
{
    return t_diag;
}
