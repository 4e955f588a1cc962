// What tensors a model has: for each role its destination and shape, as the kinds of its layers want them.
#include "model/model.h"

static lw_slot matrix(const char* name, lw_matrix* to, uint32_t rows, uint32_t cols, bool wanted) {
    return (lw_slot){name, to, NULL, rows, cols, wanted};
}

static lw_slot vector(const char* name, float** to, uint32_t size, bool wanted) {
    return (lw_slot){name, NULL, to, 1, size, wanted};
}

static lw_slot model_slot(lw_model* model, lw_role role) {
    const lw_model_config* c = &model->config;
    const uint32_t per_layer = c->n_layers * c->per_layer_size;
    switch (role) {
        case LW_TOKEN_EMBEDDING:
            return matrix("token embedding", &model->embedding, c->vocab_size, c->hidden_size, true);
        case LW_OUTPUT:
            return matrix("output", &model->output, c->vocab_size, c->hidden_size, !c->tied_embeddings && !c->pooled);
        case LW_OUTPUT_NORM:
            return vector("output norm", &model->output_norm, c->hidden_size, true);
        case LW_OUTPUT_NORM_BIAS:
            return vector("output norm bias", &model->output_norm_bias, c->hidden_size, c->norm_bias);
        case LW_OUTPUT_BIAS:
            return vector("output bias", &model->output_bias, c->vocab_size, c->output_bias);
        case LW_PER_LAYER_EMBEDDING:
            return matrix("per-layer embedding", &model->per_layer_embedding, c->vocab_size, per_layer, per_layer > 0);
        case LW_PER_LAYER_PROJECTION:
            return matrix("per-layer projection", &model->per_layer_projection, per_layer, c->hidden_size,
                          per_layer > 0);
        case LW_PER_LAYER_NORM:
            return vector("per-layer norm", &model->per_layer_norm, c->per_layer_size, per_layer > 0);
        case LW_POSITION_EMBEDDING:
            return matrix("position embedding", &model->position_embedding, c->n_positions, c->hidden_size,
                          c->n_positions > 0);
        case LW_TOKEN_TYPE_EMBEDDING:
            return matrix("token type embedding", &model->token_type_embedding, c->n_token_types, c->hidden_size,
                          c->n_token_types > 0);
        default:
            return (lw_slot){0};
    }
}

static bool has_mixer(const lw_layer* l) { return lw_has_attention(l) || lw_has_state(l); }

static bool has_ffn(const lw_layer* l) { return l->config.ffn.kind != LW_FFN_NONE; }

static bool has_mixer_norm(const lw_layer* l) { return has_mixer(l) && !l->config.no_input_norms; }

static bool has_ffn_norm(const lw_layer* l) {
    return has_ffn(l) && !l->config.no_input_norms && l->config.wiring != LW_PARALLEL_ONE_NORM;
}

static lw_slot norm_bias_slot(lw_layer* l, uint32_t hidden, lw_role role, bool wanted) {
    switch (role) {
        case LW_ATTN_NORM_BIAS:
            return vector("attention norm bias", &l->attn_norm_bias, hidden, wanted && has_mixer_norm(l));
        case LW_FFN_NORM_BIAS:
            return vector("FFN norm bias", &l->ffn_norm_bias, hidden, wanted && has_ffn_norm(l));
        default:
            return (lw_slot){0};
    }
}

static lw_slot result_norm_slot(lw_layer* l, uint32_t hidden, lw_role role) {
    switch (role) {
        case LW_ATTN_RESULT_NORM:
            return vector("norm of attention's result", &l->attn_result_norm, hidden,
                          l->config.result_norms && has_mixer(l));
        case LW_FFN_RESULT_NORM:
            return vector("norm of the FFN's result", &l->ffn_result_norm, hidden,
                          l->config.result_norms && has_ffn(l));
        default:
            return (lw_slot){0};
    }
}

static lw_slot per_layer_slot(lw_layer* l, const lw_model_config* c, lw_role role) {
    const uint32_t size = c->per_layer_size;
    switch (role) {
        case LW_PER_LAYER_GATE:
            return matrix("per-layer gate", &l->per_layer_gate, size, c->hidden_size, size > 0);
        case LW_PER_LAYER_OUT:
            return matrix("per-layer output", &l->per_layer_out, c->hidden_size, size, size > 0);
        case LW_PER_LAYER_RESULT_NORM:
            return vector("norm of the per-layer result", &l->per_layer_result_norm, c->hidden_size, size > 0);
        default:
            return (lw_slot){0};
    }
}

