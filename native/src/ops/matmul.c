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

void lw_matmul_charge(const lw_matmul_worker* self, const lw_product* p, const lw_activations* x, size_t begin,
                      size_t end) {
    if (self->profile == NULL) return;
    const uint64_t panels = end - begin, outputs = panels * LW_PANEL;
    const size_t input_bytes =
        begin > 0 ? 0 : x->rows * x->cols * (lw_is_quantized(p->kernel->weights) ? 1 : sizeof(float));
    const uint64_t output_bytes = x->rows * outputs * sizeof(float) * (p->out.add ? 2 : 1);
    lw_profile_work(self->profile, self->operation, 1 + (size_t)(p->kernel - lw_kernels),
                    panels * p->weights->panel_bytes + input_bytes + output_bytes, x->rows * outputs * x->cols);
    for (size_t i = 0; i < p->n_addends; ++i) {
        const lw_addend* a = &p->addends[i];
        lw_profile_work(self->profile, self->operation, 1 + (size_t)(a->kernel - lw_kernels),
                        panels * a->weights->panel_bytes, a->rows * outputs * a->weights->cols);
    }
}

size_t lw_count_panels(const lw_product* products, size_t n) {
    size_t total = 0;
    for (size_t i = 0; i < n; ++i) total += products[i].weights->panels;
    return total;
}

void lw_matmul(lw_taker panels, const lw_product* products, const lw_activations* x, const lw_matmul_worker* self) {
    size_t begin, end;
    while (lw_take_share(&panels, &begin, &end)) {
        size_t first = 0;  // panel of `products` together at which p starts
        for (const lw_product* p = products; first < end; first += p++->weights->panels) {
            const size_t of_p = p->weights->panels;
            const size_t from = begin > first ? begin - first : 0, to = end - first < of_p ? end - first : of_p;
            for (size_t panel = from; panel < to; ++panel) lw_product_panel(p, x, panel, p->out, self->scratch);
            if (from < to) lw_matmul_charge(self, p, x, from, to);
        }
    }
}
