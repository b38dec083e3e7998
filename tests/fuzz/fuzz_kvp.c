/* Fuzzes the learned policy's weight file: what is read is written again and must come back, F16 as it was. */
#include "policies/kvp/net.h"

#include "tests/fuzz/fuzz.h"

static void same_text(const char *a, const char *b)
{
    must(strcmp(a, b) == 0);
}

static void read_again(const kve_kvp_net *net)
{
    char path[FUZZ_PATH];
    kve_arena arena = {0};
    kve_kvp_net back;
    size_t count = (size_t)net->L * (size_t)net->Hkv * kve_kvp_count(net->shape);
    if (accepted(kve_kvp_net_write(fuzz_path("again.safetensors", path), net)) &&
        accepted(kve_kvp_net_read(path, &arena, &back))) { /* a number beyond F16 is refused as infinity */
        must(back.L == net->L && back.Hkv == net->Hkv && back.inputs == net->inputs);
        must(back.shape.D == net->shape.D && back.shape.H == net->shape.H && back.shape.P == net->shape.P);
        must(back.n_tables == net->n_tables && back.n_positions == net->n_positions);
        same_text(back.model, net->model);
        same_text(back.model_sha256, net->model_sha256);
        same_text(back.recipe, net->recipe);
        for (size_t i = 0; i < count; i++) {
            float a = net->weights[i], b = back.weights[i], off = a > b ? a - b : b - a, size = a < 0 ? -a : a;
            must(off <= size / 1024 + 1e-7f);
        }
    }
    kve_arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH];
    kve_arena arena = {0};
    kve_kvp_net net;
    fuzz_file("fuzz.safetensors", data, size, path);
    if (accepted(kve_kvp_net_read(path, &arena, &net))) {
        must(kve_kvp_is_legal(net.shape) && net.L > 0 && net.Hkv > 0 && net.weights);
        must(kve_kvp_inputs_name(net.inputs) != NULL);
        read_again(&net);
    }
    kve_arena_free(&arena);
    return 0;
}
