/* The command line's own plumbing: flags, and the opened model that most subcommands start from. Top floor: may include
 * everything, nobody includes it. */
#ifndef KVE_CLI_CLI_H
#define KVE_CLI_CLI_H

#include "host/engine/session.h"
#include "host/text/chat.h"
#include "host/text/tokenizer.h"
#include "policies/policy.h"

/* A flag of a subcommand: "--name VALUE". '_' equals '-' in names. */
typedef struct kve_flag {
    const char *name, *value_name, *help; /* value_name NULL: a switch */
    const char *value;                    /* set by the parser; keeps its default when the flag is absent */
} kve_flag;

/* Fills the flags from argv. KVE_ERR_USAGE for an unknown flag, a missing value or a stray word. *help is set by
 * --help. */
kve_status kve_flags_parse(int argc, char **argv, kve_flag *flags, size_t n_flags, bool *help);
void kve_flags_print(const char *usage, const kve_flag *flags, size_t n_flags); /* to stdout */
/* "bf16" | "f32". */
kve_status kve_flag_dtype(const kve_flag *flag, kve_dtype *out);
/* The value as a whole number in [low, high]. A ratio ("0.25", "25%") is refused with the reason. */
kve_status kve_flag_int(const kve_flag *flag, long low, long high, int32_t *out);
/* Calls f for every item of a comma-separated list, the value of `flag`; an empty item is an error. */
typedef kve_status (*kve_flag_item)(void *ctx, const char *item);
kve_status kve_flag_each(const char *flag, const char *list, kve_flag_item f, void *ctx);

typedef struct kve_opened {
    kve_checkpoint *ck;
    kve_backend *be;
    kve_model *model;
    kve_tokenizer *tk;
    kve_chat chat;
} kve_opened;

/* "auto" | "cpu" | "cuda". auto: cuda where this program has it and a device answers, else cpu; a line on stderr says
 * which, and why. */
kve_status kve_open_backend(const char *name, int32_t threads, kve_backend **out);
#define KVE_BACKEND_HELP "auto, cpu or cuda (kveval ls devices)"

typedef struct kve_open_options {
    const char *model;   /* a file, a folder, org/name or smollm2 */
    const char *dtype;   /* "bf16" | "f32" */
    const char *backend; /* as above */
    const char *chat;    /* a family; NULL = the model's own template */
    int32_t threads;
} kve_open_options;
kve_status kve_open_model(const kve_open_options *opt, kve_opened *out);
void kve_close_model(kve_opened *o);

/* The policy that `item` names: one of the table's or a wrapped one, "rankings:DIR", "kvp:FILE", or trained weights
 * that come with the program for the model of this SHA-256 (NULL: not known). Memory belongs to the arena; what it puts
 * on a backend goes with kve_close_policy, before the backend closes. */
kve_status kve_open_policy(const char *item, const char *model_sha256, kve_arena *arena, const kve_policy **out);
void kve_close_policy(const kve_policy *p); /* NULL is fine */
/* Names of trained weights that come with the program; NULL after the last. *out stays NULL where none of that name is
 * for the model. `name` must outlive the policy. */
const char *kve_shipped_name(size_t i);
const char *kve_shipped_summary(size_t i); /* of one that has a name */
kve_status kve_open_shipped(const char *name, const char *model_sha256, kve_arena *arena, const kve_policy **out);
/* KVE_ERR_FILE where one of the policies was made for another model than the opened one. */
kve_status kve_policies_fit(const kve_policy *const *policies, size_t n, const kve_opened *o);
/* DIR/policies.json: names and hashes of the kvp files that made results in DIR. KVE_ERR_USAGE where one of the
 * policies has the name of another file there. */
kve_status kve_policies_pin(const kve_policy *const *policies, size_t n, const char *dir);

kve_status kve_cmd_info(int argc, char **argv);
kve_status kve_cmd_generate(int argc, char **argv);
kve_status kve_cmd_logits(int argc, char **argv);
kve_status kve_cmd_trace(int argc, char **argv);
kve_status kve_cmd_rank(int argc, char **argv);
kve_status kve_cmd_tokens(int argc, char **argv);
kve_status kve_cmd_train(int argc, char **argv);
kve_status kve_cmd_ls(int argc, char **argv);
kve_status kve_cmd_report(int argc, char **argv);
kve_status kve_cmd_bench(int argc, char **argv);
kve_status kve_cmd_bench_kernels(int argc, char **argv);
kve_status kve_cmd_eval(int argc, char **argv);

#endif
