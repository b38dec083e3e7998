/* Which backends this program has, and which one a command gets. "Built with CUDA" and "a device answers" are two
 * questions: the first is KVEVAL_HAS_CUDA, the second is asked by opening. */
#include "host/base/log.h"
#include "host/cli/cli.h"

#include <string.h>

#ifdef KVEVAL_HAS_CUDA
static kve_status open_cuda(const kve_backend_options *opt, kve_backend **out)
{
    return kve_cuda_open(opt, out);
}
#else
static kve_status open_cuda(const kve_backend_options *opt, kve_backend **out)
{
    (void)opt;
    (void)out;
    return kve_fail(KVE_ERR_USAGE, "cuda: not built in; configure with -DKVEVAL_CUDA=ON");
}
#endif

kve_status kve_open_backend(const char *name, int32_t threads, kve_backend **out)
{
    const kve_backend_options opt = {.threads = threads};
    bool is_auto = strcmp(name, "auto") == 0;
    if (!is_auto && strcmp(name, "cpu") != 0 && strcmp(name, "cuda") != 0)
        return kve_fail(KVE_ERR_USAGE, "--backend: '%s' is unknown; use auto, cpu or cuda", name);
    if (strcmp(name, "cpu") == 0)
        return kve_cpu_open(&opt, out);
    kve_status st = open_cuda(&opt, out);
    if (!is_auto || (st != KVE_OK && st != KVE_ERR_USAGE))
        return st;
    if (st == KVE_OK) {
        kve_note("backend: %s", (*out)->vt->describe(*out));
        return KVE_OK;
    }
    kve_str why = {0};
    (void)kve_str_puts(&why, kve_diag());
    st = kve_cpu_open(&opt, out);
    if (st == KVE_OK)
        kve_note("backend: %s (%s)", (*out)->vt->describe(*out), why.p ? why.p : "no cuda");
    kve_str_free(&why);
    return st;
}
