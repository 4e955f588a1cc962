// The states that some layers keep of sequences: places for whole sequences, in a place one layer after the other.
//
// A layer's part is the last taps - 1 inputs of its convolution, [taps - 1][channels], the oldest first, then, unless it is
// a short convolution, the states of its heads, of each in pieces of LW_RECUR_COLUMNS columns, [key_dim][columns], which
// are what a thread works on at a time: with rows of whole heads they would share half of a cache's sets. All f32.
#ifndef LW_GRAPH_STATES_H
#define LW_GRAPH_STATES_H

#include "model/model.h"

typedef struct lw_states {
    lw_block block;
    uint32_t n_places;
    size_t place_floats;  // a multiple of 16
    size_t* offsets;      // [n_layers] floats before a layer's part
    uint8_t* is_used;     // [n_places] while a batch is checked
} lw_states;

// 0 where no layer has a state.
uint64_t lw_state_place_bytes(const lw_model* model);
// False without memory; what is there then is closed by lw_states_close.
bool lw_states_open(const lw_model* model, uint32_t n_places, lw_states* out);
void lw_states_close(lw_states* states);
// A thread's share of making copies (from, to) in their order.
void lw_states_copy(const lw_states* states, const uint32_t* copies, uint32_t n_copies, unsigned thread,
                    unsigned n_threads);

// A layer's part of a place.
static inline float* lw_state_at(const lw_states* states, uint32_t place, uint32_t layer) {
    return (float*)states->block.data + place * states->place_floats + states->offsets[layer];
}

#endif
