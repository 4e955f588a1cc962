// Rows of coded types (kernels/formats.inc): from files into panels, and back.
//
// In between a row is *open*: one byte for each code, then scales, minimums, selectors and super scales in the layout
// of a stored row (quantizer/FORMAT.md, "Coded types"). GGUF blocks and our own stored rows both become open rows.
#ifndef LW_MODEL_CODED_H
#define LW_MODEL_CODED_H

#include "kernels/format.h"

size_t lw_open_row_bytes(lw_format f, size_t cols);

// Bytes of a row in a file: blocks for GGUF types, else a stored row. 0 if the type cannot hold `cols` inputs.
uint64_t lw_coded_row_bytes(lw_type type, lw_format f, uint32_t cols);

// Converts a row of a file to an open row.
void lw_open_row(lw_type type, lw_format f, size_t cols, const uint8_t* row, uint8_t* open);

// Converts an open row to a stored row.
void lw_store_open_row(lw_format f, size_t cols, const uint8_t* open, uint8_t* row);

// True if all scales are finite and row scales have few enough bits for exact products.
bool lw_open_row_is_valid(lw_format f, size_t cols, const uint8_t* open);

// Writes an open row of zeros.
void lw_open_zero_row(lw_format f, size_t cols, uint8_t* open);

// Writes one output to a panel that is zero there; and reads it back, bit for bit.
void lw_put_open_row(const lw_matrix* w, lw_format f, uint8_t* panel, size_t output, const uint8_t* open);
void lw_take_open_row(const lw_matrix* w, lw_format f, const uint8_t* panel, size_t output, uint8_t* open);

// Decodes the weights of one output.
void lw_decode_output(const lw_matrix* w, lw_format f, const uint8_t* panel, size_t output, float* out);

// The table of a type with a fixed table, else NULL.
const int8_t* lw_fixed_table(lw_type type);

#endif
