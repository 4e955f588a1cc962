// Inputs that each layer has for itself of every token (lw_model_config.per_layer_size).
#include <math.h>

#include "graph/worker.h"

// The inputs of all layers of one row, from what the projection made of it.
static void finish_inputs(lw_worker* w, size_t row) {
    const size_t size = w->c->per_layer_size, all = size * w->c->n_layers;
    const float before = 1.0f / sqrtf((float)w->c->hidden_size), of_table = sqrtf((float)size), both = sqrtf(0.5f);
    const float* table = w->scratch;
    lw_unpack_row(&w->model->per_layer_embedding, w->b->token[row], w->scratch);
    for (size_t at = 0; at < all; at += size) {
        float* inputs = w->b->layer_inputs + row * all + at;
        for (size_t i = 0; i < size; ++i) inputs[i] *= before;
        w->ops->rmsnorm(inputs, inputs, w->model->per_layer_norm, size, w->c->rms_norm_eps);
        for (size_t i = 0; i < size; ++i) inputs[i] = (inputs[i] + table[at + i] * of_table) * both;
    }
    lw_charge_row(w, LW_OP_EMBED, 3 * all, 0);
}

void lw_make_layer_inputs(lw_worker* w) {
    const lw_norm none = {NULL, NULL, NULL, 1, false, NULL};
    const lw_matrix* projection = &w->model->per_layer_projection;
    const lw_activations x = lw_normalize(w, LW_OP_EMBED, none, lw_reads_codes(w, projection));
    const lw_product product = lw_product_at(w, projection, w->b->layer_inputs, false);
    lw_multiply(w, LW_OP_EMBED, &product, 1, &x);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) finish_inputs(w, row);
    lw_end_phase(w, LW_OP_EMBED);
}

// activation(gate x) * inputs, in the place of the gate's product.
static lw_activations pass_inputs(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const size_t size = w->c->per_layer_size, all = size * w->c->n_layers;
    const bool quantized = lw_reads_codes(w, &layer->per_layer_out);
    const lw_activations out = lw_activations_in(w, size, &w->b->ffn_codes, w->b->gate);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* gate = w->b->gate + row * size;
        w->ops->activate(gate, gate, w->b->layer_inputs + row * all + index * size, size, layer->config.ffn.activation);
        if (quantized) lw_quantize_segments(w, &out, row, 0, out.segments, gate);
        lw_charge_row(w, LW_OP_ACTIVATE, 3 * size, quantized ? size : 0);
    }
    lw_end_phase(w, LW_OP_ACTIVATE);
    return out;
}

void lw_add_layer_input(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_norm none = {NULL, NULL, NULL, 1, false, NULL};
    const lw_activations x = lw_normalize(w, LW_OP_FFN_NORM, none, lw_reads_codes(w, &layer->per_layer_gate));
    const lw_product product = lw_product_at(w, &layer->per_layer_gate, w->b->gate, false);
    lw_multiply(w, LW_OP_GATE_UP, &product, 1, &x);
    const lw_activations values = pass_inputs(w, layer, index);
    lw_add_product(w, LW_OP_DOWN, &layer->per_layer_out, layer->per_layer_result_norm, &values, LW_ADAPTED_COUNT);
}
