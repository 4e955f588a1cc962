// Layers with a state: short convolutions, gated delta rules, state space duality (SSD). recur.c computes them.
#include "kinds/recur.h"

// Checks one dimension of a head's state.
static lw_status check_side(const lw_place* at, const char* field, uint32_t size) {
    LW_RETURN_IF_FAILED(lw_check_range(at, field, size, 16, 256));
    if (size % 16 == 0) return LW_OK;
    return lw_fail(LW_ERR_ARGUMENT, "model config: %s%s is %u, must be a multiple of 16", at->text, field, size);
}

static lw_status check_state_heads(const lw_place* at, const lw_state_config* c) {
    LW_RETURN_IF_FAILED(lw_check_range(at, "n_heads", c->n_heads, 1, 1024));
    LW_RETURN_IF_FAILED(lw_check_range(at, "n_key_heads", c->n_key_heads, 1, c->n_heads));
    LW_RETURN_IF_FAILED(check_side(at, "value_dim", c->value_dim));
    LW_RETURN_IF_FAILED(check_side(at, "key_dim", c->key_dim));
    LW_RETURN_IF_FAILED(lw_check_flag(at, "keys_in_turn", c->keys_in_turn));
    LW_RETURN_IF_FAILED(lw_check_range(at, "conv_bias", c->conv_bias, 0, c->kind == LW_SSD));
    LW_RETURN_IF_FAILED(
        lw_check_range(at, "norm_size", c->norm_size, 0, c->kind == LW_SSD ? c->n_heads * c->value_dim : 0));
    LW_RETURN_IF_FAILED(lw_check_number(at, "norm_eps", (double)c->norm_eps, 0, 1));
    const bool channels = c->kind == LW_CHANNEL_DELTA;
    LW_RETURN_IF_FAILED(lw_check_range(at, "decay_rank", c->decay_rank, 0, channels ? 1 << 16 : 0));
    LW_RETURN_IF_FAILED(lw_check_range(at, "gate_rank", c->gate_rank, 0, channels ? 1 << 16 : 0));
    LW_RETURN_IF_FAILED(lw_check_number(at, "decay_floor", (double)c->decay_floor, 0, channels ? 80 : 0));
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
    const lw_place at = lw_place_of_layer(layer, " state");
    const bool possible = !model->pooled && model->norm == LW_NORM_RMS;
    LW_RETURN_IF_FAILED(lw_check_range(&at, "kind", (uint64_t)c->kind, 0, possible ? LW_CHANNEL_DELTA : LW_NO_STATE));
    if (c->kind == LW_NO_STATE) return lw_check_absent(&at, "state", c, sizeof *c);
    LW_RETURN_IF_FAILED(lw_check_range(&at, "taps", c->taps, 2, 8));
    if (c->kind != LW_SHORT_CONV) return check_state_heads(&at, c);
    lw_state_config rest = *c;
    rest.kind = LW_NO_STATE;
    rest.taps = 0;
    return lw_check_absent(&at, "head", &rest, sizeof rest);
}

static lw_tensor_spec state_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t hidden = model->hidden_size;
    const lw_state_config* c = &l->state;
    const bool here = c->kind != LW_NO_STATE, heads = here && c->kind != LW_SHORT_CONV, ssd = c->kind == LW_SSD,
               each = c->kind == LW_CHANNEL_DELTA;
    const uint32_t keys = c->n_key_heads * c->key_dim;
    const uint32_t channels = lw_state_channels(c, hidden), inner = lw_state_inner(c, hidden);
    switch (role) {
        case LW_STATE_IN:
            return LW_MATRIX(state_in, "state input", each ? keys : lw_state_width(c, hidden), hidden, here);
        case LW_STATE_KEYS:
            return LW_MATRIX(state_keys, "state keys", keys, hidden, each);
        case LW_STATE_VALUES:
            return LW_MATRIX(state_values, "state values", inner, hidden, each);
        case LW_STATE_GATE:
            return LW_MATRIX(state_gate, "state gate", inner, c->gate_rank > 0 ? c->gate_rank : hidden, heads);
        case LW_STATE_GATE_DOWN:
            return LW_MATRIX(state_gate_down, "state gate down", c->gate_rank, hidden, c->gate_rank > 0);
        case LW_STATE_DECAY:
            return LW_MATRIX(state_decay, "state decay", lw_state_decays(c), c->decay_rank > 0 ? c->decay_rank : hidden,
                             heads);
        case LW_STATE_DECAY_DOWN:
            return LW_MATRIX(state_decay_down, "state decay down", c->decay_rank, hidden, c->decay_rank > 0);
        case LW_STATE_BETA:
            return LW_MATRIX(state_beta, "state beta", c->n_heads, hidden, lw_is_delta(c));
        case LW_STATE_CONV:
            return LW_VECTOR(state_conv, "state convolution", channels * c->taps, here);
        case LW_STATE_CONV_BIAS:
            return LW_VECTOR(state_conv_bias, "state convolution bias", channels, c->conv_bias);
        case LW_STATE_DECAY_BIAS:
            return LW_VECTOR(state_decay_bias, "state decay bias", lw_state_decays(c), heads);
        case LW_STATE_RATE:
            return LW_VECTOR(state_rate, "state rate", c->n_heads, heads);
        case LW_STATE_SKIP:
            return LW_VECTOR(state_skip, "state skip", c->n_heads, ssd);
        case LW_STATE_NORM:
            return LW_VECTOR(state_norm, "state norm", ssd ? inner : c->value_dim,
                             lw_is_delta(c) || (ssd && c->norm_size > 0));
        case LW_STATE_OUT:
            return LW_MATRIX(state_out, "state output", hidden, inner, here);
        default:
            return (lw_tensor_spec){0};
    }
}

