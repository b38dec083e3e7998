/* The one error convention of kveval: functions that can fail return kve_status; the place that finds the fault
 * calls kve_fail() once, with what is wrong, where, the offending value and what to do about it. Callers only pass
 * the status up (KVE_TRY). The text is kept per thread until the next kve_fail(). Knows nothing of the rest. */
#ifndef KVE_BASE_STATUS_H
#define KVE_BASE_STATUS_H

#include <stdbool.h>

/* The numbers are also the exit codes of the command-line tool. */
typedef enum kve_status {
    KVE_OK = 0,
    KVE_ERR_INTERNAL = 1, /* a library or the operating system failed in a way that names no user input */
    KVE_ERR_USAGE = 2,    /* a bad flag, value, name or combination */
    KVE_ERR_PARTIAL = 3,  /* the run finished, but some cells failed */
    KVE_ERR_FILE = 4,     /* a bad, unreadable or unwritable file */
    KVE_ERR_MEMORY = 5,   /* out of host or device memory */
    KVE_ERR_STOPPED = 85, /* stopped on request (SIGINT); the same command resumes */
} kve_status;

/* Records the diagnostic of this thread and returns `code`, so that `return kve_fail(...)` reads well.
 * Write whole sentences without a final newline: "model.gguf: tensor 7 ('blk.0.attn_q.weight'): type 99 is
 * unknown; re-export the file with a supported type (F32, F16, ...)". */
kve_status kve_fail(kve_status code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " in front of the current diagnostic; for callers that know a name the finder could not. */
kve_status kve_fail_context(kve_status code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The diagnostic of the last failure in this thread ("" if none). Valid until the next kve_fail(). */
const char *kve_diag(void);

/* Passes a failure up unchanged. */
#define KVE_TRY(expr)                                                                                                  \
    do {                                                                                                               \
        kve_status kve_try_status_ = (expr);                                                                           \
        if (kve_try_status_ != KVE_OK)                                                                                 \
            return kve_try_status_;                                                                                    \
    } while (0)

/* The same inside a function with a clean-up label: sets `st` and jumps. */
#define KVE_TRY_GOTO(st, expr, label)                                                                                  \
    do {                                                                                                               \
        (st) = (expr);                                                                                                 \
        if ((st) != KVE_OK)                                                                                            \
            goto label;                                                                                                \
    } while (0)

#endif
