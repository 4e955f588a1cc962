// What a layer can be made of. Each kind of part has a file with a row: which numbers it accepts, which tensors it needs.
#ifndef LW_KINDS_KIND_H
#define LW_KINDS_KIND_H

#include <stdbool.h>
#include <stddef.h>

#include "kinds/check.h"
#include "model/model.h"

// A tensor that a program has, or has not.
typedef struct lw_tensor_spec {
    const char* name;  // for messages; NULL: the role belongs to another kind
    uint32_t rows, cols;
    bool wanted;     // the program has this tensor
    bool is_vector;  // its destination is a float*, else an lw_matrix
    size_t place;    // offset of the destination in lw_layer, or in lw_model or lw_dense
} lw_tensor_spec;

typedef struct lw_kind {
    lw_status (*check)(const lw_model_config* model, uint32_t layer);
    lw_tensor_spec (*tensor)(const lw_model_config* model, const lw_layer_config* layer, lw_role role);
} lw_kind;

// In the order in which they are checked: each may count on what those before it have checked.
extern const lw_kind lw_kind_attention;
extern const lw_kind lw_kind_latent;
extern const lw_kind lw_kind_state;
extern const lw_kind lw_kind_ffn;
extern const lw_kind lw_kind_norms;
extern const lw_kind lw_kind_experts;
extern const lw_kind lw_kind_mtp;
extern const lw_kind lw_kind_per_layer;
enum { LW_N_KINDS = 8 };
extern const lw_kind* const lw_kinds[LW_N_KINDS];

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
