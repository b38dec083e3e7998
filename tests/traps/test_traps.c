/* The table of traps: runs every row, then says how many there are and what is not there yet. */
#include "tests/traps/traps.h"

#include "host/base/status.h"
#include "tests/traps/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ROWS = 128 };

void trap_must(kve_status st)
{
    if (st != KVE_OK)
        fail_msg("%s", kve_diag());
}

void trap_refused(kve_status st, const char *word)
{
    if (st == KVE_OK)
        fail_msg("accepted; '%s' was due", word);
    if (!strstr(kve_diag(), word))
        fail_msg("'%s' is not in: %s", word, kve_diag());
}

int main(void)
{
    const trap_rows all[] = {traps_tokens(), traps_models(), traps_files()};
    struct CMUnitTest tests[MAX_ROWS];
    unsigned n = 0, missing = 0;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        for (unsigned i = 0; i < all[k].n; i++) {
            const trap_row *row = &all[k].rows[i];
            if (!row->check) {
                printf("not there yet: %s\n", row->name);
                missing++;
            } else if (n < MAX_ROWS) {
                tests[n++] = (struct CMUnitTest){row->name, row->check, trap_dir_make, trap_dir_remove, NULL};
            }
        }
    fflush(stdout);
    int failed = _cmocka_run_group_tests("traps", tests, n, NULL, NULL);
    printf("%u rows checked, %u not there yet\n", n, missing);
    return failed;
}
