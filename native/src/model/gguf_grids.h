// GGUF's types of one to three bits whose codes are points of grids (IQ1 to IQ3), its ternary types (TQ1_0, TQ2_0), and
// those of one and two bits with a scale for 128 and 64 inputs (Q1_0, Q2_0).
//
// A model holds the same weights with a code for each weight: in LW_GRID3 (IQ1, IQ2), LW_GRID4 (IQ3), LW_Q2_K
// (TQ), LW_Q2_G128 (Q1_0) or LW_Q2_G64 (Q2_0).
#ifndef LW_MODEL_GGUF_GRIDS_H
#define LW_MODEL_GGUF_GRIDS_H

#include "kernels/format.h"

// True if only files have this type and no model holds a matrix in it.
bool lw_is_of_files(lw_type type);

// Bytes of a row; 0 if the type cannot hold `cols` inputs.
uint64_t lw_grid_row_bytes(lw_type type, uint32_t cols);

// The levels of the codes, in eighths of the scale; NULL for types without a grid.
const int8_t* lw_grid_table(lw_type type);

// Converts a row of blocks to an open row (coded.h) of format `f`, the format of the type that a model holds it in.
void lw_open_grid_row(lw_type type, lw_format f, size_t cols, const uint8_t* row, uint8_t* open);

#endif
