#include "kernels/i8mm/matmul_decoded.h"

LW_MM_TILES(i8mm);

void gemv_q6k_q8g32_1x16__i8mm(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                               void* scratch) {
    gemv(FROM_Q6, w, x, panel, out, scratch);
}

void gemm_q6k_q8g32_12x4__i8mm(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                               void* scratch) {
    gemm(FROM_Q6, lw_mm_tiles, w, x, panel, out, scratch);
}
