// GGUF's block formats as open rows (model/coded.h).
#ifndef LW_MODEL_GGUF_BLOCKS_H
#define LW_MODEL_GGUF_BLOCKS_H

#include "kernels/format.h"

// Inputs and bytes of one block of a coded GGUF type; 0 for other types.
size_t lw_gguf_block_inputs(lw_type type);
size_t lw_gguf_block_bytes(lw_type type);

// Converts a row of blocks to an open row.
void lw_open_gguf_row(lw_type type, lw_format f, size_t cols, const uint8_t* row, uint8_t* open);

#endif
