/* The report's one entry: load, summarise, print, write. Contract: report.h. */
#include "eval/report.h"

#include "eval/report_files.h"
#include "eval/report_manifest.h"
#include "host/base/file.h"
#include "host/base/log.h"

#include <stdlib.h>
#include <string.h>

static const char *const g_keys[] = {"model", "model_sha256", "command", "version", "commit",  "backend",
                                     "dtype", "seed",         "samples", "layers",  "kv_heads"};
enum { N_KEYS = sizeof g_keys / sizeof *g_keys, SAMPLES = N_KEYS - 3, LAYERS, KV_HEADS };

/* --- files ------------------------------------------------------------------------------------------------------ */

static kve_status plan_plots(const kve_report *r, kve_arena *arena, kve_plot **plots, size_t *n)
{
    static const kve_measure big[] = {KVE_M_SCORE, KVE_M_NLL, KVE_M_LOST};
    enum { N_BIG = sizeof big / sizeof *big };
    KVE_TRY(kve_arena_alloc(arena, r->n_scopes * N_BIG, sizeof **plots, plots));
    *n = 0;
    for (size_t s = r->n_tasks; s < r->n_scopes; s++) {
        const kve_report_scope *suite = &r->scopes[s];
        for (size_t i = 0; i < N_BIG; i++) {
            if (!suite->has[big[i]])
                continue;
            (*plots)[(*n)++] = (kve_plot){.i_scope = s, .m = big[i]};
            for (size_t t = suite->first_task; suite->n_tasks > 1 && t < suite->first_task + suite->n_tasks; t++)
                if (r->scopes[t].has[big[i]])
                    (*plots)[(*n)++] = (kve_plot){.i_scope = t, .m = big[i], .small = true};
        }
    }
    return KVE_OK;
}

static kve_status write_file(const char *folder, const char *name, const kve_str *text)
{
    kve_str path = {0};
    kve_status st = kve_path_join(&path, folder, name);
    if (st == KVE_OK)
        st = kve_file_write(path.p, text->p, text->len);
    kve_str_free(&path);
    return st;
}

static kve_status write_files(const kve_report *r, const kve_report_options *options, const kve_provenance *provenance,
                              const char *folder, kve_arena *arena, kve_str *text)
{
    kve_plot *plots = NULL;
    size_t n_plots = 0;
    const char *problem = NULL;
    KVE_TRY(kve_mkdirs(folder));
    KVE_TRY(kve_report_csv(r, text));
    KVE_TRY(write_file(folder, "summary.csv", text));
    kve_str_clear(text);
    KVE_TRY(kve_report_csv_differences(r, text));
    KVE_TRY(write_file(folder, "differences.csv", text));
    kve_str_clear(text);
    KVE_TRY(kve_report_csv_heads(r, text));
    KVE_TRY(write_file(folder, "reward_heads.csv", text));
    kve_str_clear(text);
    KVE_TRY(plan_plots(r, arena, &plots, &n_plots));
    KVE_TRY(kve_report_plots(r, options->gnuplot, plots, n_plots, arena, &problem));
    if (problem)
        kve_warn("%s", problem);
    KVE_TRY(kve_report_html(r, provenance, plots, n_plots, problem, text));
    return write_file(folder, "index.html", text);
}

static kve_status print_markdown(const kve_report *r, const kve_provenance *provenance,
                                 const kve_report_options *options, kve_str *text)
{
    FILE *out = options->out;
    KVE_TRY(kve_report_markdown(r, provenance, options->brief, text));
    if (fwrite(text->p, 1, text->len, out) != text->len || fflush(out) != 0)
        return kve_fail(KVE_ERR_FILE, "the report's output: cannot write all of it (is the disk full?)");
    kve_str_clear(text);
    return KVE_OK;
}

/* A table of unlike protocols is asked for, or it is not made. */
static kve_status refuse_mix(const kve_report *r, kve_arena *arena)
{
    kve_report_notes notes;
    KVE_TRY(kve_report_notes_run(r, arena, &notes));
    KVE_TRY(kve_report_refuse_mix(r->dir, &notes));
    for (size_t s = r->n_tasks; s < r->n_scopes; s++) {
        KVE_TRY(kve_report_notes_suite(r, s, arena, &notes));
        KVE_TRY(kve_report_refuse_mix(r->dir, &notes));
    }
    return KVE_OK;
}

static kve_status report(const kve_report_options *options, kve_report *r, kve_arena *arena, kve_str *folder,
                         kve_str *text)
{
    const char *values[N_KEYS] = {0};
    kve_provenance provenance = {.keys = g_keys, .values = values, .n = N_KEYS};
    bool found;
    KVE_TRY(kve_report_load(options->dir, r));
    KVE_TRY(kve_report_summarise(r));
    KVE_TRY(kve_report_manifest(options->dir, g_keys, N_KEYS, arena, values, &found));
    kve_report_heads_shape(r, values[LAYERS], values[KV_HEADS]);
    if (!options->mix)
        KVE_TRY(refuse_mix(r, arena));
    if (values[SAMPLES] && strcmp(values[SAMPLES], "0") != 0)
        r->limit = values[SAMPLES];
    if (options->out)
        KVE_TRY(print_markdown(r, &provenance, options, text));
    KVE_TRY(kve_path_join(folder, options->dir, "report"));
    return write_files(r, options, &provenance, folder->p, arena, text);
}

kve_status kve_report_run(const kve_report_options *options)
{
    kve_report r = {0};
    kve_arena arena = {0};
    kve_str folder = {0}, text = {0};
    kve_status st = report(options, &r, &arena, &folder, &text);
    if (st == KVE_OK)
        kve_note("wrote %s/{index.html,summary.csv,differences.csv,reward_heads.csv}", folder.p);
    kve_str_free(&folder);
    kve_str_free(&text);
    kve_arena_free(&arena);
    kve_report_free(&r);
    return st;
}
