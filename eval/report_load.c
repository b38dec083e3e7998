/* records.jsonl -> rows: interned texts, indices of task, policy and budget in their final order, and of each
 * (task, sample, policy, budget) the last attempt. Contract: report_data.h. */
#include "eval/report_raw.h"

#include "host/base/file.h"
#include "host/base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Texts by content: open addressing over a table that doubles. */
typedef struct interner {
    kve_arena *arena;
    const char **slots;
    size_t n, cap;
} interner;

static const char **find_slot(const char **slots, size_t cap, const char *text)
{
    size_t i = (size_t)kve_hash_text(text, strlen(text)) & (cap - 1);
    while (slots[i] && strcmp(slots[i], text) != 0)
        i = (i + 1) & (cap - 1);
    return &slots[i];
}

static kve_status grow(interner *in)
{
    size_t cap = in->cap ? in->cap * 2 : 256;
    const char **slots = NULL;
    KVE_TRY(kve_arena_alloc(in->arena, cap, sizeof *slots, &slots));
    for (size_t i = 0; i < in->cap; i++)
        if (in->slots[i])
            *find_slot(slots, cap, in->slots[i]) = in->slots[i];
    in->slots = slots;
    in->cap = cap;
    return KVE_OK;
}

static kve_status intern(interner *in, const char *text, const char **out)
{
    char *copy = NULL;
    *out = NULL;
    if (!text)
        return KVE_OK;
    if (in->n * 2 >= in->cap)
        KVE_TRY(grow(in));
    const char **slot = find_slot(in->slots, in->cap, text);
    if (!*slot) {
        KVE_TRY(kve_arena_strndup(in->arena, text, strlen(text), &copy));
        *slot = copy;
        in->n++;
    }
    *out = *slot;
    return KVE_OK;
}

/* The lists are short, so a linear search will do. */
static kve_status list_index(kve_arena *arena, kve_report_list *list, const char *name, size_t *index)
{
    for (size_t i = list->n; i-- > 0;) /* neighbouring lines share their task */
        if (list->names[i] == name) {
            *index = i;
            return KVE_OK;
        }
    if (list->n == list->cap) {
        const char **grown = NULL;
        list->cap = list->cap ? list->cap * 2 : 32;
        KVE_TRY(kve_arena_alloc(arena, list->cap, sizeof *grown, &grown));
        if (list->n)
            memcpy(grown, list->names, list->n * sizeof *grown);
        list->names = grown;
    }
    list->names[list->n] = name;
    *index = list->n++;
    return KVE_OK;
}

typedef struct loader {
    kve_report_raw raw;
    interner texts;
} loader;

static void fill_measures(const kve_record *rec, kve_report_row *row)
{
    bool nll = rec->metric && strcmp(rec->metric, "nll") == 0;
    row->weight = 1;
    row->x[KVE_M_SCORE] = nll ? NAN : rec->score;
    row->x[KVE_M_NLL] = NAN;
    if (nll && rec->n_scored > 0) { /* unknown is negative */
        row->x[KVE_M_NLL] = rec->nll_sum / (double)rec->n_scored;
        row->weight = (double)rec->n_scored;
    }
    row->x[KVE_M_LOST] = rec->reward_lost;
    row->x[KVE_M_NORM] = rec->reward_norm;
    row->x[KVE_M_SUM] = rec->reward_sum;
    row->x[KVE_M_SUM_NORM] = rec->reward_sum_norm;
    row->x[KVE_M_ACC] = rec->metric && strcmp(rec->metric, "acc_norm") == 0 ? rec->acc : NAN;
    row->x[KVE_M_ROUGE_LONGBENCH] = rec->rouge_l_longbench;
}

static void fill_integers(const kve_record *rec, kve_report_row *row)
{
    row->question = rec->question_in_prefill;
    row->by_subject = rec->subject != NULL;
    row->timing[KVE_T_PREFILL] = rec->prefill_us;
    row->timing[KVE_T_SCORE] = rec->score_us;
    row->timing[KVE_T_RANK] = rec->rank_us;
    row->timing[KVE_T_COMPACT] = rec->compact_us;
    row->kv_bytes = rec->kv_bytes;
    row->prefill_flops = rec->prefill_flops;
    row->score_flops = rec->score_flops;
    row->n_context = rec->n_context;
    row->kept_min = rec->kept_min;
    row->kept_max = rec->kept_max;
    row->decode_us = rec->decode_us;
    row->decode_forks = rec->decode_forks;
    row->n_generated = rec->n_generated;
    row->attempt = rec->attempt;
    row->evict_every = rec->evict_every;
    row->n_evictions = rec->n_evictions;
}

/* As large as a part of the file's own text: they are kept whole. */
static kve_status fill_heads(loader *ld, const kve_record *rec, kve_report_row *row)
{
    double *copy = NULL;
    if (!row->ok || !rec->reward_heads)
        return KVE_OK;
    KVE_TRY(kve_arena_alloc(ld->texts.arena, rec->n_reward_heads, sizeof *copy, &copy));
    memcpy(copy, rec->reward_heads, rec->n_reward_heads * sizeof *copy);
    row->heads = copy;
    row->n_heads = rec->n_reward_heads;
    return KVE_OK;
}