static lw_slot mtp_slot(lw_layer* l, uint32_t hidden, lw_role role) {
    const bool here = l->config.mtp;
    switch (role) {
        case LW_MTP_EMBEDDING_NORM:
            return vector("prediction head's norm of embeddings", &l->mtp_embedding_norm, hidden, here);
        case LW_MTP_HIDDEN_NORM:
            return vector("prediction head's norm of hidden rows", &l->mtp_hidden_norm, hidden, here);
        case LW_MTP_PROJECTION:
            return matrix("prediction head's projection", &l->mtp_projection, hidden, 2 * hidden, here);
        case LW_MTP_NORM:
            return vector("prediction head's output norm", &l->mtp_norm, hidden, here);
        default:
            return (lw_slot){0};
    }
}

uint32_t lw_dense_inputs(const lw_model* model, uint32_t index) {
    return index == 0 ? model->config.hidden_size : model->dense[index - 1].config.outputs;
}

static lw_slot dense_slot(lw_model* model, lw_role role, uint32_t index) {
    lw_dense* d = &model->dense[index];
    const uint32_t outputs = d->config.outputs;
    switch (role) {
        case LW_DENSE:
            return matrix("dense head", &d->matrix, outputs, lw_dense_inputs(model, index), true);
        case LW_DENSE_BIAS:
            return vector("dense head bias", &d->bias, outputs, d->config.bias);
        case LW_DENSE_NORM:
            return vector("dense head norm", &d->norm, outputs, d->config.norm);
        case LW_DENSE_NORM_BIAS:
            return vector("dense head norm bias", &d->norm_bias, outputs, d->config.norm && model->config.norm_bias);
        default:
            return (lw_slot){0};
    }
}

static lw_slot attention_slot(lw_layer* l, uint32_t hidden, lw_role role) {
    const lw_attention_config* c = &l->config.attention;
    const uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    const bool whole = c->qk_norm == LW_QK_NORM_WHOLE || c->qk_norm == LW_QK_NORM_LAYER,
               norm = c->qk_norm != LW_QK_NORM_NONE;
    const bool here = lw_has_attention(l), latent = c->latent_rank > 0, own = here && !c->shares_kv && !latent,
               values = own && !c->values_are_keys;
    const uint32_t outputs = c->n_heads * lw_output_dim(c);
    switch (role) {
        case LW_ATTN_NORM:
            return vector("attention norm", &l->attn_norm, hidden, has_mixer_norm(l));
        case LW_ATTN_Q:
            return matrix("attention Q", &l->q, q, c->query_rank > 0 ? c->query_rank : hidden, here);
        case LW_ATTN_K:
            return matrix("attention K", &l->k, kv, hidden, own);
        case LW_ATTN_V:
            return matrix("attention V", &l->v, kv, hidden, values);
        case LW_ATTN_GATE:
            return matrix("attention gate", &l->attn_gate, c->output_gate == 2 ? c->n_heads : q, hidden,
                          c->output_gate > 0);
        case LW_ATTN_Q_BIAS:
            return vector("attention Q bias", &l->q_bias, q, c->qkv_bias);
        case LW_ATTN_K_BIAS:
            return vector("attention K bias", &l->k_bias, kv, own && c->qkv_bias);
        case LW_ATTN_V_BIAS:
            return vector("attention V bias", &l->v_bias, kv, values && c->qkv_bias);
        case LW_ATTN_Q_NORM:
            return vector("attention Q norm", &l->q_norm, whole ? q : c->head_dim, norm);
        case LW_ATTN_K_NORM:
            return vector("attention K norm", &l->k_norm, whole ? kv : c->head_dim, own && norm);
        case LW_ATTN_OUTPUT:
            return matrix("attention output", &l->attn_output, hidden, outputs, here);
        case LW_ATTN_OUTPUT_BIAS:
            return vector("attention output bias", &l->attn_output_bias, hidden, c->output_bias);
        case LW_ATTN_SINKS:
            return vector("attention sinks", &l->sinks, c->n_heads, c->sinks);
        case LW_ATTN_INPUT_ORDER:
            return vector("order of Q, K and V", &l->attn_input_order, hidden, here && !latent && !lw_has_state(l));
        case LW_ATTN_OUTPUT_ORDER:
            return vector("order of attention output", &l->attn_output_order, outputs, here);
        default:
            return (lw_slot){0};
    }
}

