// The table of all kinds.
#ifndef LW_KINDS_KINDS_H
#define LW_KINDS_KINDS_H

#include "kinds/kind.h"

extern const lw_kind* const lw_kinds[LW_N_KINDS];
extern const lw_kind lw_kind_attention, lw_kind_latent, lw_kind_index, lw_kind_state, lw_kind_ffn, lw_kind_norms,
    lw_kind_experts, lw_kind_mtp, lw_kind_streams, lw_kind_per_layer, lw_kind_shared, lw_kind_hyper;

static inline bool lw_has_kind(const lw_model* model, const lw_layer* layer, size_t kind) {
    return lw_kinds[kind]->has != NULL && lw_kinds[kind]->has(&model->config, &layer->config);
}

// Floats that a layer keeps of each sequence; bytes that all layers keep of each sequence.
size_t lw_kept_floats(const lw_model* model, uint32_t layer, uint32_t max_guesses);
uint64_t lw_state_place_bytes(const lw_model* model, uint32_t max_guesses);
// How many of a layer's floats come before those of guesses.
size_t lw_floats_before_guesses(const lw_model* model, uint32_t layer);

#endif
