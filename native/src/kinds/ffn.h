// Gate and up projections, activation and quantization in one phase, for a layer's FFN or for each expert.
//
// A run is a few consecutive segments of the result. Work goes out panel by panel, run after run: first the run's
// panels of gate, then its panels of up. If rows are cut into pieces, all panels of a run are computed for one piece,
// then for the next. The thread that finishes the last panel of a run and piece activates and quantizes it while it is
// in a cache. Rows of one segment lie together, so a panel's results fall on consecutive cache lines.
#ifndef LW_KINDS_FFN_H
#define LW_KINDS_FFN_H

#include "graph/worker.h"

typedef struct lw_gate_up {
    lw_worker* w;
    const lw_ffn_config* config;
    size_t matrices;  // 2, or 1: `gate` alone is used
    lw_product gate, up;
    const float *gate_bias, *up_bias;  // [size], or NULL
    lw_activations in, out;
    size_t rows, size;       // rows of the input; outputs of gate, and of up
    size_t first_panel;      // number of the first panel in the matrices, where experts are stacked
    float *gate_to, *up_to;  // [segments of size][rows][LW_SEGMENT], or [rows][size] if down reads floats
    atomic_uint* runs_done;  // [runs][pieces] panels done; all 0 between phases
    lw_cuts cuts;
    size_t run;            // segments in a run
    bool quantized;        // down reads codes
    const float* weights;  // [rows] factors of gate's and up's results, or NULL
    float limit;           // of LW_CAPPED and LW_LIMITED
} lw_gate_up;

// Number of segments in a run. With few rows runs are long: each switch between gate and up costs a wait for weights.
size_t lw_run_of(size_t rows);
// Computes items begin .. end - 1 of the phase. Items are the panels of gate and up, for each piece of the rows.
void lw_gate_up_take(lw_gate_up* g, size_t begin, size_t end);

#endif
