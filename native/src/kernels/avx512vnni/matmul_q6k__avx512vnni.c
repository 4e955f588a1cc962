#include "kernels/avx512vnni/types.h"

void gemm_q6k_q8g32_7x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                     void* scratch) {
    gemm(Q6, x->rows <= FEW_ROWS, PACKED_TILE_ROWS, w, x, panel, out, scratch);
}

void gemv_q6k_q8g32_1x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                     void* scratch) {
    gemv(Q6, w, x, panel, out, scratch);
}
