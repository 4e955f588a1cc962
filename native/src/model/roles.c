#include "model/model.h"

// Shapes by role. A slot without destination is a role this model does not have.
lw_slot lw_model_slot(lw_model* model, lw_role role, uint32_t index) {
    const lw_model_config* c = &model->config;
    const uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    lw_layer* l = &model->layers[index];
    const bool bias = c->qkv_bias, norm = c->qk_norm;
    switch (role) {
        case LW_TOKEN_EMBEDDING:
            return (lw_slot){"token embedding", &model->embedding, NULL, c->vocab_size, c->hidden_size, true};
        case LW_OUTPUT:
            return (lw_slot){"output", &model->output, NULL, c->vocab_size, c->hidden_size, !c->tied_embeddings};
        case LW_OUTPUT_NORM:
            return (lw_slot){"output norm", NULL, &model->output_norm, 1, c->hidden_size, true};
        case LW_ATTN_NORM:
            return (lw_slot){"attention norm", NULL, &l->attn_norm, 1, c->hidden_size, true};
        case LW_ATTN_Q:
            return (lw_slot){"attention Q", &l->q, NULL, q, c->hidden_size, true};
        case LW_ATTN_K:
            return (lw_slot){"attention K", &l->k, NULL, kv, c->hidden_size, true};
        case LW_ATTN_V:
            return (lw_slot){"attention V", &l->v, NULL, kv, c->hidden_size, true};
        case LW_ATTN_Q_BIAS:
            return (lw_slot){"attention Q bias", NULL, &l->q_bias, 1, q, bias};
        case LW_ATTN_K_BIAS:
            return (lw_slot){"attention K bias", NULL, &l->k_bias, 1, kv, bias};
        case LW_ATTN_V_BIAS:
            return (lw_slot){"attention V bias", NULL, &l->v_bias, 1, kv, bias};
        case LW_ATTN_Q_NORM:
            return (lw_slot){"attention Q norm", NULL, &l->q_norm, 1, c->head_dim, norm};
        case LW_ATTN_K_NORM:
            return (lw_slot){"attention K norm", NULL, &l->k_norm, 1, c->head_dim, norm};
        case LW_ATTN_OUTPUT:
            return (lw_slot){"attention output", &l->attn_output, NULL, c->hidden_size, q, true};
        case LW_FFN_NORM:
            return (lw_slot){"FFN norm", NULL, &l->ffn_norm, 1, c->hidden_size, true};
        case LW_FFN_GATE:
            return (lw_slot){"FFN gate", &l->gate, NULL, c->ffn_size, c->hidden_size, true};
        case LW_FFN_UP:
            return (lw_slot){"FFN up", &l->up, NULL, c->ffn_size, c->hidden_size, true};
        case LW_FFN_DOWN:
            return (lw_slot){"FFN down", &l->down, NULL, c->hidden_size, c->ffn_size, true};
        case LW_ATTN_INPUT_ORDER:
            return (lw_slot){"order of Q, K and V", NULL, &l->attn_input_order, 1, c->hidden_size, true};
        case LW_ATTN_OUTPUT_ORDER:
            return (lw_slot){"order of attention output", NULL, &l->attn_output_order, 1, q, true};
        case LW_FFN_INPUT_ORDER:
            return (lw_slot){"order of gate and up", NULL, &l->ffn_input_order, 1, c->hidden_size, true};
        case LW_ROLE_COUNT:
            break;
    }
    return (lw_slot){0};
}
