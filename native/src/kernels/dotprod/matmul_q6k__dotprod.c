#include "kernels/dotprod/matmul_decoded.h"

void gemv_q6k_q8g32_1x32__dotprod(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                  void* scratch) {
    gemv(FROM_Q6, w, x, panel, out, scratch);
}

void gemm_q6k_q8g32_8x4__dotprod(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                 void* scratch) {
    gemm(FROM_Q6, w, x, panel, out, scratch);
}
