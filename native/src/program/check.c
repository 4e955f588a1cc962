#include <math.h>
#include <stdio.h>

#include "kinds/kinds.h"

// With smaller factors, f64 could not split the angles of all positions into an exact integer and a remainder.
static const float least_rope_factor = 1e-6f;

static lw_status check_rope(const lw_rope* rope, uint32_t index) {
    lw_place at;
    snprintf(at.text, sizeof at.text, "rope %u: ", index);
    LW_RETURN_IF_FAILED(lw_check_range(&at, "rotated", rope->rotated, 2, LW_MAX_HEAD_DIM));
    if (rope->rotated % 2 != 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %srotated is %u, must be even", at.text, rope->rotated);
    LW_RETURN_IF_FAILED(lw_check_number(&at, "theta", rope->theta, 1, 1e15));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "scale", (double)rope->scale, 1e-3, 1e3));
    for (uint32_t i = 0; rope->factors != NULL && i < rope->rotated / 2; ++i)
        if (!(rope->factors[i] >= least_rope_factor && isfinite(rope->factors[i])))
            return lw_fail(LW_ERR_ARGUMENT, "model config: %sfactors[%u] is %g, must be finite and at least 1e-6",
                           at.text, i, (double)rope->factors[i]);
    for (uint32_t i = 0; i < rope->rotated / 2; ++i) {
        if (rope->axes != NULL) LW_RETURN_IF_FAILED(lw_check_range(&at, "axes", rope->axes[i], 0, LW_AXES - 1));
        if (rope->frequencies != NULL)
            LW_RETURN_IF_FAILED(lw_check_number(&at, "frequencies", (double)rope->frequencies[i], 0, 1));
    }
    return LW_OK;
}

static lw_status check_pooled(const lw_place* at, const lw_model_config* c) {
    LW_RETURN_IF_FAILED(lw_check_range(at, "norm", (uint64_t)c->norm, 0, LW_NORM_LAYER));
    LW_RETURN_IF_FAILED(lw_check_range(at, "norm_bias", c->norm_bias, 0, c->norm == LW_NORM_LAYER));
    LW_RETURN_IF_FAILED(lw_check_flag(at, "pooled", c->pooled));
    LW_RETURN_IF_FAILED(lw_check_range(at, "n_token_types", c->n_token_types, 0, c->pooled ? 1 << 16 : 0));
    LW_RETURN_IF_FAILED(lw_check_range(at, "n_positions", c->n_positions, 0, 1 << 28));
    LW_RETURN_IF_FAILED(lw_check_range(at, "n_dense", c->n_dense, 0, c->pooled ? LW_MAX_DENSE : 0));
    if (c->n_positions != 0 && c->n_positions != c->context_length && !lw_is_tower(c))
        return lw_fail(LW_ERR_ARGUMENT, "model config: n_positions is %u, must be 0 or context_length (%u)",
                       c->n_positions, c->context_length);
    if (c->dense == NULL && c->n_dense > 0) return lw_fail(LW_ERR_ARGUMENT, "model config: dense must not be NULL");
    for (uint32_t i = 0; i < c->n_dense; ++i) {
        lw_place dense;
        snprintf(dense.text, sizeof dense.text, "dense head %u: ", i);
        LW_RETURN_IF_FAILED(lw_check_range(&dense, "outputs", c->dense[i].outputs, 1, 1 << 17));
        LW_RETURN_IF_FAILED(lw_check_range(&dense, "input_norm", c->dense[i].input_norm, 0, LW_INPUT_LAYER));
        LW_RETURN_IF_FAILED(lw_check_number(&dense, "input_eps", (double)c->dense[i].input_eps, 0, 1));
        LW_RETURN_IF_FAILED(lw_check_flag(&dense, "bias", c->dense[i].bias));
        LW_RETURN_IF_FAILED(lw_check_flag(&dense, "norm", c->dense[i].norm));
        LW_RETURN_IF_FAILED(lw_check_range(&dense, "activation", (uint64_t)c->dense[i].activation, 0, LW_RELU_SQUARED));
        if (c->dense[i].activation == LW_CLAMPED)
            return lw_fail(LW_ERR_ARGUMENT, "model config: %sactivation needs a gate", dense.text);
    }
    return LW_OK;
}

