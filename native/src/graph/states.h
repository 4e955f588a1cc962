// The states that some layers keep of sequences: places for whole sequences, in a place one layer after the other.
//
// A layer's part is the last taps - 1 inputs of its convolution, then those of the guesses that came behind them,
// [taps - 1 + max_guesses][channels], the oldest first. Unless it is a short convolution there follow decays, then betas of
// these guesses, each [max_guesses][n_heads], and the states of heads, of each in pieces of LW_RECUR_COLUMNS columns,
// [key_dim][columns], which are what a thread works on at a time: with rows of whole heads they would share half of a
// cache's sets. All f32.
//
// That of a prediction head is the row behind the output norm of the last token, then those of the guesses that came behind
// it, [1 + max_guesses][lw_hidden_stride].
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

// Floats of a row in the part of a prediction head.
static inline size_t lw_hidden_stride(const lw_model* model) {
    return lw_round_up(model->config.hidden_size, LW_LANES);
}

// 0 where no layer has a state, and none is a prediction head.
uint64_t lw_state_place_bytes(const lw_model* model, uint32_t max_guesses);
// False without memory; what is there then is closed by lw_states_close.
bool lw_states_open(const lw_model* model, uint32_t n_places, uint32_t max_guesses, lw_states* out);
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

// Where what a layer keeps lies in its part, in floats.
typedef struct lw_state_parts {
    size_t channels;
    size_t guesses;  // of the inputs of guesses
    size_t decay, beta;
    size_t heads;
    size_t end;  // of the part, a multiple of LW_LANES
} lw_state_parts;

static inline lw_state_parts lw_lay_out_state(const lw_state_config* c, uint32_t hidden, uint32_t max_guesses) {
    lw_state_parts p = {.channels = c->kind == LW_NO_STATE ? 0 : lw_state_channels(c, hidden)};
    p.guesses = c->kind == LW_NO_STATE ? 0 : (c->taps - 1) * p.channels;
    // Whole lines for the tail and for each guess, so that every guess takes the same.
    p.decay = lw_round_up(p.guesses, LW_LANES) + max_guesses * lw_round_up(p.channels, LW_LANES);
    p.beta = p.decay + (size_t)max_guesses * c->n_heads;
    p.heads = p.decay + max_guesses * lw_round_up(2 * (size_t)c->n_heads, LW_LANES);
    p.end = p.heads + (size_t)c->n_heads * c->key_dim * c->value_dim;
    return p;
}

#endif
