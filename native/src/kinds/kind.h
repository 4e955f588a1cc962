// What a layer can be made of. Each kind of part has a file with a row: which numbers it accepts, which tensors and buffers it
// needs, what it computes.
#ifndef LW_KINDS_KIND_H
#define LW_KINDS_KIND_H

#include <stdbool.h>
#include <stddef.h>

#include "graph/worker.h"
#include "kinds/check.h"

// A tensor that a program has, or has not.
typedef struct lw_tensor_spec {
    const char* name;  // for messages; NULL: the role belongs to another kind
    uint32_t rows, cols;
    bool wanted;     // the program has this tensor
    bool is_vector;  // its destination is a float*, else an lw_matrix
    size_t place;    // offset of the destination in lw_layer, or in lw_model or lw_dense
} lw_tensor_spec;

// A matrix that reads norm(x) before the mixers, the buffer for its product, and which adapted matrix it is:
// LW_ADAPTED_COUNT if none.
typedef struct lw_mixer_input {
    const lw_matrix* matrix;
    float* out;
    lw_adapted which;
} lw_mixer_input;
enum { LW_MOST_MIXER_INPUTS = 6 };  // of one kind

// One kind of part. A function that the kind does not need is NULL.
typedef struct lw_kind {
    // Of a program. The kinds before this one have checked the layer already.
    lw_status (*check)(const lw_model_config* model, uint32_t layer);
    lw_tensor_spec (*tensor)(const lw_model_config* model, const lw_layer_config* layer, lw_role role);
    // Whether a layer has such a part; what follows is called for these layers only.
    bool (*has)(const lw_model_config* model, const lw_layer_config* layer);
    // Floats that the layer keeps of each sequence.
    size_t (*kept_floats)(const lw_model_config* model, const lw_layer_config* layer, uint32_t max_guesses);

    // Of a session: s->of_kind[number] has `own_bytes`, and `own_bytes_of_layer` for each layer of the model, all 0 at first.
    size_t own_bytes, own_bytes_of_layer;
    // Widens s->widths and what the session has of this kind, so that the layer finds room.
    void (*widen)(lw_session* s, const lw_layer* layer, uint32_t index);
    // Takes the kind's buffers: called twice, to add up sizes and to take them.
    void (*take)(lw_session* s, lw_parts* parts);

    // Of a step. Before the threads begin; behind the embedding.
    void (*prepare)(lw_session* s, const lw_batch* batch);
    void (*begin)(lw_worker* w);
    // Mixers, which mix the rows of a sequence. The matrices that read norm(x), and which of the adapted ones read it:
    // `n_adapted` from `first_adapted` on.
    size_t (*inputs)(const lw_worker* w, const lw_layer* layer, lw_mixer_input found[LW_MOST_MIXER_INPUTS]);
    lw_adapted first_adapted, n_adapted;
    // Makes the result from the products, for all rows.
    void (*mix)(lw_worker* w, const lw_layer* layer, uint32_t index);
    // x += the output projection of the result, for the rows that go on.
    void (*add)(lw_worker* w, const lw_layer* layer, uint32_t index);
    // Behind the last mixer one thread moves the rows that get logits to the beginning of the kind's buffers.
    void (*keep)(lw_worker* w, const lw_layer* layer);
    // What comes behind the mixers of a layer: x += all of it.
    void (*run)(lw_worker* w, const lw_layer* layer, uint32_t index);
} lw_kind;

// In the order in which a program is checked and a layer runs.
typedef enum lw_kind_number {
    LW_KIND_ATTENTION,
    LW_KIND_LATENT,
    LW_KIND_STATE,
    LW_KIND_FFN,
    LW_KIND_NORMS,
    LW_KIND_EXPERTS,
    LW_KIND_MTP,
    LW_KIND_PER_LAYER,
    LW_N_KINDS
} lw_kind_number;
static inline void lw_widen(size_t* width, size_t wanted) {
    if (*width < wanted) *width = wanted;
}

#define LW_MATRIX_SPEC(struct_name, field, name, rows, cols, wanted) \
    ((lw_tensor_spec){name, rows, cols, wanted, false, offsetof(struct_name, field)})
#define LW_VECTOR_SPEC(struct_name, field, name, size, wanted) \
    ((lw_tensor_spec){name, 1, size, wanted, true, offsetof(struct_name, field)})
// Of a layer.
#define LW_MATRIX(field, name, rows, cols, wanted) LW_MATRIX_SPEC(lw_layer, field, name, rows, cols, wanted)
#define LW_VECTOR(field, name, size, wanted) LW_VECTOR_SPEC(lw_layer, field, name, size, wanted)

static inline bool lw_mixes(const lw_layer_config* l) {
    return l->attention.n_heads > 0 || l->state.kind != LW_NO_STATE;
}
static inline bool lw_has_ffn(const lw_layer_config* l) { return l->ffn.kind != LW_FFN_NONE; }

#endif
