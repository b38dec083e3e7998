/* Fuzzes GGUF files: any bytes give a model that can be used, or an error. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/use.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH];
    kve_checkpoint *ck = NULL;
    if (accepted(kve_checkpoint_open(fuzz_file("model.gguf", data, size, path), &ck)))
        use_checkpoint(ck);
    kve_checkpoint_close(ck);
    return 0;
}
