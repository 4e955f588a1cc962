// The buffers of layers with a state in a session, and the layout of a sequence's state.
#ifndef LW_KINDS_RECUR_H
#define LW_KINDS_RECUR_H

#include "graph/worker.h"
#include "kinds/kind.h"

typedef struct lw_state_own {
    size_t in_width, inner, n_heads;  // maximum over the layers: outputs of LW_STATE_IN, values of a result, heads
    size_t gate_width, decays;        // values of a gate, decays of a row
    size_t decay_rank, gate_rank;
    float* in;                      // [rows][outputs of the layer's LW_STATE_IN]
    float *result, *gate;           // [rows][lw_state_inner]
    float *decay, *beta;            // [rows][lw_state_decays], [rows][n_heads]
    float *decay_down, *gate_down;  // [rows][decay_rank], [rows][gate_rank]
    lw_codes gate_codes;            // of gate_down; b->codes are those of decay_down
    // [n_states][max_guesses] rows of in, decay and beta: accepted guesses of the step before
    float *accepted_in, *accepted_decay, *accepted_beta;
} lw_state_own;

static inline lw_state_own* lw_state_of(const lw_session* s) { return s->of_kind[LW_KIND_STATE]; }

// What a layer keeps of a sequence, all f32. The fields are offsets in floats. At 0 are the last taps - 1 inputs of the
// convolution, then the inputs of the guesses that follow: [taps - 1 + max_guesses][channels], the oldest first. A
// layer with heads also keeps the decays and then the betas of these guesses, [max_guesses] rows of each, and the heads'
// states.
//
// A head's state is cut into pieces of LW_RECUR_COLUMNS columns, [key_dim][columns], because a thread works on one
// piece at a time. If rows of whole heads were stored, a piece would use only half of a cache's sets.
typedef struct lw_state_layout {
    size_t channels;
    size_t guesses;  // inputs of guesses
    size_t decay, beta;
    size_t heads;
    size_t end;  // a multiple of LW_LANES
} lw_state_layout;

lw_state_layout lw_lay_out_state(const lw_state_config* c, uint32_t hidden, uint32_t max_guesses);

// Runs the products of a layer's inputs through its state (recur.c).
void lw_recur(lw_worker* w, const lw_layer* layer, uint32_t index);
// x += the output projection of the result. Overwrites b->codes.
void lw_add_state(lw_worker* w, const lw_layer* layer, uint32_t index);

#endif
