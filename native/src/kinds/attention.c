// Attention over keys and values of each head.
#include "kinds/kind.h"

// Layers that read the keys and values of an earlier one.
static lw_status check_shared_kv(const lw_place* at, const lw_model_config* model, uint32_t layer) {
    const lw_attention_config* c = &model->layers[layer].attention;
    LW_RETURN_IF_FAILED(lw_check_range(at, "shares_kv", c->shares_kv, 0, layer > 0 && !model->pooled));
    LW_RETURN_IF_FAILED(lw_check_range(at, "kv_layer", c->kv_layer, 0, c->shares_kv ? layer - 1 : 0));
    if (!c->shares_kv) return LW_OK;
    const lw_attention_config* of = &model->layers[c->kv_layer].attention;
    if (of->n_heads == 0 || of->shares_kv || of->n_kv_heads != c->n_kv_heads || of->head_dim != c->head_dim ||
        of->window != c->window || of->latent_rank > 0)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %skv_layer is %u, which must have keys and values of its own, %u KV heads of %u"
                       " and a window of %u",
                       at->text, c->kv_layer, c->n_kv_heads, c->head_dim, c->window);
    if (c->values_are_keys || c->value_norm)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %svalues_are_keys and value_norm must be 0 where shares_kv is 1",
                       at->text);
    return LW_OK;
}

static lw_status check_turned(const lw_place* at, const lw_model_config* model, const lw_attention_config* c) {
    if (c->rope == LW_NO_ROPE) return LW_OK;
    if (c->rope < 0 || (uint32_t)c->rope >= model->n_ropes)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %srope is %d, there are %u", at->text, c->rope, model->n_ropes);
    return lw_check_range(at, "rotated dimensions", model->ropes[c->rope].rotated, 2, c->head_dim);
}

// Slopes of all layers are those of the first layer that has attention.
static lw_status check_slopes(const lw_place* at, const lw_model_config* model, const lw_attention_config* c) {
    const lw_layer_config* first = model->layers;
    while (first->attention.n_heads == 0) ++first;
    const lw_attention_config* f = &first->attention;
    if (c->n_heads != f->n_heads)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %salibi with %u heads, must be %u as in the first layer that has attention",
                       at->text, c->n_heads, f->n_heads);
    if (c->alibi != f->alibi || c->score_scale != f->score_scale)
        return lw_fail(
            LW_ERR_ARGUMENT,
            "model config: %salibi is %u and score_scale %g, must be %u and %g as in the first layer that has"
            " attention",
            at->text, c->alibi, (double)c->score_scale, f->alibi, (double)f->score_scale);
    return LW_OK;
}

static lw_status check_attention(const lw_model_config* model, uint32_t layer) {
    const lw_attention_config* c = &model->layers[layer].attention;
    const lw_place at = lw_place_of_layer(layer, "");
    if (c->n_heads == 0) return lw_check_absent(&at, "attention", c, sizeof *c);
    LW_RETURN_IF_FAILED(lw_check_range(&at, "n_heads", c->n_heads, 1, 1024));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "n_kv_heads", c->n_kv_heads, 1, c->n_heads));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "head_dim", c->head_dim, 2, LW_MAX_HEAD_DIM));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "qk_norm", (uint64_t)c->qk_norm, 0, LW_QK_NORM_LAYER));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "qkv_bias", c->qkv_bias));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "output_bias", c->output_bias));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "output_gate", c->output_gate, 0, 2));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "sinks", c->sinks));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "alibi", c->alibi, 0, 2));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "both_ways", c->both_ways, 0, model->pooled));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "score_scale", (double)c->score_scale, 0, 1e3));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "score_softcap", (double)c->score_softcap, 0, 1e6));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "values_are_keys", c->values_are_keys));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "value_norm", c->value_norm));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "qkv_clip", (double)c->qkv_clip, 0, 1e30));
    LW_RETURN_IF_FAILED(check_shared_kv(&at, model, layer));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "position_beta", (double)c->position_beta, 0, 1e3));
    if (c->position_beta > 0)
        LW_RETURN_IF_FAILED(lw_check_range(&at, "position_original", c->position_original, 1, 1 << 28));
    if (c->head_dim % 2 != 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %shead_dim is %u, must be even", at.text, c->head_dim);
    if (c->n_heads % c->n_kv_heads != 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %s%u heads cannot share %u KV heads evenly", at.text, c->n_heads,
                       c->n_kv_heads);
    if (c->alibi) LW_RETURN_IF_FAILED(check_slopes(&at, model, c));
    return check_turned(&at, model, c);
}

static lw_tensor_spec attention_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t hidden = model->hidden_size;
    const lw_attention_config* c = &l->attention;
    const uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    const bool whole = c->qk_norm == LW_QK_NORM_WHOLE || c->qk_norm == LW_QK_NORM_LAYER,
               norm = c->qk_norm != LW_QK_NORM_NONE;
    const bool here = l->attention.n_heads > 0, latent = c->latent_rank > 0, own = here && !c->shares_kv && !latent,
               values = own && !c->values_are_keys;
    const uint32_t outputs = c->n_heads * lw_output_dim(c);
    switch (role) {
        case LW_ATTN_Q:
            return LW_MATRIX(q, "attention Q", q, c->query_rank > 0 ? c->query_rank : hidden, here);
        case LW_ATTN_K:
            return LW_MATRIX(k, "attention K", kv, hidden, own);
        case LW_ATTN_V:
            return LW_MATRIX(v, "attention V", kv, hidden, values);
        case LW_ATTN_GATE:
            return LW_MATRIX(attn_gate, "attention gate", c->output_gate == 2 ? c->n_heads : q, hidden,
                             c->output_gate > 0);
        case LW_ATTN_Q_BIAS:
            return LW_VECTOR(q_bias, "attention Q bias", q, c->qkv_bias);
        case LW_ATTN_K_BIAS:
            return LW_VECTOR(k_bias, "attention K bias", kv, own && c->qkv_bias);
        case LW_ATTN_V_BIAS:
            return LW_VECTOR(v_bias, "attention V bias", kv, values && c->qkv_bias);
        case LW_ATTN_Q_NORM:
            return LW_VECTOR(q_norm, "attention Q norm", whole ? q : c->head_dim, norm);
        case LW_ATTN_K_NORM:
            return LW_VECTOR(k_norm, "attention K norm", whole ? kv : c->head_dim, own && norm);
        case LW_ATTN_OUTPUT:
            return LW_MATRIX(attn_output, "attention output", hidden, outputs, here);
        case LW_ATTN_OUTPUT_BIAS:
            return LW_VECTOR(attn_output_bias, "attention output bias", hidden, c->output_bias);
        case LW_ATTN_SINKS:
            return LW_VECTOR(sinks, "attention sinks", c->n_heads, c->sinks);
        case LW_ATTN_INPUT_ORDER:
            return LW_VECTOR(attn_input_order, "order of Q, K and V", hidden,
                             here && !latent && l->state.kind == LW_NO_STATE);
        case LW_ATTN_OUTPUT_ORDER:
            return LW_VECTOR(attn_output_order, "order of attention output", outputs, here);
        default:
            return (lw_tensor_spec){0};
    }
}

const lw_kind lw_kind_attention = {check_attention, attention_tensor};
