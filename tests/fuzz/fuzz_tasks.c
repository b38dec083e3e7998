/* Fuzzes the readers of task files: any bytes, as a file of each of the six tasks, give samples or an error that has
 * words, and every sample keeps the promises that evaluation builds on. */
#include "datasets/dataset.h"

#include "tests/fuzz/fuzz.h"

#include <sys/stat.h>

enum { TOKENS_A_BYTE = 8, LENGTH = 512 };

/* So many that short messages fill a dialogue. */
static kve_status count_bytes(void *ctx, const char *text, size_t len, size_t *n_tok)
{
    (void)ctx;
    (void)text;
    *n_tok = len * TOKENS_A_BYTE;
    return KVE_OK;
}

static void check_choices(const kve_sample *s)
{
    must(s->gold < s->n_choices && s->n_references == 1);
    for (size_t c = 0; c < s->n_choices; c++)
        must(s->choices[c][0] == ' ' && s->choices[c][1]);
    must(strcmp(s->references[0], s->choices[s->gold] + 1) == 0);
}

static void check_dialogue(const kve_sample *s)
{
    must(s->n_turns >= 2 && s->n_turns % 2 == 0 && s->n_tok <= LENGTH && s->n_tok >= LENGTH - LENGTH / 4);
    for (size_t t = 0; t < s->n_turns; t++)
        must(strcmp(s->turns[t].role, t % 2 ? "assistant" : "user") == 0 && *s->turns[t].text);
}

static void check_sample(kve_dataset *d, size_t i)
{
    kve_sample s;
    must(kve_dataset_sample(d, i, &s) == KVE_OK); /* opening has checked every row */
    must(s.id && *s.id && s.source && strcmp(s.task, d->name) == 0);
    if (s.n_choices)
        check_choices(&s);
    else if (s.n_turns)
        check_dialogue(&s);
    else
        must(*s.question && s.n_references && *s.references[0] && s.max_new_tokens > 0);
    must(s.n_turns || *s.context || *s.question);
    kve_sample_free(&s);
}

static void open_task(const char *name, const char *path, bool skip_bad, size_t shots, bool generate)
{
    kve_dataset_list list = {0};
    kve_task_options o = {.tokens = {NULL, count_bytes, NULL},
                          .data_path = path,
                          .has_shots = true,
                          .shots = shots,
                          .generate = generate,
                          .skip_bad = skip_bad};
    if (accepted(kve_task_open(name, &o, &list))) {
        must(list.n > 0 && (skip_bad || list.n_bad_rows == 0));
        for (size_t d = 0; d < list.n; d++)
            for (size_t i = 0; i < list.items[d]->n_samples; i++)
                check_sample(list.items[d], i);
    }
    kve_dataset_list_close(&list);
}

/* Once as a file that is taken for the task's, once found in a folder beside examples. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const tasks[] = {"boolq", "arc-challenge", "mmlu", "hellaswag", "gov-report", "oasst2-512"};
    char file[FUZZ_PATH], folder[FUZZ_PATH], examples[FUZZ_PATH];
    mkdir(fuzz_path("data", folder), 0700);
    fuzz_file("data/art_test.csv", data, size, file);
    fuzz_file("data/art_dev.csv", data, size, examples);
    for (size_t t = 0; t < sizeof tasks / sizeof *tasks; t++) {
        open_task(tasks[t], file, true, 0, false);
        open_task(tasks[t], folder, false, 1, false);
        open_task(tasks[t], folder, true, 1, true);
    }
    return 0;
}
