/* Fuzzes the report on a records.jsonl: any bytes give all its texts or an error. Plots are left out. */
#include "eval/report_files.h"

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH];
    kve_report r = {0};
    kve_provenance none = {0};
    kve_str text = {0};
    fuzz_file("records.jsonl", data, size, path);
    if (accepted(kve_report_load(fuzz_folder(), &r)) && accepted(kve_report_summarise(&r))) {
        kve_report_heads_shape(&r, "1", "2");
        must(kve_report_csv(&r, &text) == KVE_OK);
        must(kve_report_csv_heads(&r, &text) == KVE_OK);
        must(kve_report_csv_differences(&r, &text) == KVE_OK);
        must(kve_report_markdown(&r, &none, false, &text) == KVE_OK);
        must(kve_report_html(&r, &none, NULL, 0, NULL, &text) == KVE_OK);
    }
    kve_str_free(&text);
    kve_report_free(&r);
    return 0;
}
