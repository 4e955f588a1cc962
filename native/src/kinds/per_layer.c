// Per-layer inputs: each layer has an input of its own for every token (lw_model_config.per_layer_size).
#include <math.h>

#include "kinds/kind.h"
#include "kinds/streams.h"

static lw_status check_per_layer(const lw_model_config* model, uint32_t layer) {
    static const lw_place nowhere = {""};
    const uint32_t size = model->per_layer_size;
    const bool possible = model->norm == LW_NORM_RMS;
    LW_RETURN_IF_FAILED(lw_check_range(&nowhere, "per_layer_size", size, 0, possible ? 4096 : 0));
    LW_RETURN_IF_FAILED(
        lw_check_range(&nowhere, "per_layer_rows", model->per_layer_rows, 0, size > 0 ? model->vocab_size : 0));
    LW_RETURN_IF_FAILED(lw_check_range(&nowhere, "per_layer_projected", model->per_layer_projected, 0, size > 0));
    LW_RETURN_IF_FAILED(lw_check_range(&nowhere, "n_layers * per_layer_size", (uint64_t)model->n_layers * size, 0,
                                       size > 0 ? 1 << 24 : 0));
    const lw_ffn_config* f = &model->layers[layer].ffn;
    if (size > 0 && !model->layers[layer].mtp &&
        (f->kind == LW_FFN_NONE || f->activation == LW_CLAMPED || f->activation >= LW_XIELU))
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: layer %u: per_layer_size is %u, it must have an FFN without a clamped, capped or"
                       " xIELU activation",
                       layer, size);
    return LW_OK;
}

static lw_tensor_spec per_layer_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t size = l->mtp ? 0 : model->per_layer_size, hidden = model->hidden_size;
    switch (role) {
        case LW_PER_LAYER_GATE:
            return LW_MATRIX(per_layer_gate, "per-layer gate", size, hidden, size > 0);
        case LW_PER_LAYER_OUT:
            return LW_MATRIX(per_layer_out, "per-layer output", hidden, size, size > 0);
        case LW_PER_LAYER_RESULT_NORM:
            return LW_VECTOR(per_layer_result_norm, "norm of the per-layer result", hidden, size > 0);
        default:
            return (lw_tensor_spec){0};
    }
}

static bool has_per_layer(const lw_model_config* model, const lw_layer_config* layer) {
    return model->per_layer_size > 0 && !layer->mtp;
}

typedef struct per_layer_own {
    float* inputs;  // [rows][n_layers * per_layer_size]
} per_layer_own;

static float* inputs_of(const lw_worker* w) { return ((per_layer_own*)w->s->of_kind[LW_KIND_PER_LAYER])->inputs; }

static size_t all_inputs(const lw_model_config* c) {
    return (size_t)(c->n_layers - c->reader_layers) * c->per_layer_size;
}

static void widen_per_layer(lw_session* s, const lw_layer* layer, uint32_t index) {
    (void)layer;
    (void)index;
    lw_widen(&s->widths.inner, s->model->config.per_layer_size);
    lw_widen(&s->widths.input, s->model->config.per_layer_size);
    lw_widen(&s->widths.scratch, all_inputs(&s->model->config) * sizeof(float));
}

static void take_per_layer(lw_session* s, lw_parts* parts) {
    per_layer_own* own = s->of_kind[LW_KIND_PER_LAYER];
    own->inputs = lw_take(parts, s->config.max_batch_tokens * all_inputs(&s->model->config) * sizeof(float));
}

static uint32_t row_of(const lw_worker* w, uint32_t token) {
    return token < w->model->per_layer_embedding.rows ? token : 0;
}

// The inputs of all layers for one row, from the projection of its embedding and from the per-layer table if there is
// one.
static void finish_inputs(lw_worker* w, size_t row) {
    const size_t size = w->c->per_layer_size, all = all_inputs(w->c);
    const float before = 1.0f / sqrtf((float)w->c->hidden_size), of_table = sqrtf((float)size), both = sqrtf(0.5f);
    const float* table = w->c->per_layer_projected ? NULL : w->scratch;
    if (table != NULL) lw_unpack_row(&w->model->per_layer_embedding, row_of(w, w->b->token[row]), w->scratch);
    for (size_t at = 0; at < all; at += size) {
        float* inputs = inputs_of(w) + row * all + at;
        for (size_t i = 0; i < size; ++i) inputs[i] *= before;
        w->ops->rmsnorm(inputs, inputs, w->model->per_layer_norm, size, w->c->rms_norm_eps);
        for (size_t i = 0; table != NULL && i < size; ++i) inputs[i] = (inputs[i] + table[at + i] * of_table) * both;
    }
    lw_charge_row(w, LW_OP_EMBED, 3 * all, 0);
}

static void make_inputs(lw_worker* w) {
    const lw_norm none = {.scale = 1};
    const lw_matrix* projection = &w->model->per_layer_projection;
    const lw_activations x = lw_normalize(w, LW_OP_EMBED, none, lw_reads_codes(w, projection));
    const lw_product product = lw_product_at(w, projection, inputs_of(w), false);
    lw_multiply(w, LW_OP_EMBED, &product, 1, &x);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) finish_inputs(w, row);
    lw_end_phase(w, LW_OP_EMBED);
}

// activation(gate x) * inputs, written over the gate's product.
static lw_activations pass_inputs(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const size_t size = w->c->per_layer_size, all = all_inputs(w->c);
    const bool quantized = lw_reads_codes(w, &layer->per_layer_out);
    const lw_activations out = lw_activations_in(w, size, &w->b->ffn_codes, w->b->gate);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* gate = w->b->gate + row * size;
        w->ops->activate(gate, gate, inputs_of(w) + row * all + index * size, size, layer->config.ffn.activation);
        if (quantized) lw_quantize_segments(w, &out, row, 0, out.segments, gate);
        lw_charge_row(w, LW_OP_ACTIVATE, 3 * size, quantized ? size : 0);
    }
    lw_end_phase(w, LW_OP_ACTIVATE);
    return out;
}

static void add_layer_input(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const bool streams = w->c->n_streams > 0;
    const lw_norm none = {.scale = 1, .of = streams ? w->b->before : NULL};
    const lw_activations x = lw_normalize(w, LW_OP_FFN_NORM, none, lw_reads_codes(w, &layer->per_layer_gate));
    const lw_product product = lw_product_at(w, &layer->per_layer_gate, w->b->gate, false);
    lw_multiply(w, LW_OP_GATE_UP, &product, 1, &x);
    const lw_activations values = pass_inputs(w, layer, index);
    const float* norm = layer->per_layer_result_norm;
    if (streams)
        lw_add_to_streams(w, LW_OP_DOWN, &layer->per_layer_out, norm, &values);
    else
        lw_add_product(w, LW_OP_DOWN, &layer->per_layer_out, norm, &values, LW_ADAPTED_COUNT);
}

static void keep_inputs(lw_worker* w, const lw_layer* layer) {
    (void)layer;
    lw_keep_rows(inputs_of(w), all_inputs(w->c), w->step->batch);
}

const lw_kind lw_kind_per_layer = {.check = check_per_layer,
                                   .tensor = per_layer_tensor,
                                   .has = has_per_layer,
                                   .own_bytes = sizeof(per_layer_own),
                                   .widen = widen_per_layer,
                                   .take = take_per_layer,
                                   .begin = make_inputs,
                                   .keep = keep_inputs,
                                   .run = add_layer_input};
