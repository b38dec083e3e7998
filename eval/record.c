/* Records to and from JSON by one table of fields. Contract: record.h. */
#include "eval/record.h"

#include "host/base/json.h"

#include <math.h>
#include <string.h>

typedef enum kind { TEXT, INT, NUM, BOOL } kind;

typedef struct field {
    const char *name;
    kind kind;
    size_t offset;
} field;

#define FIELD(KIND, NAME)                                                                                              \
    {                                                                                                                  \
#NAME, KIND, offsetof(kve_record, NAME)                                                                        \
    }
static const field g_fields[] = {FIELD(TEXT, sample_id),
                                 FIELD(TEXT, task),
                                 FIELD(TEXT, task_version),
                                 FIELD(TEXT, policy),
                                 FIELD(INT, budget),
                                 FIELD(TEXT, status),
                                 FIELD(TEXT, reason),
                                 FIELD(TEXT, info),
                                 FIELD(TEXT, allocation),
                                 FIELD(TEXT, note),
                                 FIELD(INT, n_context),
                                 FIELD(INT, kept_min),
                                 FIELD(INT, kept_max),
                                 FIELD(INT, kv_bytes),
                                 FIELD(INT, sink),
                                 FIELD(INT, recent),
                                 FIELD(INT, evict_every),
                                 FIELD(INT, n_evictions),
                                 FIELD(BOOL, question_in_prefill),
                                 FIELD(TEXT, prompt_sha256),
                                 FIELD(TEXT, prediction),
                                 FIELD(TEXT, metric),
                                 FIELD(NUM, score),
                                 FIELD(NUM, nll_sum),
                                 FIELD(INT, n_scored),
                                 FIELD(NUM, reward_lost),
                                 FIELD(NUM, reward_norm),
                                 FIELD(NUM, reward_sum),
                                 FIELD(NUM, reward_sum_norm),
                                 FIELD(INT, n_future),
                                 FIELD(INT, n_prefills),
                                 FIELD(NUM, prefill_flops),
                                 FIELD(NUM, score_flops),
                                 FIELD(INT, prefill_us),
                                 FIELD(INT, score_us),
                                 FIELD(INT, rank_us),
                                 FIELD(INT, compact_us),
                                 FIELD(INT, decode_us),
                                 FIELD(INT, decode_forks),
                                 FIELD(INT, n_generated),
                                 FIELD(INT, attempt),
                                 FIELD(INT, unix_time),
                                 FIELD(NUM, acc),
                                 FIELD(NUM, acc_norm),
                                 FIELD(INT, gold),
                                 FIELD(NUM, rouge_l_longbench),
                                 FIELD(TEXT, subject),
                                 FIELD(INT, shots)};
enum { N_FIELDS = sizeof g_fields / sizeof *g_fields };

static void *at(kve_record *r, const field *f)
{
    return (char *)r + f->offset;
}

static const void *at_const(const kve_record *r, const field *f)
{
    return (const char *)r + f->offset;
}

void kve_record_clear(kve_record *r)
{
    *r = (kve_record){0};
    for (size_t i = 0; i < N_FIELDS; i++) {
        if (g_fields[i].kind == INT)
            *(int64_t *)at(r, &g_fields[i]) = KVE_NO_INT;
        else if (g_fields[i].kind == NUM)
            *(double *)at(r, &g_fields[i]) = NAN;
    }
}

static void write_field(kve_jw *w, const kve_record *r, const field *f)
{
    kve_jw_key(w, f->name);
    switch (f->kind) {
    case TEXT:
        kve_jw_str(w, *(const char *const *)at_const(r, f));
        break;
    case INT:
        if (*(const int64_t *)at_const(r, f) == KVE_NO_INT)
            kve_jw_null(w);
        else
            kve_jw_int(w, *(const int64_t *)at_const(r, f));
        break;
    case NUM:
        kve_jw_num(w, *(const double *)at_const(r, f));
        break;
    case BOOL:
        kve_jw_bool(w, *(const bool *)at_const(r, f));
        break;
    }
}

static void write_numbers(kve_jw *w, const char *key, const double *x, size_t n)
{
    kve_jw_key(w, key);
    if (!x) {
        kve_jw_null(w);
        return;
    }
    kve_jw_begin(w, '[');
    for (size_t i = 0; i < n; i++)
        kve_jw_num(w, x[i]);
    kve_jw_end(w, ']');
}

kve_status kve_record_write(const kve_record *r, kve_str *out)
{
    kve_jw w = {.out = out};
    kve_jw_begin(&w, '{');
    for (size_t i = 0; i < N_FIELDS; i++)
        write_field(&w, r, &g_fields[i]);
    kve_jw_key(&w, "references");
    kve_jw_begin(&w, '[');
    for (size_t i = 0; i < r->n_references; i++)
        kve_jw_str(&w, r->references[i]);
    kve_jw_end(&w, ']');
    write_numbers(&w, "reward_heads", r->reward_heads, r->n_reward_heads);
    write_numbers(&w, "loglik", r->loglik, r->n_choices);
    kve_jw_end(&w, '}');
    return w.status;
}

static kve_status copy_text(const char *text, kve_arena *arena, const char **out)
{
    char *copy = NULL;
    if (text)
        KVE_TRY(kve_arena_strndup(arena, text, strlen(text), &copy));
    *out = copy;
    return KVE_OK;
}

