// Residual streams that are mixed (lw_model_config.hyper_streams).
#ifndef LW_KINDS_HYPER_H
#define LW_KINDS_HYPER_H

#include "graph/worker.h"

// Phases behind the last layer: x becomes the weighted sum of the streams.
void lw_join_hyper(lw_worker* w);

#endif
