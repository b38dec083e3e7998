/* kveval report: tables on stdout, CSV files and the page under DIR/report. */
#include "eval/report.h"
#include "host/cli/cli.h"

#include <string.h>

kve_status kve_cmd_report(int argc, char **argv)
{
    static const char usage[] = "kveval report DIR [flags]    tables, DIR/report/{index.html,summary.csv,...}\n"
                                "       kveval report A B            paired differences B - A of two runs";
    enum { GNUPLOT, MIX, N_FLAGS };
    kve_flag flags[N_FLAGS] = {
        [GNUPLOT] = {"--gnuplot", "PROG", "the gnuplot that draws the curves", "gnuplot"},
        [MIX] = {"--mix", NULL, "show unlike protocols together (question in and out, other sinks ...), marked", NULL},
    };
    const char *dirs[2] = {NULL, NULL};
    int n_dirs = 0;
    bool help = false;
    while (n_dirs < argc && n_dirs < 2 && argv[n_dirs][0] != '-') {
        dirs[n_dirs] = argv[n_dirs];
        n_dirs++;
    }
    KVE_TRY(kve_flags_parse(argc - n_dirs, argv + n_dirs, flags, N_FLAGS, &help));
    if (help) {
        kve_flags_print(usage, flags, N_FLAGS);
        return KVE_OK;
    }
    if (n_dirs == 0)
        return kve_fail(KVE_ERR_USAGE, "name the folder of a run (the one with records.jsonl); see --help");
    if (n_dirs == 2)
        return kve_report_compare(dirs[0], dirs[1], flags[MIX].value, stdout);
    return kve_report_run(
        &(kve_report_options){.dir = dirs[0], .gnuplot = flags[GNUPLOT].value, .out = stdout, .mix = flags[MIX].value});
}