static bool has_state(const lw_model_config* model, const lw_layer_config* layer) {
    (void)model;
    return layer->state.kind != LW_NO_STATE;
}

static size_t kept_of_state(const lw_model_config* model, const lw_layer_config* layer, uint32_t max_guesses) {
    return lw_lay_out_state(&layer->state, model->hidden_size, max_guesses).end;
}

static size_t before_guesses(const lw_model_config* model, const lw_layer_config* layer) {
    return lw_lay_out_state(&layer->state, model->hidden_size, 0).decay;
}

static void widen_state(lw_session* s, const lw_layer* layer, uint32_t index) {
    (void)index;
    const lw_state_config* c = &layer->config.state;
    lw_state_own* own = lw_state_of(s);
    const size_t inner = lw_state_inner(c, s->model->config.hidden_size);
    lw_widen(&own->in_width, lw_state_width(c, s->model->config.hidden_size));
    lw_widen(&own->inner, inner);
    lw_widen(&s->widths.input, inner);
    lw_widen(&s->widths.adapted, inner);
    if (c->kind == LW_SHORT_CONV) return;
    lw_widen(&own->gate_width, inner);
    lw_widen(&own->n_heads, c->n_heads);
    lw_widen(&own->decays, lw_state_decays(c));
    lw_widen(&own->decay_rank, c->decay_rank);
    lw_widen(&own->gate_rank, c->gate_rank);
    lw_widen(&s->widths.input, c->decay_rank);
    if (s->config.max_guesses > 0)  // one piece of a head's state
        lw_widen(&s->widths.scratch, c->key_dim * LW_RECUR_COLUMNS * sizeof(float));
}

static void take_state(lw_session* s, lw_parts* parts) {
    lw_state_own* own = lw_state_of(s);
    const size_t row = s->config.max_batch_tokens * sizeof(float);
    const size_t accepted = (size_t)s->config.n_states * s->config.max_guesses * sizeof(float);
    own->in = lw_take(parts, row * own->in_width);
    own->result = lw_take(parts, row * own->inner);
    own->gate = lw_take(parts, row * own->gate_width);
    own->decay = lw_take(parts, row * own->decays);
    own->decay_down = lw_take(parts, row * own->decay_rank);
    own->gate_down = lw_take(parts, row * own->gate_rank);
    own->gate_codes = lw_take_codes(parts, s->model, own->gate_rank > 0 ? s->config.max_batch_tokens : 0,
                                    lw_round_up(own->gate_rank, LW_SEGMENT));
    own->beta = lw_take(parts, row * own->n_heads);
    own->accepted_in = lw_take(parts, accepted * (own->n_heads > 0 ? own->in_width : 0));
    own->accepted_decay = lw_take(parts, accepted * own->decays);
    own->accepted_beta = lw_take(parts, accepted * own->n_heads);
}

// In the place of a matrix that does not read norm(x).
static const lw_matrix none;

static size_t state_inputs(const lw_worker* w, const lw_layer* layer, lw_mixer_input* found) {
    const lw_state_own* own = lw_state_of(w->s);
    const lw_state_config* c = &layer->config.state;
    const size_t width = lw_state_width(c, w->c->hidden_size), keys = (size_t)c->n_key_heads * c->key_dim;
    const lw_mixer_input all[] = {
        {&layer->state_in, own->in, LW_ADAPTED_STATE_IN, width},
        {&layer->state_keys, own->in + keys, LW_ADAPTED_STATE_KEYS, width},
        {&layer->state_values, own->in + 2 * keys, LW_ADAPTED_STATE_VALUES, width},
        {&layer->state_gate_down, own->gate_down, LW_ADAPTED_COUNT, 0},
        {c->gate_rank > 0 ? &none : &layer->state_gate, own->gate, LW_ADAPTED_STATE_GATE, 0},
        {&layer->state_decay_down, own->decay_down, LW_ADAPTED_COUNT, 0},
        {c->decay_rank > 0 ? &none : &layer->state_decay, own->decay, LW_ADAPTED_STATE_DECAY, 0},
        {&layer->state_beta, own->beta, LW_ADAPTED_STATE_BETA, 0}};
    size_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)  // an absent matrix has 0 rows
        if (all[i].matrix->rows > 0) found[n++] = all[i];
    return n;
}

static void keep_state(lw_worker* w, const lw_layer* layer) {
    const lw_state_own* own = lw_state_of(w->s);
    lw_keep_rows(own->result, layer->state_out.cols, w->step->batch);
    if (layer->state_gate.rows > 0) lw_keep_rows(own->gate, layer->state_out.cols, w->step->batch);
}

const lw_kind lw_kind_state = {.check = check_state,
                               .tensor = state_tensor,
                               .has = has_state,
                               .kept_floats = kept_of_state,
                               .before_guesses = before_guesses,
                               .own_bytes = sizeof(lw_state_own),
                               .widen = widen_state,
                               .take = take_state,
                               .inputs = state_inputs,
                               .first_adapted = LW_ADAPTED_STATE_IN,
                               .n_adapted = LW_ADAPTED_STATE_BETA + 1 - LW_ADAPTED_STATE_IN,
                               .mix = lw_recur,
                               .add = lw_add_state,
                               .keep = keep_state};
