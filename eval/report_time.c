/* Times, rates and bytes of every cell. Contract: report_data.h.
 *
 * A batch of forks is decoded as one, so its time belongs to no single cell: each fork gets an equal share, and a rate
 * is the tokens of all forks over the shares of all forks. That is exact for whole batches and says nothing about one
 * policy, unless every batch had one fork. */
#include "eval/report_data.h"

#include "host/base/stats.h"

#include <math.h>
#include <stdlib.h>

typedef struct rates {
    double tokens, us;
} rates;

static void add_decode(const kve_report_row *row, rates *sum)
{
    if (row->decode_us <= 0 || row->decode_forks < 1 || row->n_generated < 0) /* unknown is negative */
        return;
    sum->tokens += (double)row->n_generated;
    sum->us += (double)row->decode_us / (double)row->decode_forks;
}

static double per_second(const rates *sum)
{
    return sum->us > 0 ? sum->tokens / (sum->us * 1e-6) : NAN;
}

/* The rows of a cell of any scope: those of its tasks, one task after the other. */
typedef struct cursor {
    const kve_report *r;
    size_t task, end, p, b, i;
} cursor;

static const kve_report_row *next_ok(cursor *c)
{
    for (; c->task < c->end; c->task++, c->i = 0) {
        const kve_report_cell *cell = kve_report_at(c->r, c->task, c->p, c->b);
        while (c->i < cell->n_rows)
            if (cell->rows[c->i++].ok)
                return &cell->rows[c->i - 1];
    }
    return NULL;
}

static cursor open_cell(const kve_report *r, size_t s, size_t p, size_t b)
{
    const kve_report_scope *scope = &r->scopes[s];
    return (cursor){.r = r, .task = scope->first_task, .end = scope->first_task + scope->n_tasks, .p = p, .b = b};
}

static void count_flops(cursor c, kve_report_cell *cell)
{
    const kve_report_row *row;
    double flops = 0, prefill = 0;
    size_t n = 0;
    while ((row = next_ok(&c))) {
        if (isnan(row->score_flops) || isnan(row->prefill_flops))
            continue;
        flops += row->score_flops;
        prefill += row->prefill_flops;
        n++;
    }
    cell->score_flops = n ? flops / (double)n : NAN;
    cell->flops_share = n && prefill > 0 ? flops / prefill : NAN;
}

static void time_cell(const kve_report *r, size_t s, size_t p, size_t b, double *space)
{
    kve_report_cell *cell = kve_report_at(r, s, p, b);
    const kve_report_row *row;
    rates decode = {0};
    size_t n = 0;
    for (int k = 0; k < KVE_N_TIMINGS; k++) {
        n = 0;
        for (cursor c = open_cell(r, s, p, b); (row = next_ok(&c));)
            if (row->timing[k] >= 0)
                space[n++] = (double)row->timing[k];
        cell->timing[k] = n ? kve_median(space, n) : NAN;
    }
    n = 0;
    for (cursor c = open_cell(r, s, p, b); (row = next_ok(&c));) {
        add_decode(row, &decode);
        if (row->kv_bytes >= 0)
            space[n++] = (double)row->kv_bytes;
    }
    cell->kv_bytes = n ? kve_mean(space, n) : NAN;
    count_flops(open_cell(r, s, p, b), cell);
    cell->decode_rate = per_second(&decode);
}

static void time_scope(kve_report *r, size_t s, double *space)
{
    kve_report_scope *scope = &r->scopes[s];
    rates decode = {0};
    size_t n = 0;
    scope->single_forks = true;
    for (size_t p = 0; p < r->n_policies; p++)
        for (size_t b = 0; b < r->n_slots; b++) {
            time_cell(r, s, p, b, space + r->n_rows);
            const kve_report_row *row;
            for (cursor c = open_cell(r, s, p, b); (row = next_ok(&c));) {
                add_decode(row, &decode);
                scope->single_forks = scope->single_forks && row->decode_forks <= 1;
                if (row->n_context > 0 && row->timing[KVE_T_PREFILL] > 0)
                    space[n++] = (double)row->n_context / ((double)row->timing[KVE_T_PREFILL] * 1e-6);
            }
        }
    scope->prefill_rate = n ? kve_median(space, n) : NAN;
    scope->decode_rate = per_second(&decode);
}

kve_status kve_report_time(kve_report *r)
{
    double *space = NULL;
    KVE_TRY(kve_alloc(2 * r->n_rows, sizeof *space, &space));
    for (size_t s = 0; s < r->n_scopes; s++)
        time_scope(r, s, space);
    free(space);
    return KVE_OK;
}
