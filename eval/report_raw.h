/* Between reading and ordering, inside the report: rows whose indices still follow the order of the file. */
#ifndef KVE_EVAL_REPORT_RAW_H
#define KVE_EVAL_REPORT_RAW_H

#include "eval/report_data.h"

/* Distinct interned names in the order of their first appearance. */
typedef struct kve_report_list {
    const char **names;
    size_t n, cap;
} kve_report_list;

typedef struct kve_report_raw {
    kve_report *r; /* rows[].i_task and .i_policy index the lists below; .i_slot is not set */
    kve_report_list tasks, policies;
    int64_t *row_budget; /* [n_rows] */
} kve_report_raw;

/* Fills policies, scopes and budgets of raw->r, renumbers the rows, sorts them (task, policy, slot, sample) and keeps
 * of each cell and sample the last attempt. */
kve_status kve_report_order(kve_report_raw *raw);

#endif
