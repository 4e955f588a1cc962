// One row of bfloat16: loads widen the weights, which leaves the vector pipes to the products. F16 weights whose values
// a bfloat16 holds become bfloat16 when they are loaded (model/pack.c).
#include "kernels/fetch.h"
#include "kernels/kernel.h"
#include "kernels/sve/rows_float.h"

void gemv_bf16_f32_1x32__sve(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    const lw_float_row t = {.weights = w->data + panel * w->panel_bytes,
                            .x = x->f32,
                            .cols = x->cols,
                            .results = scratch,
                            .fetch_ahead = lw_cpu_fetch_distance()};
    gemv_bf16__sve(&t);
    lw_store_panel(w, panel, 1, scratch, out);
}
