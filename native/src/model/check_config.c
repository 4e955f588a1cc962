#include "model/check_config.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "model/model.h"
#include "status.h"

// A place of the config, for messages: "layer 3 attention: ".
typedef struct place {
    char text[40];
} place;

static lw_status check_range(const place* at, const char* field, uint64_t value, uint64_t least, uint64_t most) {
    if (value >= least && value <= most) return LW_OK;
    return lw_fail(LW_ERR_ARGUMENT, "model config: %s%s is %llu, must be %llu to %llu", at->text, field,
                   (unsigned long long)value, (unsigned long long)least, (unsigned long long)most);
}

static lw_status check_flag(const place* at, const char* field, uint32_t value) {
    return check_range(at, field, value, 0, 1);
}

static lw_status check_number(const place* at, const char* field, double value, double least, double most) {
    if (value >= least && value <= most) return LW_OK;
    return lw_fail(LW_ERR_ARGUMENT, "model config: %s%s is %g, must be %g to %g", at->text, field, value, least, most);
}

static const float least_rope_factor = 1e-6f;  // angles of all positions stay exact integers and a rest in f64

static lw_status check_rope(const lw_rope* rope, uint32_t index) {
    place at;
    snprintf(at.text, sizeof at.text, "rope %u: ", index);
    LW_RETURN_IF_FAILED(check_range(&at, "rotated", rope->rotated, 2, LW_MAX_HEAD_DIM));
    if (rope->rotated % 2 != 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %srotated is %u, must be even", at.text, rope->rotated);
    LW_RETURN_IF_FAILED(check_number(&at, "theta", rope->theta, 1, 1e15));
    LW_RETURN_IF_FAILED(check_number(&at, "scale", (double)rope->scale, 1e-3, 1e3));
    for (uint32_t i = 0; rope->factors != NULL && i < rope->rotated / 2; ++i)
        if (!(rope->factors[i] >= least_rope_factor))
            return lw_fail(LW_ERR_ARGUMENT, "model config: %sfactors[%u] is %g, must be 1e-6 or more", at.text, i,
                           (double)rope->factors[i]);
    return LW_OK;
}

// Layers that read the keys and values of an earlier one.
static lw_status check_shared_kv(const place* at, const lw_model_config* model, uint32_t layer) {
    const lw_attention_config* c = &model->layers[layer].attention;
    LW_RETURN_IF_FAILED(check_range(at, "shares_kv", c->shares_kv, 0, layer > 0 && !model->pooled));
    LW_RETURN_IF_FAILED(check_range(at, "kv_layer", c->kv_layer, 0, c->shares_kv ? layer - 1 : 0));
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

static lw_status check_multiple(const place* at, const char* field, uint32_t value, uint32_t of) {
    if (value % of == 0) return LW_OK;
    return lw_fail(LW_ERR_ARGUMENT, "model config: %s%s is %u, must be a multiple of %u", at->text, field, value, of);
}

static lw_status check_latent(const place* at, const lw_model_config* model, const lw_attention_config* c) {
    LW_RETURN_IF_FAILED(check_range(at, "latent_rank", c->latent_rank, 0, model->pooled ? 0 : 1024));
    const bool latent = c->latent_rank > 0;
    LW_RETURN_IF_FAILED(check_range(at, "rope_dim", c->rope_dim, latent ? 2 : 0, latent ? c->head_dim - 1 : 0));
    LW_RETURN_IF_FAILED(check_range(at, "value_dim", c->value_dim, latent ? LW_PANEL : 0, latent ? 1024 : 0));
    LW_RETURN_IF_FAILED(check_range(at, "query_rank", c->query_rank, 0, latent ? 1 << 16 : 0));
    LW_RETURN_IF_FAILED(check_number(at, "latent_eps", (double)c->latent_eps, 0, latent ? 1 : 0));
    if (!latent) return LW_OK;
    LW_RETURN_IF_FAILED(check_multiple(at, "latent_rank", c->latent_rank, LW_PANEL));
    LW_RETURN_IF_FAILED(check_multiple(at, "value_dim", c->value_dim, LW_PANEL));
    LW_RETURN_IF_FAILED(check_range(at, "n_kv_heads", c->n_kv_heads, 1, 1));
    if (c->qkv_bias || c->qk_norm != LW_QK_NORM_NONE || c->output_gate || c->alibi || c->values_are_keys ||
        c->value_norm || c->qkv_clip != 0 || c->shares_kv)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %slatent_rank is %u, with which qkv_bias, qk_norm, output_gate, alibi,"
                       " values_are_keys, value_norm, qkv_clip and shares_kv must be 0",
                       at->text, c->latent_rank);
    if (c->rope == LW_NO_ROPE || model->ropes[c->rope].rotated != c->rope_dim)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %srope_dim is %u, which its rope must turn all of", at->text,
                       c->rope_dim);
    return LW_OK;
}

