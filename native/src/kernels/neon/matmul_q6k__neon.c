#include "kernels/neon/matmul_tile.h"

// Four products of codes up to 63, or eight of weights down to -32, and inputs up to 127 stay below 2^15.
void gemv_q6k_q8g32_1x32__neon(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                               void* scratch) {
    gemv(FROM_Q6, 4, w, x, panel, out, scratch);
}

void gemm_q6k_q8g32_1x32__neon(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                               void* scratch) {
    gemm(FROM_Q6, 8, w, x, panel, out, scratch);
}
