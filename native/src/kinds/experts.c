// The FFN of a layer with experts. Each expert works on the rows that have chosen it, as on a batch of its own.
//
// Each row is quantized once, and its codes are gathered into one group for each expert. The shared expert is a group
// of all rows. All groups go through gate and up in one phase, and through down in another. Each pair of row and expert
// has a result of its own. A row's results are added in the order in which it chose its experts, so they do not depend
// on other rows.
#include <string.h>

#include "graph/observe.h"
#include "kinds/ffn.h"
#include "kinds/route.h"

static lw_status check_router(const lw_place* at, const lw_ffn_config* c) {
    LW_RETURN_IF_FAILED(lw_check_range(at, "router", (uint64_t)c->router, 0, LW_ROUTER_SIGMOID));
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
    LW_RETURN_IF_FAILED(lw_check_range(&at, "n_experts * size", (uint64_t)c->n_experts * c->size, 1, 1 << 30));
    LW_RETURN_IF_FAILED(
        lw_check_range(&at, "n_experts * hidden_size", (uint64_t)c->n_experts * model->hidden_size, 1, 1 << 30));
    if (c->own_norms && (c->shared_size == 0 || c->shared_gate || c->bias || c->down_bias))
        return lw_fail(
            LW_ERR_ARGUMENT,
            "model config: %sown_norms is 1, must be 0 with biases, a gate of the shared expert or without one",
            at.text);
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
    const uint32_t n = c->n_experts;
    switch (role) {
        case LW_ROUTER:
            return LW_MATRIX(router, "router", n, hidden, here);
        case LW_ROUTER_BIAS:
            return LW_VECTOR(router_bias, "router bias", n, here && c->router_bias);
        case LW_ROUTER_CHOICE_BIAS:
            return LW_VECTOR(choice_bias, "router choice bias", n, here && c->choice_bias);
        case LW_EXPERTS_GATE:
            return LW_MATRIX(experts_gate, "experts' gate", n * c->size, hidden, gated);
        case LW_EXPERTS_UP:
            return LW_MATRIX(experts_up, "experts' up", n * c->size, hidden, here);
        case LW_EXPERTS_DOWN:
            return LW_MATRIX(experts_down, "experts' down", n * hidden, c->size, here);
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
    own->float_inputs |= s->config.float_activations || !lw_is_quantized(layer->experts_up.type) ||
                         (!c->ungated && !lw_is_quantized(layer->experts_gate.type));
    lw_widen(&s->widths.inner, c->shared_size);
    lw_widen(&s->widths.input, c->shared_size);
    lw_widen(&s->widths.input, c->size);
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
    e->scores = lw_take(parts, rows * e->n_experts * sizeof(float));
    e->experts = lw_take(parts, chosen * sizeof *e->experts);
    e->weights = lw_take(parts, rows * (e->n_used + 1) * sizeof(float));
    e->slots = lw_take(parts, chosen * sizeof *e->slots);
    e->sources = lw_take(parts, chosen * sizeof *e->sources);
    e->counts = lw_take(parts, e->n_experts * sizeof *e->counts);
    e->groups = lw_take(parts, groups * sizeof *e->groups);
    e->most_runs = (size > shared ? size : shared) / LW_SEGMENT;
    e->runs_done = lw_take(parts, groups * e->most_runs * sizeof *e->runs_done);
    e->in = lw_take_codes(parts, s->model, gathered, hidden);
    e->activated = lw_take_codes(parts, s->model, gathered, size);
    e->in_values = lw_take(parts, e->float_inputs ? row * s->widths.hidden : 0);
    e->gate = lw_take(parts, activated * sizeof(float));
    e->up = lw_take(parts, activated * sizeof(float));
    e->out = lw_take(parts, row * s->widths.hidden + rows * sizeof(float) * (shared > 0 ? s->widths.hidden : 0));
}

static bool is_shared(const lw_expert_group* group) { return group->expert == LW_SHARED_EXPERT; }

static size_t chosen_rows(const lw_worker* w, const lw_layer* layer) { return w->rows * layer->config.ffn.n_used; }

static size_t size_of(const lw_layer* layer, const lw_expert_group* group) {
    return is_shared(group) ? layer->config.ffn.shared_size : layer->config.ffn.size;
}

// The input of a group's gate and up. If the batch has one row, it is not gathered.
static lw_activations input_of(const lw_worker* w, const lw_expert_group* group, const lw_activations* x) {
    const lw_experts_own* e = lw_experts_of(w->s);
    if (is_shared(group) || w->rows == 1) return *x;
    const size_t hidden = w->c->hidden_size;
    return lw_activations_at(w, group->rows, hidden, &e->in, group->place, e->in_values + group->first * hidden);
}

// Start of a group's results in a buffer that has `size` floats for each row of an expert.
static float* part_of(const lw_worker* w, const lw_layer* layer, const lw_expert_group* group, float* buffer,
                      size_t size) {
    return buffer + (is_shared(group) ? chosen_rows(w, layer) : group->first) * size;
}

// The input of a group's down projection.
static lw_activations activated_of(const lw_worker* w, const lw_layer* layer, const lw_expert_group* group) {
    const lw_experts_own* e = lw_experts_of(w->s);
    const size_t size = size_of(layer, group), whole = lw_round_up(layer->config.ffn.size, LW_SEGMENT);
    const float* values = part_of(w, layer, group, e->gate, whole);
    if (is_shared(group)) return lw_activations_at(w, group->rows, size, &w->b->ffn_codes, 0, values);
    return lw_activations_at(w, group->rows, size, &e->activated, group->place, values);
}

// Number of matrices before down: gate and up, or up alone.
static size_t inner_matrices(const lw_layer* layer) { return layer->config.ffn.ungated ? 1 : 2; }

static lw_gate_up gate_up_of(lw_worker* w, const lw_layer* layer, size_t index, const lw_activations* x) {
    const lw_experts_own* e = lw_experts_of(w->s);
    const lw_expert_group* group = &e->groups[index];
    const bool shared = is_shared(group);
    const size_t size = size_of(layer, group), whole = lw_round_up(layer->config.ffn.size, LW_SEGMENT);
    lw_gate_up g = {.w = w,
                    .config = &layer->config.ffn,
                    .matrices = inner_matrices(layer),
                    .in = input_of(w, group, x),
                    .out = activated_of(w, layer, group),
                    .rows = group->rows,
                    .size = size,
                    .first_panel = shared ? 0 : group->expert * (size / LW_PANEL),
                    .gate_to = part_of(w, layer, group, e->gate, whole),
                    .up_to = part_of(w, layer, group, e->up, whole),
                    .runs_done = e->runs_done + index * e->most_runs,
                    .cuts = {1, group->rows},
                    .run = lw_run_of(group->rows),
                    .quantized = lw_reads_codes(w, shared ? &layer->down : &layer->experts_down)};
    const lw_matrix *gate = shared ? &layer->gate : &layer->experts_gate,
                    *up = shared ? &layer->up : &layer->experts_up;
    const float* up_bias = shared || layer->up_bias == NULL ? NULL : layer->up_bias + group->expert * size;
    if (g.matrices == 1) {
        g.gate = lw_product_of_rows(w, up, group->rows, g.gate_to, false);
        g.gate_bias = up_bias;
        return g;
    }
    g.gate = lw_product_of_rows(w, gate, group->rows, g.gate_to, false);
    g.up = lw_product_of_rows(w, up, group->rows, g.up_to, false);
    g.up_bias = up_bias;
    if (up_bias != NULL) g.gate_bias = layer->gate_bias + group->expert * size;
    return g;
}

static void gather(lw_worker* w, const lw_activations* x, bool codes, bool values) {
    const lw_experts_own* e = lw_experts_of(w->s);
    const size_t hidden = w->c->hidden_size;
    lw_taker items = lw_this_phase(w, e->n_groups);
    for (size_t i; lw_take_item(&items, &i);) {
        const lw_expert_group* group = &e->groups[i];
        if (is_shared(group)) continue;
        const lw_activations in = input_of(w, group, x);
        for (size_t row = 0; row < group->rows; ++row) {
            const size_t source = e->sources[group->first + row];
            if (codes) lw_copy_codes(&in, row, x, source);
            if (values) memcpy((float*)in.f32 + row * hidden, x->f32 + source * hidden, hidden * sizeof(float));
        }
        lw_charge_row(w, LW_OP_ROUTE, values ? 2 * group->rows * hidden : 0, codes ? 2 * group->rows * hidden : 0);
    }
    lw_end_phase(w, LW_OP_ROUTE);
}

// Computes panels first .. first + n - 1 of a group's down projection.
static void multiply_down(lw_worker* w, const lw_layer* layer, const lw_expert_group* group, size_t first, size_t n) {
    const size_t hidden = w->c->hidden_size, panels = hidden / LW_PANEL;
    const lw_matrix* down = is_shared(group) ? &layer->down : &layer->experts_down;
    const size_t before = is_shared(group) ? 0 : group->expert * panels;
    const lw_activations x = activated_of(w, layer, group);
    // Kernels add panel number * LW_PANEL to the row's address. Here panels of earlier experts are subtracted.
    float* to = part_of(w, layer, group, lw_experts_of(w->s)->out, hidden) - before * LW_PANEL;
    const lw_product p = lw_product_of_rows(w, down, group->rows, to, false);
    const lw_matmul_worker self = {w->scratch, w->profile, LW_OP_DOWN};
    const lw_rows rows = {0, group->rows};
    for (size_t panel = first; panel < first + n; ++panel) {
        lw_product_panel(&p, &x, rows, before + panel, (lw_output){to, hidden, false}, w->scratch);
        lw_matmul_charge(&self, &p, &x, rows, panel);
    }
}

// Number of work items of a group in a phase: panels of gate and up, or of down.
static size_t items_of(const lw_worker* w, const lw_layer* layer, const lw_expert_group* group,
                       lw_operation operation) {
    if (operation == LW_OP_DOWN) return w->c->hidden_size / LW_PANEL;
    return inner_matrices(layer) * size_of(layer, group) / LW_PANEL;
}

static void take_items(lw_worker* w, const lw_layer* layer, size_t index, const lw_activations* x,
                       lw_operation operation, size_t first, size_t n) {
    if (operation == LW_OP_DOWN) {
        multiply_down(w, layer, &lw_experts_of(w->s)->groups[index], first, n);
        return;
    }
    lw_gate_up g = gate_up_of(w, layer, index, x);
    lw_gate_up_take(&g, first, first + n);
}

// A phase over groups first .. last - 1: gate and up, or down.
static void multiply_groups(lw_worker* w, const lw_layer* layer, const lw_activations* x, lw_operation operation,
                            size_t first, size_t last) {
    const lw_experts_own* e = lw_experts_of(w->s);
    size_t begin, end, all = 0;
    for (size_t i = first; i < last; ++i) all += items_of(w, layer, &e->groups[i], operation);
    lw_taker items = lw_this_phase(w, all);
    while (lw_take_share(&items, &begin, &end)) {
        size_t before = 0;  // items of the groups before group i
        for (size_t i = first; before < end; ++i) {
            const size_t n = items_of(w, layer, &e->groups[i], operation);
            const size_t from = begin > before ? begin - before : 0, to = end - before < n ? end - before : n;
            if (from < to) take_items(w, layer, i, x, operation, from, to - from);
            before += n;
        }
    }
    const size_t matrices = operation == LW_OP_DOWN ? 1 : inner_matrices(layer);
    for (size_t i = first; i < last; ++i) lw_count_products(w, matrices, e->groups[i].rows);
    lw_end_phase(w, operation);
}

enum { COMBINED_COLS = 512 };

// x += the weighted sum of a row's results, columns first .. first + n - 1.
static void combine_part(lw_worker* w, const lw_layer* layer, size_t row, size_t first, size_t n) {
    const lw_experts_own* e = lw_experts_of(w->s);
    const lw_ffn_config* c = &layer->config.ffn;
    const size_t hidden = w->c->hidden_size, used = c->n_used;
    const float* weights = e->weights + row * (used + 1);
    float sum[COMBINED_COLS] = {0};
    for (size_t i = 0; i < used; ++i) {
        float* result = e->out + e->slots[row * used + i] * hidden + first;
        if (c->bias) lw_add_vector(result, layer->down_bias + e->experts[row * used + i] * hidden + first, n);
        w->ops->add_weighted(sum, result, n, weights[i]);
    }
    if (c->shared_size > 0)
        w->ops->add_weighted(sum, e->out + (chosen_rows(w, layer) + row) * hidden + first, n, weights[used]);
    if (c->down_bias) lw_add_vector(sum, layer->down_bias + first, n);
    lw_add_vector(w->b->x + row * hidden + first, sum, n);
}

static void combine(lw_worker* w, const lw_layer* layer) {
    const size_t hidden = w->c->hidden_size, parts = (hidden + COMBINED_COLS - 1) / COMBINED_COLS;
    lw_taker items = lw_this_phase(w, w->rows * parts);
    for (size_t item; lw_take_item(&items, &item);) {
        const size_t first = item % parts * COMBINED_COLS, left = hidden - first;
        const size_t n = left < COMBINED_COLS ? left : COMBINED_COLS;
        combine_part(w, layer, item / parts, first, n);
        lw_charge_row(w, LW_OP_COMBINE, n * (layer->config.ffn.n_used + 2), 0);
    }
    lw_end_phase(w, LW_OP_COMBINE);
}

// x += a row's results. With own_norms there is a norm of the experts' sum, one of the shared expert's result, and one
// of both together.
static void combine_normed(lw_worker* w, const lw_layer* layer, size_t row) {
    const lw_experts_own* e = lw_experts_of(w->s);
    const size_t hidden = w->c->hidden_size, used = layer->config.ffn.n_used;
    const float* weights = e->weights + row * (used + 1);
    float *sum = w->b->norm + row * hidden, *shared = e->out + (chosen_rows(w, layer) + row) * hidden;
    memset(sum, 0, hidden * sizeof *sum);
    for (size_t i = 0; i < used; ++i)
        w->ops->add_weighted(sum, e->out + e->slots[row * used + i] * hidden, hidden, weights[i]);
    lw_normalize_row(w, sum, sum, layer->experts_result_norm, NULL, hidden);
    lw_normalize_row(w, shared, shared, layer->shared_result_norm, NULL, hidden);
    lw_add_vector(sum, shared, hidden);
    lw_normalize_row(w, sum, sum, layer->ffn_result_norm, NULL, hidden);
    lw_add_vector(w->b->x + row * hidden, sum, hidden);
}

// The router, the shared expert and the routed experts each read x through a norm of their own. The norms share a
// buffer, so each one is computed when the result of the one before has been read.
static void experts_with_norms(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const bool gated = !layer->config.ffn.ungated;
    const lw_matrix *shared[] = {&layer->up, gated ? &layer->gate : &layer->up},
                    *inputs[] = {&layer->experts_up, gated ? &layer->experts_gate : &layer->experts_up};
    lw_activations x = lw_normalize(w, LW_OP_FFN_NORM, (lw_norm){.weight = layer->router_norm, .scale = 1}, false);
    lw_route(w, layer, &x);
    const lw_norm before_shared = lw_norm_before_ffn(w, layer, NULL);
    x = lw_normalize(w, LW_OP_FFN_NORM, before_shared, lw_any_reads_codes(w, shared, 2));
    multiply_groups(w, layer, &x, LW_OP_GATE_UP, 0, 1);
    const bool codes = lw_any_reads_codes(w, inputs, 2),
               values = !lw_reads_codes(w, inputs[0]) || !lw_reads_codes(w, inputs[1]);
    x = lw_normalize(w, LW_OP_FFN_NORM, (lw_norm){.weight = layer->experts_norm, .scale = 1}, codes);
    lw_observe(w, LW_OP_GATE_UP, index, lw_inputs_of(&x));
    if (w->rows > 1) gather(w, &x, codes, values);
    multiply_groups(w, layer, &x, LW_OP_GATE_UP, 1, lw_experts_of(w->s)->n_groups);
    multiply_groups(w, layer, &x, LW_OP_DOWN, 0, lw_experts_of(w->s)->n_groups);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        combine_normed(w, layer, row);
        lw_charge_row(w, LW_OP_COMBINE, w->c->hidden_size * (layer->config.ffn.n_used + 5), 0);
    }
    lw_end_phase(w, LW_OP_COMBINE);
}

