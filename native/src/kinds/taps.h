// Prediction heads with taps (lw_head_config): what they have beside other heads.
#ifndef LW_KINDS_TAPS_H
#define LW_KINDS_TAPS_H

#include "graph/worker.h"
#include "kinds/kind.h"

// Call in front of layer `index` of the model, and behind the last: keeps x where that is a tap.
void lw_keep_tap(lw_worker* w, uint32_t index);
// What attention of the head reads; lw_enter_head has made it.
lw_activations lw_head_inputs(const lw_worker* w);
// The logits of a head with outputs of its own, of x, which a norm has been chosen for.
void lw_head_logits(lw_worker* w, const lw_layer* head, lw_norm by);

// What both files share.
typedef struct lw_mtp_own {
    float *hidden, *inputs;  // [rows][hidden_size] and [rows][2 * hidden_size]
    float* predicted;        // [n_states][hidden_size] the head's latest output for the sequence of each place
    float* taps;             // [rows][n_taps * hidden_size]
    float* logits;           // [max_batch_logits][outputs], of heads that choose tokens
} lw_mtp_own;

static inline const lw_mtp_own* lw_mtp_of(const lw_worker* w) { return w->s->of_kind[LW_KIND_MTP]; }

// Sets hidden rows to what the head makes of the taps. Sets x and inputs of the rows; `before` finds the hidden row of
// the token before a row, NULL for the first token.
void lw_fuse_taps(lw_worker* w, const lw_layer* head);
// The embedding that the head reads of a row.
void lw_embed_for_head(const lw_worker* w, const lw_layer* head, size_t row, float* out);
void lw_enter_taps(lw_worker* w, const lw_layer* head, const float* (*before)(const lw_worker* w, size_t row));
// The tensors of heads with taps; their buffers.
lw_tensor_spec lw_taps_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role);
lw_status lw_check_taps(const lw_model_config* model, uint32_t layer);
void lw_widen_taps(lw_session* s, const lw_layer* head);
void lw_take_taps(lw_session* s, lw_parts* parts, const lw_layer* head);

#endif
