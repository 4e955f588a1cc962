// Values of its own that each layer has of a token (per_layer_size).
#include "kinds/kind.h"

static lw_status check_per_layer(const lw_model_config* model, uint32_t layer) {
    static const lw_place nowhere = {""};
    const uint32_t size = model->per_layer_size;
    const bool possible = !model->pooled && model->norm == LW_NORM_RMS;
    LW_RETURN_IF_FAILED(lw_check_range(&nowhere, "per_layer_size", size, 0, possible ? 4096 : 0));
    LW_RETURN_IF_FAILED(lw_check_range(&nowhere, "n_layers * per_layer_size", (uint64_t)model->n_layers * size, 0,
                                       size > 0 ? 1 << 24 : 0));
    const lw_ffn_config* f = &model->layers[layer].ffn;
    if (size > 0 && (f->kind == LW_FFN_NONE || f->activation == LW_CLAMPED || f->activation == LW_XIELU))
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: layer %u: per_layer_size is %u, it must have an FFN without a clamped or xIELU"
                       " activation",
                       layer, size);
    return LW_OK;
}

static lw_tensor_spec per_layer_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t size = model->per_layer_size, hidden = model->hidden_size;
    (void)l;
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

const lw_kind lw_kind_per_layer = {check_per_layer, per_layer_tensor};
