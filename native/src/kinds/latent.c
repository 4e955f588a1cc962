// Latent attention (MLA).
#include "kinds/kind.h"

static lw_status check_latent(const lw_model_config* model, uint32_t layer) {
    const lw_attention_config* c = &model->layers[layer].attention;
    const lw_place at = lw_place_of_layer(layer, "");
    LW_RETURN_IF_FAILED(lw_check_range(&at, "latent_rank", c->latent_rank, 0, model->pooled ? 0 : 1024));
    const bool latent = c->latent_rank > 0;
    LW_RETURN_IF_FAILED(lw_check_range(&at, "rope_dim", c->rope_dim, latent ? 2 : 0, latent ? c->head_dim - 1 : 0));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "value_dim", c->value_dim, latent ? LW_PANEL : 0, latent ? 1024 : 0));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "query_rank", c->query_rank, 0, latent ? 1 << 16 : 0));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "latent_eps", (double)c->latent_eps, 0, latent ? 1 : 0));
    if (!latent) return LW_OK;
    LW_RETURN_IF_FAILED(lw_check_multiple(&at, "latent_rank", c->latent_rank, LW_PANEL));
    LW_RETURN_IF_FAILED(lw_check_multiple(&at, "value_dim", c->value_dim, LW_PANEL));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "n_kv_heads", c->n_kv_heads, 1, 1));
    if (c->qkv_bias || c->qk_norm != LW_QK_NORM_NONE || c->output_gate || c->alibi || c->values_are_keys ||
        c->value_norm || c->qkv_clip != 0 || c->shares_kv)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %slatent_rank is %u, with which qkv_bias, qk_norm, output_gate, alibi,"
                       " values_are_keys, value_norm, qkv_clip and shares_kv must be 0",
                       at.text, c->latent_rank);
    if (c->rope == LW_NO_ROPE || model->ropes[c->rope].rotated != c->rope_dim)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %srope_dim is %u, which its rope must turn all of", at.text,
                       c->rope_dim);
    return LW_OK;
}

static lw_tensor_spec latent_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t hidden = model->hidden_size;
    const lw_attention_config* c = &l->attention;
    const uint32_t rank = c->latent_rank, query = c->query_rank;
    const bool here = rank > 0;
    switch (role) {
        case LW_LATENT_QUERY:
            return LW_MATRIX(latent_query, "latent query", query, hidden, here && query > 0);
        case LW_LATENT_QUERY_NORM:
            return LW_VECTOR(latent_query_norm, "norm of the latent query", query, here && query > 0);
        case LW_LATENT_DOWN:
            return LW_MATRIX(latent_down, "latent down", rank + c->rope_dim, hidden, here);
        case LW_LATENT_NORM:
            return LW_VECTOR(latent_norm, "latent norm", rank, here);
        case LW_LATENT_KEYS:
            return LW_MATRIX(latent_keys, "latent keys", c->n_heads * rank, c->head_dim - c->rope_dim, here);
        case LW_LATENT_VALUES:
            return LW_MATRIX(latent_values, "latent values", c->n_heads * c->value_dim, rank, here);
        default:
            return (lw_tensor_spec){0};
    }
}

const lw_kind lw_kind_latent = {check_latent, latent_tensor};
