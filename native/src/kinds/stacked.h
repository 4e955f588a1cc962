// One matrix for each of some parts of a row, stacked: of heads, or of groups of heads.
#ifndef LW_KINDS_STACKED_H
#define LW_KINDS_STACKED_H

#include "graph/worker.h"

// Part h of row r reads `inputs` values at from + r * from_stride + h * from_step. It writes `outputs` values, a
// multiple of LW_PANEL, at to + r * to_stride + h * to_step. `codes` has room for the inputs' codes: all rows of part 0,
// then of part 1, ...
typedef struct lw_stacked {
    const lw_matrix* matrices;
    const lw_codes* codes;
    size_t inputs, outputs;
    const float* from;
    size_t from_stride, from_step;
    float* to;
    size_t to_stride, to_step;
} lw_stacked;

// Codes of parts first .. first + n - 1 of a row, where the matrices read codes.
void lw_quantize_stacked(lw_worker* w, const lw_stacked* m, size_t row, size_t first, size_t n);
// A phase: the products of all rows and parts.
void lw_multiply_stacked(lw_worker* w, lw_operation operation, const lw_stacked* m);

#endif
