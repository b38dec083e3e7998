/* What the files of host/model share: the tables of an open checkpoint. Not for other modules, except tests. */
#ifndef KVE_MODEL_INTERNAL_H
#define KVE_MODEL_INTERNAL_H

#include "host/base/file.h"
#include "host/model/checkpoint.h"
#include "host/model/gguf.h"

enum { KVE_MAX_LAYERS = 1024, KVE_MAX_SHARDS = 1024 };

/* One tensor under its normalised name. A fused tensor of the file gives several. */
typedef struct kve_entry {
    const char *name;   /* normalised; arena. NULL in what kve_entries_add takes */
    const char *source; /* the file's own name, for messages; arena */
    const char *file;   /* the file it lies in, for messages; lives as long as the checkpoint */
    kve_tensor_type type;
    int64_t rows, cols;
    const unsigned char *data; /* row 0 */
    size_t row_bytes;
    int32_t interleaved_rows; /* > 0: rows of each head of this height alternate between its halves (GGUF llama Q, K) */
} kve_entry;

struct kve_checkpoint {
    kve_arena arena;
    const char *path, *format; /* arena; static */
    kve_config cfg;
    kve_vocab vocab;
    const char *chat_template; /* in the vocab's arena */
    kve_map *maps;             /* [n_maps], arena */
    const char **map_paths;
    size_t n_maps;
    kve_entry *entries; /* [n_entries], arena, sorted by name once kve_entries_check ran */
    size_t n_entries, cap_entries;
    char sha256[KVE_SHA256_HEX]; /* "" until asked for */
};

/* tensors.c */
typedef enum kve_naming { KVE_NAMES_GGUF, KVE_NAMES_HF } kve_naming;

/* Room for n tensors of the file. */
kve_status kve_entries_reserve(kve_checkpoint *ck, size_t n);
/* Takes one tensor of a file in: translates its name, splits fused rows. `raw` describes it, with the file's own name
 * in `source`. Needs ck->cfg. A name that the architecture does not know is an error. */
kve_status kve_entries_add(kve_checkpoint *ck, kve_naming naming, const kve_entry *raw);
/* Sorts the entries; every tensor that the architecture needs must be there, and none twice. */
kve_status kve_entries_check(kve_checkpoint *ck, const char *file);
const kve_entry *kve_entry_find(const kve_checkpoint *ck, const char *name);
kve_status kve_entry_read(const kve_entry *e, int64_t row0, int64_t n_rows, float *out);

/* gguf_model.c: a whole GGUF file in memory, which must outlive the checkpoint. `name` (for messages) too. */
kve_status kve_gguf_load(kve_checkpoint *ck, const unsigned char *data, size_t size, const char *name);
/* gguf_vocab.c: fills ck->vocab and ck->chat_template; needs ck->cfg.arch. Everything is copied. */
kve_status kve_gguf_vocab(kve_checkpoint *ck, const kve_gguf *g);

/* hf_model.c: the folder ck->path, which has a config.json. */
kve_status kve_hf_load(kve_checkpoint *ck);

/* resolve.c: what the user wrote to a .gguf file or a folder with config.json. */
typedef enum kve_path_kind { KVE_PATH_GGUF, KVE_PATH_FOLDER } kve_path_kind;
kve_status kve_model_resolve(const char *path, kve_str *out, kve_path_kind *kind);

/* checkpoint.c */
kve_status kve_checkpoint_map(kve_checkpoint *ck, const char *path, kve_map *out); /* the checkpoint closes it */
kve_status kve_vocab_pad(kve_checkpoint *ck); /* ids up to V that the tokenizer does not name become holes */

/* config.c */
kve_status kve_config_check_shape(const kve_config *cfg, const char *name); /* sizes only, before tensors are read */
void kve_config_init(kve_config *cfg);                                      /* the values of absent fields */
void kve_config_add_eos(kve_config *cfg, int64_t id);

#endif
