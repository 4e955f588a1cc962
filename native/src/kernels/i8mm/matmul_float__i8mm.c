// One row of F16, which FMLAL widens.
#include "kernels/neon/float_row.h"

void gemv_f16_f32_1x32__i8mm(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    gemv(F16, w, x, panel, out, scratch);
}