static kve_status read_field(const cJSON *obj, const field *f, const char *name, kve_arena *arena, kve_record *r)
{
    const char *text = NULL;
    switch (f->kind) {
    case TEXT:
        KVE_TRY(kve_json_str_or(obj, f->name, name, NULL, &text));
        return copy_text(text, arena, at(r, f));
    case INT:
        return kve_json_int_or(obj, f->name, name, KVE_NO_INT, at(r, f));
    case NUM:
        return kve_json_num_or(obj, f->name, name, NAN, at(r, f));
    case BOOL:
        return kve_json_bool_or(obj, f->name, name, false, at(r, f));
    }
    return KVE_OK;
}

/* *out: the list, NULL where it is absent or null. */
static kve_status read_list(const cJSON *obj, const char *key, const char *name, const cJSON **out)
{
    const cJSON *v = kve_json_get(obj, key);
    *out = v && !cJSON_IsNull(v) ? v : NULL;
    return *out && !cJSON_IsArray(v) ? kve_fail(KVE_ERR_FILE, "%s: field '%s' is not a list", name, key) : KVE_OK;
}

static kve_status read_numbers(const cJSON *obj, const char *key, const char *name, kve_arena *arena,
                               const double **out, size_t *n)
{
    const cJSON *list;
    double *values = NULL;
    size_t i = 0;
    KVE_TRY(read_list(obj, key, name, &list));
    if (!list)
        return KVE_OK;
    *n = (size_t)cJSON_GetArraySize(list);
    KVE_TRY(kve_arena_alloc(arena, *n, sizeof *values, &values));
    for (const cJSON *e = list->child; e; e = e->next, i++) {
        if (!cJSON_IsNumber(e) && !cJSON_IsNull(e))
            return kve_fail(KVE_ERR_FILE, "%s: '%s'[%zu] is neither a number nor null", name, key, i);
        values[i] = cJSON_IsNumber(e) ? e->valuedouble : NAN;
    }
    *out = values;
    return KVE_OK;
}

static kve_status read_arrays(const cJSON *obj, const char *name, kve_arena *arena, kve_record *r)
{
    const cJSON *refs;
    KVE_TRY(read_list(obj, "references", name, &refs));
    if (refs) {
        const char **texts = NULL;
        r->n_references = (size_t)cJSON_GetArraySize(refs);
        KVE_TRY(kve_arena_alloc(arena, r->n_references, sizeof *texts, &texts));
        size_t i = 0;
        for (const cJSON *e = refs->child; e; e = e->next, i++) {
            if (!cJSON_IsString(e))
                return kve_fail(KVE_ERR_FILE, "%s: 'references'[%zu] is not a string", name, i);
            KVE_TRY(copy_text(e->valuestring, arena, &texts[i]));
        }
        r->references = texts;
    }
    KVE_TRY(read_numbers(obj, "reward_heads", name, arena, &r->reward_heads, &r->n_reward_heads));
    return read_numbers(obj, "loglik", name, arena, &r->loglik, &r->n_choices);
}

static kve_status read_all(const cJSON *obj, const char *name, kve_arena *arena, kve_record *r)
{
    if (!cJSON_IsObject(obj))
        return kve_fail(KVE_ERR_FILE, "%s: a record is a JSON object", name);
    for (size_t i = 0; i < N_FIELDS; i++)
        KVE_TRY(read_field(obj, &g_fields[i], name, arena, r));
    if (!r->sample_id || !r->task || !r->policy || !r->status)
        return kve_fail(KVE_ERR_FILE, "%s: a record needs sample_id, task, policy and status", name);
    return read_arrays(obj, name, arena, r);
}

kve_status kve_record_parse(const char *line, size_t len, const char *name, kve_arena *arena, kve_record *out)
{
    cJSON *obj = NULL;
    kve_record_clear(out);
    KVE_TRY(kve_json_parse(line, len, name, &obj));
    kve_status st = read_all(obj, name, arena, out);
    cJSON_Delete(obj);
    return st;
}

/* Runs of digits compare by value: "s-9" < "s-10". */
static int compare_natural(const char *a, const char *b)
{
    while (*a && *b) {
        size_t da = strspn(a, "0123456789"), db = strspn(b, "0123456789");
        if (da && db) {
            size_t za = strspn(a, "0"), zb = strspn(b, "0");
            za = za < da ? za : da - 1;
            zb = zb < db ? zb : db - 1;
            if (da - za != db - zb)
                return da - za < db - zb ? -1 : 1;
            int c = memcmp(a + za, b + zb, da - za);
            if (c)
                return c;
            a += da;
            b += db;
        } else if (*a != *b) {
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        } else {
            a++;
            b++;
        }
    }
    return (*a != 0) - (*b != 0);
}

/* 0 only for equal texts: "7" and "07" are two samples. */
static int compare_names(const char *a, const char *b)
{
    int c = compare_natural(a, b);
    return c ? c : strcmp(a, b);
}

int kve_record_compare(const kve_record *a, const kve_record *b)
{
    int c = compare_names(a->task, b->task);
    if (!c)
        c = compare_names(a->sample_id, b->sample_id);
    if (!c)
        c = strcmp(a->policy, b->policy);
    return c ? c : (a->budget > b->budget) - (a->budget < b->budget);
}
