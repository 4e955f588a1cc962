// What a session with observe_inputs knows of the inputs of matrices.
#ifndef LW_GRAPH_OBSERVE_H
#define LW_GRAPH_OBSERVE_H

#include "graph/worker.h"

enum { LW_OBSERVED_IN_LAYER = 4 };  // kinds of inputs that each layer has

// Cells of each thread: those of layer after layer, and the head's.
size_t lw_observed_cells(const lw_session* s);
// The operation whose inputs a cell counts.
lw_operation lw_observed_operation(const lw_session* s, size_t cell);

// Adds all rows to what the session knows of these inputs; they stay until a barrier after it.
void lw_observe_rows(const lw_worker* w, lw_operation operation, uint32_t layer, lw_inputs x);
static inline void lw_observe(const lw_worker* w, lw_operation operation, uint32_t layer, lw_inputs x) {
    if (w->s->observed != NULL) lw_observe_rows(w, operation, layer, x);
}

#endif
