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
    char text[2 * DIAG_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int used = vsnprintf(text, DIAG_BYTES, fmt, ap);
    va_end(ap);
    size_t at = used < 0 ? 0 : used < DIAG_BYTES ? (size_t)used : DIAG_BYTES - 1;
    snprintf(text + at, sizeof text - at, ": %s", t_diag);
    memcpy(t_diag, text, DIAG_BYTES - 1); /* a very long message loses its end, never its beginning */
    return code;
}

const char *kve_diag(void)
{
    return t_diag;
}
