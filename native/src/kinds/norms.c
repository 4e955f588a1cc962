// Norms of a layer's parts, and how the parts' results are added to x.
#include "kinds/kind.h"

static lw_status check_norms(const lw_model_config* model, uint32_t layer) {
    const lw_layer_config* c = &model->layers[layer];
    const lw_place at = lw_place_of_layer(layer, " FFN");
    LW_RETURN_IF_FAILED(lw_check_range(&at, "attn_norm_replaces", c->attn_norm_replaces, 0, lw_mixes(c)));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "ffn_norm_replaces", c->ffn_norm_replaces, 0, c->ffn.kind != LW_FFN_NONE));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "result_norms", c->result_norms));
    const bool clamped = model->patches.side > 0 && c->result_norms && c->ffn.kind == LW_FFN_GATED;
    const bool plain = !c->attention.qkv_bias && !c->ffn.bias && !c->attention.output_gate && !c->no_input_norms;
    LW_RETURN_IF_FAILED(lw_check_range(&at, "clamps", c->clamps, 0, clamped && plain));
    const bool usual = c->attention.n_heads > 0 && c->attention.latent_rank == 0 && c->state.kind == LW_NO_STATE;
    const bool coded = usual && (c->ffn.kind == LW_FFN_GATED || c->ffn.kind == LW_FFN_PLAIN);
    const bool alone = !model->pooled && model->per_layer_size == 0 && model->n_streams == 0 && !c->mtp &&
                       !c->attn_norm_replaces && !c->ffn_norm_replaces;
    LW_RETURN_IF_FAILED(lw_check_range(&at, "row_codes", c->row_codes, 0, coded && alone));
    if (c->result_norms && c->attention.n_heads > 0 && c->state.kind != LW_NO_STATE)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %sresult_norms is 1, must be 0 with attention beside a state",
                       at.text);
    LW_RETURN_IF_FAILED(lw_check_range(&at, "no_input_norms", c->no_input_norms, 0, c->result_norms));
    const bool replaces = c->attn_norm_replaces || c->ffn_norm_replaces;
    const bool beside = c->attention.n_heads > 0 && c->ffn.kind != LW_FFN_NONE && !replaces;
    LW_RETURN_IF_FAILED(
        lw_check_range(&at, "wiring", (uint64_t)c->wiring, 0, beside ? LW_PARALLEL_ONE_NORM : LW_IN_TURN));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "output_scale", (double)c->output_scale, 0, 1e6));
    if (c->no_input_norms && replaces)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %sno_input_norms is 1, must be 0 where a norm replaces x",
                       at.text);
    const bool biases = c->attention.output_bias || c->ffn.bias || c->ffn.down_bias || model->norm_bias;
    if (c->ffn.own_norms && (!c->result_norms || c->wiring != LW_IN_TURN || c->ffn_norm_replaces || c->no_input_norms))
        return lw_fail(
            LW_ERR_ARGUMENT,
            "model config: %sown_norms is 1, must be 0 without result_norms, beside attention, and where norms"
            " replace or are missing",
            at.text);
    if (c->result_norms && (biases || (c->ffn.kind == LW_FFN_EXPERTS && !c->ffn.own_norms)))
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %sresult_norms is 1, must be 0 with experts, biases of results or norms",
                       at.text);
    return LW_OK;
}

static lw_tensor_spec norms_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t hidden = model->hidden_size;
    const bool mixer = lw_mixes(l), ffn = lw_has_ffn(l), inputs = !l->no_input_norms;
    const bool attn_norm = mixer && inputs && !lw_reads_pairs(l);
    const bool ffn_norm = ffn && inputs && l->wiring != LW_PARALLEL_ONE_NORM;
    switch (role) {
        case LW_ATTN_NORM:
            return LW_VECTOR(attn_norm, "attention norm", hidden, attn_norm);
        case LW_ATTN_NORM_BIAS:
            return LW_VECTOR(attn_norm_bias, "attention norm bias", hidden, model->norm_bias && attn_norm);
        case LW_ATTN_RESULT_NORM:
            return LW_VECTOR(attn_result_norm, "norm of attention's result", hidden, l->result_norms && mixer);
        case LW_FFN_NORM:
            return LW_VECTOR(ffn_norm, "FFN norm", hidden, ffn_norm);
        case LW_FFN_NORM_BIAS:
            return LW_VECTOR(ffn_norm_bias, "FFN norm bias", hidden, model->norm_bias && ffn_norm);
        case LW_FFN_RESULT_NORM:
            return LW_VECTOR(ffn_result_norm, "norm of the FFN's result", hidden, l->result_norms && ffn);
        case LW_CLAMPS:
            return LW_VECTOR(clamps, "clamps", 4 * LW_CLAMPED_MATRICES, l->clamps);
        default:
            return (lw_tensor_spec){0};
    }
}

const lw_kind lw_kind_norms = {.check = check_norms, .tensor = norms_tensor};