static lw_slot latent_slot(lw_layer* l, uint32_t hidden, lw_role role) {
    const lw_attention_config* c = &l->config.attention;
    const uint32_t rank = c->latent_rank, query = c->query_rank;
    const bool here = rank > 0;
    switch (role) {
        case LW_LATENT_QUERY:
            return matrix("latent query", &l->latent_query, query, hidden, here && query > 0);
        case LW_LATENT_QUERY_NORM:
            return vector("norm of the latent query", &l->latent_query_norm, query, here && query > 0);
        case LW_LATENT_DOWN:
            return matrix("latent down", &l->latent_down, rank + c->rope_dim, hidden, here);
        case LW_LATENT_NORM:
            return vector("latent norm", &l->latent_norm, rank, here);
        case LW_LATENT_KEYS:
            return matrix("latent keys", &l->latent_keys, c->n_heads * rank, c->head_dim - c->rope_dim, here);
        case LW_LATENT_VALUES:
            return matrix("latent values", &l->latent_values, c->n_heads * c->value_dim, rank, here);
        default:
            return (lw_slot){0};
    }
}

static lw_slot state_slot(lw_layer* l, uint32_t hidden, lw_role role) {
    const lw_state_config* c = &l->config.state;
    const bool here = c->kind != LW_NO_STATE, heads = here && c->kind != LW_SHORT_CONV, ssd = c->kind == LW_SSD;
    const uint32_t channels = lw_state_channels(c, hidden), inner = lw_state_inner(c, hidden);
    switch (role) {
        case LW_STATE_IN:
            return matrix("state input", &l->state_in, c->kind == LW_SHORT_CONV ? 3 * channels : channels, hidden,
                          here);
        case LW_STATE_GATE:
            return matrix("state gate", &l->state_gate, inner, hidden, heads);
        case LW_STATE_DECAY:
            return matrix("state decay", &l->state_decay, c->n_heads, hidden, heads);
        case LW_STATE_BETA:
            return matrix("state beta", &l->state_beta, c->n_heads, hidden, c->kind == LW_GATED_DELTA);
        case LW_STATE_CONV:
            return vector("state convolution", &l->state_conv, channels * c->taps, here);
        case LW_STATE_CONV_BIAS:
            return vector("state convolution bias", &l->state_conv_bias, channels, c->conv_bias);
        case LW_STATE_DECAY_BIAS:
            return vector("state decay bias", &l->state_decay_bias, c->n_heads, heads);
        case LW_STATE_RATE:
            return vector("state rate", &l->state_rate, c->n_heads, heads);
        case LW_STATE_SKIP:
            return vector("state skip", &l->state_skip, c->n_heads, ssd);
        case LW_STATE_NORM:
            return vector("state norm", &l->state_norm, ssd ? inner : c->value_dim,
                          c->kind == LW_GATED_DELTA || (ssd && c->norm_size > 0));
        case LW_STATE_OUT:
            return matrix("state output", &l->state_out, hidden, inner, here);
        default:
            return (lw_slot){0};
    }
}

static lw_slot gated_slot(lw_layer* l, uint32_t hidden, lw_role role) {
    const lw_ffn_config* c = &l->config.ffn;
    const bool gated = c->kind == LW_FFN_GATED, here = gated || c->kind == LW_FFN_PLAIN, bias = here && c->bias;
    const bool down_bias = bias || (has_ffn(l) && c->down_bias);
    switch (role) {
        case LW_FFN_NORM:
            return vector("FFN norm", &l->ffn_norm, hidden, has_ffn_norm(l));
        case LW_FFN_GATE:
            return matrix("FFN gate", &l->gate, c->size, hidden, gated);
        case LW_FFN_UP:
            return matrix("FFN up", &l->up, c->size, hidden, here);
        case LW_FFN_DOWN:
            return matrix("FFN down", &l->down, hidden, c->size, here);
        case LW_FFN_GATE_BIAS:
            return vector("FFN gate bias", &l->gate_bias, c->size, gated && bias);
        case LW_FFN_UP_BIAS:
            return vector("FFN up bias", &l->up_bias, c->size, bias);
        case LW_FFN_DOWN_BIAS:
            return vector("FFN down bias", &l->down_bias, hidden, down_bias);
        case LW_FFN_INPUT_ORDER:
            return vector("order of gate and up", &l->ffn_input_order, hidden, here);
        default:
            return (lw_slot){0};
    }
}

