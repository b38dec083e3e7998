/* Fuzzes the files that RULER's tasks are made from: SQuAD's and HotpotQA's questions, and a haystack's essay. */
#include "datasets/ruler/ruler.h"

#include "tests/fuzz/fuzz.h"

static void check_documents(const kve_qa *qa, const uint32_t *numbers, size_t n)
{
    for (size_t i = 0; i < n; i++)
        must(numbers[i] < qa->n_docs);
}

static void open_qa(int variant, const char *path)
{
    kve_arena arena = {0};
    kve_qa *qa = NULL;
    if (accepted(kve_qa_open(variant, path, &arena, &qa))) {
        must(qa->n_questions > 0);
        for (size_t i = 0; i < qa->n_questions; i++) {
            const kve_qa_question *q = &qa->questions[i];
            must(*q->text && q->n_answers > 0 && q->n_golden > 0);
            check_documents(qa, q->golden, q->n_golden);
            check_documents(qa, q->near, q->n_near);
        }
        for (size_t i = 1; i < qa->n_docs; i++)
            must(strcmp(qa->docs[i - 1], qa->docs[i]) < 0);
    }
    kve_arena_free(&arena);
}

static void open_essay(const char *path)
{
    kve_arena arena = {0};
    kve_sentences sentences = {0};
    if (accepted(kve_sentences_load(path, &arena, &sentences)))
        must(sentences.n > 0);
    kve_arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH];
    open_essay(fuzz_file("essay.txt", data, size, path));
    fuzz_file("data.json", data, size, path);
    open_essay(path);
    open_qa(1, path);
    open_qa(2, path);
    return 0;
}
