/* Fuzzes config.json (also as generation_config.json) with the weights and tokenizers of the golden models, which lie
 * beside it as links. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/use.h"

#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *name;
    kve_arch arch;
} models[] = {{"llama", KVE_ARCH_LLAMA},
              {"llama_tied", KVE_ARCH_LLAMA},
              {"qwen2", KVE_ARCH_QWEN2},
              {"qwen3", KVE_ARCH_QWEN3},
              {"phi3", KVE_ARCH_PHI3}};
enum { N_MODELS = sizeof models / sizeof *models };

/* A folder of this process with everything of the golden model but its config.json. */
static void link_model(const char *name)
{
    static const char *const files[] = {"generation_config.json",
                                        "model.safetensors",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00003.safetensors",
                                        "model-00002-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "chat_template.jinja"};
    char path[FUZZ_PATH], link[FUZZ_PATH], from[FUZZ_PATH];
    must(mkdir(fuzz_path(name, path), 0700) == 0);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int n = snprintf(from, sizeof from, "%s/tests/golden/models/%s/%s", KVE_SOURCE_DIR, name, files[i]);
        must(n > 0 && n < FUZZ_PATH);
        n = snprintf(link, sizeof link, "%.256s/%s", path, files[i]);
        must(n > 0 && n < FUZZ_PATH);
        must(access(from, R_OK) != 0 || symlink(from, link) == 0);
    }
}

static bool is_config(const uint8_t *data, size_t size, kve_config *c)
{
    cJSON *root = NULL;
    if (!accepted(kve_json_parse((const char *)data, size, "config.json", &root)))
        return false;
    bool yes = accepted(kve_config_from_json(root, root, "config.json", c));
    cJSON_Delete(root);
    return yes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool linked;
    kve_config c;
    char path[FUZZ_PATH], file[FUZZ_PATH];
    for (size_t i = 0; i < N_MODELS && !linked; i++)
        link_model(models[i].name);
    linked = true;
    if (!is_config(data, size, &c))
        return 0;
    for (size_t i = 0; i < N_MODELS; i++) {
        kve_checkpoint *ck = NULL;
        if (models[i].arch != c.arch)
            continue;
        snprintf(file, sizeof file, "%s/config.json", models[i].name);
        fuzz_file(file, data, size, path);
        if (accepted(kve_checkpoint_open(path, &ck))) /* a file in the folder names the folder */
            use_checkpoint(ck);
        kve_checkpoint_close(ck);
    }
    return 0;
}