static lw_status check_turned(const place* at, const lw_model_config* model, const lw_attention_config* c) {
    if (c->rope == LW_NO_ROPE) return LW_OK;
    if (c->rope < 0 || (uint32_t)c->rope >= model->n_ropes)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %srope is %d, there are %u", at->text, c->rope, model->n_ropes);
    return check_range(at, "rotated dimensions", model->ropes[c->rope].rotated, 2, c->head_dim);
}

static lw_status check_attention(const lw_model_config* model, uint32_t layer, const lw_attention_config* first) {
    const lw_attention_config* c = &model->layers[layer].attention;
    place at;
    snprintf(at.text, sizeof at.text, "layer %u: ", layer);
    LW_RETURN_IF_FAILED(check_range(&at, "n_heads", c->n_heads, 1, 1024));
    LW_RETURN_IF_FAILED(check_range(&at, "n_kv_heads", c->n_kv_heads, 1, c->n_heads));
    LW_RETURN_IF_FAILED(check_range(&at, "head_dim", c->head_dim, 2, LW_MAX_HEAD_DIM));
    LW_RETURN_IF_FAILED(check_range(&at, "qk_norm", (uint64_t)c->qk_norm, 0, LW_QK_NORM_LAYER));
    LW_RETURN_IF_FAILED(check_flag(&at, "qkv_bias", c->qkv_bias));
    LW_RETURN_IF_FAILED(check_flag(&at, "output_bias", c->output_bias));
    LW_RETURN_IF_FAILED(check_range(&at, "output_gate", c->output_gate, 0, 2));
    LW_RETURN_IF_FAILED(check_flag(&at, "sinks", c->sinks));
    LW_RETURN_IF_FAILED(check_range(&at, "alibi", c->alibi, 0, 2));
    LW_RETURN_IF_FAILED(check_range(&at, "both_ways", c->both_ways, 0, model->pooled));
    LW_RETURN_IF_FAILED(check_number(&at, "score_scale", (double)c->score_scale, 0, 1e3));
    LW_RETURN_IF_FAILED(check_number(&at, "score_softcap", (double)c->score_softcap, 0, 1e6));
    LW_RETURN_IF_FAILED(check_flag(&at, "values_are_keys", c->values_are_keys));
    LW_RETURN_IF_FAILED(check_flag(&at, "value_norm", c->value_norm));
    LW_RETURN_IF_FAILED(check_number(&at, "qkv_clip", (double)c->qkv_clip, 0, 1e30));
    LW_RETURN_IF_FAILED(check_shared_kv(&at, model, layer));
    LW_RETURN_IF_FAILED(check_number(&at, "position_beta", (double)c->position_beta, 0, 1e3));
    if (c->position_beta > 0)
        LW_RETURN_IF_FAILED(check_range(&at, "position_original", c->position_original, 1, 1 << 28));
    if (c->head_dim % 2 != 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %shead_dim is %u, must be even", at.text, c->head_dim);
    if (c->n_heads % c->n_kv_heads != 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %s%u heads cannot share %u KV heads evenly", at.text, c->n_heads,
                       c->n_kv_heads);
    if (c->alibi && c->n_heads != first->n_heads)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %salibi with %u heads, must be %u as in the first layer that has attention",
                       at.text, c->n_heads, first->n_heads);
    LW_RETURN_IF_FAILED(check_latent(&at, model, c));
    if (c->alibi && (c->alibi != first->alibi || c->score_scale != first->score_scale))
        return lw_fail(
            LW_ERR_ARGUMENT,
            "model config: %salibi is %u and score_scale %g, must be %u and %g as in the first layer that has"
            " attention",
            at.text, c->alibi, (double)c->score_scale, first->alibi, (double)first->score_scale);
    return check_turned(&at, model, c);
}

