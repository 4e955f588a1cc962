// The states of sequences in layers that keep one. A place holds all states of one sequence, layer after layer.
//
// The state in a place has seen no guess; the place also holds the inputs of the guesses. The next step reads the state
// anyway, and applies the guesses that were accepted. Rejected guesses are overwritten later.
#ifndef LW_GRAPH_STATES_H
#define LW_GRAPH_STATES_H

#include "model/model.h"

typedef struct lw_states {
    lw_block block;
    uint32_t n_places;
    size_t place_floats;  // a multiple of 16
    size_t* offsets;      // [n_layers] floats before a layer's part
    uint32_t max_guesses;
    uint32_t* n_guesses;  // [n_places] guesses in each place after the steps that have run
    uint32_t* n_begun;    // [n_places] guesses in each place after the steps that have begun
    uint8_t* is_used;     // [n_places] used while a batch is checked
    uint32_t* n_copied;   // [n_places] n_begun after the batch's copies; used while a batch is checked
} lw_states;

// Makes n_places places, each with floats[i] floats for layer i. Returns false without memory: then the caller frees
// what there is by lw_states_close.
bool lw_states_open(const size_t* floats, uint32_t n_layers, uint32_t n_places, uint32_t max_guesses, lw_states* out);
void lw_states_close(lw_states* states);
// Writes n_copied: n_begun after the state copies of a batch.
void lw_count_copied_guesses(const lw_states* states, const lw_batch* batch);
// Writes the number of guesses in each place after a checked batch. `n` is n_begun when the batch is begun, and
// n_guesses when it is run.
void lw_note_guesses(const lw_states* states, uint32_t* n, const lw_batch* batch);
// Resets n_begun to n_guesses. Call it when a step may have failed and no step is begun that has not run.
void lw_forget_begun_guesses(const lw_states* states);
// Copies whole places (from, to) in the given order. Each thread calls it and copies its share of the floats.
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
