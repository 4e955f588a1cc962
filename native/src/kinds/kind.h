// The kinds of parts that a layer can have. Each kind is a file with one lw_kind: which numbers the kind accepts, which
// tensors and buffers it needs, what it computes.
#ifndef LW_KINDS_KIND_H
#define LW_KINDS_KIND_H

#include <stdbool.h>
#include <stddef.h>

#include "graph/worker.h"
#include "kinds/check.h"

// A tensor that a program may have.
typedef struct lw_tensor_spec {
    const char* name;  // for messages; NULL: the role belongs to another kind
    uint32_t rows, cols;
    bool wanted;     // the program has this tensor
    bool is_vector;  // the destination is a float*, otherwise an lw_matrix
    size_t place;    // offset of the destination in lw_layer, lw_model or lw_dense
} lw_tensor_spec;

// A matrix that reads norm(x) before the mixers (attention and states), and the buffer for its product. `which` is its
// number among the matrices that adapters may change, LW_ADAPTED_COUNT if they may not. `stride`: floats from one row of
// the product to the next; 0 = the matrix's outputs.
typedef struct lw_mixer_input {
    const lw_matrix* matrix;
    float* out;
    lw_adapted which;
    size_t stride;
} lw_mixer_input;
enum { LW_MAX_MIXER_INPUTS = 6 };  // maximum for one kind

// One kind of part. Functions that the kind does not need are NULL.
typedef struct lw_kind {
    // Functions of a program. `check` may rely on the checks of the kinds before this one in lw_kind_number.
    lw_status (*check)(const lw_model_config* model, uint32_t layer);
    lw_tensor_spec (*tensor)(const lw_model_config* model, const lw_layer_config* layer, lw_role role);
    // Whether a layer has this kind of part. The functions below are called for these layers only.
    bool (*has)(const lw_model_config* model, const lw_layer_config* layer);
    // Number of floats that the layer keeps of each sequence.
    size_t (*kept_floats)(const lw_model_config* model, const lw_layer_config* layer, uint32_t max_guesses);
    // How many of them come before those of guesses; NULL = all that are not of guesses.
    size_t (*before_guesses)(const lw_model_config* model, const lw_layer_config* layer);

    // Functions of a session. s->of_kind[number] has `own_bytes` bytes, and `own_bytes_of_layer` for each layer of the
    // model. All bytes are 0 at first.
    size_t own_bytes, own_bytes_of_layer;
    // Widens s->widths and the kind's own widths so that the layer fits.
    void (*widen)(lw_session* s, const lw_layer* layer, uint32_t index);
    // Takes the kind's buffers. Called twice: first to add up their sizes, then to place them.
    void (*take)(lw_session* s, lw_parts* parts);

    // Functions of a step. `prepare` is called before the threads begin. Each thread calls `begin` after the embedding.
    void (*prepare)(lw_session* s, const lw_batch* batch);
    void (*begin)(lw_worker* w);
    // Called before each layer.
    void (*enter)(lw_worker* w, const lw_layer* layer);
    // Only for mixers, the parts that mix the rows of a sequence. `inputs` lists the matrices that read norm(x). Among
    // the matrices that adapters may change, `n_adapted` from `first_adapted` on read norm(x).
    size_t (*inputs)(const lw_worker* w, const lw_layer* layer, lw_mixer_input found[LW_MAX_MIXER_INPUTS]);
    lw_adapted first_adapted, n_adapted;
    // Computes the mixer's result from the products, for all rows.
    void (*mix)(lw_worker* w, const lw_layer* layer, uint32_t index);
    // x += the output projection of the result, for the rows that later layers need.
    void (*add)(lw_worker* w, const lw_layer* layer, uint32_t index);
    // After the last mixer, one thread moves the rows that get logits to the beginning of the kind's buffers.
    void (*keep)(lw_worker* w, const lw_layer* layer);
    // Only for parts after a layer's mixers, such as the FFN. Computes the part and adds its result to x.
    void (*run)(lw_worker* w, const lw_layer* layer, uint32_t index);
} lw_kind;

// The order in which a program is checked and the parts of a layer run.
typedef enum lw_kind_number {
    LW_KIND_ATTENTION,
    LW_KIND_LATENT,
    LW_KIND_SHARED,
    LW_KIND_INDEX,
    LW_KIND_STATE,
    LW_KIND_FFN,
    LW_KIND_NORMS,
    LW_KIND_EXPERTS,
    LW_KIND_MTP,
    LW_KIND_STREAMS,
    LW_KIND_HYPER,
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
// Tensors of a layer.
#define LW_MATRIX(field, name, rows, cols, wanted) LW_MATRIX_SPEC(lw_layer, field, name, rows, cols, wanted)
#define LW_VECTOR(field, name, size, wanted) LW_VECTOR_SPEC(lw_layer, field, name, size, wanted)

static inline bool lw_mixes(const lw_layer_config* l) {
    return l->attention.n_heads > 0 || l->state.kind != LW_NO_STATE;
}
static inline bool lw_has_ffn(const lw_layer_config* l) { return l->ffn.kind != LW_FFN_NONE; }

#endif