// Of what a layer does not have, each of `bytes` bytes.
static lw_status check_absent(const place* at, const char* what, const void* config, size_t bytes) {
    const unsigned char* byte = config;
    size_t i = 0;
    while (i < bytes && byte[i] == 0) ++i;
    if (i == bytes) return LW_OK;
    return lw_fail(LW_ERR_ARGUMENT, "model config: %sthere is no %s, all of its config must be 0", at->text, what);
}

static lw_status check_no_attention(const lw_model_config* model, uint32_t layer) {
    place at;
    snprintf(at.text, sizeof at.text, "layer %u: ", layer);
    const lw_attention_config* c = &model->layers[layer].attention;
    return check_absent(&at, "attention", c, sizeof *c);
}

// Of a head's state, one side.
static lw_status check_side(const place* at, const char* field, uint32_t size) {
    LW_RETURN_IF_FAILED(check_range(at, field, size, 16, 256));
    if (size % 16 == 0) return LW_OK;
    return lw_fail(LW_ERR_ARGUMENT, "model config: %s%s is %u, must be a multiple of 16", at->text, field, size);
}

static lw_status check_state_heads(const place* at, const lw_state_config* c) {
    LW_RETURN_IF_FAILED(check_range(at, "n_heads", c->n_heads, 1, 1024));
    LW_RETURN_IF_FAILED(check_range(at, "n_key_heads", c->n_key_heads, 1, c->n_heads));
    LW_RETURN_IF_FAILED(check_side(at, "value_dim", c->value_dim));
    LW_RETURN_IF_FAILED(check_side(at, "key_dim", c->key_dim));
    LW_RETURN_IF_FAILED(check_flag(at, "keys_in_turn", c->keys_in_turn));
    LW_RETURN_IF_FAILED(check_range(at, "conv_bias", c->conv_bias, 0, c->kind == LW_SSD));
    LW_RETURN_IF_FAILED(
        check_range(at, "norm_size", c->norm_size, 0, c->kind == LW_SSD ? c->n_heads * c->value_dim : 0));
    LW_RETURN_IF_FAILED(check_number(at, "norm_eps", (double)c->norm_eps, 0, 1));
    if (c->n_heads % c->n_key_heads != 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %s%u heads cannot share %u key heads evenly", at->text,
                       c->n_heads, c->n_key_heads);
    if (c->norm_size > 0 && c->n_heads * c->value_dim % c->norm_size != 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %snorm_size is %u, must divide %u", at->text, c->norm_size,
                       c->n_heads * c->value_dim);
    return LW_OK;
}

static lw_status check_state(const lw_model_config* model, uint32_t layer) {
    const lw_state_config* c = &model->layers[layer].state;
    place at;
    snprintf(at.text, sizeof at.text, "layer %u state: ", layer);
    LW_RETURN_IF_FAILED(check_range(&at, "kind", (uint64_t)c->kind, 0, model->pooled ? LW_NO_STATE : LW_SSD));
    if (c->kind == LW_NO_STATE) return check_absent(&at, "state", c, sizeof *c);
    LW_RETURN_IF_FAILED(check_range(&at, "taps", c->taps, 2, 8));
    if (c->kind != LW_SHORT_CONV) return check_state_heads(&at, c);
    lw_state_config rest = *c;
    rest.kind = LW_NO_STATE;
    rest.taps = 0;
    return check_absent(&at, "head", &rest, sizeof rest);
}

