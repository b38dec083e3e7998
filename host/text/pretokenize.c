/* Cutting text into pre-tokens: a list of PCRE2 patterns, each applied to the pieces the one before it left. */
#include "host/text/internal.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_STEPS = 1 << 20, STEPS_PER_BYTE = 32 };

/* PCRE2's \s contains U+180E, which Unicode took out of White_Space in 6.3, so \s is spelled out. */
#define WS "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define QWEN_LIKE(digits)                                                                                              \
    SHORT "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K                                                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" SHORT "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" SHORT            \
    "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *name;
    const char *patterns[2];
    bool ignore_merges;
} known[] = {
    {"gpt2", {GPT2, NULL}, false},
    {"gpt-2", {GPT2, NULL}, false},
    {"phi-2", {GPT2, NULL}, false},
    {"smollm", {"\\p{N}", GPT2}, false},
    {"qwen2", {QWEN_LIKE("\\p{N}"), NULL}, false},
    {"llama-bpe", {QWEN_LIKE("\\p{N}{1,3}"), NULL}, true},
    {"llama3", {QWEN_LIKE("\\p{N}{1,3}"), NULL}, true},
    {"llama-v3", {QWEN_LIKE("\\p{N}{1,3}"), NULL}, true},
    {"dbrx", {QWEN_LIKE("\\p{N}{1,3}"), NULL}, false},
    {"gpt-4o", {O200K, NULL}, false},
    {"o200k", {O200K, NULL}, false},
};

/* The pattern with \s and \S spelled out, inside and outside of character classes. */
static kve_status spell_out(const char *pattern, kve_str *out)
{
    bool in_class = false;
    for (const char *p = pattern; *p; p++) {
        if (*p == '\\' && p[1]) {
            p++;
            if (*p == 's')
                KVE_TRY(kve_str_puts(out, in_class ? WS : "[" WS "]"));
            else if (*p == 'S' && !in_class)
                KVE_TRY(kve_str_puts(out, "[^" WS "]"));
            else
                KVE_TRY(kve_str_append(out, p - 1, 2));
            continue;
        }
        if (*p == '[')
            in_class = true;
        else if (*p == ']')
            in_class = false;
        KVE_TRY(kve_str_append(out, p, 1));
    }
    return KVE_OK;
}

static kve_status add_pattern(kve_tokenizer *tk, const char *pattern)
{
    if (tk->n_patterns == KVE_MAX_PATTERNS)
        return kve_fail(KVE_ERR_FILE, "tokenizer: more than %d pre-tokenizer steps; this model is not supported",
                        (int)KVE_MAX_PATTERNS);
    kve_str s = {0};
    kve_status st = spell_out(pattern, &s);
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_code *code = NULL;
    if (st == KVE_OK)
        code =
            pcre2_compile((PCRE2_SPTR)s.p, s.len, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, NULL);
    if (st == KVE_OK && !code) {
        char why[160] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        st = kve_fail(KVE_ERR_FILE, "tokenizer: pre-tokenizer pattern '%s': %s; this model is not supported", pattern,
                      why);
    }
    kve_str_free(&s);
    if (!code)
        return st;
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without JIT the interpreter gives the same matches, slower */
    tk->patterns[tk->n_patterns++] = code;
    return KVE_OK;
}

static kve_status add_named(kve_tokenizer *tk, const char *name)
{
    kve_str names = {0};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, name) == 0) {
            kve_str_free(&names);
            tk->ignore_merges = tk->ignore_merges || known[i].ignore_merges;
            for (int k = 0; k < 2 && known[i].patterns[k]; k++)
                KVE_TRY(add_pattern(tk, known[i].patterns[k]));
            return KVE_OK;
        }
        if (kve_str_printf(&names, "%s%s", i ? ", " : "", known[i].name) != KVE_OK)
            break;
    }
    kve_status st =
        kve_fail(KVE_ERR_FILE, "tokenizer: pre-tokenizer '%s' is unknown; known: %s", name, names.p ? names.p : "");
    kve_str_free(&names);
    return st;
}

