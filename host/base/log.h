/* Words to the person at the terminal: notes, warnings, and one progress line. All on stderr; stdout is for results.
 * Progress redraws one line on a terminal and prints a plain line now and then elsewhere. NO_COLOR is honoured. */
#ifndef KVE_BASE_LOG_H
#define KVE_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

void kve_log_quiet(bool quiet); /* --quiet: only warnings and errors remain */
void kve_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void kve_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

typedef struct kve_progress {
    const char *label; /* not owned */
    int64_t total, done, start_us, last_us;
    int64_t skipped; /* of those done: what took no time, and says nothing of the rest */
    bool tty, shown;
} kve_progress;

void kve_progress_begin(kve_progress *p, const char *label, int64_t total);
void kve_progress_update(kve_progress *p, int64_t done, const char *detail); /* detail may be "" */
void kve_progress_end(kve_progress *p);                                      /* leaves the cursor on a fresh line */

#endif
