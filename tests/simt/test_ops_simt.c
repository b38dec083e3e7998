/* The op table on the CUDA backend: with its kernels on the CPU here, and on a device in tests/gpu. An argument picks
 * one family of the table. Exit code 77 where no device answers. */
#include "tests/ops/optable.h"

#include <stdio.h>
#include <string.h>

kve_status kve_cuda_open(const kve_backend_options *opt, kve_backend **out);

static const struct {
    const char *name;
    void (*run)(op_env *e);
} families[] = {
    {"memory", op_table_memory},     {"dense", op_table_dense},       {"matmul", op_table_matmul},
    {"rope", op_table_rope},         {"prefill", op_table_prefill},   {"fork", op_table_fork},
    {"scoring", op_table_scoring},   {"row_stat", op_table_row_stat}, {"kvp", op_table_kvp},
    {"eviction", op_table_eviction},
};

static int32_t run_family(kve_backend *be, const char *name)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i].name, name) != 0)
            continue;
        op_env *e = op_env_new(be);
        families[i].run(e);
        return op_env_free(e);
    }
    fprintf(stderr, "test_ops_simt: there is no family '%s'\n", name);
    return 1;
}

int main(int argc, char **argv)
{
    kve_backend *be = NULL;
    kve_status st = kve_cuda_open(&(kve_backend_options){.threads = 1}, &be);
    if (st != KVE_OK) {
        fprintf(stderr, "%s%s\n", st == KVE_ERR_USAGE ? "skipped: " : "", kve_diag());
        return st == KVE_ERR_USAGE ? 77 : 1;
    }
    int32_t failed = argc > 1 ? run_family(be, argv[1]) : op_table_run(be);
    be->vt->close(be);
    return failed > 0;
}