static lw_status check_router(const place* at, const lw_ffn_config* c) {
    LW_RETURN_IF_FAILED(check_range(at, "router", (uint64_t)c->router, 0, LW_ROUTER_SIGMOID));
    LW_RETURN_IF_FAILED(check_flag(at, "router_bias", c->router_bias));
    LW_RETURN_IF_FAILED(check_flag(at, "choice_bias", c->choice_bias));
    LW_RETURN_IF_FAILED(check_flag(at, "renormalize", c->renormalize));
    LW_RETURN_IF_FAILED(check_range(at, "n_groups", c->n_groups, 1, c->n_experts));
    LW_RETURN_IF_FAILED(check_range(at, "groups_used", c->groups_used, 1, c->n_groups));
    LW_RETURN_IF_FAILED(check_flag(at, "groups_by_best", c->groups_by_best));
    LW_RETURN_IF_FAILED(check_number(at, "divisor_extra", (double)c->divisor_extra, 0, 1));
    LW_RETURN_IF_FAILED(check_number(at, "divisor_least", (double)c->divisor_least, 0, 1));
    LW_RETURN_IF_FAILED(check_number(at, "scale", (double)c->scale, 1e-6, 1e6));
    if (c->n_experts % c->n_groups != 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %s%u experts do not make %u equal groups", at->text,
                       c->n_experts, c->n_groups);
    return check_range(at, "n_used", c->n_used, 1, c->n_experts / c->n_groups * c->groups_used);
}

// All experts' outputs are rows of one matrix.
static lw_status check_experts(const place* at, const lw_model_config* model, const lw_ffn_config* c) {
    LW_RETURN_IF_FAILED(check_range(at, "n_experts", c->n_experts, 1, 4096));
    LW_RETURN_IF_FAILED(check_range(at, "n_used", c->n_used, 1, 64));
    LW_RETURN_IF_FAILED(check_router(at, c));
    LW_RETURN_IF_FAILED(check_range(at, "shared_size", c->shared_size, 0, 1 << 19));
    LW_RETURN_IF_FAILED(check_flag(at, "shared_gate", c->shared_gate));
    LW_RETURN_IF_FAILED(check_flag(at, "ungated", c->ungated));
    LW_RETURN_IF_FAILED(check_range(at, "n_experts * size", (uint64_t)c->n_experts * c->size, 1, 1 << 30));
    LW_RETURN_IF_FAILED(
        check_range(at, "n_experts * hidden_size", (uint64_t)c->n_experts * model->hidden_size, 1, 1 << 30));
    if (c->own_norms && (c->shared_size == 0 || c->shared_gate || c->bias || c->down_bias))
        return lw_fail(
            LW_ERR_ARGUMENT,
            "model config: %sown_norms is 1, must be 0 with biases, a gate of the shared expert or without one",
            at->text);
    if (c->size % LW_PANEL != 0 || c->shared_size % LW_PANEL != 0 || model->hidden_size % LW_PANEL != 0)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %ssize %u, shared_size %u and hidden_size %u must be multiples of %d", at->text,
                       c->size, c->shared_size, model->hidden_size, LW_PANEL);
    return LW_OK;
}

