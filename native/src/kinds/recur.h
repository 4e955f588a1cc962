// What layers with a state keep in a session and of each sequence.
#ifndef LW_KINDS_RECUR_H
#define LW_KINDS_RECUR_H

#include "graph/worker.h"
#include "kinds/kind.h"

typedef struct lw_state_own {
    size_t in_width, inner, n_heads;  // of the widest layers: outputs of LW_STATE_IN, results, heads
    size_t gate_width;
    float* in;             // [rows][outputs of the layer's LW_STATE_IN]
    float *result, *gate;  // [rows][lw_state_inner]
    float *decay, *beta;   // [rows][n_heads]
    // [places][max_guesses] rows of in, decay and beta, of guesses of the step before that came true
    float *accepted_in, *accepted_decay, *accepted_beta;
} lw_state_own;

static inline lw_state_own* lw_state_of(const lw_session* s) { return s->of_kind[LW_KIND_STATE]; }

// What a layer keeps of a sequence, all f32: the last taps - 1 inputs of its convolution, then the inputs of the guesses that
// came behind them, [taps - 1 + max_guesses][channels], the oldest first. Unless it is a short convolution there follow
// decays, then betas of these guesses, each [max_guesses][n_heads], and the states of heads. A head's state lies in pieces
// of LW_RECUR_COLUMNS columns, [key_dim][columns]: a thread works on one piece at a time, and rows of whole heads would
// share half of a cache's sets. The fields are offsets in floats.
typedef struct lw_state_layout {
    size_t channels;
    size_t guesses;  // the inputs of guesses
    size_t decay, beta;
    size_t heads;
    size_t end;  // a multiple of LW_LANES
} lw_state_layout;

lw_state_layout lw_lay_out_state(const lw_state_config* c, uint32_t hidden, uint32_t max_guesses);

// Runs the products of a layer's inputs through its state (recur.c).
void lw_recur(lw_worker* w, const lw_layer* layer, uint32_t index);
// x += the output projection of the result; b->codes are written.
void lw_add_state(lw_worker* w, const lw_layer* layer, uint32_t index);

#endif
