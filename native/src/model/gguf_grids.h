// GGUF's types of one to three bits whose codes are points of grids (IQ1 to IQ3), and its ternary types (TQ1_0, TQ2_0).
//
// Files have them; models hold the same weights one by one, in LW_GRID3 (IQ1, IQ2), LW_GRID4 (IQ3) and LW_Q2_K (TQ).
#ifndef LW_MODEL_GGUF_GRIDS_H
#define LW_MODEL_GGUF_GRIDS_H

#include "kernels/format.h"

// Whether a type is one of these, which no matrix is held in.
bool lw_is_of_files(lw_type type);

// 0 if the type cannot hold so many inputs.
uint64_t lw_grid_row_bytes(lw_type type, uint32_t cols);

// The values that codes stand for, in eighths of scales; NULL for ternary types.
const int8_t* lw_grid_table(lw_type type);

// A row of blocks to an open row (coded.h) of the type it is held in, whose format is `f`.
void lw_open_grid_row(lw_type type, lw_format f, size_t cols, const uint8_t* row, uint8_t* open);

#endif
