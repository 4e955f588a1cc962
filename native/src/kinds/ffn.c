// FFNs without experts, gated and plain.
#include "kinds/kind.h"

// Of a layer without an FFN, in the place of check_ffn.
static lw_status check_nothing_else(const lw_place* at, const lw_model_config* model, uint32_t layer) {
    const lw_layer_config* c = &model->layers[layer];
    if (c->attention.n_heads == 0 && c->state.kind == LW_NO_STATE)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %skind is %d, and the layer has neither attention nor a state",
                       at->text, (int)c->ffn.kind);
    lw_ffn_config rest = c->ffn;
    rest.kind = LW_FFN_GATED;  // which is 0
    return lw_check_absent(at, "FFN", &rest, sizeof rest);
}

static lw_status check_ffn(const lw_model_config* model, uint32_t layer) {
    const lw_ffn_config* c = &model->layers[layer].ffn;
    const lw_place at = lw_place_of_layer(layer, " FFN");
    LW_RETURN_IF_FAILED(lw_check_range(&at, "kind", (uint64_t)c->kind, 0, LW_FFN_NONE));
    if (c->kind == LW_FFN_NONE) return check_nothing_else(&at, model, layer);
    LW_RETURN_IF_FAILED(lw_check_range(&at, "size", c->size, 1, 1 << 19));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "bias", c->bias));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "down_bias", c->down_bias, 0, c->kind != LW_FFN_EXPERTS || !c->bias));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "own_norms", c->own_norms, 0, c->kind == LW_FFN_EXPERTS));
    const bool of_dense = c->activation == LW_TANH || c->activation == LW_IDENTITY;
    const lw_activation last = c->kind == LW_FFN_EXPERTS ? LW_RELU_SQUARED : LW_XIELU;
    LW_RETURN_IF_FAILED(lw_check_range(&at, "activation", (uint64_t)c->activation, 0, of_dense ? LW_RELU : last));
    if (c->activation == LW_CLAMPED) {
        if (c->kind == LW_FFN_PLAIN || c->ungated)
            return lw_fail(LW_ERR_ARGUMENT, "model config: %sactivation is %d, which needs a gate", at.text,
                           (int)c->activation);
        LW_RETURN_IF_FAILED(lw_check_number(&at, "limit", (double)c->limit, 1e-3, 1e6));
        LW_RETURN_IF_FAILED(lw_check_number(&at, "alpha", (double)c->alpha, 1e-3, 1e3));
    }
    if (c->activation == LW_XIELU) {
        LW_RETURN_IF_FAILED(lw_check_number(&at, "limit", (double)c->limit, 1e-6, 1e6));
        LW_RETURN_IF_FAILED(lw_check_number(&at, "alpha", (double)c->alpha, 1e-6, 1e6));
    }
    return c->kind == LW_FFN_EXPERTS ? LW_OK : lw_check_range(&at, "n_experts", c->n_experts, 0, 0);
}

static lw_tensor_spec gated_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t hidden = model->hidden_size;
    const lw_ffn_config* c = &l->ffn;
    const bool gated = c->kind == LW_FFN_GATED, here = gated || c->kind == LW_FFN_PLAIN, bias = here && c->bias;
    const bool down_bias = bias || (lw_has_ffn(l) && c->down_bias);
    switch (role) {
        case LW_FFN_GATE:
            return LW_MATRIX(gate, "FFN gate", c->size, hidden, gated);
        case LW_FFN_UP:
            return LW_MATRIX(up, "FFN up", c->size, hidden, here);
        case LW_FFN_DOWN:
            return LW_MATRIX(down, "FFN down", hidden, c->size, here);
        case LW_FFN_GATE_BIAS:
            return LW_VECTOR(gate_bias, "FFN gate bias", c->size, gated && bias);
        case LW_FFN_UP_BIAS:
            return LW_VECTOR(up_bias, "FFN up bias", c->size, bias);
        case LW_FFN_DOWN_BIAS:
            return LW_VECTOR(down_bias, "FFN down bias", hidden, down_bias);
        case LW_FFN_INPUT_ORDER:
            return LW_VECTOR(ffn_input_order, "order of gate and up", hidden, here);
        default:
            return (lw_tensor_spec){0};
    }
}

const lw_kind lw_kind_ffn = {check_ffn, gated_tensor};
