// The kind of layers with experts: their configuration, tensors and buffers. What they compute is in mixture.c.
#include <string.h>

#include "kinds/kind.h"
#include "kinds/route.h"

static lw_status check_router(const lw_place* at, const lw_ffn_config* c) {
    LW_RETURN_IF_FAILED(lw_check_range(at, "router", (uint64_t)c->router, 0, LW_ROUTER_SQRT_SOFTPLUS));
    LW_RETURN_IF_FAILED(lw_check_flag(at, "router_bias", c->router_bias));
    LW_RETURN_IF_FAILED(lw_check_flag(at, "choice_bias", c->choice_bias));
    LW_RETURN_IF_FAILED(lw_check_flag(at, "renormalize", c->renormalize));
    LW_RETURN_IF_FAILED(lw_check_range(at, "n_groups", c->n_groups, 1, c->n_experts));
    LW_RETURN_IF_FAILED(lw_check_range(at, "groups_used", c->groups_used, 1, c->n_groups));
    LW_RETURN_IF_FAILED(lw_check_flag(at, "groups_by_best", c->groups_by_best));
    LW_RETURN_IF_FAILED(lw_check_number(at, "divisor_extra", (double)c->divisor_extra, 0, 1));
    LW_RETURN_IF_FAILED(lw_check_number(at, "divisor_least", (double)c->divisor_least, 0, 1));
    LW_RETURN_IF_FAILED(lw_check_number(at, "scale", (double)c->scale, 1e-6, 1e6));
    if (c->n_experts % c->n_groups != 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %s%u experts do not make %u equal groups", at->text,
                       c->n_experts, c->n_groups);
    LW_RETURN_IF_FAILED(lw_check_range(at, "looks_up", c->looks_up, 0, c->n_groups == 1 && !c->choice_bias));
    return lw_check_range(at, "n_used", c->n_used, 1, c->n_experts / c->n_groups * c->groups_used);
}

// The matrices of all experts are stacked, so the number of their rows is bounded, too.
static lw_status check_experts(const lw_model_config* model, uint32_t layer) {
    const lw_ffn_config* c = &model->layers[layer].ffn;
    if (c->kind != LW_FFN_EXPERTS) return LW_OK;
    const lw_place at = lw_place_of_layer(layer, " FFN");
    LW_RETURN_IF_FAILED(lw_check_range(&at, "n_experts", c->n_experts, 1, 4096));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "n_used", c->n_used, 1, 64));
    LW_RETURN_IF_FAILED(check_router(&at, c));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "shared_size", c->shared_size, 0, 1 << 19));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "shared_gate", c->shared_gate, 0, c->shared_size > 0));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "ungated", c->ungated));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "weighs_inputs", c->weighs_inputs, 0, !c->bias && !c->own_norms));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "n_experts * size", (uint64_t)c->n_experts * c->size, 1, 1 << 30));
    LW_RETURN_IF_FAILED(
        lw_check_range(&at, "n_experts * hidden_size", (uint64_t)c->n_experts * model->hidden_size, 1, 1 << 30));
    if (c->own_norms && (c->shared_size == 0 || c->shared_gate || c->bias || c->down_bias))
        return lw_fail(
            LW_ERR_ARGUMENT,
            "model config: %sown_norms is 1, must be 0 with biases, a gate of the shared expert or without one",
            at.text);
    LW_RETURN_IF_FAILED(lw_check_range(&at, "latent_size", c->latent_size, 0, model->hidden_size));
    if (c->latent_size % LW_PANEL != 0 || (c->latent_size > 0 && (c->own_norms || c->bias || c->down_bias)))
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %slatent_size is %u, must be a multiple of %d, and 0 with biases or own_norms",
                       at.text, c->latent_size, LW_PANEL);
    if (c->size % LW_PANEL != 0 || c->shared_size % LW_PANEL != 0 || model->hidden_size % LW_PANEL != 0)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %ssize %u, shared_size %u and hidden_size %u must be multiples of %d", at.text,
                       c->size, c->shared_size, model->hidden_size, LW_PANEL);
    return LW_OK;
}

