/* Inside the tasks whose files hold one item a row (BoolQ, ARC, MMLU, HellaSwag, GovReport): what a task says about its
 * rows, and datasets of them. Not for use outside datasets/. */
#ifndef KVE_DATASETS_ITEMS_H
#define KVE_DATASETS_ITEMS_H

#include "datasets/dataset.h"
#include "datasets/source.h"

/* One row, taken apart. A prompt is header, shots, then context + question + answer_prefix; the context and the shots
 * are always prefilled. Texts live in the arena that read() got. */
typedef struct kve_item {
    const char *id;      /* the row's own, NULL = it has none */
    const char *subject; /* NULL = the task knows no subjects */
    const char *header;  /* in front of the shots, "" = none */
    const char *context, *question, *answer_prefix;
    const char *const *choices; /* without the space in front */
    size_t n_choices, gold;
    const char *const *references;
    size_t n_references;
    const char *long_field; /* the one that makes the prompt long */
    const char *where;      /* "FILE:LINE" */
    size_t line;
} kve_item;

enum { KVE_RANK_NEVER = -1 };

struct kve_item_task {
    kve_format format;
    const char *version, *note; /* note: how the task departs from its official form, NULL = it does not */
    int rank[KVE_N_SPLITS];     /* which split is read: the least; KVE_RANK_NEVER: none of it */
    int shot_rank[KVE_N_SPLITS];
    size_t shots; /* the standard number of examples */
    bool by_subject;
    kve_metric metric;
    bool plain;
    kve_question_place question_place;
    int64_t max_new_tokens;
    const char *ask_version; /* of the generated form, NULL = there is none */
    const char *ask_list; /* it lists the choices behind these words; NULL: they stand in the question, or need not */
    const char *ask_for;  /* "Answer with yes or no." */
    kve_status (*read)(const cJSON *row, const kve_place *at, kve_arena *arena, kve_item *out);
};

extern const kve_item_task kve_boolq, kve_arc, kve_mmlu, kve_hellaswag, kve_gov_report;

/* Appends the task's datasets: one, or one per subject (subject NULL = all). */
kve_status kve_items_open(const kve_item_task *t, const char *subject, const kve_task_options *o,
                          kve_dataset_list *out);

/* Turns an item that was read into its generated form: the whole prompt in front of the answer, letters as choices. */
kve_status kve_item_ask(const kve_item_task *t, kve_arena *arena, kve_item *item);

/* For read(): "A", or 0 from a field of either type; fails with the field's name where it is outside 0 .. n - 1. */
kve_status kve_item_label(const cJSON *row, const char *key, const kve_place *at, size_t n, size_t *out);
/* printf into the arena. */
kve_status kve_item_text(kve_arena *arena, const char **out, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