static void run_experts(lw_worker* w, const lw_layer* layer, uint32_t index) {
    if (layer->config.ffn.own_norms) {
        experts_with_norms(w, layer, index);
        return;
    }
    const bool gated = !layer->config.ffn.ungated;
    const lw_matrix* inputs[] = {&layer->experts_up, gated ? &layer->experts_gate : &layer->experts_up, &layer->up,
                                 gated ? &layer->gate : &layer->up};
    const size_t n_inputs = layer->config.ffn.shared_size > 0 ? 4 : 2;
    const bool codes = lw_any_reads_codes(w, inputs, n_inputs);
    const bool values = !lw_reads_codes(w, inputs[0]) || !lw_reads_codes(w, inputs[1]);
    const lw_norm by = lw_norm_before_ffn(w, layer, NULL);
    const lw_activations x = lw_normalize(w, LW_OP_FFN_NORM, by, codes);
    lw_observe(w, LW_OP_GATE_UP, index, lw_inputs_of(&x));
    lw_route(w, layer, &x);
    if (w->rows > 1) gather(w, &x, codes, values);
    multiply_groups(w, layer, &x, LW_OP_GATE_UP, 0, lw_experts_of(w->s)->n_groups);
    multiply_groups(w, layer, &x, LW_OP_DOWN, 0, lw_experts_of(w->s)->n_groups);
    combine(w, layer);
}

const lw_kind lw_kind_experts = {.check = check_experts,
                                 .tensor = experts_tensor,
                                 .has = has_experts,
                                 .own_bytes = sizeof(lw_experts_own),
                                 .widen = widen_experts,
                                 .take = take_experts,
                                 .run = run_experts};