static lw_status check_tower_layer(const lw_layer_config* l, uint32_t index) {
    const lw_attention_config* a = &l->attention;
    const bool sees_all =
        a->n_heads > 0 && a->both_ways && a->window == 0 && a->latent_rank == 0 && !a->alibi && !a->distances;
    const bool has_ffn = l->ffn.kind == LW_FFN_GATED || l->ffn.kind == LW_FFN_PLAIN;
    if (sees_all && has_ffn && l->state.kind == LW_NO_STATE && l->wiring == LW_IN_TURN) return LW_OK;
    return lw_fail(LW_ERR_ARGUMENT,
                   "model config: layer %u of a tower: it must have attention both ways to all patches, and an"
                   " FFN without experts, in turn",
                   index);
}

static lw_status check_taps(const lw_place* at, const lw_model_config* c) {
    const lw_patches* p = &c->patches;
    const uint32_t most = c->n_layers < LW_PICTURE_TAPS ? c->n_layers : LW_PICTURE_TAPS;
    LW_RETURN_IF_FAILED(lw_check_range(at, "patches.n_taps", p->n_taps, 0, most));
    const uint32_t groups = 1 + p->n_taps, group = c->n_dense / groups;
    LW_RETURN_IF_FAILED(lw_check_multiple(at, "n_dense beside taps", c->n_dense, groups));
    for (uint32_t i = 0; i < p->n_taps; ++i) {
        const uint32_t least = i == 0 ? 0 : p->taps[i - 1] + 1, last = (i + 2) * group - 1;
        LW_RETURN_IF_FAILED(lw_check_range(at, "patches.taps", p->taps[i], least, c->n_layers - 1));
        const uint32_t outputs = c->dense[group - 1].outputs;
        LW_RETURN_IF_FAILED(lw_check_range(at, "outputs of a tap", c->dense[last].outputs, outputs, outputs));
    }
    return LW_OK;
}

static uint32_t square_root(uint32_t n) { return (uint32_t)sqrt((double)n); }

static lw_status check_tower(const lw_place* at, const lw_model_config* c) {
    const lw_patches* p = &c->patches;
    static const lw_patches none = {0};
    if (p->side == 0) return lw_check_absent(at, "patches", p, sizeof none);
    LW_RETURN_IF_FAILED(lw_check_range(at, "patches.side", p->side, 1, 64));
    LW_RETURN_IF_FAILED(lw_check_range(at, "patches.merge", p->merge, 1, 8));
    LW_RETURN_IF_FAILED(lw_check_flag(at, "patches.bias", p->bias));
    LW_RETURN_IF_FAILED(lw_check_range(at, "pooled beside patches", c->pooled, 1, 1));
    LW_RETURN_IF_FAILED(lw_check_range(at, "n_token_types beside patches", c->n_token_types, 0, 0));
    LW_RETURN_IF_FAILED(lw_check_range(at, "per_layer_size beside patches", c->per_layer_size, 0, 0));
    LW_RETURN_IF_FAILED(lw_check_range(at, "n_dense beside patches", c->n_dense, 1, LW_MAX_DENSE));
    LW_RETURN_IF_FAILED(lw_check_range(at, "patches.positions", p->positions, 0, LW_POSITIONS_TABLES));
    LW_RETURN_IF_FAILED(lw_check_flag(at, "patches.norm", p->norm));
    LW_RETURN_IF_FAILED(lw_check_range(at, "patches.norm_first", p->norm_first, 0, p->norm));
    LW_RETURN_IF_FAILED(lw_check_range(at, "patches.input_norm", p->input_norm, 0, c->norm == LW_NORM_LAYER));
    LW_RETURN_IF_FAILED(lw_check_flag(at, "patches.no_output_norm", p->no_output_norm));
    LW_RETURN_IF_FAILED(lw_check_number(at, "patches.output_eps", (double)p->output_eps, 0, 1));
    LW_RETURN_IF_FAILED(lw_check_flag(at, "patches.mean_of_block", p->mean_of_block));
    LW_RETURN_IF_FAILED(check_taps(at, c));
    const uint32_t root = square_root(c->n_positions);
    if (p->positions == LW_POSITIONS_TABLES)
        LW_RETURN_IF_FAILED(lw_check_multiple(at, "n_positions", c->n_positions, 2));
    if (p->positions != LW_POSITIONS_TABLES && root * root != c->n_positions)
        return lw_fail(LW_ERR_ARGUMENT, "model config: n_positions is %u, must be a square", c->n_positions);
    LW_RETURN_IF_FAILED(lw_check_number(at, "patches.mean_factor", (double)p->mean_factor, 0, 1e6));
    LW_RETURN_IF_FAILED(lw_check_range(at, "patches.shifts_mean", p->shifts_mean, 0, p->mean_of_block));
    for (int i = 0; i < 3; ++i) {
        LW_RETURN_IF_FAILED(lw_check_number(at, "patches.mean", (double)p->mean[i], 0, 1));
        LW_RETURN_IF_FAILED(lw_check_number(at, "patches.deviation", (double)p->deviation[i], 1e-3, 1e3));
    }
    for (uint32_t i = 0; i < c->n_layers; ++i) LW_RETURN_IF_FAILED(check_tower_layer(&c->layers[i], i));
    return LW_OK;
}

