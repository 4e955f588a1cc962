#include "kernels/i8mm/matmul_decoded.h"

LW_MM_TILES(sve);

void gemm_q6k_q8g32_12xv__sve(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    gemm_decoded(FROM_Q6, lw_mm_tiles, w, x, panel, out, scratch);
}
