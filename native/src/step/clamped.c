// Layers of towers whose matrices clamp what they read and what they make (lw_layer_config.clamps). Matrices that read
// the same rows clamp them in ways of their own, so each product has its inputs and their codes to itself.
#include "kinds/attend.h"
#include "step/run.h"

enum { OF_Q, OF_K, OF_V, OF_OUTPUT, OF_GATE, OF_UP, OF_DOWN };

// A phase: what the matrix reads.
static lw_activations clamp_inputs(lw_worker* w, lw_operation operation, const lw_matrix* matrix, const float* values,
                                   const float* clamps) {
    const size_t n = matrix->cols;
    float* clamped = w->s->seeing.clamped;
    const lw_activations out = lw_activations_in(w, n, &w->b->codes, clamped);
    const bool quantized = lw_reads_codes(w, matrix);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* to = clamped + row * n;
        w->ops->clamp(to, values + row * n, n, clamps[0], clamps[1]);
        if (quantized) lw_quantize_segments(w, &out, row, 0, out.segments, to);
        lw_charge_row(w, operation, 2 * n, quantized ? n : 0);
    }
    lw_end_phase(w, operation);
    return out;
}

static void multiply(lw_worker* w, lw_operation operation, const lw_layer* layer, const lw_matrix* matrix, int which,
                     const float* values, float* out) {
    const float* clamps = layer->clamps + 4 * which;
    const size_t n = matrix->rows;
    const lw_activations x = clamp_inputs(w, operation, matrix, values, clamps);
    const lw_product product = lw_product_at(w, matrix, out, false);
    lw_multiply(w, operation, &product, 1, &x);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        w->ops->clamp(out + row * n, out + row * n, n, clamps[2], clamps[3]);
        lw_charge_row(w, operation, 2 * n, 0);
    }
    lw_end_phase(w, operation);
}

// A phase: x += norm(rows of b->norm).
static void add_result(lw_worker* w, lw_operation operation, const float* norm) {
    const size_t n = w->c->hidden_size;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* result = w->b->norm + row * n;
        lw_normalize_result(w, result, norm);
        lw_add_vector(w->b->x + row * n, result, n);
        lw_charge_row(w, operation, 3 * n, 0);
    }
    lw_end_phase(w, operation);
}

void lw_multiply_clamped_inputs(lw_worker* w, const lw_layer* layer) {
    const lw_attention_own* own = lw_attention_of(w->s);
    const lw_activations x = lw_normalize(w, LW_OP_ATTN_NORM, lw_norm_before_mixer(layer, NULL), false);
    multiply(w, LW_OP_QKV, layer, &layer->q, OF_Q, x.f32, own->q);
    multiply(w, LW_OP_QKV, layer, &layer->k, OF_K, x.f32, own->k);
    multiply(w, LW_OP_QKV, layer, &layer->v, OF_V, x.f32, own->v);
}

// A phase: gate = activation(gate) * up.
static void activate(lw_worker* w, const lw_layer* layer) {
    const size_t n = layer->config.ffn.size;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* gate = w->b->gate + row * n;
        w->ops->activate(gate, gate, w->b->up + row * n, n, layer->config.ffn.activation);
        lw_charge_row(w, LW_OP_GATE_UP, 3 * n, 0);
    }
    lw_end_phase(w, LW_OP_GATE_UP);
}

void lw_run_clamped(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_attention_own* own = lw_attention_of(w->s);
    lw_attend(w, index, (lw_attended){own->q, own->attn, NULL});
    multiply(w, LW_OP_ATTN_OUTPUT, layer, &layer->attn_output, OF_OUTPUT, own->attn, w->b->norm);
    add_result(w, LW_OP_ATTN_OUTPUT, layer->attn_result_norm);
    const lw_activations x = lw_normalize(w, LW_OP_FFN_NORM, lw_norm_before_ffn(w, layer, NULL), false);
    multiply(w, LW_OP_GATE_UP, layer, &layer->gate, OF_GATE, x.f32, w->b->gate);
    multiply(w, LW_OP_GATE_UP, layer, &layer->up, OF_UP, x.f32, w->b->up);
    activate(w, layer);
    multiply(w, LW_OP_DOWN, layer, &layer->down, OF_DOWN, w->b->gate, w->b->norm);
    add_result(w, LW_OP_DOWN, layer->ffn_result_norm);
}