static kve_status fill_row(loader *ld, const kve_record *rec, const char *name, kve_report_row *row)
{
    const char *task = NULL, *policy = NULL;
    interner *in = &ld->texts;
    if (strcmp(rec->status, "ok") != 0 && strcmp(rec->status, "failed") != 0)
        return kve_fail(KVE_ERR_FILE, "%s: status is '%s'; it has to be 'ok' or 'failed'", name, rec->status);
    if (rec->budget != KVE_NO_INT && rec->budget < 1)
        return kve_fail(KVE_ERR_FILE, "%s: budget is %lld; it has to be a count of tokens from 1, or null", name,
                        (long long)rec->budget);
    row->ok = strcmp(rec->status, "ok") == 0;
    fill_measures(rec, row);
    fill_integers(rec, row);
    KVE_TRY(fill_heads(ld, rec, row));
    KVE_TRY(intern(in, rec->task, &task));
    KVE_TRY(intern(in, rec->policy, &policy));
    KVE_TRY(intern(in, rec->sample_id, &row->sample));
    KVE_TRY(intern(in, rec->reason, &row->reason));
    KVE_TRY(intern(in, rec->metric, &row->metric));
    KVE_TRY(intern(in, rec->info, &row->info));
    if (rec->allocation && strcmp(rec->allocation, "uniform") != 0)
        KVE_TRY(intern(in, rec->allocation, &row->shared));
    KVE_TRY(intern(in, rec->note, &row->note));
    KVE_TRY(intern(in, rec->prompt_sha256, &row->prompt));
    KVE_TRY(intern(in, rec->task_version, &row->version));
    KVE_TRY(list_index(in->arena, &ld->raw.tasks, task, &row->i_task));
    return list_index(in->arena, &ld->raw.policies, policy, &row->i_policy);
}

static kve_status read_line(loader *ld, const char *path, size_t line, const char *text, size_t len)
{
    kve_arena scratch = {0};
    kve_record rec;
    kve_str name = {0};
    kve_report_row *row = &ld->raw.r->rows[ld->raw.r->n_rows];
    kve_status st = kve_str_printf(&name, "%s:%zu", path, line);
    if (st == KVE_OK)
        st = kve_record_parse(text, len, name.p, &scratch, &rec);
    if (st == KVE_OK)
        st = fill_row(ld, &rec, name.p, row);
    if (st == KVE_OK) {
        row->line = line;
        ld->raw.row_budget[ld->raw.r->n_rows++] = rec.budget;
    }
    kve_str_free(&name);
    kve_arena_free(&scratch);
    return st;
}

static kve_status read_lines(loader *ld, const char *path, const kve_map *map)
{
    const char *p = (const char *)map->data, *end = p + map->size;
    size_t n_lines = 1;
    for (const char *q = p; q < end; q++)
        n_lines += *q == '\n';
    KVE_TRY(kve_arena_alloc(&ld->raw.r->arena, n_lines, sizeof *ld->raw.r->rows, &ld->raw.r->rows));
    KVE_TRY(kve_arena_alloc(&ld->raw.r->arena, n_lines, sizeof *ld->raw.row_budget, &ld->raw.row_budget));
    for (size_t line = 1; p < end; line++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((stop ? stop : end) - p), blank = 0;
        while (blank < len && strchr(" \t\r", p[blank]) && p[blank])
            blank++;
        if (blank < len)
            KVE_TRY(read_line(ld, path, line, p, len));
        p += len + 1;
    }
    return KVE_OK;
}

static kve_status load_map(loader *ld, const char *path, const kve_map *map)
{
    KVE_TRY(read_lines(ld, path, map));
    if (ld->raw.r->n_rows == 0)
        return kve_fail(KVE_ERR_FILE, "%s: holds no record; run an evaluation into this folder first", path);
    return kve_report_order(&ld->raw);
}

kve_status kve_report_load(const char *dir, kve_report *r)
{
    loader ld = {.raw = {.r = r}, .texts = {.arena = &r->arena}};
    kve_str path = {0};
    kve_map map = {0};
    char *copy = NULL;
    kve_status st = kve_arena_strndup(&r->arena, dir, strlen(dir), &copy);
    r->dir = copy;
    if (st == KVE_OK)
        st = kve_path_join(&path, dir, "records.jsonl");
    if (st == KVE_OK && (st = kve_map_open(path.p, &map)) != KVE_OK)
        st = kve_fail_context(st, "no records to report on");
    if (st == KVE_OK)
        st = load_map(&ld, path.p, &map);
    kve_map_close(&map);
    kve_str_free(&path);
    return st;
}

void kve_report_free(kve_report *r)
{
    kve_arena_free(&r->arena);
    *r = (kve_report){0};
}
