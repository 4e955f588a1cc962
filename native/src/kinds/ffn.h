// Gate and up projections, activation and quantization in one phase, for a layer's FFN or for
// each expert of some rows.
//
// Work goes out panel by panel in the order of the segments of the result: the panels of gate of a run of segments, then
// those of up; where rows are cut, all of them for one piece of the rows and then for the next. The thread that
// finishes the last panel of a run's piece activates and quantizes the piece while it is in a cache. Rows of one segment
// lie together, so a panel's results fall on consecutive lines.
#ifndef LW_KINDS_FFN_H
#define LW_KINDS_FFN_H

#include "graph/worker.h"

typedef struct lw_gate_up {
    lw_worker* w;
    const lw_ffn_config* config;
    size_t matrices;  // 2, or 1: gate alone
    lw_product gate, up;
    const float *gate_bias, *up_bias;  // [size], or NULL
    lw_activations in, out;
    size_t rows, size;       // outputs of gate and of up
    size_t first_panel;      // of the matrices' panels
    float *gate_to, *up_to;  // [segments of size][rows][LW_SEGMENT], or [rows][size] where down reads floats
    atomic_uint* runs_done;  // [runs][pieces] panels done, between phases all 0
    lw_cuts cuts;
    size_t run;      // segments
    bool quantized;  // down reads codes
} lw_gate_up;

// How many segments go together: few rows wait for weights, in the order of one matrix.
size_t lw_run_of(size_t rows);
// Items begin .. end - 1 of all: the panels of gate and up, for each piece of the rows.
void lw_gate_up_take(lw_gate_up* g, size_t begin, size_t end);

#endif