static lw_tensor_spec experts_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t hidden = model->hidden_size;
    const lw_ffn_config* c = &l->ffn;
    const bool here = c->kind == LW_FFN_EXPERTS, bias = here && c->bias, shared = here && c->shared_size > 0;
    const bool gated = here && !c->ungated;
    const bool own_norms = here && c->own_norms;
    const uint32_t n = c->n_experts, latent = c->latent_size, width = lw_routed_width(c, hidden);
    switch (role) {
        case LW_ROUTER:
            return LW_MATRIX(router, "router", n, hidden, here);
        case LW_ROUTER_TABLE:
            return LW_VECTOR(router_table, "experts of tokens", model->vocab_size * c->n_used, here && c->looks_up);
        case LW_ROUTER_BIAS:
            return LW_VECTOR(router_bias, "router bias", n, here && c->router_bias);
        case LW_ROUTER_CHOICE_BIAS:
            return LW_VECTOR(choice_bias, "router choice bias", n, here && c->choice_bias);
        case LW_EXPERTS_GATE:
            return LW_MATRIX(experts_gate, "experts' gate", n * c->size, width, gated);
        case LW_EXPERTS_UP:
            return LW_MATRIX(experts_up, "experts' up", n * c->size, width, here);
        case LW_EXPERTS_DOWN:
            return LW_MATRIX(experts_down, "experts' down", n * width, c->size, here);
        case LW_EXPERTS_IN:
            return LW_MATRIX(experts_in, "experts' input", latent, hidden, here && latent > 0);
        case LW_EXPERTS_OUT:
            return LW_MATRIX(experts_out, "experts' output", hidden, latent, here && latent > 0);
        case LW_EXPERTS_GATE_BIAS:
            return LW_VECTOR(gate_bias, "experts' gate bias", n * c->size, bias && gated);
        case LW_EXPERTS_UP_BIAS:
            return LW_VECTOR(up_bias, "experts' up bias", n * c->size, bias);
        case LW_EXPERTS_DOWN_BIAS:
            return LW_VECTOR(down_bias, "experts' down bias", n * hidden, bias);
        case LW_SHARED_GATE:
            return LW_MATRIX(gate, "shared gate", c->shared_size, hidden, shared && gated);
        case LW_SHARED_UP:
            return LW_MATRIX(up, "shared up", c->shared_size, hidden, shared);
        case LW_SHARED_DOWN:
            return LW_MATRIX(down, "shared down", hidden, c->shared_size, shared);
        case LW_SHARED_ROUTER:
            return LW_VECTOR(shared_router, "shared router", hidden, shared && c->shared_gate);
        case LW_ROUTER_NORM:
            return LW_VECTOR(router_norm, "router norm", hidden, own_norms);
        case LW_EXPERTS_NORM:
            return LW_VECTOR(experts_norm, "experts' norm", hidden, own_norms);
        case LW_SHARED_RESULT_NORM:
            return LW_VECTOR(shared_result_norm, "norm of the shared expert's result", hidden, own_norms);
        case LW_EXPERTS_RESULT_NORM:
            return LW_VECTOR(experts_result_norm, "norm of the experts' result", hidden, own_norms);
        case LW_ROUTER_SCALES:
            return LW_VECTOR(router_scales, "router scales", n, own_norms);
        default:
            return (lw_tensor_spec){0};
    }
}

static bool has_experts(const lw_model_config* model, const lw_layer_config* layer) {
    (void)model;
    return layer->ffn.kind == LW_FFN_EXPERTS;
}

