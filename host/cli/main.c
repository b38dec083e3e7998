/* kveval: one binary, one subcommand per file. The only place that turns a status into words and an exit code. */
#include "host/cli/cli.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *summary;
    kve_status (*run)(int argc, char **argv);
} g_commands[] = {
    {"info", "what a model file contains", kve_cmd_info},
    {"generate", "answer a prompt from a full or an evicted cache", kve_cmd_generate},
    {"logits", "the logits of a text as a NumPy file", kve_cmd_logits},
    {"trace", "keys, values and future attention of a text or of a task's samples", kve_cmd_trace},
    {"rank", "a policy's ranking of a trace", kve_cmd_rank},
    {"tokens", "a page of a trace's text, coloured by the ranks of policies", kve_cmd_tokens},
    {"train", "the learned policy, from traces", kve_cmd_train},
    {"eval", "tasks x policies x budgets on a model: records, resumable", kve_cmd_eval},
    {"report", "tables, CSV and a page of plots from a run's records", kve_cmd_report},
    {"ls", "tasks, policies, models, devices", kve_cmd_ls},
    {"bench", "what prefill, decoding and ranking cost here", kve_cmd_bench},
};

static void print_help(FILE *to)
{
    fprintf(to,
            "kveval: how well does a KV-cache eviction policy keep what matters at an absolute budget of tokens?\n\n");
    for (size_t i = 0; i < sizeof g_commands / sizeof *g_commands; i++)
        fprintf(to, "  kveval %-9s %s\n", g_commands[i].name, g_commands[i].summary);
    fprintf(to,
            "\nEach has --help. Exit codes: 0 ok, 2 usage, 3 some cells failed, 4 bad file, 5 memory, 85 stopped.\n");
}

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "--help") == 0) {
        print_help(stdout);
        return KVE_OK;
    }
    for (size_t i = 0; argc >= 2 && i < sizeof g_commands / sizeof *g_commands; i++) {
        if (strcmp(argv[1], g_commands[i].name) != 0)
            continue;
        kve_status rc = g_commands[i].run(argc - 2, argv + 2);
        if (rc != KVE_OK)
            fprintf(stderr, "kveval %s: %s\n", argv[1], kve_diag());
        return (int)rc;
    }
    if (argc >= 2)
        fprintf(stderr, "kveval: '%s' is not a command\n", argv[1]);
    print_help(stderr);
    return KVE_ERR_USAGE;
}