kve_status kve_patterns_compile(kve_tokenizer *tk)
{
    const kve_vocab *v = tk->vocab;
    tk->ignore_merges = v->ignore_merges;
    if (v->kind != KVE_VOCAB_BYTE_BPE)
        return KVE_OK;
    if (v->pre_name)
        return add_named(tk, v->pre_name);
    if (v->individual_digits)
        KVE_TRY(add_pattern(tk, "\\p{N}"));
    for (int32_t i = 0; i < v->n_pre_patterns; i++)
        if (v->pre_patterns[i][0])
            KVE_TRY(add_pattern(tk, v->pre_patterns[i]));
    if (v->use_gpt2_regex)
        KVE_TRY(add_pattern(tk, GPT2));
    return KVE_OK;
}

static kve_status add_piece(kve_pieces *out, const char *p, size_t len)
{
    if (len == 0)
        return KVE_OK;
    KVE_TRY(kve_grow(&out->p, &out->cap, out->len + 1, sizeof *out->p));
    out->p[out->len++] = (kve_piece){p, len};
    return KVE_OK;
}

typedef struct matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} matcher;

/* Cuts one piece: matches and the gaps between them are pieces of their own. */
static kve_status cut(const pcre2_code *code, const matcher *m, kve_piece in, kve_pieces *out)
{
    size_t at = 0, gap = 0;
    while (at < in.len) {
        int rc = pcre2_match(code, (PCRE2_SPTR)in.p, in.len, at, PCRE2_NO_UTF_CHECK, m->data, m->context);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0) {
            char why[160] = "";
            pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
            return kve_fail(KVE_ERR_FILE,
                            "tokenizer: the pre-tokenizer pattern failed on %zu bytes of text: %s; this model is not "
                            "supported",
                            in.len, why);
        }
        const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(m->data);
        if (ov[0] < at || ov[1] < ov[0])
            return kve_fail(KVE_ERR_FILE, "tokenizer: the pre-tokenizer pattern moves a match's start back (\\K); this "
                                          "model is not supported");
        if (ov[1] == ov[0]) { /* an empty match cuts nothing; step over one character */
            at = ov[1] + 1;
            while (at < in.len && ((unsigned char)in.p[at] & 0xc0) == 0x80)
                at++;
            continue;
        }
        KVE_TRY(add_piece(out, in.p + gap, ov[0] - gap));
        KVE_TRY(add_piece(out, in.p + ov[0], ov[1] - ov[0]));
        at = gap = ov[1];
    }
    return add_piece(out, in.p + gap, in.len - gap);
}

static kve_status run_patterns(const kve_tokenizer *tk, const matcher *m, kve_pieces *out)
{
    kve_pieces next = {0};
    for (int k = 0; k < tk->n_patterns; k++) {
        next.len = 0;
        for (size_t i = 0; i < out->len; i++) {
            kve_status st = cut(tk->patterns[k], m, out->p[i], &next);
            if (st != KVE_OK) {
                free(next.p);
                return st;
            }
        }
        kve_pieces swap = *out;
        *out = next;
        next = swap;
    }
    free(next.p);
    return KVE_OK;
}

kve_status kve_pretokenize(const kve_tokenizer *tk, const char *text, size_t len, kve_pieces *out)
{
    out->len = 0;
    KVE_TRY(add_piece(out, text, len));
    if (tk->n_patterns == 0)
        return KVE_OK;
    matcher m = {pcre2_match_data_create(1, NULL), pcre2_match_context_create(NULL),
                 pcre2_jit_stack_create(32 << 10, 16 << 20, NULL)};
    kve_status st;
    if (m.data && m.context && m.stack) {
        /* Patterns of tokenizers need a few steps for each byte; one that needs more backtracks without end. */
        const size_t most = UINT32_MAX / STEPS_PER_BYTE - LEAST_STEPS;
        size_t limit = LEAST_STEPS + (len < most ? len : most) * STEPS_PER_BYTE;
        pcre2_set_match_limit(m.context, (uint32_t)limit);
        pcre2_jit_stack_assign(m.context, NULL, m.stack);
        st = run_patterns(tk, &m, out);
    } else {
        st = kve_fail(KVE_ERR_MEMORY, "tokenizer: out of memory for pattern matching");
    }
    pcre2_jit_stack_free(m.stack);
    pcre2_match_context_free(m.context);
    pcre2_match_data_free(m.data);
    return st;
}
