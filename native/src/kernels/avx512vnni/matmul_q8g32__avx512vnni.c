#include "kernels/avx512vnni/types.h"

void gemm_q8g32_q8g32_7x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                       void* scratch) {
    gemm(Q8, false, 0, w, x, panel, out, scratch);
}

void gemm_q8g32_q8g32_8x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                       void* scratch) {
    gemm(Q8, true, FEW_TILE_ROWS, w, x, panel, out, scratch);
}

void gemv_q8g32_q8g32_1x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                       void* scratch) {
    gemv(Q8, w, x, panel, out, scratch);
}
