/* The command line's own plumbing: flags, and the opened model that most subcommands start from. Top floor: may include
 * everything, nobody includes it. */
#ifndef KVE_CLI_CLI_H
#define KVE_CLI_CLI_H

#include "host/engine/session.h"
#include "host/text/chat.h"
#include "host/text/tokenizer.h"

/* A flag of a subcommand: "--name VALUE". '_' equals '-' in names. */
typedef struct kve_flag {
    const char *name, *value_name, *help; /* value_name NULL: a switch */
    const char *value;                    /* set by the parser; keeps its default when the flag is absent */
} kve_flag;

/* Fills the flags from argv. KVE_ERR_USAGE for an unknown flag, a missing value or a stray word. *help is set by
 * --help. */
kve_status kve_flags_parse(int argc, char **argv, kve_flag *flags, size_t n_flags, bool *help);
void kve_flags_print(const char *usage, const kve_flag *flags, size_t n_flags); /* to stdout */
/* The value as a whole number in [low, high]. A ratio ("0.25", "25%") is refused with the reason. */
kve_status kve_flag_int(const kve_flag *flag, long low, long high, int32_t *out);

typedef struct kve_opened {
    kve_checkpoint *ck;
    kve_backend *be;
    kve_model *model;
    kve_tokenizer *tk;
    kve_chat chat;
} kve_opened;

/* dtype "bf16" | "f32"; chat NULL = the model's own template. */
kve_status kve_open_model(const char *path, const char *dtype, int32_t threads, const char *chat, kve_opened *out);
void kve_close_model(kve_opened *o);

kve_status kve_cmd_info(int argc, char **argv);
kve_status kve_cmd_generate(int argc, char **argv);
kve_status kve_cmd_logits(int argc, char **argv);
kve_status kve_cmd_trace(int argc, char **argv);
kve_status kve_cmd_rank(int argc, char **argv);
kve_status kve_cmd_ls(int argc, char **argv);
kve_status kve_cmd_report(int argc, char **argv);
kve_status kve_cmd_bench(int argc, char **argv);
kve_status kve_cmd_eval(int argc, char **argv);

#endif
