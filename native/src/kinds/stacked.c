#include "kinds/stacked.h"

// All rows of one part, as the input of the part's matrix.
static lw_activations inputs_of(const lw_worker* w, const lw_stacked* m, size_t part) {
    const size_t place = part * lw_round_up(w->rows, lw_level_layouts[w->model->level].row_block);
    lw_activations x = lw_activations_at(w, w->rows, m->inputs, m->codes, place, m->from + part * m->from_step);
    x.f32_stride = m->from_stride;
    return x;
}

void lw_quantize_stacked(lw_worker* w, const lw_stacked* m, size_t row, size_t first, size_t n) {
    if (!lw_reads_codes(w, m->matrices)) return;
    for (size_t part = first; part < first + n; ++part) {
        const lw_activations x = inputs_of(w, m, part);
        lw_quantize_segments(w, &x, row, 0, x.segments, x.f32 + row * x.f32_stride);
    }
}

// The panels of all parts. Large batches are cut into pieces of rows.
void lw_multiply_stacked(lw_worker* w, lw_operation operation, const lw_stacked* m) {
    const size_t of_part = m->outputs / LW_PANEL, panels = m->matrices->rows / LW_PANEL;
    const lw_product p = lw_product_of_rows(w, m->matrices, w->rows, m->to, false);
    const lw_matmul_worker self = {w->scratch, w->profile, operation};
    const lw_cuts cuts = lw_cut_rows(w->rows, panels, w->s->threads);
    lw_taker items = lw_this_phase(w, panels * cuts.n);
    size_t begin, end;
    while (lw_take_share(&items, &begin, &end))
        for (size_t item = begin; item < end; ++item) {
            const size_t panel = item / cuts.n, part = panel / of_part;
            const lw_activations x = inputs_of(w, m, part);
            const lw_rows rows = lw_piece(cuts, w->rows, item % cuts.n);
            // Kernels add panel number * LW_PANEL to the row's address. Here panels of earlier parts are subtracted.
            float* to = m->to + part * m->to_step - part * m->outputs;
            lw_product_panel(&p, &x, rows, panel, (lw_output){to, m->to_stride, false}, w->scratch);
            lw_matmul_charge(&self, &p, &x, rows, panel % of_part);
        }
    lw_count_products(w, 1, w->rows);
    lw_end_phase(w, operation);
}
