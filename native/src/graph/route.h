// What rows get which experts, and the rows of each expert.
#ifndef LW_GRAPH_ROUTE_H
#define LW_GRAPH_ROUTE_H

#include "graph/worker.h"

// Two phases: the router's logits, and for each row its experts and their weights; then the groups of s->b.experts are
// made.
void lw_route(lw_worker* w, const lw_layer* layer, const lw_activations* x);

#endif
