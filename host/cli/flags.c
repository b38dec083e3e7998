/* Flag parsing for every subcommand. */
#include "host/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool same_flag(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a == '_' ? '-' : *a) != (*b == '_' ? '-' : *b))
            return false;
    return *a == *b;
}

static bool is_named(const kve_flag *flag, const char *text)
{
    /* the names that other harnesses and benches taught */
    static const char *const ALIASES[][2] = {{"--limit", "--samples"}, {"-o", "--format"}, {"-r", "--min-samples"}};
    for (size_t i = 0; i < sizeof ALIASES / sizeof *ALIASES; i++)
        if (same_flag(text, ALIASES[i][0]))
            text = ALIASES[i][1];
    return same_flag(text, flag->name);
}

kve_status kve_flags_parse(int argc, char **argv, kve_flag *flags, size_t n_flags, bool *help)
{
    *help = false;
    for (int i = 0; i < argc; i++) {
        kve_flag *flag = NULL;
        if (same_flag(argv[i], "--help")) {
            *help = true;
            return KVE_OK;
        }
        for (size_t k = 0; k < n_flags && !flag; k++)
            flag = is_named(&flags[k], argv[i]) ? &flags[k] : NULL;
        if (!flag)
            return kve_fail(KVE_ERR_USAGE, "'%s' is not a flag of this command; see --help", argv[i]);
        if (flag->value_name && i + 1 >= argc)
            return kve_fail(KVE_ERR_USAGE, "%s needs a value (%s)", flag->name, flag->value_name);
        flag->value = flag->value_name ? argv[++i] : "";
    }
    return KVE_OK;
}

void kve_flags_print(const char *usage, const kve_flag *flags, size_t n_flags)
{
    printf("usage: %s\n", usage);
    for (size_t i = 0; i < n_flags; i++)
        printf("  %-12s %-6s %s%s%s\n", flags[i].name, flags[i].value_name ? flags[i].value_name : "", flags[i].help,
               flags[i].value ? "; default " : "", flags[i].value ? flags[i].value : "");
}

kve_status kve_flag_int(const kve_flag *flag, long low, long high, int32_t *out)
{
    char *end = NULL;
    errno = 0;
    long v = strtol(flag->value, &end, 10);
    if (end != flag->value && (*end == '%' || *end == '.'))
        return kve_fail(KVE_ERR_USAGE, "%s: '%s' is a ratio; budgets and sizes are absolute token counts, e.g. 512",
                        flag->name, flag->value);
    if (end == flag->value || *end || errno || v < low || v > high)
        return kve_fail(KVE_ERR_USAGE, "%s: '%s' is not a whole number from %ld to %ld", flag->name, flag->value, low,
                        high);
    *out = (int32_t)v;
    return KVE_OK;
}

kve_status kve_flag_dtype(const kve_flag *flag, kve_dtype *out)
{
    *out = strcmp(flag->value, "f32") == 0 ? KVE_F32 : KVE_BF16;
    if (*out == KVE_F32 || strcmp(flag->value, "bf16") == 0)
        return KVE_OK;
    return kve_fail(KVE_ERR_USAGE, "%s: '%s' is unknown; use bf16 or f32", flag->name, flag->value);
}

kve_status kve_flag_each(const char *flag, const char *list, kve_flag_item f, void *ctx)
{
    char *copy = NULL, *rest;
    KVE_TRY(kve_strndup(list, strlen(list), &copy));
    kve_status st = KVE_OK;
    rest = copy;
    for (char *item; st == KVE_OK && (item = strsep(&rest, ",")) != NULL;)
        st = *item ? f(ctx, item)
                   : kve_fail(KVE_ERR_USAGE, "%s: '%s' has an empty item; write names with one comma between them",
                              flag, list);
    free(copy);
    return st;
}
