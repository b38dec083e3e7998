/* The golden file's lines. Contract: smollm2_golden.h. */
#include "tests/engine/smollm2_golden.h"

#include "host/base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kve_status read_ids(const char *text, int32_t *ids, int32_t most, int32_t *n)
{
    const char *at = text;
    char *end;
    for (*n = 0;; at = end, (*n)++) {
        long id = strtol(at, &end, 10);
        if (end == at)
            break;
        if (*n == most)
            return kve_fail(KVE_ERR_FILE, "more than %d ids", most);
        ids[*n] = (int32_t)id;
    }
    return *end ? kve_fail(KVE_ERR_FILE, "'%.20s' is no id", end) : KVE_OK;
}

static kve_status read_text(golden *g, const char *hex, golden_prompt *p)
{
    p->text_len = strlen(hex) / 2;
    KVE_TRY(kve_arena_alloc(&g->arena, p->text_len + 1, 1, &p->text));
    for (size_t i = 0; i < p->text_len; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return kve_fail(KVE_ERR_FILE, "'%.2s' is no byte in hex", hex + 2 * i);
        p->text[i] = (char)byte;
    }
    return KVE_OK;
}

static kve_status read_prompt_ids(golden *g, const char *text, golden_prompt *p)
{
    int32_t most = (int32_t)(strlen(text) / 2 + 1);
    KVE_TRY(kve_arena_alloc(&g->arena, (size_t)most, sizeof *p->ids, &p->ids));
    return read_ids(text, p->ids, most, &p->n);
}

static kve_status read_row(const char *text, golden_prompt *p)
{
    char *at;
    if (p->n_rows == MOST_ROWS)
        return kve_fail(KVE_ERR_FILE, "more than %d rows", MOST_ROWS);
    golden_row *r = &p->rows[p->n_rows++];
    r->position = (int32_t)strtol(text, &at, 10);
    r->lse = strtod(at, &at);
    for (int i = 0; i < ROW_LOGITS; i++) {
        char *before = at;
        r->id[i] = (int32_t)strtol(at, &at, 10);
        char *between = at;
        r->value[i] = strtof(at, &at);
        if (between == before || at == between)
            return kve_fail(KVE_ERR_FILE, "a row of fewer than %d logits", ROW_LOGITS);
    }
    if (*at || r->position < 0 || r->position >= p->n)
        return kve_fail(KVE_ERR_FILE, "a row with position %d or with '%.20s' at its end", r->position, at);
    return KVE_OK;
}

static kve_status read_line(golden *g, const char *line)
{
    golden_prompt *p = g->n ? &g->prompts[g->n - 1] : NULL;
    const char *rest = strchr(line, ' ');
    if (line[0] == '#') {
        const char *sha = strstr(line, "sha256 ");
        if (sha)
            snprintf(g->sha256, sizeof g->sha256, "%s", sha + strlen("sha256 "));
        return KVE_OK;
    }
    rest = rest ? rest + 1 : "";
    if (strncmp(line, "prompt ", 7) == 0) {
        if (g->n == MOST_PROMPTS)
            return kve_fail(KVE_ERR_FILE, "more than %d prompts", MOST_PROMPTS);
        snprintf(g->prompts[g->n++].name, sizeof p->name, "%s", rest);
        return KVE_OK;
    }
    if (p && strncmp(line, "text ", 5) == 0)
        return read_text(g, rest, p);
    if (p && strncmp(line, "ids ", 4) == 0)
        return read_prompt_ids(g, rest, p);
    if (p && strncmp(line, "next", 4) == 0)
        return read_ids(rest, p->next, MOST_NEW, &p->n_next);
    if (p && strncmp(line, "row ", 4) == 0)
        return read_row(rest, p);
    return kve_fail(KVE_ERR_FILE, "'%.20s' begins no known line", line);
}

kve_status golden_read(const char *path, golden *g)
{
    char *text = NULL, *save = NULL;
    size_t len = 0;
    int n_line = 0;
    kve_status st = KVE_OK;
    *g = (golden){0};
    KVE_TRY(kve_file_read(path, &text, &len));
    for (char *line = strtok_r(text, "\n", &save); line && st == KVE_OK; line = strtok_r(NULL, "\n", &save)) {
        n_line++;
        st = read_line(g, line);
    }
    free(text);
    for (int i = 0; i < g->n && st == KVE_OK; i++) {
        const golden_prompt *p = &g->prompts[i];
        if (p->n < 2 || p->n_rows < 2 || p->rows[p->n_rows - 1].position != p->n - 1)
            st = kve_fail(KVE_ERR_FILE, "prompt '%s' has %d ids, %d rows, or another last row than its last token's",
                          p->name, p->n, p->n_rows);
    }
    return st == KVE_OK ? KVE_OK : kve_fail_context(st, "%s: line %d", path, n_line);
}
