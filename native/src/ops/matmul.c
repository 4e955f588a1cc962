#include "ops/matmul.h"

void lw_product_decoded(const lw_product* p, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    const size_t cols = p->weights->cols;
    float* weights = (float*)((uint8_t*)scratch + lw_matmul_scratch_bytes(x->rows));
    p->decode(p->weights, panel, weights, weights + cols * LW_PANEL);
    const lw_matrix alone = {.type = LW_F32,
                             .rows = (uint32_t)lw_panel_outputs(p->weights, panel),
                             .cols = (uint32_t)cols,
                             .panels = 1,
                             .groups = p->weights->groups,
                             .panel_bytes = cols * LW_PANEL * sizeof(float),
                             .data = (const uint8_t*)weights};
    p->kernel->run(&alone, x, 0, (lw_output){out.data + panel * LW_PANEL, out.stride, out.add}, scratch);
}

void lw_matmul_charge(const lw_matmul_worker* self, const lw_product* p, const lw_activations* x, lw_rows rows,
                      size_t panel) {
    if (self->profile == NULL) return;
    const size_t input_bytes =
        panel > 0 ? 0 : rows.n * x->cols * (lw_is_quantized(p->kernel->weights) ? 1 : sizeof(float));
    const size_t output_bytes = rows.n * LW_PANEL * sizeof(float) * (p->out.add ? 2 : 1);
    const size_t weight_bytes = rows.first == 0 ? p->weights->panel_bytes : 0;  // later pieces find them in a cache
    lw_profile_work(self->profile, self->operation, 1 + (size_t)(p->kernel - lw_kernels),
                    weight_bytes + input_bytes + output_bytes, rows.n * LW_PANEL * x->cols);
    for (size_t i = 0; i < p->n_addends; ++i) {
        const lw_addend* a = &p->addends[i];
        lw_profile_work(self->profile, self->operation, 1 + (size_t)(a->kernel - lw_kernels),
                        rows.first == 0 ? a->weights->panel_bytes : 0,
                        lw_common_rows(a, rows).n * LW_PANEL * a->weights->cols);
    }
}

// A piece has a multiple of TILE_ROWS rows, so that kernels make whole tiles or nearly so, and at least MIN_ROWS.
// Cutting is worth it if it saves 1 / MARGIN of the time.
enum { TILE_ROWS = 4, MIN_ROWS = 48, MARGIN = 32 };

static size_t divide_up(size_t n, size_t by) { return (n + by - 1) / by; }

// Number of rows of panels that the busiest thread computes.
static size_t most_rows(lw_cuts cuts, size_t panels, unsigned threads) {
    return divide_up(panels * cuts.n, threads) * (cuts.rows + LW_DECODING_ROWS);
}

lw_cuts lw_cut_rows(size_t rows, size_t panels, unsigned threads) {
    lw_cuts best = {1, rows};
    size_t least = most_rows(best, panels, threads);
    for (size_t n = 2; n <= LW_MAX_CUTS && n * MIN_ROWS <= rows; ++n) {
        const lw_cuts cuts = {n, divide_up(divide_up(rows, n), TILE_ROWS) * TILE_ROWS};
        const size_t most = most_rows(cuts, panels, threads);
        if ((n - 1) * cuts.rows + MIN_ROWS / 2 > rows || most + most / MARGIN >= least) continue;
        best = cuts;
        least = most;
    }
    return best;
}

size_t lw_count_panels(const lw_product* products, size_t n) {
    size_t total = 0;
    for (size_t i = 0; i < n; ++i) total += products[i].weights->panels;
    return total;
}

void lw_matmul(lw_taker items, lw_cuts cuts, const lw_product* products, const lw_activations* x,
               const lw_matmul_worker* self) {
    size_t begin, end;
    while (lw_take_share(&items, &begin, &end)) {
        size_t first = 0;  // number of the first item of product p
        for (const lw_product* p = products; first < end; first += p++->weights->panels * cuts.n) {
            const size_t of_p = p->weights->panels * cuts.n;
            const size_t from = begin > first ? begin - first : 0, to = end - first < of_p ? end - first : of_p;
            for (size_t item = from; item < to; ++item) {
                const lw_rows rows = lw_piece(cuts, x->rows, item % cuts.n);
                lw_product_panel(p, x, rows, item / cuts.n, p->out, self->scratch);
                lw_matmul_charge(self, p, x, rows, item / cuts.n);
            }
        }
    }
}
