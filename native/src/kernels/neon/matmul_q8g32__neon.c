#include "kernels/neon/matmul_tile.h"

// Two products of -128 and -127 stay below 2^15. Nothing is decoded, so any number of rows uses the same loop.
void matmul_q8g32_q8g32_1x32__neon(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                   void* scratch) {
    gemv(FROM_Q8, 2, w, x, panel, out, scratch);
}
