/* Fuzzes tokenizers. The input is three texts with NUL between them: tokenizer.json, a text to encode and decode, and
 * tokenizer_config.json. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/use.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH], config_path[FUZZ_PATH];
    char *tokenizer = fuzz_text(&data, &size), *text = fuzz_text(&data, &size), *config = fuzz_text(&data, &size);
    const char *chat_template = NULL;
    kve_vocab v;
    fuzz_file("tokenizer.json", tokenizer, strlen(tokenizer), path);
    fuzz_file("tokenizer_config.json", config, strlen(config), config_path);
    if (accepted(kve_vocab_from_json(path, *config ? config_path : NULL, &v, &chat_template))) {
        use_vocab(&v, text, strlen(text));
        kve_vocab_free(&v);
    }
    free(tokenizer);
    free(text);
    free(config);
    return 0;
}
