// Statistics of the inputs of matrices. Each thread counts its own rows in its own cells; inputs.c adds the cells up.
#include "graph/observe.h"

#include <math.h>

static const lw_operation kinds[] = {LW_OP_QKV, LW_OP_ATTN_OUTPUT, LW_OP_GATE_UP, LW_OP_DOWN, LW_OP_HEAD};
enum { IN_LAYER = LW_OBSERVED_IN_LAYER };  // the first four are in each layer; there is one head

size_t lw_observed_cells(const lw_session* s) { return (size_t)s->model->config.n_layers * IN_LAYER + 1; }

lw_operation lw_observed_operation(const lw_session* s, size_t cell) {
    return kinds[cell + 1 == lw_observed_cells(s) ? IN_LAYER : cell % IN_LAYER];
}

static lw_input_stats* cell_of(const lw_session* s, unsigned thread, lw_operation operation, uint32_t layer) {
    size_t kind = 0;
    while (kinds[kind] != operation) ++kind;
    const size_t before = kind < IN_LAYER ? (size_t)layer * IN_LAYER + kind : lw_observed_cells(s) - 1;
    return &s->observed[thread * lw_observed_cells(s) + before];
}

// Counts up to LW_GROUP inputs of one row. The first is input `first`.
static void observe_group(lw_input_stats* cell, const float* values, size_t n, size_t first) {
    float largest = 0, second = 0, total = 0;
    size_t at = 0;
    for (size_t i = 0; i < n; ++i) {
        const float size = fabsf(values[i]);
        total += size;
        if (size > largest) {
            second = largest;
            largest = size;
            at = i;
        } else if (size > second) {
            second = size;
        }
    }
    cell->values += n;
    cell->total += (double)total;
    ++cell->groups;
    cell->outlier_groups += largest > LW_OUTLYING * second;
    if (largest <= cell->largest) return;
    cell->largest = largest;
    cell->largest_input = (uint32_t)(first + at);
}

void lw_observe_rows(const lw_worker* w, lw_operation operation, uint32_t layer, lw_inputs x) {
    lw_input_stats* cell = cell_of(w->s, w->thread, operation, layer);
    for (size_t row = w->thread; row < w->rows; row += w->s->threads)
        for (size_t k = 0; k < x.cols; k += LW_GROUP) {
            const float* segment = x.values + row * x.row_stride + k / LW_SEGMENT * x.segment_stride;
            observe_group(cell, segment + k % LW_SEGMENT, x.cols - k < LW_GROUP ? x.cols - k : LW_GROUP, k);
        }
}
