// Float rows to Q4_0 and Q8_0 blocks (GGUF's layout and rounding), used when loading quantizes.
#ifndef LW_MODEL_QUANTIZE_H
#define LW_MODEL_QUANTIZE_H

#include <stddef.h>
#include <stdint.h>

enum { LW_Q4_BLOCK_BYTES = 18, LW_Q8_BLOCK_BYTES = 34, LW_Q6_BLOCK_BYTES = 210, LW_Q6_BLOCK = 256 };

// Quantizes x[32] to one block: f16 scale, then 16 bytes of nibbles (element j low, j + 16 high). Returns 0 if the
// scale overflows f16 or a value is not finite.
_Bool lw_quantize_q4_block(const float* x, uint8_t* block);
// Quantizes x[32] to one block: f16 scale, then 32 int8.
_Bool lw_quantize_q8_block(const float* x, uint8_t* block);

#endif