static lw_slot experts_slot(lw_layer* l, uint32_t hidden, lw_role role) {
    const lw_ffn_config* c = &l->config.ffn;
    const bool here = c->kind == LW_FFN_EXPERTS, bias = here && c->bias, shared = here && c->shared_size > 0;
    const bool gated = here && !c->ungated;
    const uint32_t n = c->n_experts;
    switch (role) {
        case LW_ROUTER:
            return matrix("router", &l->router, n, hidden, here);
        case LW_ROUTER_BIAS:
            return vector("router bias", &l->router_bias, n, here && c->router_bias);
        case LW_ROUTER_CHOICE_BIAS:
            return vector("router choice bias", &l->choice_bias, n, here && c->choice_bias);
        case LW_EXPERTS_GATE:
            return matrix("experts' gate", &l->experts_gate, n * c->size, hidden, gated);
        case LW_EXPERTS_UP:
            return matrix("experts' up", &l->experts_up, n * c->size, hidden, here);
        case LW_EXPERTS_DOWN:
            return matrix("experts' down", &l->experts_down, n * hidden, c->size, here);
        case LW_EXPERTS_GATE_BIAS:
            return vector("experts' gate bias", &l->gate_bias, n * c->size, bias && gated);
        case LW_EXPERTS_UP_BIAS:
            return vector("experts' up bias", &l->up_bias, n * c->size, bias);
        case LW_EXPERTS_DOWN_BIAS:
            return vector("experts' down bias", &l->down_bias, n * hidden, bias);
        case LW_SHARED_GATE:
            return matrix("shared gate", &l->gate, c->shared_size, hidden, shared && gated);
        case LW_SHARED_UP:
            return matrix("shared up", &l->up, c->shared_size, hidden, shared);
        case LW_SHARED_DOWN:
            return matrix("shared down", &l->down, hidden, c->shared_size, shared);
        case LW_SHARED_ROUTER:
            return vector("shared router", &l->shared_router, hidden, shared && c->shared_gate);
        default:
            return (lw_slot){0};
    }
}

static lw_slot experts_norm_slot(lw_layer* l, uint32_t hidden, lw_role role) {
    const bool here = l->config.ffn.own_norms;
    switch (role) {
        case LW_ROUTER_NORM:
            return vector("router norm", &l->router_norm, hidden, here);
        case LW_EXPERTS_NORM:
            return vector("experts' norm", &l->experts_norm, hidden, here);
        case LW_SHARED_RESULT_NORM:
            return vector("norm of the shared expert's result", &l->shared_result_norm, hidden, here);
        case LW_EXPERTS_RESULT_NORM:
            return vector("norm of the experts' result", &l->experts_result_norm, hidden, here);
        case LW_ROUTER_SCALES:
            return vector("router scales", &l->router_scales, l->config.ffn.n_experts, here);
        default:
            return (lw_slot){0};
    }
}

bool lw_is_of_dense(lw_role role) { return role >= LW_DENSE && role <= LW_DENSE_NORM_BIAS; }

lw_slot lw_model_slot(lw_model* model, lw_role role, uint32_t index) {
    if (lw_is_of_dense(role)) return dense_slot(model, role, index);
    const uint32_t hidden = model->config.hidden_size;
    lw_layer* layer = &model->layers[index];
    lw_slot slot = model_slot(model, role);
    if (slot.name == NULL) slot = attention_slot(layer, hidden, role);
    if (slot.name == NULL) slot = latent_slot(layer, hidden, role);
    if (slot.name == NULL) slot = state_slot(layer, hidden, role);
    if (slot.name == NULL) slot = gated_slot(layer, hidden, role);
    if (slot.name == NULL) slot = experts_slot(layer, hidden, role);
    if (slot.name == NULL) slot = norm_bias_slot(layer, hidden, role, model->config.norm_bias);
    if (slot.name == NULL) slot = result_norm_slot(layer, hidden, role);
    if (slot.name == NULL) slot = experts_norm_slot(layer, hidden, role);
    if (slot.name == NULL) slot = per_layer_slot(layer, &model->config, role);
    if (slot.name == NULL) slot = mtp_slot(layer, hidden, role);
    return slot;
}

bool lw_is_of_layers(lw_role role) {
    return (role >= LW_ATTN_NORM && role < LW_OUTPUT_NORM_BIAS) ||
           (role >= LW_ATTN_RESULT_NORM && role < LW_OUTPUT_BIAS) || (role >= LW_PER_LAYER_GATE && role <= LW_MTP_NORM);
}

uint32_t lw_role_layers(const lw_model* model, lw_role role) {
    if (lw_is_of_dense(role)) return model->config.n_dense;
    return lw_is_of_layers(role) ? model->config.n_layers : 1;
}