static lw_status check_norms(const place* at, const lw_model_config* model, const lw_layer_config* c) {
    const bool has_mixer = c->attention.n_heads > 0 || c->state.kind != LW_NO_STATE;
    LW_RETURN_IF_FAILED(check_range(at, "attn_norm_replaces", c->attn_norm_replaces, 0, has_mixer));
    LW_RETURN_IF_FAILED(check_range(at, "ffn_norm_replaces", c->ffn_norm_replaces, 0, c->ffn.kind != LW_FFN_NONE));
    LW_RETURN_IF_FAILED(check_flag(at, "result_norms", c->result_norms));
    if (c->result_norms && c->attention.n_heads > 0 && c->state.kind != LW_NO_STATE)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %sresult_norms is 1, must be 0 with attention beside a state",
                       at->text);
    LW_RETURN_IF_FAILED(check_range(at, "no_input_norms", c->no_input_norms, 0, c->result_norms));
    const bool replaces = c->attn_norm_replaces || c->ffn_norm_replaces;
    const bool beside = c->attention.n_heads > 0 && c->ffn.kind != LW_FFN_NONE && !replaces;
    LW_RETURN_IF_FAILED(check_range(at, "wiring", (uint64_t)c->wiring, 0, beside ? LW_PARALLEL_ONE_NORM : LW_IN_TURN));
    LW_RETURN_IF_FAILED(check_number(at, "output_scale", (double)c->output_scale, 0, 1e6));
    if (c->no_input_norms && replaces)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %sno_input_norms is 1, must be 0 where a norm replaces x",
                       at->text);
    const bool biases = c->attention.output_bias || c->ffn.bias || c->ffn.down_bias || model->norm_bias;
    if (c->ffn.own_norms && (!c->result_norms || c->wiring != LW_IN_TURN || c->ffn_norm_replaces || c->no_input_norms))
        return lw_fail(
            LW_ERR_ARGUMENT,
            "model config: %sown_norms is 1, must be 0 without result_norms, beside attention, and where norms"
            " replace or are missing",
            at->text);
    if (c->result_norms && (biases || (c->ffn.kind == LW_FFN_EXPERTS && !c->ffn.own_norms)))
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %sresult_norms is 1, must be 0 with experts, biases of results or norms",
                       at->text);
    return LW_OK;
}

// Of a layer without an FFN, in the place of check_ffn.
static lw_status check_nothing_else(const place* at, const lw_model_config* model, uint32_t layer) {
    const lw_layer_config* c = &model->layers[layer];
    if (c->attention.n_heads == 0 && c->state.kind == LW_NO_STATE)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %skind is %d, and the layer has neither attention nor a state",
                       at->text, (int)c->ffn.kind);
    lw_ffn_config rest = c->ffn;
    rest.kind = LW_FFN_GATED;  // which is 0
    LW_RETURN_IF_FAILED(check_absent(at, "FFN", &rest, sizeof rest));
    return check_norms(at, model, c);
}

static lw_status check_ffn(const lw_model_config* model, uint32_t layer) {
    const lw_ffn_config* c = &model->layers[layer].ffn;
    place at;
    snprintf(at.text, sizeof at.text, "layer %u FFN: ", layer);
    LW_RETURN_IF_FAILED(check_range(&at, "kind", (uint64_t)c->kind, 0, LW_FFN_NONE));
    if (c->kind == LW_FFN_NONE) return check_nothing_else(&at, model, layer);
    LW_RETURN_IF_FAILED(check_range(&at, "size", c->size, 1, 1 << 19));
    LW_RETURN_IF_FAILED(check_flag(&at, "bias", c->bias));
    LW_RETURN_IF_FAILED(check_range(&at, "down_bias", c->down_bias, 0, c->kind != LW_FFN_EXPERTS || !c->bias));
    LW_RETURN_IF_FAILED(check_range(&at, "own_norms", c->own_norms, 0, c->kind == LW_FFN_EXPERTS));
    const bool of_dense = c->activation == LW_TANH || c->activation == LW_IDENTITY;
    const lw_activation last = c->kind == LW_FFN_EXPERTS ? LW_RELU_SQUARED : LW_XIELU;
    LW_RETURN_IF_FAILED(check_range(&at, "activation", (uint64_t)c->activation, 0, of_dense ? LW_RELU : last));
    LW_RETURN_IF_FAILED(check_norms(&at, model, &model->layers[layer]));
    if (c->activation == LW_CLAMPED_SWIGLU) {
        if (c->kind == LW_FFN_PLAIN || c->ungated)
            return lw_fail(LW_ERR_ARGUMENT, "model config: %sactivation is %d, which needs a gate", at.text,
                           (int)c->activation);
        LW_RETURN_IF_FAILED(check_number(&at, "limit", (double)c->limit, 1e-3, 1e6));
        LW_RETURN_IF_FAILED(check_number(&at, "alpha", (double)c->alpha, 1e-3, 1e3));
    }
    if (c->activation == LW_XIELU) {
        LW_RETURN_IF_FAILED(check_number(&at, "limit", (double)c->limit, 1e-6, 1e6));
        LW_RETURN_IF_FAILED(check_number(&at, "alpha", (double)c->alpha, 1e-6, 1e6));
    }
    if (c->kind == LW_FFN_EXPERTS) return check_experts(&at, model, c);
    return check_range(&at, "n_experts", c->n_experts, 0, 0);
}

