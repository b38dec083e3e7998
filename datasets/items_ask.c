/* The generated form of tasks with choices: the question asks for a letter (or yes or no), which the model writes, and
 * what it writes is compared. Knows items, no task. Contract: items.h. */
#include "datasets/items.h"

enum { MOST_LETTERS = 26 };

/* "\nA. ice\nB. rain" behind the question; the letters are the choices then. */
static kve_status list_choices(const kve_item_task *t, kve_arena *arena, kve_item *item, kve_str *out)
{
    const char **letters = NULL;
    KVE_TRY(kve_arena_alloc(arena, item->n_choices, sizeof *letters, &letters));
    KVE_TRY(kve_str_puts(out, t->ask_list));
    for (size_t i = 0; i < item->n_choices; i++) {
        int letter = 'A' + (int)(i % MOST_LETTERS);
        KVE_TRY(kve_str_printf(out, "\n%c. %s", letter, item->choices[i]));
        KVE_TRY(kve_item_text(arena, &letters[i], "%c", letter));
    }
    item->choices = letters;
    return KVE_OK;
}

kve_status kve_item_ask(const kve_item_task *t, kve_arena *arena, kve_item *item)
{
    kve_str text = {0};
    kve_status st = kve_str_puts(&text, item->question);
    if (st == KVE_OK && t->ask_list)
        st = list_choices(t, arena, item, &text);
    if (st == KVE_OK)
        st = kve_item_text(arena, &item->question, "%s\n%s\nAnswer:", text.p, t->ask_for);
    item->answer_prefix = "";
    kve_str_free(&text);
    return st;
}
