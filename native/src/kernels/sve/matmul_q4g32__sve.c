#include "cpu.h"
#include "kernels/i8mm/matmul_decoded.h"

LW_MM_TILES(sve);
extern void gemv_q4__sve(const lw_mm_rows* t);

void gemv_q4g32_q8g32_1x32__sve(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                void* scratch) {
    // Vectors of other lengths have no loop of their own.
    if (lw_cpu_vector_bits() != 256 && lw_cpu_vector_bits() != 512) {
        gemv(FROM_Q4, w, x, panel, out, scratch);
        return;
    }
    const workspace work = workspace_of(scratch, 1);
    rows_by_panel(gemv_q4__sve, w, x, panel, &work);
    lw_store_panel(w, panel, 1, work.results, out);
}

void gemm_q4g32_q8g32_12xv__sve(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                void* scratch) {
    gemm_decoded(FROM_Q4, lw_mm_tiles, w, x, panel, out, scratch);
}