// Bounds the number of different sizes of keys and values, for which kv_groups.c has room.
static lw_status check_kv_sizes(const lw_model_config* c) {
    enum { MOST = 16 };
    const lw_attention_config* found[MOST];
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_layers; ++i) {
        const lw_attention_config* a = &c->layers[i].attention;
        uint32_t at = 0;
        while (at < n && (found[at]->n_kv_heads != a->n_kv_heads || lw_key_dim(found[at]) != lw_key_dim(a) ||
                          lw_result_dim(found[at]) != lw_result_dim(a) || found[at]->compress != a->compress ||
                          found[at]->overlap != a->overlap || found[at]->index_dim != a->index_dim))
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

lw_status lw_program_check(const lw_model_config* c) {
    if (c == NULL) return lw_fail(LW_ERR_ARGUMENT, "lw_program_check: config must not be NULL");
    static const lw_place model = {""};
    LW_RETURN_IF_FAILED(check_pooled(&model, c));
    LW_RETURN_IF_FAILED(lw_check_range(&model, "n_layers", c->n_layers, !lw_is_tower(c), 1000));
    LW_RETURN_IF_FAILED(lw_check_range(&model, "hidden_size", c->hidden_size, 1, 1 << 17));
    LW_RETURN_IF_FAILED(
        lw_check_range(&model, "vocab_size", c->vocab_size, !lw_is_tower(c), lw_is_tower(c) ? 0 : 1 << 24));
    LW_RETURN_IF_FAILED(lw_check_range(&model, "context_length", c->context_length, 1, 1 << 28));
    LW_RETURN_IF_FAILED(lw_check_range(&model, "n_ropes", c->n_ropes, 0, LW_MAX_ROPES));
    if (!(c->rms_norm_eps >= 0 && c->rms_norm_eps < 1))
        return lw_fail(LW_ERR_ARGUMENT, "model config: rms_norm_eps is %g, must be 0 to 1", (double)c->rms_norm_eps);
    LW_RETURN_IF_FAILED(lw_check_number(&model, "result_eps", (double)c->result_eps, 0, 1));
    LW_RETURN_IF_FAILED(
        lw_check_range(&model, "embedding_norm", c->embedding_norm, 0, c->norm == LW_NORM_RMS && !lw_is_tower(c)));
    LW_RETURN_IF_FAILED(lw_check_number(&model, "embedding_scale", (double)c->embedding_scale, 1e-6, 1e6));
    LW_RETURN_IF_FAILED(lw_check_number(&model, "logit_scale", (double)c->logit_scale, 1e-6, 1e6));
    LW_RETURN_IF_FAILED(lw_check_number(&model, "logit_softcap", (double)c->logit_softcap, 0, c->pooled ? 0 : 1e6));
    LW_RETURN_IF_FAILED(lw_check_range(&model, "output_bias", c->output_bias, 0, !c->pooled));
    if (c->layers == NULL || (c->ropes == NULL && c->n_ropes > 0))
        return lw_fail(LW_ERR_ARGUMENT, "model config: layers and ropes must not be NULL");
    uint32_t attending = 0;
    for (uint32_t i = 0; i < c->n_layers; ++i) attending += c->layers[i].attention.n_heads > 0;
    if (attending == 0 && c->n_layers > 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: none of %u layers has attention, one must have", c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; ++i)
        for (size_t kind = 0; kind < LW_N_KINDS; ++kind) LW_RETURN_IF_FAILED(lw_kinds[kind]->check(c, i));
    LW_RETURN_IF_FAILED(check_tower(&model, c));
    const bool ends_with_attention = !c->pooled && c->layers[c->n_layers - 1].attention.n_heads > 0;
    LW_RETURN_IF_FAILED(lw_check_range(&model, "n_taps", c->n_taps, 0, ends_with_attention ? c->n_layers - 1 : 0));
    for (uint32_t i = 0; i < c->n_ropes; ++i) LW_RETURN_IF_FAILED(check_rope(&c->ropes[i], i));
    return check_kv_sizes(c);
}
