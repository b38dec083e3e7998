/* Fuzzes the reader of ready-made rows: any bytes give samples or an error, and every sample keeps its promises. */
#include "datasets/dataset.h"

#include "tests/fuzz/fuzz.h"

static void check_sample(kve_dataset *d, size_t i)
{
    kve_sample s;
    must(kve_dataset_sample(d, i, &s) == KVE_OK); /* opening has checked every row */
    must(s.id && *s.id && strcmp(s.task, d->name) == 0);
    must(*s.context && s.question && s.answer_prefix);
    must(s.n_references > 0 && s.max_new_tokens > 0);
    for (size_t k = 0; k < s.n_references; k++)
        must(*s.references[k] != '\0');
    kve_sample_free(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const tasks[] = {"niah_single_1", "qa_1", NULL};
    char path[FUZZ_PATH];
    fuzz_file("rows.jsonl", data, size, path);
    for (size_t t = 0; t < sizeof tasks / sizeof *tasks; t++) {
        kve_dataset_list list = {0};
        kve_rows_options options = {.path = path, .task = tasks[t]};
        if (accepted(kve_rows_open_all(&options, &list)))
            for (size_t d = 0; d < list.n; d++)
                for (size_t i = 0; i < list.items[d]->n_samples; i++)
                    check_sample(list.items[d], i);
        kve_dataset_list_close(&list);
    }
    return 0;
}