static lw_status check_pooled(const place* at, const lw_model_config* c) {
    LW_RETURN_IF_FAILED(check_range(at, "norm", (uint64_t)c->norm, 0, LW_NORM_LAYER));
    LW_RETURN_IF_FAILED(check_range(at, "norm_bias", c->norm_bias, 0, c->norm == LW_NORM_LAYER));
    LW_RETURN_IF_FAILED(check_flag(at, "pooled", c->pooled));
    LW_RETURN_IF_FAILED(check_range(at, "n_token_types", c->n_token_types, 0, c->pooled ? 1 << 16 : 0));
    LW_RETURN_IF_FAILED(check_range(at, "n_positions", c->n_positions, 0, c->context_length));
    LW_RETURN_IF_FAILED(check_range(at, "n_dense", c->n_dense, 0, c->pooled ? LW_MAX_DENSE : 0));
    if (c->n_positions != 0 && c->n_positions != c->context_length)
        return lw_fail(LW_ERR_ARGUMENT, "model config: n_positions is %u, must be 0 or context_length (%u)",
                       c->n_positions, c->context_length);
    if (c->dense == NULL && c->n_dense > 0) return lw_fail(LW_ERR_ARGUMENT, "model config: dense must not be NULL");
    for (uint32_t i = 0; i < c->n_dense; ++i) {
        place dense;
        snprintf(dense.text, sizeof dense.text, "dense head %u: ", i);
        LW_RETURN_IF_FAILED(check_range(&dense, "outputs", c->dense[i].outputs, 1, 1 << 17));
        LW_RETURN_IF_FAILED(check_flag(&dense, "bias", c->dense[i].bias));
        LW_RETURN_IF_FAILED(check_flag(&dense, "norm", c->dense[i].norm));
        LW_RETURN_IF_FAILED(check_range(&dense, "activation", (uint64_t)c->dense[i].activation, 0, LW_RELU_SQUARED));
        if (c->dense[i].activation == LW_CLAMPED_SWIGLU)
            return lw_fail(LW_ERR_ARGUMENT, "model config: %sactivation needs a gate", dense.text);
    }
    return LW_OK;
}

