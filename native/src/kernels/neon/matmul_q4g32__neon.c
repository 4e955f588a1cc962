#include "kernels/neon/matmul_tile.h"

// 16 products of codes up to 15 and inputs up to 127 stay below 2^15.
void gemv_q4g32_q8g32_1x32__neon(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                 void* scratch) {
    gemv(FROM_Q4, 16, w, x, panel, out, scratch);
}

void gemm_q4g32_q8g32_1x32__neon(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                 void* scratch) {
    gemm(FROM_Q4, 16, w, x, panel, out, scratch);
}