static void widen_experts(lw_session* s, const lw_layer* layer, uint32_t index) {
    (void)index;
    const lw_ffn_config* c = &layer->config.ffn;
    lw_experts_own* own = lw_experts_of(s);
    lw_widen(&own->n_experts, c->n_experts);
    lw_widen(&own->n_used, c->n_used);
    lw_widen(&own->size, c->size);
    lw_widen(&own->shared_size, c->shared_size);
    lw_widen(&own->latent, c->latent_size);
    own->float_inputs |= s->config.float_activations || !lw_is_quantized(layer->experts_up.type) ||
                         (!c->ungated && !lw_is_quantized(layer->experts_gate.type));
    lw_widen(&s->widths.inner, c->shared_size);
    lw_widen(&s->widths.input, c->shared_size);
    lw_widen(&s->widths.input, c->size);
    lw_widen(&s->widths.input, c->latent_size);
    lw_widen(&s->widths.adapted, c->shared_size);
}

static void take_experts(lw_session* s, lw_parts* parts) {
    lw_experts_own* e = lw_experts_of(s);
    const size_t rows = s->config.max_batch_tokens, chosen = rows * e->n_used, row = chosen * sizeof(float);
    const size_t groups = (e->n_experts < chosen ? e->n_experts : chosen) + 1;
    const size_t gathered = chosen + groups;  // one spare row for each group: codes of rows lie in pairs
    const size_t hidden = lw_round_up(s->widths.hidden, LW_SEGMENT), size = lw_round_up(e->size, LW_SEGMENT);
    const size_t shared = lw_round_up(e->shared_size, LW_SEGMENT);
    const size_t activated = chosen * size + rows * shared;
    e->tokens = lw_take(parts, rows * sizeof *e->tokens);
    e->scores = lw_take(parts, rows * e->n_experts * sizeof(float));
    e->experts = lw_take(parts, chosen * sizeof *e->experts);
    e->weights = lw_take(parts, rows * (e->n_used + 1) * sizeof(float));
    e->slots = lw_take(parts, chosen * sizeof *e->slots);
    e->sources = lw_take(parts, chosen * sizeof *e->sources);
    e->row_weights = lw_take(parts, row);
    e->counts = lw_take(parts, e->n_experts * sizeof *e->counts);
    e->groups = lw_take(parts, groups * sizeof *e->groups);
    e->most_runs = (size > shared ? size : shared) / LW_SEGMENT;
    e->runs_done = lw_take(parts, groups * e->most_runs * sizeof *e->runs_done);
    e->in = lw_take_codes(parts, s->model, gathered, hidden);
    e->activated = lw_take_codes(parts, s->model, gathered, size);
    e->in_values = lw_take(parts, e->float_inputs ? row * s->widths.hidden : 0);
    e->latents = lw_take(parts, rows * e->latent * sizeof(float));
    e->latent_codes = lw_take_codes(parts, s->model, e->latent > 0 ? rows : 0, lw_round_up(e->latent, LW_SEGMENT));
    e->gate = lw_take(parts, activated * sizeof(float));
    e->up = lw_take(parts, activated * sizeof(float));
    e->out = lw_take(parts, row * s->widths.hidden + rows * sizeof(float) * (shared > 0 ? s->widths.hidden : 0));
}

// Routers may look tokens up, also those of the rows that are kept.
static void copy_tokens(lw_session* s, const lw_batch* batch) {
    memcpy(lw_experts_of(s)->tokens, s->b.token, batch->query_start[batch->n_seqs] * sizeof *s->b.token);
}

static void keep_tokens(lw_worker* w, const lw_layer* layer) {
    (void)layer;
    const lw_batch* batch = w->step->batch;
    uint32_t* tokens = lw_experts_of(w->s)->tokens;
    for (size_t i = 0; i < batch->n_logits; ++i) tokens[i] = tokens[batch->logit_rows[i]];
}

const lw_kind lw_kind_experts = {.check = check_experts,
                                 .tensor = experts_tensor,
                                 .has = has_experts,
                                 .own_bytes = sizeof(lw_experts_own),
                                 .widen = widen_experts,
                                 .take = take_experts,
                                 .prepare = copy_tokens,
                                 .keep = keep_tokens,
                                 .run = lw_run_experts};
