// Several residual streams (lw_model_config.n_streams).
#ifndef LW_KINDS_STREAMS_H
#define LW_KINDS_STREAMS_H

#include "graph/worker.h"

// Adds the norm of `matrix` * values to every stream but x.
void lw_add_to_streams(lw_worker* w, lw_operation operation, const lw_matrix* matrix, const float* norm,
                       const lw_activations* values);
// After the last layer: x becomes the mean of all streams.
void lw_join_streams(lw_worker* w);

#endif
