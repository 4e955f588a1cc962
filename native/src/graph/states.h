// The states that some layers keep of sequences: places for whole sequences, in a place one layer after the other.
//
// So a place holds a state that has seen no guess, and what guesses would do to it: those that come true are brought in by
// the next step, which reads the state anyway, and the others are forgotten where they lie.
#ifndef LW_GRAPH_STATES_H
#define LW_GRAPH_STATES_H

#include "model/model.h"

typedef struct lw_states {
    lw_block block;
    uint32_t n_places;
    size_t place_floats;  // a multiple of 16
    size_t* offsets;      // [n_layers] floats before a layer's part
    uint32_t max_guesses;
    uint32_t* n_guesses;  // [n_places] that each remembers, and
    uint32_t* n_begun;    // [n_places] will remember behind the steps that were begun
    uint8_t* is_used;     // [n_places] while a batch is checked, and
    uint32_t* n_copied;   // [n_places] what n_begun is behind its copies
} lw_states;

// Places for states, in each `floats[i]` floats of layer i. False without memory: lw_states_close frees what there is.
bool lw_states_open(const size_t* floats, uint32_t n_layers, uint32_t n_places, uint32_t max_guesses, lw_states* out);
void lw_states_close(lw_states* states);
// Writes n_copied.
void lw_count_copied_guesses(const lw_states* states, const lw_batch* batch);
// What places remember behind a batch that has been checked: in n_begun when it is begun, in n_guesses when it is run.
void lw_note_guesses(const lw_states* states, uint32_t* n, const lw_batch* batch);
// Nothing is begun and not run any more, of which something may have failed.
void lw_forget_begun_guesses(const lw_states* states);
// A thread's share of making copies (from, to) in their order.
void lw_states_copy(const lw_states* states, const uint32_t* copies, uint32_t n_copies, unsigned thread,
                    unsigned n_threads);

static inline uint32_t lw_table_row(const lw_batch* batch, uint32_t sequence) {
    return batch->table_rows != NULL ? batch->table_rows[sequence] : sequence;
}

// A layer's part of a place.
static inline float* lw_state_at(const lw_states* states, uint32_t place, uint32_t layer) {
    return (float*)states->block.data + place * states->place_floats + states->offsets[layer];
}

#endif
