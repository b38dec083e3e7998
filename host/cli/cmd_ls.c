/* kveval ls policies: the table of policies with the class derived from what each may see. */
#include "host/cli/cli.h"
#include "policies/policy.h"

#include <stdio.h>
#include <string.h>

kve_status kve_cmd_ls(int argc, char **argv)
{
    if (argc == 1 && strcmp(argv[0], "--help") == 0) {
        printf("usage: kveval ls policies\n");
        return KVE_OK;
    }
    if (argc != 1 || strcmp(argv[0], "policies") != 0)
        return kve_fail(KVE_ERR_USAGE, "it lists one thing: kveval ls policies");
    for (size_t i = 0; i < kve_policy_count(); i++) {
        const kve_policy *p = kve_policy_at(i);
        printf("%-14s %-18s %s\n", p->name, kve_policy_info(p), p->summary);
    }
    return KVE_OK;
}
