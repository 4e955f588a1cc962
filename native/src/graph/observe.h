// Statistics of the inputs of matrices, for sessions with observe_inputs.
#ifndef LW_GRAPH_OBSERVE_H
#define LW_GRAPH_OBSERVE_H

#include "graph/worker.h"

enum { LW_OBSERVED_IN_LAYER = 4 };  // kinds of inputs that each layer has

// Number of cells of each thread: LW_OBSERVED_IN_LAYER for each layer, then one for the output head.
size_t lw_observed_cells(const lw_session* s);
// The operation whose inputs a cell describes.
lw_operation lw_observed_operation(const lw_session* s, size_t cell);

// Adds all rows to the statistics; each thread adds its share. The rows must stay unchanged until the next barrier.
void lw_observe_rows(const lw_worker* w, lw_operation operation, uint32_t layer, lw_inputs x);
static inline void lw_observe(const lw_worker* w, lw_operation operation, uint32_t layer, lw_inputs x) {
    if (w->s->observed != NULL) lw_observe_rows(w, operation, layer, x);
}

#endif