static lw_status check_mtp(const lw_model_config* c, uint32_t layer) {
    const lw_layer_config* l = &c->layers[layer];
    place at;
    snprintf(at.text, sizeof at.text, "layer %u: ", layer);
    LW_RETURN_IF_FAILED(check_range(&at, "mtp", l->mtp, 0, layer > 0 && layer + 1 == c->n_layers && !c->pooled));
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

static lw_status check_per_layer(const lw_model_config* c) {
    static const place model = {""};
    LW_RETURN_IF_FAILED(check_range(&model, "per_layer_size", c->per_layer_size, 0, c->pooled ? 0 : 4096));
    LW_RETURN_IF_FAILED(check_range(&model, "n_layers * per_layer_size", (uint64_t)c->n_layers * c->per_layer_size, 0,
                                    c->per_layer_size > 0 ? 1 << 24 : 0));
    for (uint32_t i = 0; c->per_layer_size > 0 && i < c->n_layers; ++i) {
        const lw_ffn_config* f = &c->layers[i].ffn;
        if (f->kind == LW_FFN_NONE || f->activation == LW_CLAMPED_SWIGLU || f->activation == LW_XIELU)
            return lw_fail(LW_ERR_ARGUMENT,
                           "model config: layer %u: per_layer_size is %u, it must have an FFN without a clamped or"
                           " xIELU activation",
                           i, c->per_layer_size);
    }
    return LW_OK;
}

// Caches are planned for a few sizes of keys and values (kv_groups.c).
static lw_status check_kv_sizes(const lw_model_config* c) {
    enum { MOST = 16 };
    const lw_attention_config* found[MOST];
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_layers; ++i) {
        const lw_attention_config* a = &c->layers[i].attention;
        uint32_t at = 0;
        while (at < n && (found[at]->n_kv_heads != a->n_kv_heads || lw_key_dim(found[at]) != lw_key_dim(a) ||
                          lw_result_dim(found[at]) != lw_result_dim(a)))
            ++at;
        if (a->n_heads == 0 || at < n) continue;
        if (n == MOST)
            return lw_fail(LW_ERR_ARGUMENT,
                           "model config: layer %u: %u KV heads of %u, layers before have %d other sizes already", i,
                           a->n_kv_heads, lw_key_dim(a), MOST);
        found[n++] = a;
    }
    return LW_OK;
}

lw_status lw_check_config(const lw_model_config* c) {
    static const place model = {""};
    LW_RETURN_IF_FAILED(check_pooled(&model, c));
    LW_RETURN_IF_FAILED(check_range(&model, "n_layers", c->n_layers, 1, 1000));
    LW_RETURN_IF_FAILED(check_range(&model, "hidden_size", c->hidden_size, 1, 1 << 17));
    LW_RETURN_IF_FAILED(check_range(&model, "vocab_size", c->vocab_size, 1, 1 << 24));
    LW_RETURN_IF_FAILED(check_range(&model, "context_length", c->context_length, 1, 1 << 28));
    LW_RETURN_IF_FAILED(check_range(&model, "n_ropes", c->n_ropes, 0, LW_MAX_ROPES));
    if (!(c->rms_norm_eps >= 0 && c->rms_norm_eps < 1))
        return lw_fail(LW_ERR_ARGUMENT, "model config: rms_norm_eps is %g, must be 0 to 1", (double)c->rms_norm_eps);
    LW_RETURN_IF_FAILED(check_number(&model, "embedding_scale", (double)c->embedding_scale, 1e-6, 1e6));
    LW_RETURN_IF_FAILED(check_number(&model, "logit_scale", (double)c->logit_scale, 1e-6, 1e6));
    LW_RETURN_IF_FAILED(check_number(&model, "logit_softcap", (double)c->logit_softcap, 0, c->pooled ? 0 : 1e6));
    LW_RETURN_IF_FAILED(check_range(&model, "output_bias", c->output_bias, 0, !c->pooled));
    if (c->layers == NULL || (c->ropes == NULL && c->n_ropes > 0))
        return lw_fail(LW_ERR_ARGUMENT, "model config: layers and ropes must not be NULL");
    const lw_attention_config* first = NULL;
    for (uint32_t i = c->n_layers; i-- > 0;)
        if (c->layers[i].attention.n_heads > 0) first = &c->layers[i].attention;
    if (first == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "model config: none of %u layers has attention, one must have", c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; ++i) {
        LW_RETURN_IF_FAILED(c->layers[i].attention.n_heads > 0 ? check_attention(c, i, first)
                                                               : check_no_attention(c, i));
        LW_RETURN_IF_FAILED(check_state(c, i));
        LW_RETURN_IF_FAILED(check_ffn(c, i));
        LW_RETURN_IF_FAILED(check_mtp(c, i));
    }
    for (uint32_t i = 0; i < c->n_ropes; ++i) LW_RETURN_IF_FAILED(check_rope(&c->ropes[i], i));
    LW_RETURN_IF_FAILED(check_per_layer(c));
    return check_kv_sizes(c);
}
