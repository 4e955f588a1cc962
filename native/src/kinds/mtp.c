// A layer that predicts further tokens.
#include "kinds/kind.h"

static lw_status check_mtp(const lw_model_config* c, uint32_t layer) {
    const lw_layer_config* l = &c->layers[layer];
    const lw_place at = lw_place_of_layer(layer, "");
    LW_RETURN_IF_FAILED(lw_check_range(&at, "mtp", l->mtp, 0, layer > 0 && layer + 1 == c->n_layers && !c->pooled));
    if (!l->mtp) return LW_OK;
    const bool plain = !l->attn_norm_replaces && !l->ffn_norm_replaces && !l->result_norms && l->wiring == LW_IN_TURN;
    const lw_attention_config* a = &l->attention;
    if (!plain || l->state.kind != LW_NO_STATE || l->ffn.kind == LW_FFN_NONE || c->per_layer_size > 0 ||
        c->norm != LW_NORM_RMS)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %smtp is 1, must be 0 but with an FFN, parts in turn, RMS norms before them only,"
                       " and without a state or a per_layer_size",
                       at.text);
    if (a->n_heads == 0 || a->window > 0 || a->shares_kv || a->values_are_keys)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %smtp is 1, must be 0 but with attention to all tokens, of keys and values of its"
                       " own",
                       at.text);
    return LW_OK;
}

static lw_tensor_spec mtp_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t hidden = model->hidden_size;
    const bool here = l->mtp;
    switch (role) {
        case LW_MTP_EMBEDDING_NORM:
            return LW_VECTOR(mtp_embedding_norm, "prediction head's norm of embeddings", hidden, here);
        case LW_MTP_HIDDEN_NORM:
            return LW_VECTOR(mtp_hidden_norm, "prediction head's norm of hidden rows", hidden, here);
        case LW_MTP_PROJECTION:
            return LW_MATRIX(mtp_projection, "prediction head's projection", hidden, 2 * hidden, here);
        case LW_MTP_NORM:
            return LW_VECTOR(mtp_norm, "prediction head's output norm", hidden, here);
        default:
            return (lw_tensor_spec){0};
    }
}

const lw_kind lw_kind_mtp = {check_mtp, mtp_tensor};
